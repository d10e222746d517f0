//! A claim that nobody executes is called off, whenever its request ends; the key is free.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::time::{Instant, sleep};
use tower_idempotency::{
    Policy, RefusalKind, State,
    store::StoreErrorKind,
    test_util::{Fault, Gate, Transition},
};

use crate::house::{Chunks, House, SECOND, Sent, api, leave, request_of, settle, text, with_door};

const MS: Duration = Duration::from_millis(1);

/// After everything has settled a delivery runs, and is the first that ran.
async fn is_free(house: &House, key: &str) {
    house.send(key).await.is_executed();
    assert_eq!(house.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_while_its_claim_is_on_its_way_leaves_a_free_key() {
    let house = House::new(api());
    let gate = Gate::new();
    house.faults.next(Transition::Claim, Fault::HoldAnswer(gate.clone()));
    let client = house.client("k");
    gate.arrived(1).await;
    leave(client).await;
    settle().await;
    assert_eq!(house.record().await.state, State::InProgress, "granted, and nobody knows it");
    gate.open();
    settle().await;
    assert_eq!(house.sent(), [Sent::Claim, Sent::CalledOff], "called off at once");
    is_free(&house, "k").await;
}

#[tokio::test(start_paused = true)]
async fn a_claim_whose_answer_never_comes_is_called_off_not_before_its_deadline() {
    let house = House::new(api());
    house.faults.next(Transition::Claim, Fault::HoldAnswer(Gate::new()));
    let begun = Instant::now();
    let client = house.client("k");
    house.faults.called(Transition::Claim, 1).await;
    leave(client).await;
    house.faults.called(Transition::Release, 1).await;
    let after = house.times(Sent::CalledOff)[0] - begun;
    assert!(after >= 1500 * MS && after < 1600 * MS, "{after:?}");
    is_free(&house, "k").await;
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_arrives_after_its_client_left_and_its_release_is_not_granted() {
    let house = House::new(api());
    let gate = Gate::new();
    house.faults.next(Transition::Claim, Fault::Hold(gate.clone()));
    let client = house.client("k");
    gate.arrived(1).await;
    leave(client).await;
    sleep(100 * MS).await;
    gate.open();
    settle().await;
    assert_eq!(house.sent(), [Sent::Claim, Sent::CalledOff]);
    is_free(&house, "k").await;
}

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_in_the_pause_between_two_sends_leaves_a_free_key() {
    let house = House::new(api());
    house.faults.next(Transition::Claim, Fault::LoseAnswer(StoreErrorKind::Unreachable));
    let begun = Instant::now();
    let client = house.client("k");
    settle().await;
    leave(client).await;
    assert_eq!(house.sent(), [Sent::Claim], "in the pause");
    house.faults.called(Transition::Release, 1).await;
    assert!(house.times(Sent::CalledOff)[0] - begun >= 1500 * MS);
    is_free(&house, "k").await;
}

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_before_its_body_ended_has_claimed_nothing() {
    let house = House::new(api());
    let (sender, body) = Chunks::new();
    let client = tokio::spawn(house.call(request_of("k", body)));
    sender.send(Ok("half of it".into())).await.unwrap();
    settle().await;
    leave(client).await;
    sleep(60 * SECOND).await;
    assert_eq!(house.sent(), []);
    is_free(&house, "k").await;
}

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_in_the_handler_finds_the_answer_when_it_comes_again() {
    let (house, door) = with_door(api(), 200);
    let client = house.client("k");
    door.came().await;
    leave(client).await;
    door.let_one_in();
    settle().await;
    house.send("k").await.is_replayed();
    assert_eq!(house.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_while_its_answer_is_stored_finds_it_when_it_comes_again() {
    let house = House::new(api());
    let gate = Gate::new();
    house.faults.next(Transition::Complete, Fault::Hold(gate.clone()));
    let client = house.client("k");
    gate.arrived(1).await;
    leave(client).await;
    gate.open();
    settle().await;
    house.send("k").await.is_replayed();
    assert_eq!(house.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_gets_no_answer_in_its_time_is_refused_with_503_and_called_off() {
    for fault in [
        Fault::Fail(StoreErrorKind::Unreachable),
        Fault::LoseAnswer(StoreErrorKind::Timeout),
        Fault::HoldAnswer(Gate::new()),
        Fault::Fail(StoreErrorKind::Refused),
        Fault::Fail(StoreErrorKind::Garbled),
        Fault::Fail(StoreErrorKind::Full),
    ] {
        let house = House::new(api());
        house.faults.always(Transition::Claim, fault.clone());
        let begun = Instant::now();
        let reply = house.send("k").await;
        reply.is_refused(RefusalKind::StoreUnavailable);
        assert_eq!((reply.status, reply.header("retry-after")), (503, Some("1")), "{fault:?}");
        assert!(begun.elapsed() <= 1500 * MS, "{fault:?}");
        house.faults.called(Transition::Release, 1).await;
        assert!(house.times(Sent::CalledOff)[0] - begun >= 1500 * MS, "{fault:?}");
        assert_eq!(house.runs(), 0, "{fault:?}");
        house.faults.heal();
        is_free(&house, "k").await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_whose_first_answer_is_lost_runs_once_under_its_own_grant() {
    let house = House::new(api());
    house.faults.next(Transition::Claim, Fault::LoseAnswer(StoreErrorKind::Unreachable));
    house.send("k").await.is_executed();
    assert_eq!(house.sent(), [Sent::Claim, Sent::Claim, Sent::Complete]);
    house.send("k").await.is_replayed();
    assert_eq!(house.record().await.attempt, 1, "it was the same grant");
}

#[tokio::test(start_paused = true)]
async fn unprotected_requests_run_while_the_store_is_away_and_their_answers_are_offered() {
    let house = House::new(api().run_unprotected());
    house.faults.down(StoreErrorKind::Unreachable);
    house.send("k").await.is_executed();
    assert_eq!(house.runs(), 1);
    house.faults.heal();
    house.drained().await;
    assert_eq!(house.record().await.state, State::Completed);

    let house = House::new(api());
    house.faults.down(StoreErrorKind::Unreachable);
    house.send("k").await.is_refused(RefusalKind::StoreUnavailable);
    assert_eq!(house.runs(), 0, "by default nothing runs unprotected");
}

/// Answers with these statuses, one after another.
fn answering(policy: Policy, statuses: [u16; 2]) -> House {
    let nth = Arc::new(AtomicUsize::new(0));
    House::with(policy, move |_| {
        let status = statuses[nth.fetch_add(1, Ordering::SeqCst)];
        async move { text(status, "done") }
    })
}

#[tokio::test(start_paused = true)]
async fn an_unprotected_run_leaves_an_unknown_outcome_unknown() {
    // 504: nobody knows. 503: it did not happen, which says nothing of the run before.
    let house = answering(api().run_unprotected(), [504, 503]);
    house.send("k").await.is_executed();
    house.faults.always(Transition::Claim, Fault::Fail(StoreErrorKind::Unreachable));
    house.send("k").await.is_executed();
    house.faults.heal();
    sleep(60 * SECOND).await;
    house.send("k").await.is_refused(RefusalKind::OutcomeUnknown);
    assert_eq!(house.runs(), 2);

    // Its own word counts where nothing was known.
    let house = answering(api().run_unprotected(), [503, 200]);
    house.faults.always(Transition::Claim, Fault::Fail(StoreErrorKind::Unreachable));
    house.send("k").await.is_executed();
    house.faults.heal();
    house.send("k").await.is_executed();
    house.send("k").await.is_replayed();
}

#[tokio::test(start_paused = true)]
async fn claims_that_arrive_too_late_each_time_are_refused_and_grant_nothing() {
    let policy = || api().claim_within(200 * MS).call_within(SECOND);
    let house = House::new(policy());
    // Each arrives a while after its own deadline by the store's clock.
    house.faults.always(Transition::Claim, Fault::Delay(199 * MS));
    house.send("k").await.is_executed();
    assert_eq!(house.runs(), 1, "in time");
    let house = House::new(policy());
    house.faults.always(Transition::Claim, Fault::Delay(201 * MS));
    house.send("k").await.is_refused(RefusalKind::StoreUnavailable);
    house.drained().await;
    assert_eq!(house.runs(), 0);
}
