//! Recovery by hand: what is listed, what is settled, and what is refused since it could run twice.

use std::time::Duration;

use http::{Request, Response};
use tokio::time::sleep;
use tower::{ServiceBuilder, ServiceExt};
use tower_idempotency::{
    Answer, IdempotencyLayer, LedgerEntry, MemoryStore, RefusalKind, RequestBody, Rule, State,
    operations::{Found, Operations, Settle, SettleError, SettleErrorKind, Standing},
    store::{Cursor, StoreErrorKind},
    test_util::{Fault, Transition},
};
use tower_idempotency_test_support::Log;

use crate::{
    house::{Door, House, SECOND, api, text, with_door},
    table::{Table, Trouble},
};

/// What is listed, from the first page to the last.
async fn listed(operations: &Operations<MemoryStore>, at_most: usize) -> Vec<Found> {
    let (mut from, mut all) = (Cursor::START, Vec::new());
    loop {
        let page = operations.list(from, at_most).await.unwrap();
        all.extend(page.operations);
        match page.next {
            Some(next) => from = next,
            None => return all,
        }
    }
}

async fn only(operations: &Operations<MemoryStore>) -> Found {
    let mut all = listed(operations, 100).await;
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0)
}

#[track_caller]
fn refused(settled: Result<(), SettleError>) -> SettleErrorKind {
    settled.expect_err("it is refused").kind()
}

fn not_done() -> Settle {
    Settle::not_done("the provider does not know it")
}

/// An operation that lapsed not long ago, and whose owner goes on when the door is opened.
async fn lapsed() -> (House, Door, Operations<MemoryStore>) {
    let (house, door) = with_door(api(), 200);
    let _owner = house.client("k");
    door.came().await;
    house.faults.always(Transition::Renew, Fault::Fail(StoreErrorKind::Unreachable));
    sleep(31 * SECOND).await;
    let operations = Operations::new(house.memory.clone());
    (house, door, operations)
}

#[tokio::test(start_paused = true)]
async fn the_abandoned_and_the_long_running_are_listed_and_nothing_else() {
    let door = Door::new();
    let inside = door.clone();
    let house = House::with(api(), move |asked| {
        let door = inside.clone();
        async move {
            match asked.headers()["idempotency-key"].to_str().unwrap() {
                "done" => return text(200, "done"),
                "free" => return text(503, "later"),
                "unknown-1" | "unknown-2" => return text(504, "timed out"),
                _ => door.pass().await,
            }
            text(200, "done")
        }
    });
    let operations = Operations::new(house.memory.clone());
    let _old = house.client("old");
    door.came().await;
    sleep(40 * SECOND).await;
    for key in ["done", "free", "unknown-1", "unknown-2"] {
        house.send(key).await.is_executed();
    }
    let _young = house.client("young");
    door.came().await;
    assert_eq!(house.records().await.len(), 6);

    for at_most in [0, 1, 100, usize::MAX] {
        let all = listed(&operations, at_most).await;
        let mut labels: Vec<_> = all.iter().map(|found| found.label.as_str()).collect();
        labels.sort_unstable();
        assert_eq!(labels, ["pay old", "pay unknown-1", "pay unknown-2"], "{at_most} a page");
    }
    assert_eq!(listed(&operations.clone().long_running(41 * SECOND), 100).await.len(), 2);
    assert_eq!(listed(&operations.long_running(Duration::ZERO), 100).await.len(), 4);
}

#[tokio::test(start_paused = true)]
async fn an_operation_is_shown_with_its_age_and_its_last_sign_of_life() {
    let (house, door) = with_door(api(), 200);
    let owner = house.client("k");
    door.came().await;
    let operations = Operations::new(house.memory.clone());
    sleep(35 * SECOND).await;
    let running = only(&operations).await;
    let Standing::Running { age, remaining } = running.standing else { panic!("{running:?}") };
    assert_eq!((age.as_secs(), running.attempt, &*running.label), (35, 1, "pay k"));
    assert!(remaining > 20 * SECOND && remaining <= 30 * SECOND, "{remaining:?}");
    assert_eq!(running.last_sign_of_life, Some(30 * SECOND - remaining));

    house.faults.always(Transition::Renew, Fault::Fail(StoreErrorKind::Unreachable));
    sleep(60 * SECOND).await;
    let lapsed = only(&operations).await;
    let Standing::Lapsed { age, ago } = lapsed.standing else { panic!("{lapsed:?}") };
    assert_eq!(age.as_secs(), 95);
    assert_eq!(ago, 60 * SECOND - remaining, "no sign of life since the first look");
    assert_eq!(lapsed.last_sign_of_life, Some(ago + 30 * SECOND));

    house.faults.heal();
    door.let_one_in();
    owner.await.unwrap().is_executed();
    for name in [running.key.digest(), running.key.to_string()] {
        let ended = operations.find(&name).await.unwrap().expect("it is there");
        assert_eq!(ended.standing, Standing::Ended(State::Completed));
    }
    assert_eq!(operations.find("0123456789abcdef").await.unwrap(), None);
    assert_eq!(listed(&operations, 100).await, []);
}

