//! Waiting for somebody else's run: with its client, comparing again, and not for ever.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    task::Poll,
};

use tokio::{
    task::JoinHandle,
    time::{Instant, sleep},
};
use tower_idempotency::{
    Answer, Policy, RefusalKind,
    operations::{Operations, Settle},
    store::{Claimed, Cursor, InProgress, StoreErrorKind},
    test_util::{Fault, Gate, Transition},
};
use tower_idempotency_test_support::Log;

use crate::house::{Door, House, Reply, SECOND, Sent, api, leave, request, settle, with_door};

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
async fn whoever_has_a_place_says_so_and_whoever_is_refused_at_once_does_not() {
    let (log, _guard) = Log::listen();
    let (house, door) = with_door(api().wait(60 * SECOND), 200);
    let first = house.client("k");
    door.came().await;
    assert_eq!(log.of("waiting").len(), 0);
    let waiters: Vec<_> = (0..3).map(|_| house.client("k")).collect();
    log.said("waiting", 3).await;
    let key = house.record().await.key.digest();
    assert!(log.of("waiting").iter().all(|line| line.contains(&key)), "{:?}", log.all());
    door.let_one_in();
    first.await.unwrap().is_executed();
    for waiter in waiters {
        waiter.await.unwrap().is_replayed();
    }
    assert_eq!(log.take().len(), 3, "nothing else happened");

    let (house, door) = with_door(api(), 200);
    let _first = house.client("k");
    door.came().await;
    house.send("k").await.is_refused(RefusalKind::InProgress);
    assert_eq!(log.of("waiting").len(), 0);
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
    // Released, and taken by another body before the waiter's next look arrives.
    let gate = Gate::new();
    house.faults.next(Transition::Claim, Fault::Hold(gate.clone()));
    door.let_one_in();
    first.await.unwrap().is_executed();
    gate.arrived(1).await;
    let other = tokio::spawn(house.call(request("k", "another body")));
    door.came().await;
    gate.open();
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

/// A waiter that nobody polls again, as when its connection's task is held up.
async fn held_up(house: &House) -> Pin<Box<dyn Future<Output = Reply>>> {
    let mut waiter: Pin<Box<dyn Future<Output = Reply>>> = Box::pin(house.send("k"));
    for _ in 0..10 {
        let polled = poll_fn(|cx| Poll::Ready(waiter.as_mut().poll(cx).is_pending())).await;
        assert!(polled, "it waits");
        settle().await;
    }
    waiter
}

/// A house whose first request stands at the door, and so many that wait for it.
async fn crowd(
    policy: Policy,
    status: u16,
    waiters: usize,
) -> (House, Door, Vec<JoinHandle<Reply>>) {
    let (house, door) = with_door(policy, status);
    let mut clients = vec![house.client("k")];
    door.came().await;
    clients.extend((0..waiters).map(|_| house.client("k")));
    settle().await;
    (house, door, clients)
}

fn looks(house: &House) -> usize {
    house.times(Sent::Look).len()
}

#[tokio::test(start_paused = true)]
async fn a_thousand_waiters_on_one_key_look_as_often_as_one() {
    for waiters in [1, 1_000] {
        let (house, door, clients) = crowd(api().wait(120 * SECOND), 200, waiters).await;
        sleep(60 * SECOND).await;
        // At most twice a second and at least once, and a few at first.
        let looked = looks(&house);
        assert!((60..=250).contains(&looked), "{waiters} waiters looked {looked} times");
        door.let_one_in();
        for client in clients {
            client.await.unwrap();
        }
        assert!(looks(&house) <= looked + 2, "one look tells all");
        assert_eq!(house.times(Sent::Claim).len(), 1 + waiters);
        assert_eq!(house.runs(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn between_two_looks_there_is_chance_so_that_processes_do_not_look_in_step() {
    let (house, _door, _clients) = crowd(api().wait(120 * SECOND), 200, 1).await;
    sleep(60 * SECOND).await;
    let looks = house.times(Sent::Look);
    let pauses: Vec<_> = looks.windows(2).map(|two| (two[1] - two[0]).as_millis()).collect();
    // Once they are as long as they get, half of each is chance.
    let longest = &pauses[10..];
    assert!(longest.iter().all(|pause| (249..=502).contains(pause)), "{pauses:?}");
    for part in [249..350, 400..502] {
        assert!(longest.iter().any(|pause| part.contains(pause)), "{pauses:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn waiters_of_other_keys_look_for_themselves() {
    let (house, door) = with_door(api().wait(120 * SECOND), 200);
    let mut clients = Vec::new();
    for key in ["a", "b", "c", "d"] {
        clients.push(house.client(key));
        door.came().await;
        clients.push(house.client(key));
    }
    sleep(60 * SECOND).await;
    assert!(looks(&house) >= 4 * 60, "{}", looks(&house));
    for _ in 0..4 {
        door.let_one_in();
    }
    for client in clients {
        assert_eq!(client.await.unwrap().status, 200);
    }
    assert_eq!(house.runs(), 4);
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_in_the_process_of_the_run_hears_of_its_end_at_once() {
    let (_house, door, clients) = crowd(api().wait(120 * SECOND), 200, 20).await;
    sleep(60 * SECOND).await;
    let ended = Instant::now();
    door.let_one_in();
    for client in clients {
        client.await.unwrap();
    }
    assert_eq!(ended.elapsed(), std::time::Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn when_the_one_that_looks_leaves_the_next_looks_in_its_place_and_no_more_often() {
    let (house, door, mut clients) = crowd(api().wait(120 * SECOND), 200, 50).await;
    for waiter in clients.drain(1..50) {
        sleep(SECOND).await;
        let before = looks(&house);
        // The one that came first is the one that looks.
        leave(waiter).await;
        settle().await;
        assert!(looks(&house) <= before + 1);
    }
    let looked = looks(&house);
    assert!((49..=220).contains(&looked), "{looked}");
    sleep(10 * SECOND).await;
    assert!(looks(&house) >= looked + 10, "the last one looks");
    door.let_one_in();
    clients.pop().unwrap().await.unwrap().is_replayed();
    clients.pop().unwrap().await.unwrap().is_executed();
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_leaves_in_the_middle_of_its_look_takes_nobody_with_it() {
    let (house, door, mut clients) = crowd(api().wait(120 * SECOND), 200, 3).await;
    let gate = Gate::new();
    house.faults.next(Transition::Claim, Fault::HoldAnswer(gate.clone()));
    gate.arrived(1).await;
    door.let_one_in();
    clients.remove(0).await.unwrap().is_executed();
    let left = Instant::now();
    leave(clients.remove(0)).await;
    for client in clients {
        client.await.unwrap().is_replayed();
    }
    assert!(left.elapsed() <= SECOND, "{:?}", left.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_look_that_hangs_holds_up_its_own_request_alone() {
    let (house, door, clients) = crowd(api().wait(10 * SECOND), 200, 5).await;
    let begun = Instant::now();
    house.faults.always(Transition::Claim, Fault::Hold(Gate::new()));
    for client in clients.into_iter().skip(1) {
        client.await.unwrap().is_refused(RefusalKind::InProgress);
    }
    assert!(begun.elapsed() <= 13 * SECOND, "{:?}", begun.elapsed());
    door.let_one_in();
}

#[tokio::test(start_paused = true)]
async fn what_was_given_back_is_claimed_by_one_waiter_at_a_time() {
    let (house, door, clients) = crowd(api().wait(120 * SECOND), 503, 100).await;
    for runs in 1..=clients.len() {
        assert_eq!(house.runs(), runs);
        // Each one that may go finds it free; the others neither claim nor are refused.
        assert!(house.times(Sent::Claim).len() <= 101 + runs, "{runs}");
        door.let_one_in();
        if runs < clients.len() {
            door.came().await;
        }
    }
    for client in clients {
        client.await.unwrap().is_executed();
    }
    assert_eq!(house.runs(), 101);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_hears_no_answer_that_is_older_than_it() {
    let (house, door, clients) = crowd(api().wait(120 * SECOND), 504, 5).await;
    // It does not go when the others do.
    let _held_up = held_up(&house).await;
    door.let_one_in();
    for client in clients.into_iter().skip(1) {
        client.await.unwrap().is_refused(RefusalKind::OutcomeUnknown);
    }
    // Settled meanwhile, and running again.
    let operations = Operations::new(house.store.clone());
    let page = operations.list(Cursor::START, 10).await.unwrap();
    operations.settle(&page.operations[0], Settle::not_done("a test").forced()).await.unwrap();
    let again = house.client("k");
    door.came().await;
    let waiter = house.client("k");
    sleep(10 * SECOND).await;
    assert!(!waiter.is_finished());
    door.let_one_in();
    again.await.unwrap().is_executed();
    waiter.await.unwrap().is_refused(RefusalKind::OutcomeUnknown);
}

#[tokio::test(start_paused = true)]
async fn a_verdict_by_hand_is_heard_of_at_the_next_look() {
    let (house, _door, clients) = crowd(api().wait(120 * SECOND), 200, 5).await;
    sleep(60 * SECOND).await;
    let operations = Operations::new(house.store.clone());
    let page = operations.list(Cursor::START, 10).await.unwrap();
    let verdict = Settle::done(Answer::text("by hand"), "a test").forced();
    operations.settle(&page.operations[0], verdict).await.unwrap();
    let settled = Instant::now();
    for waiter in clients.into_iter().skip(1) {
        assert_eq!(waiter.await.unwrap().is_replayed().text(), "by hand");
    }
    let took = settled.elapsed();
    assert!(took <= std::time::Duration::from_millis(502), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn whoever_comes_while_a_look_is_on_its_way_hears_nothing_that_is_older_than_it() {
    let (house, door) = with_door(api().wait(120 * SECOND).call_within(10 * SECOND), 504);
    let first = house.client("k");
    door.came().await;
    let looking = house.client("k");
    let waiting = house.client("k");
    settle().await;
    let gate = Gate::new();
    house.faults.next(Transition::Claim, Fault::HoldAnswer(gate.clone()));
    door.let_one_in();
    first.await.unwrap().is_executed();
    // It has seen that nobody knows, and is about to hear so.
    gate.arrived(1).await;
    let operations = Operations::new(house.store.clone());
    let page = operations.list(Cursor::START, 10).await.unwrap();
    operations.settle(&page.operations[0], Settle::not_done("a test").forced()).await.unwrap();
    let again = house.client("k");
    door.came().await;
    let late = house.client("k");
    settle().await;
    gate.open();
    looking.await.unwrap().is_refused(RefusalKind::OutcomeUnknown);
    sleep(10 * SECOND).await;
    assert!(!late.is_finished() && !waiting.is_finished(), "it runs again");
    door.let_one_in();
    again.await.unwrap().is_executed();
    let ended = Instant::now();
    for waiter in [late, waiting] {
        waiter.await.unwrap().is_refused(RefusalKind::OutcomeUnknown);
    }
    assert_eq!(ended.elapsed(), std::time::Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn all_who_were_there_before_a_look_hear_of_it_that_nobody_knows() {
    let (house, door, clients) = crowd(api().wait(120 * SECOND), 504, 50).await;
    sleep(10 * SECOND).await;
    let looked = looks(&house);
    door.let_one_in();
    for client in clients.into_iter().skip(1) {
        client.await.unwrap().is_refused(RefusalKind::OutcomeUnknown);
    }
    assert_eq!(looks(&house), looked + 1);
}

/// One waiter's look has seen how a run ended and is held; another waiter was there before, and one comes
/// meanwhile, who was told that it goes on.
async fn comes_meanwhile(status: u16) -> (House, Gate, [JoinHandle<Reply>; 3]) {
    let (house, door) = with_door(api().wait(120 * SECOND).call_within(10 * SECOND), status);
    let first = house.client("k");
    door.came().await;
    let (looking, waiting) = (house.client("k"), house.client("k"));
    sleep(30 * SECOND).await;
    let gate = Gate::new();
    house.faults.next(Transition::Claim, Fault::HoldAnswer(gate.clone()));
    door.let_one_in();
    first.await.unwrap().is_executed();
    gate.arrived(1).await;
    let going_on = InProgress::new(SECOND, SECOND, 1);
    house.store.answer_next(Claimed::InProgress(going_on));
    let late = house.client("k");
    settle().await;
    (house, gate, [looking, waiting, late])
}

#[tokio::test(start_paused = true)]
async fn a_stored_answer_is_everybodys_who_comes_while_it_is_on_its_way() {
    let (house, gate, clients) = comes_meanwhile(200).await;
    let looked = looks(&house);
    gate.open();
    for client in clients {
        client.await.unwrap().is_replayed();
    }
    assert_eq!(looks(&house), looked, "what was done stays done: nobody looks again");
}

#[tokio::test(start_paused = true)]
async fn whoever_does_not_hear_of_a_look_has_the_next_one_at_once() {
    let (house, gate, clients) = comes_meanwhile(504).await;
    let (looked, opened) = (looks(&house), Instant::now());
    gate.open();
    for client in clients {
        client.await.unwrap().is_refused(RefusalKind::OutcomeUnknown);
    }
    assert_eq!(looks(&house), looked + 1, "one for both");
    assert_eq!(opened.elapsed(), std::time::Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_is_held_up_holds_up_no_other() {
    let (house, door) = with_door(api().wait(120 * SECOND), 200);
    let first = house.client("k");
    door.came().await;
    // It came first, and is the one to look.
    let held_up = held_up(&house).await;
    let others: Vec<_> = (0..10).map(|_| house.client("k")).collect();
    settle().await;
    let looked = looks(&house);
    door.let_one_in();
    first.await.unwrap().is_executed();
    let ended = Instant::now();
    for other in others {
        other.await.unwrap().is_replayed();
    }
    assert!(ended.elapsed() <= 5 * SECOND, "{:?}", ended.elapsed());
    assert!(looks(&house) <= looked + 2, "one of them looked for all");
    held_up.await.is_replayed();
}
