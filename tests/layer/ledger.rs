//! A durable truth beside the store: what has a row was done, and every answer that is kept has one.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU64, Ordering},
};

use bytes::Bytes;
use http::StatusCode;
use http_body_util::Full;
use tokio::time::sleep;
use tower_idempotency::{
    Abandoned, Answer, LedgerEntry, MemoryStore, Outcome, Policy, Previous, RefusalKind,
    Resolution, Rule, header, json,
    store::StoreErrorKind,
    test_util::{Fault, Transition},
};
use tower_idempotency_test_support::Log;

use crate::{
    house::{
        Answered, Asked, Door, House, SECOND, api, operation, request, respond, text, with_door,
    },
    table::{Table, Trouble, id},
};

fn answered(answer: &Answer) -> Answered {
    respond(answer.status().as_u16(), Full::new(answer.body().cloned().unwrap_or_default()))
}

/// A house whose handler charges in one transaction with its row, and its charges.
fn charging(memory: &MemoryStore, policy: Policy, table: &Table) -> (House, Arc<AtomicU64>) {
    let charges = Arc::<AtomicU64>::default();
    let (table, counted) = (table.clone(), charges.clone());
    let house = House::of(memory.clone(), Rule::new("pay", policy), move |request| {
        let operation = operation(&request);
        let answer = table.enter(&operation).unwrap_or_else(|| {
            let nth = counted.fetch_add(1, Ordering::SeqCst) + 1;
            let answer = Answer::text(format!("charge {nth}"));
            table.commit(&operation, &answer);
            answer
        });
        async move { answered(&answer) }
    });
    (house, charges)
}

/// The first run stalls before its transaction past its lease; the second, granted since nobody knows
/// better, is refused by its bank. Returns what clients were told: the second, the first, and replays.
async fn stalled(policy: Policy, table: Table) -> ([(u16, String); 3], u64) {
    let (door, charges) = (Door::new(), Arc::<AtomicU64>::default());
    let (inside, counted, entering) = (door.clone(), charges.clone(), table);
    let house = House::with(policy.lease(3 * SECOND), move |asked: Asked| {
        let (door, charges, table) = (inside.clone(), counted.clone(), entering.clone());
        async move {
            let operation = operation(&asked);
            if operation.attempt() > 1 {
                return text(402, "no funds");
            }
            door.pass().await;
            let answer = table.enter(&operation).unwrap_or_else(|| {
                charges.fetch_add(1, Ordering::SeqCst);
                let answer = Answer::text("charged");
                table.commit(&operation, &answer);
                answer
            });
            answered(&answer)
        }
    });
    let first = house.client("k");
    door.came().await;
    house.faults.always(Transition::Renew, Fault::Fail(StoreErrorKind::Unreachable));
    sleep(4 * SECOND).await;
    let second = house.send("k").await;
    door.let_one_in();
    let first = first.await.unwrap();
    let third = house.send("k").await;
    third.is_replayed();
    let told = [second, first, third].map(|reply| (reply.status, reply.text().to_owned()));
    (told, charges.load(Ordering::SeqCst))
}

#[tokio::test(start_paused = true)]
async fn f9_a_kept_answer_without_a_row_never_contradicts_the_row() {
    let table = Table::default();
    let (told, charges) = stalled(api().ledger(table.clone()), table.clone()).await;
    let refused = || (402, "no funds".to_owned());
    assert_eq!((told, charges), ([refused(), refused(), refused()], 0));
    assert_eq!(table.of_k(), Some((402, Bytes::from("no funds"))));

    // The finding: with nobody to seal a row the charge is made, and every answer says it was not.
    let table = Table::default();
    let not_done = api().resolve_abandoned(|_| async { Resolution::NotDone });
    let (told, charges) = stalled(not_done, table.clone()).await;
    assert_eq!((told, charges), ([refused(), refused(), refused()], 1));
    assert_eq!(table.of_k(), Some((200, Bytes::from("charged"))));
}

/// A handler that answers 500 although a row was committed under its feet, or with none.
async fn overtaken(by: Option<&'static str>) -> (House, Table, crate::house::Reply) {
    let table = Table::default();
    let inside = table.clone();
    let house = House::with(api().ledger(table.clone()), move |asked: Asked| {
        if let Some(text) = by {
            let entry = operation(&asked).ledger_entry();
            inside.put(&entry, text);
        }
        async { text(500, "lock wait timeout") }
    });
    let reply = house.send("k").await;
    (house, table, reply)
}

