//! Work that is not HTTP, with its row in its own transaction: the gap between effect and record closes.

use std::{future::pending, time::Duration};

use sqlx::Pool;
use tokio::sync::oneshot;
use tower_idempotency::{
    Answer, Idempotent, MemoryStore, Operation, Policy, Rule,
    execute::{Done, RunError},
};
use tower_idempotency_sqlx::Entry;

use super::{DEDUP, Db, count, open, run_in};

/// Where a process dies in its work.
#[derive(Clone, Copy, PartialEq)]
enum Dies {
    Before,
    After,
    Never,
}

type Told = Box<dyn std::error::Error + Send + Sync>;

/// The work of a job: enter, charge, commit with the receipt. Dying, it says so and does nothing more.
async fn charge(
    pool: Pool<Db>,
    operation: Operation,
    dies: Dies,
    dead: Option<oneshot::Sender<()>>,
) -> Result<String, Told> {
    let die = async move || {
        if let Some(dead) = dead {
            let _ = dead.send(());
        }
        pending::<()>().await;
    };
    let mut tx = pool.begin().await?;
    let row = match DEDUP.enter(&mut tx, &operation).await? {
        Entry::New(row) => row,
        Entry::Done(answer) => return Ok(answer.value()?),
        Entry::Mismatch => return Err("another delivery's".into()),
    };
    run_in(&mut tx, "INSERT INTO charges VALUES ('U-7')").await;
    let receipt = format!("receipt {}", operation.attempt());
    if dies == Dies::Before {
        // What is not committed goes with the connection of whoever dies.
        drop((row, tx));
        die().await;
        unreachable!("nobody comes back from that");
    }
    row.commit(tx, Answer::of_value(&receipt)?).await?;
    if dies == Dies::After {
        die().await;
    }
    Ok(receipt)
}

fn jobs(store: &MemoryStore, policy: Policy) -> Idempotent {
    Idempotent::new(store.clone(), Rule::new("charge", policy))
}

/// What the next process finds when one has died, and how many charges there are.
async fn after_a_death(dies: Dies, asked: bool) -> (Result<Done<String>, RunError<Told>>, i64) {
    let (pool, _held) = open().await;
    let store = MemoryStore::new();
    // One that gives no sign of life after 200 ms, as the dead do not.
    let brief = Duration::from_millis(200);
    let doomed = jobs(&store, Policy::job().lease(brief).max_run(brief));
    let (send, dead) = oneshot::channel();
    let theirs = pool.clone();
    let work = async move |operation| charge(theirs, operation, dies, Some(send)).await;
    let doomed = tokio::spawn(doomed.run("O-1", None, work));
    dead.await.unwrap();
    tokio::time::sleep(3 * brief).await;

    let mut policy = Policy::job();
    if asked {
        policy = policy.ledger(DEDUP.ledger(&pool));
    }
    let next = jobs(&store, policy);
    let ours = pool.clone();
    let work = async move |operation| charge(ours, operation, Dies::Never, None).await;
    let came = next.run("O-1", None, work).await;
    let charges = count(&pool, "charges").await;
    doomed.abort();
    (came, charges)
}

#[tokio::test]
async fn a_job_that_died_after_its_commit_is_answered_from_its_row() {
    let (came, charges) = after_a_death(Dies::After, true).await;
    assert_eq!(came.unwrap(), Done::Replayed("receipt 1".to_owned()));
    assert_eq!(charges, 1);
}

#[tokio::test]
async fn a_job_that_died_before_its_commit_runs_again() {
    let (came, charges) = after_a_death(Dies::Before, true).await;
    assert_eq!(came.unwrap(), Done::Executed("receipt 2".to_owned()));
    assert_eq!(charges, 1);
}

#[tokio::test]
async fn with_nobody_to_ask_the_table_a_job_that_died_is_unknown() {
    for (dies, expected) in [(Dies::Before, 0), (Dies::After, 1)] {
        let (came, charges) = after_a_death(dies, false).await;
        assert!(matches!(came, Err(RunError::Unknown)), "{came:?}");
        assert_eq!(charges, expected);
    }
}

#[tokio::test]
async fn a_store_that_has_forgotten_everything_charges_no_job_again() {
    let (pool, _held) = open().await;
    for _ in 0..3 {
        let ours = pool.clone();
        let work = async move |operation| charge(ours, operation, Dies::Never, None).await;
        let done = jobs(&MemoryStore::new(), Policy::job()).run("O-1", None, work).await.unwrap();
        assert_eq!(done, Done::Executed("receipt 1".to_owned()));
    }
    assert_eq!(count(&pool, "charges").await, 1);
}
