//! A store that says it is no use to ask it: the request is refused at once, and nothing is owed.

use std::time::Duration;

use tower_idempotency::{
    RefusalKind,
    store::StoreErrorKind,
    test_util::{Fault, Transition},
};

use crate::house::{House, SECOND, Sent, api};

#[tokio::test(start_paused = true)]
async fn a_suspended_store_is_asked_once_and_nothing_is_called_off() {
    let house = House::new(api());
    house.faults.down(StoreErrorKind::Suspended);
    let before = tokio::time::Instant::now();
    let refused = house.send("k").await;
    assert_eq!(before.elapsed(), Duration::ZERO, "at once");
    assert_eq!(refused.header("retry-after"), Some("1"));
    refused.is_refused(RefusalKind::StoreUnavailable);
    assert_eq!(house.sent(), [Sent::Claim]);
    tokio::time::sleep(60 * SECOND).await;
    assert_eq!(house.sent(), [Sent::Claim]);
    assert_eq!(house.runs(), 0);

    // One that cannot be reached is asked on, and what was sent is called off.
    let house = House::new(api());
    house.faults.down(StoreErrorKind::Unreachable);
    house.send("k").await.is_refused(RefusalKind::StoreUnavailable);
    assert!(house.sent().len() > 3, "{:?}", house.sent());
    house.faults.heal();
    house.drained().await;
    assert!(house.sent().contains(&Sent::CalledOff));
}

#[tokio::test(start_paused = true)]
async fn what_was_sent_before_it_was_suspended_is_called_off_all_the_same() {
    let house = House::new(api());
    house.faults.next(Transition::Claim, Fault::LoseAnswer(StoreErrorKind::Timeout));
    house.faults.always(Transition::Claim, Fault::Fail(StoreErrorKind::Suspended));
    house.send("k").await.is_refused(RefusalKind::StoreUnavailable);
    assert_eq!(house.sent()[..2], [Sent::Claim, Sent::Claim]);
    house.faults.heal();
    house.drained().await;
    assert!(house.sent().contains(&Sent::CalledOff), "{:?}", house.sent());
    assert_eq!(house.runs(), 0);
}

#[tokio::test(start_paused = true)]
async fn unprotected_requests_run_while_it_is_suspended() {
    let house = House::new(api().run_unprotected());
    house.faults.down(StoreErrorKind::Suspended);
    house.send("k").await.is_executed();
    assert_eq!(house.runs(), 1);
}
