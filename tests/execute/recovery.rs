//! What was abandoned: settled by somebody who knows, by a table, or not at all.

use std::{
    collections::HashMap,
    io,
    sync::{Arc, Mutex},
};

use tower_idempotency::{
    Abandoned, Answer, Ledger, LedgerEntry, LedgerError, LedgerRow, Operation, Policy, Previous,
    Resolution, Sealed,
    execute::{Done, End, RunError},
    operations::{Operations, Settle, SettleErrorKind},
    store::{Cursor, StoreErrorKind},
    test_util::{Fault, Transition},
};

use crate::jobs::{Jobs, Ran, SECOND, assert_ran, executed, replayed};

/// A process that takes `k` with this policy and dies: its runtime ends in the middle of the work.
fn dies_with_k(jobs: &Jobs, policy: Policy) {
    let doomed = jobs.elsewhere(policy);
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (send, begun) = tokio::sync::oneshot::channel();
            let work = async move |_| {
                let _ = send.send(());
                std::future::pending::<Result<String, io::Error>>().await
            };
            tokio::spawn(doomed.jobs.run("k", None, work));
            begun.await.unwrap();
        });
    })
    .join()
    .unwrap();
}

fn brief() -> Policy {
    Policy::job().lease(SECOND / 5)
}

/// Jobs under `policy`, whose key `k` was abandoned by a process that died.
async fn abandoned(policy: Policy) -> Jobs {
    let jobs = Jobs::new(policy);
    dies_with_k(&jobs, brief());
    // It is the store's time that must pass.
    tokio::time::sleep(SECOND / 2).await;
    jobs
}

#[tokio::test]
async fn what_a_process_that_died_had_begun_is_not_run_again() {
    let jobs = abandoned(Policy::job()).await;
    for _ in 0..2 {
        let ran = jobs.charge("k").await;
        assert!(matches!(ran, Err(RunError::Unknown)), "{ran:?}");
    }
    assert_eq!(jobs.runs(), 0);
    // Not so where the policy wants it.
    let rerun = jobs.elsewhere(Policy::job().rerun_abandoned());
    let work = async |operation: Operation| {
        Ok::<_, io::Error>((
            operation.attempt(),
            operation.previous() == Previous::AbandonedUnknown,
        ))
    };
    assert_eq!(rerun.jobs.run("k", None, work).await.unwrap(), Done::Executed((2, true)));
}

#[tokio::test]
async fn who_knows_that_it_was_done_says_with_what() {
    let jobs = abandoned(Policy::job().resolve_abandoned(|abandoned: Abandoned| async move {
        assert_eq!((abandoned.rule.as_str(), abandoned.key.as_str()), ("charge", "k"));
        Resolution::Done(Answer::of_value("found").unwrap())
    }))
    .await;
    for _ in 0..2 {
        assert_ran(&jobs.charge("k").await, replayed("found"));
    }
    assert_eq!(jobs.runs(), 0);
}

#[tokio::test]
async fn who_knows_that_it_was_not_done_lets_it_run_once() {
    let resolver = |_| async { Resolution::NotDone };
    let jobs = abandoned(Policy::job().resolve_abandoned(resolver)).await;
    assert_ran(&jobs.charge("k").await, executed("run 1"));
    assert_ran(&jobs.charge("k").await, replayed("run 1"));
}

#[tokio::test]
async fn what_a_runtime_left_to_be_stored_when_it_ended_is_stored_once_somebody_asks() {
    let jobs = Jobs::new(Policy::job());
    jobs.faults.always(Transition::Complete, Fault::Fail(StoreErrorKind::Unreachable));
    let there = jobs.clone();
    let ran = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(there.charge("k"))
    });
    assert_ran(&ran.join().unwrap(), executed("run 1"));
    jobs.faults.heal();
    // The first one that asks finds it busy, and wakes whoever stores it.
    for _ in 0..50 {
        match jobs.charge("k").await {
            Err(RunError::Busy { .. }) => tokio::time::sleep(SECOND / 10).await,
            ran => return assert_ran(&ran, replayed("run 1")),
        }
    }
    panic!("it is busy for ever");
}

#[derive(Clone, Default)]
struct Table(Arc<Mutex<HashMap<LedgerEntry, LedgerRow>>>);

impl Ledger for Table {
    async fn find(&self, entry: &LedgerEntry) -> Result<Option<LedgerRow>, LedgerError> {
        Ok(self.0.lock().unwrap().get(entry).cloned())
    }

    async fn seal(&self, entry: &LedgerEntry, row: &LedgerRow) -> Result<Sealed, LedgerError> {
        let mut rows = self.0.lock().unwrap();
        match rows.get(entry) {
            Some(row) => Ok(Sealed::Existing(row.clone())),
            None => {
                rows.insert(entry.clone(), row.clone());
                Ok(Sealed::Written)
            }
        }
    }
}