#[tokio::test(start_paused = true)]
async fn f9_the_row_that_is_there_wins_and_is_the_answer_everybody_gets() {
    let (house, table, first) = overtaken(Some("charged")).await;
    assert_eq!((first.status, first.is_replayed().text()), (200, "charged"));
    let again = house.send("k").await;
    assert_eq!((again.status, again.is_replayed().text()), (200, "charged"));
    assert_eq!((house.runs(), table.rows()), (1, 1));

    let (house, table, first) = overtaken(None).await;
    assert_eq!((first.status, first.is_executed().text()), (500, "lock wait timeout"));
    assert_eq!(house.send("k").await.is_replayed().status, 500);
    assert_eq!(table.of_k(), Some((500, Bytes::from("lock wait timeout"))));
}

#[tokio::test(start_paused = true)]
async fn a_committed_row_counts_over_what_the_handler_answers_after_it() {
    let table = Table::default();
    let inside = table.clone();
    let house = House::with(api().ledger(table.clone()).answer_limit(4), move |asked: Asked| {
        inside.commit(&operation(&asked), &Answer::text("charged"));
        async { text(404, "lost") }
    });
    let first = house.send("k").await;
    assert_eq!(
        (first.status, first.is_replayed().text()),
        (200, "charged"),
        "whole, to its client"
    );
    house.send("k").await.is_refused(RefusalKind::AnswerNotKept);
    assert_eq!(table.seals(), 0, "it is known without a look");
}

