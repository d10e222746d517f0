//! What outlives a request: renewals, late writes, drain.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep, timeout};
use tower_idempotency::{
    Drained, MemoryStore, Policy, RefusalKind, State, Store,
    store::{Cursor, Reason, StoreErrorKind},
    test_util::{Fault, Gate, Transition},
};

use crate::house::{House, SECOND, Sent, api, leave, operation, settle, text, with_door};

const MS: Duration = Duration::from_millis(1);

#[tokio::test(start_paused = true)]
async fn a_lease_is_renewed_at_a_third_until_the_answer_is_stored_and_not_after() {
    let (house, door) = with_door(api().lease(9 * SECOND), 200);
    let begun = Instant::now();
    let client = house.client("k");
    door.came().await;
    sleep(10 * SECOND).await;
    let renewals: Vec<_> = house.times(Sent::Renew).iter().map(|at| *at - begun).collect();
    for (nth, after) in renewals.iter().enumerate() {
        let due = 3 * SECOND * (nth as u32 + 1);
        assert!(*after >= due && *after < due + 20 * MS, "{renewals:?}");
    }
    assert_eq!(renewals.len(), 3);
    door.let_one_in();
    client.await.unwrap().is_executed();
    sleep(60 * SECOND).await;
    assert_eq!(house.sent().last(), Some(&Sent::Complete), "no renewal after it");
    assert_eq!(house.times(Sent::Renew).len(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_completion_waits_for_the_renewal_that_is_on_its_way() {
    let (house, door) = with_door(api().lease(9 * SECOND).call_within(SECOND), 200);
    let gate = Gate::new();
    house.faults.next(Transition::Renew, Fault::Hold(gate.clone()));
    let client = house.client("k");
    door.came().await;
    gate.arrived(1).await;
    door.let_one_in();
    settle().await;
    assert_eq!(house.sent(), [Sent::Claim, Sent::Renew], "not yet");
    gate.open();
    client.await.unwrap().is_executed();
    assert_eq!(house.sent(), [Sent::Claim, Sent::Renew, Sent::Complete]);
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_hangs_holds_the_answer_back_no_longer_than_a_store_call() {
    let (house, door) = with_door(api(), 200);
    house.faults.always(Transition::Renew, Fault::Hold(Gate::new()));
    let client = house.client("k");
    door.came().await;
    house.faults.called(Transition::Renew, 1).await;
    door.let_one_in();
    let begun = Instant::now();
    client.await.unwrap().is_executed();
    assert!(begun.elapsed() <= 501 * MS, "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_fails_is_tried_again_before_the_lease_is_over() {
    let (house, door) = with_door(api().lease(9 * SECOND), 200);
    house.faults.next(Transition::Renew, Fault::Fail(StoreErrorKind::Unreachable));
    house.faults.next(Transition::Renew, Fault::LoseAnswer(StoreErrorKind::Timeout));
    let client = house.client("k");
    door.came().await;
    sleep(30 * SECOND).await;
    house.send("k").await.is_refused(RefusalKind::InProgress);
    door.let_one_in();
    client.await.unwrap().is_executed();
    house.send("k").await.is_replayed();
}

/// A handler that goes on until its lease is lost, and when that was.
async fn lost_after(policy: Policy, hangs: bool) -> Duration {
    let lost = Arc::new(std::sync::Mutex::new(None));
    let noted = lost.clone();
    let house = House::with(policy, move |request| {
        let (operation, noted) = (operation(&request), noted.clone());
        async move {
            let begun = Instant::now();
            operation.lease_lost().await;
            assert!(operation.is_lease_lost());
            *noted.lock().unwrap() = Some(begun.elapsed());
            text(200, "done")
        }
    });
    if hangs {
        house.faults.always(Transition::Renew, Fault::Hold(Gate::new()));
    }
    let sent = timeout(60 * SECOND, house.send("k")).await;
    sent.expect("the handler learns so").is_executed();
    lost.lock().unwrap().unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_handler_learns_that_its_lease_is_lost_when_the_store_is_away_for_a_lease() {
    // However long a call may take: that it hangs is noticed when the lease lapses.
    for call_within in [SECOND / 2, 20 * SECOND] {
        let policy = api().lease(3 * SECOND).call_within(call_within);
        let after = lost_after(policy, true).await;
        assert!(after >= 3 * SECOND && after < 5 * SECOND, "{call_within:?}: {after:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_handler_learns_that_it_is_renewed_no_more_when_it_has_run_for_too_long() {
    let policy = api().lease(3 * SECOND).max_run(9 * SECOND);
    let after = lost_after(policy, false).await;
    assert!(after >= 9 * SECOND && after < 11 * SECOND, "{after:?}");
}

#[tokio::test(start_paused = true)]
async fn f16_a_handler_that_hangs_is_renewed_until_its_longest_run_and_then_abandoned() {
    let (house, door) = with_door(api().lease(3 * SECOND).max_run(9 * SECOND), 200);
    let client = house.client("k");
    door.came().await;
    sleep(8 * SECOND).await;
    house.send("k").await.is_refused(RefusalKind::InProgress);
    sleep(5 * SECOND).await;
    house.send("k").await.is_refused(RefusalKind::OutcomeUnknown);
    assert_eq!(house.times(Sent::Renew).len(), 8, "one a second, and none after nine");
    // Its answer counts all the same.
    door.let_one_in();
    client.await.unwrap().is_executed();
    house.send("k").await.is_replayed();
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_cannot_be_stored_is_sent_and_stored_when_the_store_is_back() {
    for fault in [
        Fault::Fail(StoreErrorKind::Unreachable),
        Fault::LoseAnswer(StoreErrorKind::Timeout),
        Fault::Fail(StoreErrorKind::Refused),
        Fault::Hold(Gate::new()),
    ] {
        let house = House::new(api());
        house.faults.always(Transition::Complete, fault.clone());
        assert_eq!(house.send("k").await.is_executed().text(), "done", "{fault:?}");
        sleep(20 * SECOND).await;
        house.faults.heal();
        sleep(10 * SECOND).await;
        assert_eq!(house.send("k").await.is_replayed().text(), "done", "{fault:?}");
        assert_eq!(house.runs(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_without_room_for_the_answer_keeps_that_it_was_executed() {
    let house = House::new(api());
    house.faults.next(Transition::Complete, Fault::Fail(StoreErrorKind::Full));
    assert_eq!(house.send("k").await.is_executed().text(), "done");
    house.send("k").await.is_refused(RefusalKind::AnswerNotKept);
    assert_eq!(house.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_full_for_good_is_asked_at_growing_pauses() {
    let house = House::new(api());
    house.faults.always(Transition::Complete, Fault::Fail(StoreErrorKind::Full));
    house.send("k").await.is_executed();
    sleep(100 * SECOND).await;
    let asked = house.faults.calls(Transition::Complete);
    // At a second each in the end; without growing pauses it were thousands.
    assert!((60..200).contains(&asked), "{asked} times in 100 s");
    house.faults.heal();
    sleep(10 * SECOND).await;
    house.send("k").await.is_refused(RefusalKind::AnswerNotKept);
}

#[tokio::test(start_paused = true)]
async fn a_release_that_cannot_be_told_is_told_when_the_store_is_back() {
    let (house, door) = with_door(api(), 503);
    house.faults.always(Transition::Release, Fault::Fail(StoreErrorKind::Unreachable));
    door.let_one_in();
    assert_eq!(house.send("k").await.is_executed().status, 503);
    house.send("k").await.is_refused(RefusalKind::InProgress);
    house.faults.heal();
    sleep(10 * SECOND).await;
    assert_eq!(house.record().await.state, State::Released);
    assert!(house.sent().contains(&Sent::GivenBack(Reason::DidNotHappen)));
}

#[tokio::test(start_paused = true)]
async fn drain_refuses_what_is_new_and_waits_for_runs_whose_client_has_gone() {
    let (house, door) = with_door(api(), 200);
    let client = house.client("k");
    door.came().await;
    leave(client).await;
    let drain = tokio::spawn({
        let layer = house.layer.clone();
        async move { layer.drain(10 * SECOND).await }
    });
    settle().await;
    let refused = house.send("new").await;
    refused.is_refused(RefusalKind::ShuttingDown);
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")));
    assert!(!drain.is_finished());
    door.let_one_in();
    assert!(drain.await.unwrap().is_clean());
    assert_eq!(house.record().await.state, State::Completed);
}

#[tokio::test(start_paused = true)]
async fn drain_says_honestly_what_was_left() {
    let (house, door) = with_door(api(), 200);
    let running = house.client("first");
    door.came().await;
    house.faults.always(Transition::Complete, Fault::Fail(StoreErrorKind::Unreachable));
    let unsent = house.client("second");
    door.came().await;
    door.let_one_in();
    door.let_one_in();
    let _ = (running.await, unsent.await);
    let begun = Instant::now();
    let left = house.layer.drain(2 * SECOND).await;
    assert_eq!(begun.elapsed(), 2 * SECOND);
    assert_eq!((left.running, left.unsent, left.is_clean()), (0, 2, false));
    house.faults.heal();
    house.drained().await;

    let (house, door) = with_door(api(), 200);
    let _running = house.client("k");
    door.came().await;
    let left: Drained = house.layer.drain(2 * SECOND).await;
    assert_eq!((left.running, left.unsent), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn drain_waits_for_claims_that_are_on_their_way() {
    for client_leaves in [false, true] {
        let house = House::new(api());
        let gate = Gate::new();
        house.faults.next(Transition::Claim, Fault::HoldAnswer(gate.clone()));
        let client = house.client("k");
        gate.arrived(1).await;
        if client_leaves {
            client.abort();
        }
        let left = house.layer.drain(Duration::ZERO).await;
        assert_eq!(left.unsent, 1, "a claim is on its way");
        gate.open();
        house.drained().await;
        if !client_leaves {
            client.await.unwrap().is_refused(RefusalKind::ShuttingDown);
        }
        assert_eq!(house.record().await.state, State::Released, "called off before it was clean");
        assert_eq!(house.runs(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn late_work_is_done_though_the_layer_is_gone() {
    let house = House::new(api());
    house.faults.always(Transition::Complete, Fault::Fail(StoreErrorKind::Unreachable));
    house.send("k").await.is_executed();
    let (memory, faults) = (house.memory.clone(), house.faults.clone());
    drop(house);
    faults.heal();
    sleep(10 * SECOND).await;
    let page = memory.scan(Cursor::START, 10).await.unwrap();
    assert_eq!(page.records[0].state, State::Completed);
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap()
}

#[test]
fn what_a_runtime_left_undone_is_done_in_the_next() {
    let memory = runtime().block_on(async { MemoryStore::new() });
    let rule = tower_idempotency::Rule::new("pay", api());
    let house = House::of(memory, rule, |_| async { text(200, "done") });
    // A runtime ends while the completion is on its way; the handler has ended.
    let first = runtime();
    first.block_on(async {
        let gate = Gate::new();
        house.faults.next(Transition::Complete, Fault::Hold(gate.clone()));
        let _client = house.client("late");
        gate.arrived(1).await;
    });
    drop(first);
    // Another ends while a claim is on its way.
    let second = runtime();
    second.block_on(async {
        let gate = Gate::new();
        house.faults.next(Transition::Claim, Fault::HoldAnswer(gate.clone()));
        let _client = house.client("claimed");
        gate.arrived(1).await;
    });
    drop(second);
    // The next grant starts the task again.
    runtime().block_on(async {
        house.send("next").await.is_executed();
        sleep(10 * SECOND).await;
        house.send("late").await.is_replayed();
        house.send("claimed").await.is_executed();
        assert_eq!(house.runs(), 3);
    });
}

#[test]
fn a_runtime_that_ends_in_the_handler_leaves_the_key_abandoned_and_never_free() {
    let memory = runtime().block_on(async { MemoryStore::new() });
    let door = crate::house::Door::new();
    let inside = door.clone();
    let rule = tower_idempotency::Rule::new("pay", api().lease(3 * SECOND));
    let house = House::of(memory, rule, move |_| {
        let door = inside.clone();
        async move {
            door.pass().await;
            text(200, "done")
        }
    });
    let first = runtime();
    first.block_on(async {
        let _client = house.client("k");
        door.came().await;
    });
    drop(first);
    runtime().block_on(async {
        house.send("k").await.is_refused(RefusalKind::InProgress);
        sleep(4 * SECOND).await;
        house.send("k").await.is_refused(RefusalKind::OutcomeUnknown);
        assert_eq!(house.runs(), 1);
    });
}

#[test]
fn two_runtimes_share_a_layer_and_the_end_of_one_leaves_the_others_leases_renewed() {
    let memory = runtime().block_on(async { MemoryStore::new() });
    let door = crate::house::Door::new();
    let inside = door.clone();
    let rule = tower_idempotency::Rule::new("pay", api().lease(3 * SECOND));
    let house = House::of(memory, rule, move |_| {
        let door = inside.clone();
        async move {
            door.pass().await;
            text(200, "done")
        }
    });
    let (one, two) = (runtime(), runtime());
    let first = one.block_on(async {
        let client = house.client("one");
        door.came().await;
        Some(client)
    });
    two.block_on(async {
        let _client = house.client("two");
        door.came().await;
        // The task of this runtime renews both.
        sleep(10 * SECOND).await;
    });
    drop(two);
    one.block_on(async {
        // Each runtime has a paused clock of its own: past the lease by both.
        sleep(20 * SECOND).await;
        house.send("one").await.is_refused(RefusalKind::InProgress);
        house.send("two").await.is_refused(RefusalKind::OutcomeUnknown);
        door.let_one_in();
        first.unwrap().await.unwrap().is_executed();
        house.send("one").await.is_replayed();
    });
}