impl Table {
    fn put(&self, key: &'static str, value: &str) {
        let entry = LedgerEntry::new("charge", "", key, None).of_job();
        self.0.lock().unwrap().insert(entry, Answer::of_value(value).unwrap().into());
    }
}

#[tokio::test]
async fn every_value_that_is_kept_has_its_row() {
    let table = Table::default();
    let jobs = Jobs::new(Policy::job().ledger(table.clone()));
    assert_ran(&jobs.charge("k").await, executed("run 1"));
    let entry = LedgerEntry::new("charge", "", "k", None).of_job();
    let row = table.0.lock().unwrap().get(&entry).cloned().expect("it was sealed");
    assert_eq!(row.answer.value::<String>().unwrap(), "run 1");
}

#[tokio::test]
async fn a_row_that_is_there_wins_over_what_the_work_came_to() {
    let table = Table::default();
    table.put("k", "committed");
    let jobs = Jobs::new(Policy::job().ledger(table));
    // The store has forgotten it, and the work did not enter the table.
    assert_ran(&jobs.charge("k").await, replayed("committed"));
    assert_ran(&jobs.charge("k").await, replayed("committed"));
    assert_eq!(jobs.runs(), 1);
}

#[tokio::test]
async fn what_is_abandoned_is_settled_by_its_row_or_that_there_is_none() {
    let table = Table::default();
    let jobs = abandoned(Policy::job().ledger(table.clone())).await;
    table.put("k", "committed");
    assert_ran(&jobs.charge("k").await, replayed("committed"));
    assert_eq!(jobs.runs(), 0);

    let jobs = abandoned(Policy::job().ledger(Table::default())).await;
    assert_ran(&jobs.charge("k").await, executed("run 1"));
}

#[tokio::test]
async fn work_that_has_its_row_has_happened_though_it_says_that_it_did_not() {
    for asked in [true, false] {
        let policy = Policy::job();
        let policy = if asked { policy.ledger(Table::default()) } else { policy };
        let jobs = Jobs::new(policy);
        let run = || async {
            let ran: Result<Done<String>, RunError<&str>> = jobs
                .jobs
                .run("k", None, async |operation: Operation| {
                    operation.left_row(&Answer::of_value("committed").unwrap());
                    End::<String, _>::Release("the message could not be acknowledged")
                })
                .await;
            ran
        };
        for _ in 0..2 {
            match run().await {
                Ok(done) if asked => assert_eq!(done, Done::Replayed("committed".to_owned())),
                // Nobody has said that the row is the truth.
                Err(RunError::Released(_)) if !asked => {}
                other => panic!("{other:?}"),
            }
        }
    }
}

#[tokio::test]
async fn a_job_is_settled_by_hand_with_its_row() {
    let table = Table::default();
    let jobs = abandoned(Policy::job()).await;
    let operations = Operations::new(jobs.memory.clone()).max_run(SECOND / 10);
    let found = operations.list(Cursor::START, 10).await.unwrap().operations.remove(0);
    let settle = |key: &'static str| {
        let entry = LedgerEntry::new("charge", "", key, None).of_job();
        let done = Settle::done(Answer::of_value("by hand").unwrap(), "the receipt is there");
        operations.settle(&found, done.in_ledger(table.clone(), entry))
    };
    assert_eq!(settle("other").await.unwrap_err().kind(), SettleErrorKind::OtherEntry);
    settle("k").await.unwrap();
    assert_ran(&jobs.charge("k").await, replayed("by hand"));
    assert_eq!(table.0.lock().unwrap().len(), 1);
}

/// A table that is away.
struct Away;

impl Ledger for Away {
    async fn find(&self, _: &LedgerEntry) -> Result<Option<LedgerRow>, LedgerError> {
        Err(LedgerError::new("away"))
    }

    async fn seal(&self, _: &LedgerEntry, _: &LedgerRow) -> Result<Sealed, LedgerError> {
        Err(LedgerError::new("away"))
    }
}

#[tokio::test]
async fn a_value_whose_row_cannot_be_written_is_unknown_to_whoever_comes_later() {
    let jobs = Jobs::new(Policy::job().ledger(Away));
    assert_ran(&jobs.charge("k").await, executed("run 1"));
    let again = jobs.charge("k").await;
    assert!(matches!(again, Err(RunError::Unknown)), "{again:?}");

    // One that has entered may find its row another's: nobody is told what may not be so.
    let entered: Ran = jobs
        .jobs
        .run("entered", None, async |operation: Operation| {
            operation.entered();
            Ok("perhaps".to_owned())
        })
        .await;
    assert!(matches!(entered, Err(RunError::Unknown)), "{entered:?}");
}
