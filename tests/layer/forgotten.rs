//! A store that has lost records says so to whoever has a ledger, and the ledger is asked.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use http::StatusCode;
use tokio::time::sleep;
use tower_idempotency::{Answer, LedgerEntry, Policy, RefusalKind, State, store::Claimed};
use tower_idempotency_test_support::Log;

use crate::{
    house::{House, SECOND, Sent, api, text},
    table::{Table, Trouble},
};

fn house(policy: Policy) -> (House, Arc<AtomicU64>) {
    let runs = Arc::<AtomicU64>::default();
    let counted = runs.clone();
    // It does not enter: the layer alone stands between the row and a second run.
    let house = House::with(policy, move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        async { text(200, "ran") }
    });
    (house, runs)
}

fn entry() -> LedgerEntry {
    LedgerEntry::new("pay", "", "k", None)
}

#[tokio::test(start_paused = true)]
async fn what_the_ledger_knows_is_answered_and_stored_again_and_never_run() {
    let table = Table::default();
    table.put(&entry(), "charged");
    let (house, runs) = house(api().ledger(table.clone()));
    let (log, _guard) = Log::listen();
    house.store.answer_next(Claimed::Forgotten);
    let reply = house.send("k").await;
    assert_eq!((reply.status, reply.text()), (StatusCode::OK.as_u16(), "charged"));
    reply.is_replayed();
    house.drained().await;
    assert_eq!(house.record().await.state, State::Completed);
    assert_eq!((runs.load(Ordering::SeqCst), table.finds()), (0, 1));
    assert_eq!(log.of("data lost").len(), 1);
    assert!(!house.sent().contains(&Sent::CalledOff), "{:?}", house.sent());
}

#[tokio::test(start_paused = true)]
async fn what_the_ledger_does_not_know_runs_and_a_ledger_that_cannot_say_refuses() {
    let table = Table::default();
    let (house, runs) = house(api().ledger(table.clone()));
    table.trouble(Trouble::Fails);
    house.store.answer_next(Claimed::Forgotten);
    house.send("k").await.is_refused(RefusalKind::StoreUnavailable);
    assert_eq!(runs.load(Ordering::SeqCst), 0);

    table.trouble(None);
    house.store.answer_next(Claimed::Forgotten);
    house.send("k").await.is_executed();
    house.send("k").await.is_replayed();
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    assert_eq!(table.row(&entry()).unwrap().body(), Answer::text("ran").body());
}

#[tokio::test(start_paused = true)]
async fn a_ledger_is_not_asked_about_what_nobody_has_lost() {
    let table = Table::default();
    let (house, runs) = house(api().ledger(table.clone()));
    house.send("k").await.is_executed();
    sleep(SECOND).await;
    assert_eq!((runs.load(Ordering::SeqCst), table.finds()), (1, 0));
}