#[tokio::test(start_paused = true)]
async fn an_abandoned_operation_with_a_row_was_done_and_one_without_was_not() {
    for committed in [true, false] {
        let (table, found) = (Table::default(), Arc::new(Mutex::new(Vec::new())));
        let (inside, noted) = (table.clone(), found.clone());
        let house = House::with(api().ledger(table.clone()), move |asked: Asked| {
            let operation = operation(&asked);
            noted.lock().unwrap().push(operation.previous());
            let first = operation.attempt() == 1;
            if (committed || !first) && inside.enter(&operation).is_none() {
                inside.commit(&operation, &Answer::text("charged"));
            }
            async move {
                if first { Err("the process dies here".to_owned()) } else { text(200, "charged") }
            }
        });
        assert!(house.send("k").await.error.is_some());
        assert!(house.record().await.is_abandoned());
        let second = house.send("k").await;
        assert_eq!(second.text(), "charged");
        assert_eq!(house.send("k").await.is_replayed().text(), "charged");
        if committed {
            second.is_replayed();
            assert_eq!(*found.lock().unwrap(), [Previous::Nothing]);
        } else {
            second.is_executed();
            assert_eq!(*found.lock().unwrap(), [Previous::Nothing, Previous::AbandonedNotDone]);
        }
        assert_eq!(table.finds(), 1);
        assert_eq!((table.rows(), table.seals()), (1, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn a_ledger_that_cannot_say_or_takes_longer_than_five_seconds_leaves_it_unknown() {
    let (log, _guard) = Log::listen();
    let table = Table::default();
    let house = House::with(api().ledger(table.clone()), |asked: Asked| {
        let status = if operation(&asked).attempt() == 1 { 504 } else { 200 };
        async move { text(status, "done") }
    });
    house.send("k").await.is_executed();
    for trouble in [Trouble::Fails, Trouble::Takes(5 * SECOND + SECOND / 100)] {
        table.trouble(trouble);
        house.send("k").await.is_refused(RefusalKind::OutcomeUnknown);
    }
    let unavailable = log.of("ledger unavailable");
    assert!(unavailable[0].contains("the table is locked"), "{unavailable:?}");
    assert_eq!((unavailable.len(), log.of("abandoned").len(), house.runs()), (2, 2, 1));
    table.trouble(Trouble::Takes(2 * SECOND));
    house.send("k").await.is_executed();
    assert_eq!(house.runs(), 2);
}

#[tokio::test(start_paused = true)]
async fn when_the_store_lost_everything_the_row_answers_and_the_record_is_written_again() {
    let table = Table::default();
    let (house, charges) = charging(&MemoryStore::new(), api().ledger(table.clone()), &table);
    assert_eq!(house.send("k").await.is_executed().text(), "charge 1");

    let emptied = MemoryStore::new();
    let (house, again) = charging(&emptied, api().ledger(table.clone()), &table);
    assert_eq!(house.send("k").await.is_executed().text(), "charge 1", "granted, and found");
    assert_eq!(house.send("k").await.is_replayed().text(), "charge 1");
    assert_eq!((house.runs(), table.seals()), (1, 0));
    let made = [&charges, &again].map(|charges| charges.load(Ordering::SeqCst));
    assert_eq!(made, [1, 0]);

    // Another operation is charged for itself.
    assert_eq!(house.send("other").await.is_executed().text(), "charge 1");
    assert_eq!(again.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn a_row_is_sealed_for_every_answer_that_is_kept_and_for_no_other() {
    for (status, outcome, rows) in [
        (200, None, 1),
        (404, None, 1),
        (500, None, 1),
        (503, None, 0),
        (504, None, 0),
        (503, Some(Outcome::Keep), 1),
        (200, Some(Outcome::Release), 0),
    ] {
        let table = Table::default();
        let house = House::with(api().ledger(table.clone()), move |_| async move {
            let mut response = text(status, "said")?;
            if let Some(outcome) = outcome {
                response.extensions_mut().insert(outcome);
            }
            Ok(response)
        });
        house.send("k").await.is_executed();
        assert_eq!((table.rows(), table.seals()), (rows, rows), "{status} {outcome:?}");
        assert_eq!(table.of_k().map(|row| row.0), (rows == 1).then_some(status));
    }
}

#[tokio::test(start_paused = true)]
async fn a_row_is_there_before_the_answer_is_stored() {
    let table = Table::default();
    let house = House::new(api().ledger(table.clone()));
    house.faults.always(Transition::Complete, Fault::Fail(StoreErrorKind::Unreachable));
    assert_eq!(house.send("k").await.is_executed().text(), "done");
    assert_eq!(table.of_k(), Some((200, Bytes::from("done"))));
}

#[tokio::test(start_paused = true)]
async fn an_answer_whose_row_cannot_be_written_is_uncertain_and_withheld() {
    for trouble in [Trouble::Fails, Trouble::Panics, Trouble::Takes(6 * SECOND)] {
        let (log, _guard) = Log::listen();
        let table = Table::default();
        let house = House::with(api().ledger(table.clone()), |_| async { text(402, "no funds") });
        table.trouble(trouble);
        house.send("k").await.is_refused(RefusalKind::OutcomeUnknown);
        assert!(house.record().await.is_abandoned());
        let [uncertain] = &log.of("outcome uncertain")[..] else { panic!("one event") };
        assert!(uncertain.contains("its row could not be written"), "{uncertain}");
        assert_eq!(table.rows(), 0);
        table.trouble(None);
        house.send("k").await.is_executed();
        assert_eq!((house.runs(), table.rows()), (2, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn a_success_that_never_entered_is_sent_although_its_row_cannot_be_written() {
    let table = Table::default();
    let house = House::new(api().ledger(table.clone()));
    table.trouble(Trouble::Fails);
    assert_eq!(house.send("k").await.is_executed().text(), "done");
    assert!(house.record().await.is_abandoned());

    // One that entered has happened only with its row.
    let inside = Table::default();
    let table = inside.clone();
    let house = House::with(api().ledger(table.clone()), move |asked: Asked| {
        assert_eq!(inside.enter(&operation(&asked)), None);
        async { text(200, "committed, or not") }
    });
    table.trouble(Trouble::Fails);
    house.send("k").await.is_refused(RefusalKind::OutcomeUnknown);
}

#[tokio::test(start_paused = true)]
async fn a_success_without_entering_is_warned_of_once_a_rule() {
    let (log, _guard) = Log::listen();
    let house = House::new(api().ledger(Table::default()));
    for key in ["a", "b"] {
        house.send(key).await.is_executed();
    }
    let [missing] = &log.of("row missing")[..] else { panic!("one event: {:?}", log.all()) };
    assert!(missing.starts_with("WARN ") && missing.contains("pay"), "{missing}");
    House::new(api().ledger(Table::default())).send("a").await.is_executed();
    assert_eq!(log.of("row missing").len(), 2, "another rule");

    let table = Table::default();
    let (house, _) = charging(&MemoryStore::new(), api().ledger(table.clone()), &table);
    house.send("a").await.is_executed();
    let house = House::with(api().ledger(table), |_| async { text(404, "no such order") });
    house.send("b").await.is_executed();
    House::new(api()).send("a").await.is_executed();
    let house = House::with(api().ledger(Table::default()), |_| async {
        let mut not_found = text(200, "")?;
        not_found.headers_mut().insert("content-type", "application/grpc".parse().unwrap());
        not_found.headers_mut().insert("grpc-status", "5".parse().unwrap());
        Ok(not_found)
    });
    house.send("c").await.is_executed();
    assert_eq!(log.of("row missing").len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_resolver_beside_a_ledger_settles_nothing_without_a_row() {
    let resolver = |_: Abandoned| async { Resolution::Done(Answer::text("paid")) };
    for (row, told) in [(None, "paid"), (Some("charged"), "charged")] {
        let table = Table::default();
        let policy = api().ledger(table.clone()).resolve_abandoned(resolver);
        let house = House::with(policy, |_| async { text(504, "timed out") });
        house.send("k").await.is_executed();
        if let Some(row) = row {
            let entry = LedgerEntry::new("pay", "", "k", None);
            table.put(&entry, row);
        }
        table.trouble(Trouble::Fails);
        house.send("k").await.is_refused(RefusalKind::OutcomeUnknown);
        table.trouble(None);
        assert_eq!(house.send("k").await.is_replayed().text(), told);
        assert_eq!(table.of_k(), Some((200, Bytes::from(told))));
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_without_a_grant_has_its_row_too() {
    let table = Table::default();
    let policy = api().ledger(table.clone()).run_unprotected();
    let (house, charges) = charging(&MemoryStore::new(), policy, &table);
    house.faults.always(Transition::Claim, Fault::Fail(StoreErrorKind::Unreachable));
    for _ in 0..2 {
        assert_eq!(house.send("k").await.is_executed().text(), "charge 1");
    }
    assert_eq!((house.runs(), charges.load(Ordering::SeqCst)), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn a_row_is_named_by_the_plain_identity_byte_for_byte() {
    let entries = Arc::new(Mutex::new(Vec::new()));
    let noted = entries.clone();
    let policy = Policy::webhook(header("n-id")).business_key(json("/order"));
    let house = House::with(policy.ledger(Arc::new(Table::default())), move |asked: Asked| {
        noted.lock().unwrap().push(operation(&asked).ledger_entry());
        async { text(200, "success") }
    });
    let mut named = request("x", r#"{"order": "O-1"}"#);
    named.headers_mut().insert("n-id", "N-1".parse().unwrap());
    house.call(named).await.is_executed();
    let mut unnamed = request("x", "{}");
    unnamed.headers_mut().insert("n-id", "O-1".parse().unwrap());
    house.call(unnamed).await.is_executed();
    let entries = entries.lock().unwrap();
    let business = LedgerEntry::new("pay", "", "O-1", Some(Bytes::from("N-1")));
    assert_eq!(*entries, [business, LedgerEntry::new("pay", "", "O-1", None)]);
    assert_ne!(id(&entries[0]), id(&entries[1]));
}

#[tokio::test(start_paused = true)]
async fn a_ledger_is_not_asked_about_what_is_alive_or_done() {
    let table = Table::default();
    let (house, door) = with_door(api().ledger(Box::new(table.clone())), 200);
    let owner = house.client("k");
    door.came().await;
    house.send("k").await.is_refused(RefusalKind::InProgress);
    door.let_one_in();
    owner.await.unwrap().is_executed();
    house.send("k").await.is_replayed();
    assert_eq!((table.finds(), table.seals()), (0, 1));
}

#[test]
fn an_answer_is_kept_in_a_column_whole() {
    let answer = Answer::json("{}").with_status(StatusCode::CREATED);
    let bytes = answer.to_bytes();
    assert_eq!(Answer::from_bytes(bytes.clone()).unwrap(), answer);
    for cut in 0..bytes.len() {
        assert!(Answer::from_bytes(bytes.slice(..cut)).is_err(), "cut at {cut}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_row_from_before_there_was_a_business_key_answers_the_delivery_that_has_it() {
    for committed in [true, false] {
        let (memory, table) = (MemoryStore::new(), Table::default());
        let policy = || Policy::webhook(header("n-id")).ledger(table.clone());
        let inside = table.clone();
        let before = House::of(memory.clone(), Rule::new("pay", policy()), move |asked: Asked| {
            if committed {
                inside.commit(&operation(&asked), &Answer::text("charged"));
            }
            async { Err("the process dies here".to_owned()) }
        });
        let delivery = || {
            let mut delivery = request("x", r#"{"order": "O-1"}"#);
            delivery.headers_mut().insert("n-id", "N-1".parse().unwrap());
            delivery
        };
        assert!(before.call(delivery()).await.error.is_some());

        let rule = Rule::new("pay", policy().business_key(json("/order")));
        let house = House::of(memory, rule, |_| async { text(200, "charged now") });
        let told = house.call(delivery()).await;
        assert_eq!(told.text(), if committed { "charged" } else { "charged now" });
        assert_eq!((told.status, house.runs()), (200, usize::from(!committed)));
    }
}
