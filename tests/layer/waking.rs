//! Whoever waits for a run hears at once of all that its own process brings to the store: of answers and
//! releases that come late, of claims that are called off, and of verdicts.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    task::JoinHandle,
    time::{Instant, sleep},
};
use tower_idempotency::{
    Abandoned, Answer, Policy, Resolution,
    store::StoreErrorKind,
    test_util::{Fault, Gate, Transition},
};

use crate::house::{Door, House, Reply, SECOND, Sent, api, leave, settle, text, with_door};

/// Long enough that the looks are half a second apart.
const LONG: Duration = Duration::from_secs(60);

/// So many that wait for the run of `k`, each with the time at which it was answered.
fn waiters(house: &House, count: usize) -> Vec<JoinHandle<(Reply, Instant)>> {
    let waiter = |_| {
        let reply = house.send("k");
        tokio::spawn(async move { (reply.await, Instant::now()) })
    };
    (0..count).map(waiter).collect()
}

fn patient() -> Policy {
    api().wait(10 * LONG)
}

/// A house whose first request stands at the door, and some that have waited for it for long.
async fn waited_for(
    status: u16,
) -> (House, Door, JoinHandle<Reply>, Vec<JoinHandle<(Reply, Instant)>>) {
    let (house, door) = with_door(patient(), status);
    let first = house.client("k");
    door.came().await;
    let waiters = waiters(&house, 5);
    sleep(LONG).await;
    (house, door, first, waiters)
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_stored_late_is_heard_of_at_once() {
    // A look might come at the same moment by chance.
    for _ in 0..5 {
        let (house, door, first, waiters) = waited_for(200).await;
        house.faults.always(Transition::Complete, Fault::Fail(StoreErrorKind::Unreachable));
        door.let_one_in();
        first.await.unwrap().is_executed();
        sleep(7 * SECOND).await;
        assert!(waiters.iter().all(|waiter| !waiter.is_finished()), "nothing is stored yet");
        house.faults.heal();
        let mut heard = Vec::new();
        for waiter in waiters {
            let (reply, at) = waiter.await.unwrap();
            reply.is_replayed();
            heard.push(at);
        }
        let stored = *house.times(Sent::Complete).last().unwrap();
        assert_eq!(heard, [stored; 5]);
        assert_eq!(house.runs(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_key_that_is_given_back_late_is_claimed_at_once() {
    for _ in 0..5 {
        let (house, door, first, waiters) = waited_for(503).await;
        house.faults.always(Transition::Release, Fault::Fail(StoreErrorKind::Unreachable));
        door.let_one_in();
        first.await.unwrap().is_executed();
        sleep(7 * SECOND).await;
        assert_eq!(house.runs(), 1);
        house.faults.heal();
        door.came().await;
        let given_back = house.sent().iter().rposition(|sent| matches!(sent, Sent::GivenBack(_)));
        let given_back = house.sent()[given_back.unwrap()];
        let at = *house.times(given_back).last().unwrap();
        assert_eq!(Instant::now(), at);
        assert_eq!(house.times(Sent::Claim).last(), Some(&at));
        for _ in &waiters {
            door.let_one_in();
        }
        for waiter in waiters {
            waiter.await.unwrap();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_is_called_off_lets_the_next_run_at_once() {
    for _ in 0..5 {
        let policy = patient().lease(5 * LONG).call_within(2 * LONG).claim_within(2 * LONG);
        let house = House::new(policy);
        let gate = Gate::new();
        house.faults.next(Transition::Claim, Fault::HoldAnswer(gate.clone()));
        let leaver = house.client("k");
        gate.arrived(1).await;
        let waiters = waiters(&house, 5);
        sleep(LONG).await;
        assert!(waiters.iter().all(|waiter| !waiter.is_finished()), "it may be granted");
        // It leaves, and then it is heard that it was.
        leave(leaver).await;
        sleep(SECOND).await;
        gate.open();
        let opened = Instant::now();
        let mut executed = 0;
        for waiter in waiters {
            let (reply, at) = waiter.await.unwrap();
            executed += usize::from(reply.header("idempotent-replayed").is_none());
            assert_eq!((reply.status, at), (200, opened));
        }
        assert_eq!((executed, house.runs()), (1, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_stored_without_its_body_is_heard_of_at_once() {
    for _ in 0..5 {
        let (house, door, first, waiters) = waited_for(200).await;
        house.faults.next(Transition::Complete, Fault::Fail(StoreErrorKind::Full));
        let ended = Instant::now();
        door.let_one_in();
        first.await.unwrap().is_executed();
        for waiter in waiters {
            assert_eq!(waiter.await.unwrap().1, ended);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_verdict_is_heard_of_at_once_by_all_who_have_not_asked_for_one() {
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = asked.clone();
    let resolver = move |_: Abandoned| {
        counted.fetch_add(1, Ordering::SeqCst);
        async {
            sleep(2 * SECOND).await;
            Resolution::Done(Answer::text("settled"))
        }
    };
    let door = Door::new();
    let inside = door.clone();
    let house = House::with(patient().resolve_abandoned(resolver), move |_| {
        let door = inside.clone();
        async move {
            door.pass().await;
            text(504, "timed out")
        }
    });
    let first = house.client("k");
    door.came().await;
    let waiters = waiters(&house, 50);
    sleep(LONG).await;
    let ended = Instant::now();
    door.let_one_in();
    first.await.unwrap().is_executed();
    let mut heard_at_once = 0;
    for waiter in waiters {
        let (reply, at) = waiter.await.unwrap();
        assert_eq!(reply.is_replayed().text(), "settled");
        heard_at_once += usize::from(at == ended + 2 * SECOND);
    }
    let asked = asked.load(Ordering::SeqCst);
    assert!(asked <= 10, "one look in a quarter of a second at most: {asked}");
    // The first that asked among them.
    assert!(heard_at_once > 50 - asked, "{heard_at_once} heard at once, {asked} asked");
    assert_eq!(house.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_for_another_key_is_left_alone() {
    let (house, door) = with_door(patient(), 200);
    let others = [house.client("k"), house.client("l")];
    door.came().await;
    door.came().await;
    let waiters = waiters(&house, 1);
    sleep(LONG).await;
    // Right after a look of its own: there is no other for a quarter of a second.
    let looks = || house.times(Sent::Look).len();
    let looked = looks();
    while looks() == looked {
        sleep(Duration::from_millis(5)).await;
    }
    let before = looks();
    // A claim of a third key is called off.
    let gate = Gate::new();
    house.faults.next(Transition::Claim, Fault::HoldAnswer(gate.clone()));
    let leaver = house.client("m");
    gate.arrived(1).await;
    leave(leaver).await;
    gate.open();
    settle().await;
    assert!(house.sent().contains(&Sent::CalledOff));
    assert_eq!(looks(), before);
    for _ in 0..2 {
        door.let_one_in();
    }
    for other in others {
        other.await.unwrap().is_executed();
    }
    for waiter in waiters {
        waiter.await.unwrap().0.is_replayed();
    }
}
