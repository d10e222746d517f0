//! What happens when several transactions do the same operation at the same time.

use std::time::Duration;

use tokio::{
    task::JoinHandle,
    time::{sleep, timeout},
};
use tower_idempotency::{Answer, Operation};
use tower_idempotency_sqlx::Entry;

use super::{DEDUP, Db, Handled, LEVELS, charge, count, kill, new, open, run_in};
use crate::operation::Delivery;

/// On a busy machine.
const SOON: Duration = Duration::from_secs(60);
/// So that a task has come to the lock. One that is slower makes a test weaker, and never fails it.
const TO_THE_LOCK: Duration = Duration::from_millis(300);

type Pool = sqlx::Pool<Db>;

/// Charges in a task of its own, and waits until it has had time to come to the lock.
async fn waiting(pool: &Pool, operation: &Operation) -> JoinHandle<Handled> {
    let (pool, operation) = (pool.clone(), operation.clone());
    let task = tokio::spawn(async move { charge(&pool, &operation, Answer::text("second")).await });
    sleep(TO_THE_LOCK).await;
    assert!(!task.is_finished(), "it does not wait for the first");
    task
}

async fn end<T>(task: JoinHandle<T>) -> T {
    timeout(SOON, task).await.expect("it does not hang").unwrap()
}

/// Charges, again where the database gives the transaction up, as a sender delivers again.
async fn retried(pool: &Pool, operation: &Operation, answer: Answer) -> Answer {
    for _ in 0..50 {
        let mut tx = pool.begin().await.unwrap();
        match DEDUP.enter(&mut tx, operation).await {
            Ok(Entry::New(row)) => {
                run_in(&mut tx, "INSERT INTO charges VALUES ('U-7')").await;
                return row.commit(tx, answer).await.unwrap();
            }
            Ok(Entry::Done(answer)) => return answer,
            Ok(Entry::Mismatch) => panic!("it is one order"),
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
    }
    panic!("given up 50 times");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn fifty_at_once_do_it_once_and_get_the_same_answer() {
    let (pool, _held) = open().await;
    let operation = Delivery::new("N-1").order("O-1").operation().await;
    let tasks: Vec<_> = (0..50)
        .map(|number| {
            let (pool, operation) = (pool.clone(), operation.clone());
            let answer = Answer::text(format!("success {number}"));
            tokio::spawn(async move { charge(&pool, &operation, answer).await })
        })
        .collect();
    let mut charged = Vec::new();
    let mut done = Vec::new();
    for task in tasks {
        match end(task).await {
            Handled::Charged(answer) => charged.push(answer),
            Handled::Done(answer) => done.push(answer),
            Handled::Mismatch => panic!("it is one operation"),
        }
    }
    assert_eq!((charged.len(), done.len()), (1, 49));
    assert!(done.iter().all(|answer| *answer == charged[0]));
    assert_eq!((count(&pool, "charges").await, count(&pool, "dedup").await), (1, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn fifty_new_delivery_ids_of_one_order_at_once_do_it_once() {
    let (pool, _held) = open().await;
    let mut tasks = Vec::new();
    for number in 0..50 {
        let id: &'static str = format!("N-{number}").leak();
        let operation = Delivery::new(id).order("O-1").operation().await;
        let pool = pool.clone();
        tasks.push(tokio::spawn(async move { retried(&pool, &operation, Answer::text(id)).await }));
    }
    let mut answers = Vec::new();
    for task in tasks {
        answers.push(end(task).await);
    }
    assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
    assert_eq!((count(&pool, "charges").await, count(&pool, "dedup").await), (1, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_second_one_waits_and_finds_the_answer() {
    let (pool, _held) = open().await;
    let operation = Delivery::new("N-1").operation().await;
    let mut tx = pool.begin().await.unwrap();
    let row = new(DEDUP.enter(&mut tx, &operation).await.unwrap());
    let second = waiting(&pool, &operation).await;
    row.commit(tx, Answer::text("first")).await.unwrap();
    assert_eq!(end(second).await, Handled::Done(Answer::text("first")));
    assert_eq!(count(&pool, "charges").await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_second_one_waits_and_is_new_when_the_first_rolls_back() {
    let (pool, _held) = open().await;
    let operation = Delivery::new("N-1").operation().await;
    let mut tx = pool.begin().await.unwrap();
    let row = new(DEDUP.enter(&mut tx, &operation).await.unwrap());
    run_in(&mut tx, "INSERT INTO charges VALUES ('U-7')").await;
    let second = waiting(&pool, &operation).await;
    row.release(tx).await.unwrap();
    assert_eq!(end(second).await, Handled::Charged(Answer::text("second")));
    assert_eq!(count(&pool, "charges").await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_second_one_waits_and_is_new_when_the_first_ones_connection_is_killed() {
    let (pool, _held) = open().await;
    let operation = Delivery::new("N-1").operation().await;
    let mut tx = pool.begin().await.unwrap();
    let _row = new(DEDUP.enter(&mut tx, &operation).await.unwrap());
    run_in(&mut tx, "INSERT INTO charges VALUES ('U-7')").await;
    let second = waiting(&pool, &operation).await;
    kill(&pool, tx).await;
    assert_eq!(end(second).await, Handled::Charged(Answer::text("second")));
    assert_eq!(count(&pool, "charges").await, 1);
}

/// One of those that wait does it. The database may give some of them up.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_many_that_wait_for_one_that_rolls_back_one_does_it() {
    let (pool, _held) = open().await;
    let operation = Delivery::new("N-1").order("O-1").operation().await;
    let mut tx = pool.begin().await.unwrap();
    let row = new(DEDUP.enter(&mut tx, &operation).await.unwrap());
    let tasks: Vec<_> = (0..20)
        .map(|number| {
            let (pool, operation) = (pool.clone(), operation.clone());
            let answer = Answer::text(number.to_string());
            tokio::spawn(async move { retried(&pool, &operation, answer).await })
        })
        .collect();
    sleep(TO_THE_LOCK).await;
    row.release(tx).await.unwrap();
    let mut answers = Vec::new();
    for task in tasks {
        answers.push(end(task).await);
    }
    assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
    assert_eq!(count(&pool, "charges").await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn under_every_isolation_level_a_second_one_waits_and_finds_the_answer() {
    for begin in LEVELS.iter().copied() {
        let (pool, _held) = open().await;
        let operation = Delivery::new("N-1").order("O-1").operation().await;
        let mut tx = pool.begin_with(begin).await.unwrap();
        let row = new(DEDUP.enter(&mut tx, &operation).await.unwrap());
        let (second_pool, second_operation) = (pool.clone(), operation.clone());
        let second = tokio::spawn(async move {
            let mut tx = second_pool.begin_with(begin).await.unwrap();
            match DEDUP.enter(&mut tx, &second_operation).await.unwrap() {
                Entry::Done(answer) => answer,
                other => panic!("{begin}: it should be done, and is {other:?}"),
            }
        });
        sleep(TO_THE_LOCK).await;
        assert!(!second.is_finished(), "{begin}: it does not wait for the first");
        row.commit(tx, Answer::text("first")).await.unwrap();
        assert_eq!(end(second).await, Answer::text("first"), "{begin}");
    }
}
