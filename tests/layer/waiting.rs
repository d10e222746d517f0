//! Waiting for somebody else's run: with its client, comparing again, and not for ever.

use tokio::time::{Instant, sleep};
use tower_idempotency::{
    RefusalKind,
    store::StoreErrorKind,
    test_util::{Fault, Gate, Transition},
};

use crate::house::{SECOND, Sent, api, leave, request, settle, with_door};

#[tokio::test(start_paused = true)]
async fn a_waiter_gets_the_answer_of_the_run_it_waited_for() {
    let (house, door) = with_door(api().wait(10 * SECOND), 200);
    let first = house.client("k");
    door.came().await;
    let waiter = house.client("k");
    sleep(5 * SECOND).await;
    assert!(!waiter.is_finished());
    door.let_one_in();
    first.await.unwrap().is_executed();
    waiter.await.unwrap().is_replayed();
    assert_eq!(house.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn without_a_wait_it_is_refused_at_once_after_one_more_look() {
    let (house, door) = with_door(api(), 200);
    let _first = house.client("k");
    door.came().await;
    let refused = house.send("k").await;
    refused.is_refused(RefusalKind::InProgress);
    assert_eq!((refused.status, refused.header("retry-after")), (409, Some("1")));
    assert_eq!(house.sent(), [Sent::Claim, Sent::Claim, Sent::Look]);
    sleep(7 * SECOND).await;
    let after = house.send("k").await.header("retry-after").unwrap().to_owned();
    assert_eq!(after, "7", "the run's age so far");
}

#[tokio::test(start_paused = true)]
async fn whoever_lost_a_race_reads_again_before_it_says_busy() {
    let (house, door) = with_door(api(), 200);
    let first = house.client("k");
    door.came().await;
    let gate = Gate::new();
    house.faults.next(Transition::Claim, Fault::HoldAnswer(gate.clone()));
    let second = house.client("k");
    gate.arrived(1).await;
    door.let_one_in();
    first.await.unwrap().is_executed();
    gate.open();
    second.await.unwrap().is_replayed();
}

#[tokio::test(start_paused = true)]
async fn a_waiter_gives_up_after_its_time() {
    let (house, door) = with_door(api().wait(10 * SECOND), 200);
    let _first = house.client("k");
    door.came().await;
    let begun = Instant::now();
    house.send("k").await.is_refused(RefusalKind::InProgress);
    assert_eq!(begun.elapsed(), 10 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn another_request_under_the_same_key_is_a_mismatch_and_does_not_wait() {
    let (house, door) = with_door(api().wait(10 * SECOND), 200);
    let _first = house.client("k");
    door.came().await;
    let begun = Instant::now();
    let refused = house.call(request("k", "another body")).await;
    assert_eq!(refused.is_refused(RefusalKind::Mismatch).status, 422);
    assert_eq!(begun.elapsed().as_secs(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_compares_again_when_another_request_took_the_key() {
    let (house, door) = with_door(api().wait(60 * SECOND), 503);
    let first = house.client("k");
    door.came().await;
    let waiter = house.client("k");
    settle().await;
    // Released, and taken by another body before the waiter looks again.
    door.let_one_in();
    first.await.unwrap().is_executed();
    let other = tokio::spawn(house.call(request("k", "another body")));
    door.came().await;
    waiter.await.unwrap().is_refused(RefusalKind::Mismatch);
    door.let_one_in();
    other.await.unwrap().is_executed();
}

#[tokio::test(start_paused = true)]
async fn a_waiter_runs_when_the_run_it_waited_for_was_given_back() {
    let (house, door) = with_door(api().wait(60 * SECOND), 503);
    let first = house.client("k");
    door.came().await;
    let waiter = house.client("k");
    settle().await;
    door.let_one_in();
    first.await.unwrap().is_executed();
    door.came().await;
    door.let_one_in();
    waiter.await.unwrap().is_executed();
    assert_eq!(house.runs(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_is_refused_when_the_run_it_waited_for_ends_unknown() {
    let (house, door) = with_door(api().wait(60 * SECOND), 504);
    let first = house.client("k");
    door.came().await;
    let waiter = house.client("k");
    settle().await;
    door.let_one_in();
    first.await.unwrap().is_executed();
    waiter.await.unwrap().is_refused(RefusalKind::OutcomeUnknown);
    assert_eq!(house.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_leaves_is_gone_and_leaves_nothing() {
    let (house, door) = with_door(api().wait(60 * SECOND), 200);
    let first = house.client("k");
    door.came().await;
    let waiter = house.client("k");
    sleep(SECOND).await;
    leave(waiter).await;
    let looks = house.times(Sent::Look).len();
    sleep(10 * SECOND).await;
    assert_eq!(house.times(Sent::Look).len(), looks);
    assert_eq!(house.times(Sent::CalledOff), [], "its claim was answered: nothing is owed");
    door.let_one_in();
    first.await.unwrap().is_executed();
    house.send("k").await.is_replayed();
}

#[tokio::test(start_paused = true)]
async fn store_trouble_while_waiting_is_waited_out() {
    let (house, door) = with_door(api().wait(60 * SECOND), 200);
    let first = house.client("k");
    door.came().await;
    let waiter = house.client("k");
    settle().await;
    house.faults.always(Transition::Claim, Fault::Fail(StoreErrorKind::Unreachable));
    door.let_one_in();
    first.await.unwrap().is_executed();
    sleep(20 * SECOND).await;
    assert!(!waiter.is_finished());
    house.faults.heal();
    waiter.await.unwrap().is_replayed();
}

#[tokio::test(start_paused = true)]
async fn at_most_1024_wait_at_once_and_a_place_is_free_again_when_one_leaves() {
    let (house, door) = with_door(api().wait(60 * SECOND), 200);
    let first = house.client("k");
    door.came().await;
    let mut waiters: Vec<_> = (0..1024).map(|_| house.client("k")).collect();
    for _ in 0..20 {
        settle().await;
    }
    house.send("k").await.is_refused(RefusalKind::InProgress);
    leave(waiters.pop().unwrap()).await;
    let one_more = house.client("k");
    sleep(SECOND).await;
    assert!(!one_more.is_finished());
    door.let_one_in();
    first.await.unwrap().is_executed();
    one_more.await.unwrap().is_replayed();
    for waiter in waiters {
        waiter.await.unwrap().is_replayed();
    }
    assert_eq!(house.runs(), 1);
}