#[tokio::test(start_paused = true)]
async fn f20_not_done_is_refused_of_an_owner_that_may_live_and_settles_one_that_cannot() {
    let (house, door, operations) = lapsed().await;
    let found = only(&operations).await;
    for wait in [0, 298] {
        sleep(wait * SECOND).await;
        let settled = operations.settle(&found, not_done()).await;
        assert_eq!(refused(settled), SettleErrorKind::MayBeRunning);
    }
    house.send("k").await.is_refused(RefusalKind::OutcomeUnknown);
    assert_eq!(house.runs(), 1);
    sleep(2 * SECOND).await;
    operations.settle(&found, not_done()).await.unwrap();
    let _next = house.client("k");
    door.came().await;
    assert_eq!(house.runs(), 2);

    // The longest run is what it is told.
    let (_house, _door, operations) = lapsed().await;
    let found = only(&operations).await;
    operations.max_run(SECOND / 2).settle(&found, not_done()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn f20_a_verdict_on_a_living_owner_is_refused_unless_it_is_forced() {
    for verdict in [not_done(), Settle::done(Answer::text("paid"), "the provider has it")] {
        let (log, _guard) = Log::listen();
        let (house, door) = with_door(api(), 200);
        let _owner = house.client("k");
        door.came().await;
        sleep(40 * SECOND).await;
        let operations = Operations::new(house.memory.clone());
        let found = only(&operations).await;
        let settled = operations.settle(&found, verdict.clone()).await;
        assert_eq!(refused(settled), SettleErrorKind::MayBeRunning);
        assert_eq!(log.of("settled").len(), 0);
        assert_eq!(only(&operations).await.key, found.key);

        operations.settle(&found, verdict.forced()).await.unwrap();
        let [forced] = &log.of("settled by force")[..] else { panic!("one event") };
        assert!(forced.starts_with("WARN ") && forced.contains("the provider"), "{forced}");
        let settled = operations.find(&found.key.digest()).await.unwrap().unwrap();
        assert!(matches!(settled.standing, Standing::Ended(_)), "{settled:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn f20_done_of_a_stalled_owner_is_what_everybody_gets_and_nothing_runs_again() {
    let (house, door, operations) = lapsed().await;
    let found = only(&operations).await;
    let verdict = Settle::done(Answer::text("paid"), "the provider has it");
    operations.settle(&found, verdict).await.unwrap();
    assert_eq!(house.send("k").await.is_replayed().text(), "paid");
    house.faults.heal();
    door.let_one_in();
    house.drained().await;
    assert_eq!(house.send("other").await.refused, Some(RefusalKind::ShuttingDown));
    assert_eq!(house.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn f20_a_sign_of_life_since_it_was_seen_voids_the_verdict() {
    let (house, _door, operations) = lapsed().await;
    let found = only(&operations).await;
    // The owner comes back, is cut off again, and lapses again.
    house.faults.heal();
    sleep(5 * SECOND).await;
    house.faults.always(Transition::Renew, Fault::Fail(StoreErrorKind::Unreachable));
    sleep(600 * SECOND).await;
    assert_eq!(refused(operations.settle(&found, not_done()).await), SettleErrorKind::Changed);
    let again = only(&operations).await;
    assert!(matches!(again.standing, Standing::Lapsed { .. }), "{again:?}");
    operations.settle(&again, not_done()).await.unwrap();
    // And so does another's verdict, even before a forced one.
    assert_eq!(refused(operations.settle(&again, not_done()).await), SettleErrorKind::Changed);
    let forced = operations.settle(&again, not_done().forced()).await;
    assert_eq!(refused(forced), SettleErrorKind::Changed);
}

#[tokio::test(start_paused = true)]
async fn f20_what_was_given_up_by_its_only_owner_is_settled_at_once() {
    let house = House::with(api(), |_| async { text(504, "timed out") });
    house.send("k").await.is_executed();
    let operations = Operations::new(house.memory.clone());
    let found = only(&operations).await;
    assert!(matches!(found.standing, Standing::GivenUp { .. }), "{found:?}");
    assert_eq!(found.last_sign_of_life, None);
    operations.settle(&found, not_done()).await.unwrap();
    house.send("k").await.is_executed();

    // The run before this one may have been taken over while it stalled.
    let found = only(&operations).await;
    assert_eq!(found.attempt, 2);
    let settled = operations.settle(&found, not_done()).await;
    assert_eq!(refused(settled), SettleErrorKind::MayBeRunning);
    sleep(301 * SECOND).await;
    operations.settle(&found, not_done()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_verdict_without_a_reason_is_refused() {
    let house = House::with(api(), |_| async { text(504, "timed out") });
    house.send("k").await.is_executed();
    let operations = Operations::new(house.memory.clone());
    let found = only(&operations).await;
    for verdict in [Settle::not_done(" \n"), Settle::done(Answer::text("x"), "").forced()] {
        assert_eq!(refused(operations.settle(&found, verdict).await), SettleErrorKind::NoReason);
    }
    assert!(house.record().await.is_abandoned());
}

/// An operation of which nobody knows, since its ledger could not say.
async fn unknown_to(table: &Table) -> (House, Operations<MemoryStore>, Found) {
    let house = House::with(api().ledger(table.clone()), |_| async { text(504, "timed out") });
    house.send("k").await.is_executed();
    let operations = Operations::new(house.memory.clone());
    let found = only(&operations).await;
    (house, operations, found)
}

fn entry(key: &'static str) -> LedgerEntry {
    LedgerEntry::new("pay", "", key, None)
}

fn done() -> Settle {
    Settle::done(Answer::text("by hand"), "the provider has the charge")
}

#[tokio::test(start_paused = true)]
async fn f20_a_verdict_by_hand_leaves_a_row_and_the_row_that_is_there_wins() {
    for there in [None, Some("charged")] {
        let table = Table::default();
        let (house, operations, found) = unknown_to(&table).await;
        if let Some(text) = there {
            table.put(&entry("k"), text);
        }
        operations.settle(&found, done().in_ledger(table.clone(), entry("k"))).await.unwrap();
        let told = there.unwrap_or("by hand");
        assert_eq!(house.send("k").await.is_replayed().text(), told);
        assert_eq!(table.of_k(), Some((200, told.into())));
        assert_eq!(table.finds(), 0, "the record answers");
    }

    // Without the ledger the record alone would say it.
    let table = Table::default();
    let (house, operations, found) = unknown_to(&table).await;
    operations.settle(&found, done()).await.unwrap();
    assert_eq!(house.send("k").await.is_replayed().text(), "by hand");
    assert_eq!(table.rows(), 0);
}

#[tokio::test(start_paused = true)]
async fn f20_what_has_a_row_is_not_settled_as_not_done() {
    let table = Table::default();
    let (house, operations, found) = unknown_to(&table).await;
    table.put(&entry("k"), "charged");
    for verdict in [not_done(), not_done().forced()] {
        let settled = operations.settle(&found, verdict.in_ledger(table.clone(), entry("k"))).await;
        assert_eq!(refused(settled), SettleErrorKind::HasRow);
    }
    assert!(house.record().await.is_abandoned());

    let empty = Table::default();
    operations.settle(&found, not_done().in_ledger(empty, entry("k"))).await.unwrap();
    assert!(!house.record().await.is_abandoned());
}

#[tokio::test(start_paused = true)]
async fn a_verdict_whose_row_cannot_be_written_or_is_anothers_settles_nothing() {
    let table = Table::default();
    let (house, operations, found) = unknown_to(&table).await;
    let settle = async |operations: &Operations<MemoryStore>, verdict: Settle, key| {
        refused(operations.settle(&found, verdict.in_ledger(table.clone(), entry(key))).await)
    };
    for verdict in [done, not_done] {
        assert_eq!(settle(&operations, verdict(), "other").await, SettleErrorKind::OtherEntry);
        let secret = operations.clone().secret(&[7; 32]);
        assert_eq!(settle(&secret, verdict(), "k").await, SettleErrorKind::OtherEntry);
        table.trouble(Trouble::Fails);
        assert_eq!(settle(&operations, verdict(), "k").await, SettleErrorKind::Ledger);
        table.trouble(None);
    }
    assert_eq!(table.rows(), 0);
    assert!(house.record().await.is_abandoned());
    operations.settle(&found, done().in_ledger(table.clone(), entry("k"))).await.unwrap();
    assert_eq!(table.rows(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_entry_is_known_as_the_operations_under_the_layers_secret() {
    let (memory, table) = (MemoryStore::new(), Table::default());
    let rule = Rule::new("pay", api().ledger(table.clone()));
    let layer = IdempotencyLayer::new(memory.clone(), rule).secret(&[7; 32]);
    let service =
        ServiceBuilder::new().layer(layer).service_fn(async |_: Request<RequestBody<String>>| {
            Response::builder().status(504).body(String::new())
        });
    let request = Request::post("/").header("Idempotency-Key", "k").body(String::new()).unwrap();
    service.oneshot(request).await.unwrap();

    let operations = Operations::new(memory).secret(&[7; 32]);
    let found = only(&operations).await;
    operations.settle(&found, done().in_ledger(table.clone(), entry("k"))).await.unwrap();
    assert_eq!(table.of_k(), Some((200, "by hand".into())));
}
