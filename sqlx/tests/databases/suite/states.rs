//! States of rows, and who may move them.

use std::time::Duration;

use tokio::time::{sleep, timeout};
use tower_idempotency_sqlx::{Move, Moved, StateColumn, states};

use super::{Db, open, run};

states! {
    /// What has become of an order.
    enum Order {
        Pending = "PENDING" => Processing,
        Processing = "PROCESSING" => Done | Failed,
        Done = "DONE",
        Failed = "FAILED",
    }
}

const ORDERS: StateColumn<Order> = StateColumn::new("orders", "id", "status");
const START: Move<Order> = Order::Pending.to(Order::Processing);
const FINISH: Move<Order> = Order::Processing.to(Order::Done);
const SOON: Duration = Duration::from_secs(60);

async fn orders() -> (sqlx::Pool<Db>, impl Sized) {
    let (pool, held) = open().await;
    let table = "CREATE TABLE orders (id VARCHAR(40) PRIMARY KEY, status VARCHAR(40) NOT NULL)";
    run(&pool, table).await;
    run(&pool, "INSERT INTO orders VALUES ('O-1', 'PENDING'), ('O-2', 'LOST')").await;
    (pool, held)
}

#[tokio::test]
async fn a_move_is_made_once_and_says_what_it_found() {
    let (pool, _held) = orders().await;
    let id = String::from("O-1");
    let mut tx = pool.begin().await.unwrap();
    let early = ORDERS.advance(&mut tx, FINISH, &id).await.unwrap();
    assert_eq!(early, Moved::Already(Order::Pending));
    assert_eq!(ORDERS.advance(&mut tx, START, &id).await.unwrap(), Moved::Now);
    assert_eq!(ORDERS.lock(&mut tx, &id).await.unwrap(), Some(Order::Processing));
    let again = ORDERS.advance(&mut tx, START, &id).await.unwrap();
    assert_eq!(again, Moved::Already(Order::Processing));
    assert_eq!(ORDERS.advance(&mut tx, FINISH, "O-1").await.unwrap(), Moved::Now);
    assert_eq!(ORDERS.advance(&mut tx, START, "O-9").await.unwrap(), Moved::Missing);
    assert_eq!(ORDERS.lock(&mut tx, "O-9").await.unwrap(), None);
    let error = ORDERS.advance(&mut tx, START, "O-2").await.unwrap_err();
    assert!(error.is_unknown_state() && error.to_string().contains("\"LOST\""), "{error}");
    tx.commit().await.unwrap();

    let mut tx = pool.begin().await.unwrap();
    assert_eq!(ORDERS.lock(&mut tx, "O-1").await.unwrap(), Some(Order::Done));
}

#[tokio::test]
async fn a_move_that_was_rolled_back_was_not_made() {
    let (pool, _held) = orders().await;
    let mut tx = pool.begin().await.unwrap();
    assert_eq!(ORDERS.advance(&mut tx, START, "O-1").await.unwrap(), Moved::Now);
    tx.rollback().await.unwrap();
    let mut tx = pool.begin().await.unwrap();
    assert_eq!(ORDERS.advance(&mut tx, START, "O-1").await.unwrap(), Moved::Now);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_twenty_that_move_at_once_one_does() {
    let (pool, _held) = orders().await;
    let tasks: Vec<_> = (0..20)
        .map(|_| {
            let pool = pool.clone();
            tokio::spawn(async move {
                let mut tx = pool.begin().await.unwrap();
                let moved = ORDERS.advance(&mut tx, START, "O-1").await.unwrap();
                tx.commit().await.unwrap();
                moved
            })
        })
        .collect();
    let mut now = 0;
    for task in tasks {
        match timeout(SOON, task).await.expect("it does not hang").unwrap() {
            Moved::Now => now += 1,
            Moved::Already(state) => assert_eq!(state, Order::Processing),
            Moved::Missing => panic!("it is there"),
        }
    }
    assert_eq!(now, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn who_comes_second_waits_and_sees_the_state_that_was_committed() {
    let (pool, _held) = orders().await;
    let mut tx = pool.begin().await.unwrap();
    assert_eq!(ORDERS.advance(&mut tx, START, "O-1").await.unwrap(), Moved::Now);
    let second_pool = pool.clone();
    let second = tokio::spawn(async move {
        let mut tx = second_pool.begin().await.unwrap();
        ORDERS.advance(&mut tx, START, "O-1").await.unwrap()
    });
    sleep(Duration::from_millis(300)).await;
    assert!(!second.is_finished(), "it does not wait");
    assert_eq!(ORDERS.advance(&mut tx, FINISH, "O-1").await.unwrap(), Moved::Now);
    tx.commit().await.unwrap();
    let second = timeout(SOON, second).await.expect("it does not hang").unwrap();
    assert_eq!(second, Moved::Already(Order::Done));
}

#[tokio::test]
async fn an_id_that_is_not_unique_is_an_error() {
    let (pool, _held) = open().await;
    run(&pool, "CREATE TABLE orders (id VARCHAR(40), status VARCHAR(40))").await;
    run(&pool, "INSERT INTO orders VALUES ('O-1', 'PENDING'), ('O-1', 'PENDING')").await;
    let mut tx = pool.begin().await.unwrap();
    let error = ORDERS.advance(&mut tx, START, "O-1").await.unwrap_err();
    assert!(error.to_string().contains("2 rows of orders have the same id"), "{error}");
}
