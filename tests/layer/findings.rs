//! The findings of trying to break the protocol, where they show at the layer. F6, F7, F15 and
//! F17 are the stores' (`test_util::contract`), and so is F20, which is in `operations` too; F8 is in
//! `recovery`, F9 in `ledger`, F16 in `keeper`.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::time::sleep;
use tower_idempotency::{
    ClaimToken, Fence, MemoryStore, Outcome, Policy, Previous, RefusalKind, Rule, State, Store,
    store::{Claim, Claimed, Reason, Release, StoreErrorKind, Written},
    test_util::{Fault, Gate, Transition, contract::World},
};

use crate::house::{
    Answered, House, SECOND, Sent, api, leave, operation, request, settle, text, with_door,
};

const MS: Duration = Duration::from_millis(1);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// Answers with these statuses, one after another, and notes what each run found.
fn answering(memory: &MemoryStore, policy: Policy, statuses: &'static [u16]) -> (House, Found) {
    let found = Found::default();
    let (noted, nth) = (found.clone(), Arc::new(AtomicUsize::new(0)));
    let house = House::of(memory.clone(), Rule::new("pay", policy), move |request| {
        noted.lock().unwrap().push(operation(&request).previous());
        let status = statuses[nth.fetch_add(1, Ordering::SeqCst)];
        async move { text(status, "done") }
    });
    (house, found)
}

type Found = Arc<Mutex<Vec<Previous>>>;

#[tokio::test(start_paused = true)]
async fn f1_an_unknown_outcome_is_not_laundered_by_a_rerun_that_gives_back() {
    let memory = MemoryStore::new();
    let (rerun, found) = answering(&memory, api().rerun_abandoned(), &[504, 503, 200]);
    rerun.send("k").await.is_executed();
    // The answer of the taking over is lost: the second is told the same.
    rerun.faults.next(Transition::Claim, Fault::LoseAnswer(StoreErrorKind::Timeout));
    rerun.send("k").await.is_executed();
    let (refuse, _) = answering(&memory, api(), &[]);
    refuse.send("k").await.is_refused(RefusalKind::OutcomeUnknown);
    rerun.send("k").await.is_executed();
    let unknown = Previous::AbandonedUnknown;
    assert_eq!(*found.lock().unwrap(), [Previous::Nothing, unknown, unknown]);

    // Without an unknown one before it, what is given back is free.
    let memory = MemoryStore::new();
    let (house, found) = answering(&memory, api(), &[503, 200]);
    house.send("k").await.is_executed();
    house.send("k").await.is_executed();
    assert_eq!(*found.lock().unwrap(), [Previous::Nothing, Previous::Released]);
}

#[tokio::test(start_paused = true)]
async fn f2_clients_that_leave_in_a_stall_of_the_store_leave_free_keys() {
    let house = House::new(api());
    let stall = Gate::new();
    house.faults.always(Transition::Claim, Fault::HoldAnswer(stall.clone()));
    let keys: Vec<_> = (0..50).map(|n| format!("k-{n}")).collect();
    let clients: Vec<_> = keys.iter().map(|key| house.client(key)).collect();
    stall.arrived(50).await;
    for client in clients {
        leave(client).await;
    }
    sleep(5 * SECOND).await;
    house.faults.heal();
    sleep(5 * SECOND).await;
    for key in &keys {
        house.send(key).await.is_executed();
    }
    assert_eq!(house.runs(), 50);
}

#[tokio::test(start_paused = true)]
async fn f2_a_busy_answer_with_a_lost_send_before_it_leaves_a_free_key() {
    let (house, door) = with_door(api(), 503);
    let owner = house.client("k");
    door.came().await;
    house.faults.next(Transition::Claim, Fault::LoseAnswer(StoreErrorKind::Timeout));
    house.send("k").await.is_refused(RefusalKind::InProgress);
    assert_eq!(house.times(Sent::CalledOff), [], "not while a copy may still be granted");
    door.let_one_in();
    owner.await.unwrap().is_executed();
    sleep(2 * SECOND).await;
    assert_eq!(house.times(Sent::CalledOff).len(), 1, "and then it is");
    door.let_one_in();
    house.send("k").await.is_executed();
    assert_eq!(house.runs(), 2);
}

#[tokio::test(start_paused = true)]
async fn f3_a_record_that_is_not_ours_is_refused_and_nothing_runs() {
    let house = House::new(api());
    house.store.answer_next(Claimed::Foreign);
    let refused = house.send("k").await;
    assert_eq!(refused.is_refused(RefusalKind::RecordUnreadable).status, 503);
    assert_eq!(house.runs(), 0);
    house.send("k").await.is_executed();
}

#[tokio::test(start_paused = true)]
async fn f4_what_crashed_is_remembered_longer_than_what_ended() {
    let (house, door) = with_door(api().max_run(30 * SECOND), 200);
    let _hangs = house.client("k");
    door.came().await;
    // After the retention of an answer, and until the hold is over.
    for days in [1, 5] {
        sleep(days * DAY).await;
        house.send("k").await.is_refused(RefusalKind::OutcomeUnknown);
    }
    let policy = api().retention(7 * DAY).hold(DAY);
    let error = Rule::try_new("pay", policy).unwrap_err().to_string();
    assert!(error.contains("lengthen .hold(..)"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn f5_a_run_whose_record_is_lost_writes_it_again_and_is_not_run_again() {
    for (status, refused) in [(200, None), (504, Some(RefusalKind::OutcomeUnknown))] {
        let (house, door) = with_door(api(), status);
        let client = house.client("k");
        door.came().await;
        house.memory.forget(&house.record().await.key).await;
        door.let_one_in();
        client.await.unwrap().is_executed();
        assert_eq!(house.send("k").await.refused, refused);
        assert_eq!(house.runs(), 1);
    }
    // While it runs, its renewal does.
    let (house, door) = with_door(api(), 200);
    let client = house.client("k");
    door.came().await;
    house.memory.forget(&house.record().await.key).await;
    sleep(11 * SECOND).await;
    house.send("k").await.is_refused(RefusalKind::InProgress);
    door.let_one_in();
    client.await.unwrap().is_executed();
}

#[tokio::test(start_paused = true)]
async fn f10_a_failed_notification_runs_again_and_is_told_failed_and_not_released() {
    let policy = || Policy::webhook(tower_idempotency::header("idempotency-key"));
    let (house, found) = answering(&MemoryStore::new(), policy(), &[500, 404, 200]);
    for _ in 0..3 {
        house.send("k").await.is_executed();
    }
    house.send("k").await.is_replayed();
    assert_eq!(*found.lock().unwrap(), [Previous::Nothing, Previous::Failed, Previous::Failed]);

    // An explicit word is a release.
    let found = Found::default();
    let noted = found.clone();
    let house = House::with(policy(), move |request| {
        noted.lock().unwrap().push(operation(&request).previous());
        async {
            let mut answer = text(500, "not yet")?;
            answer.extensions_mut().insert(Outcome::Release);
            Answered::Ok(answer)
        }
    });
    house.send("k").await.is_executed();
    house.send("k").await.is_executed();
    assert_eq!(*found.lock().unwrap(), [Previous::Nothing, Previous::Released]);
}

#[tokio::test(start_paused = true)]
async fn f11_a_grant_of_which_half_is_over_is_asked_for_again() {
    for (delay, claims) in [(290, 1), (310, 2)] {
        let house = House::new(api().lease(600 * MS));
        let gate = Gate::new();
        house.faults.next(Transition::Claim, Fault::HoldAnswer(gate.clone()));
        let client = house.client("k");
        gate.arrived(1).await;
        sleep(delay * MS).await;
        gate.open();
        client.await.unwrap().is_executed();
        assert_eq!(house.times(Sent::Claim).len(), claims, "after {delay} ms");
        assert_eq!((house.runs(), house.record().await.attempt), (1, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn f12_a_renewal_on_its_way_is_waited_for_before_the_grant_is_given_up() {
    let (house, door) = with_door(api().lease(3 * SECOND), 504);
    let gate = Gate::new();
    house.faults.next(Transition::Renew, Fault::Hold(gate.clone()));
    let client = house.client("k");
    door.came().await;
    gate.arrived(1).await;
    door.let_one_in();
    settle().await;
    assert!(!client.is_finished());
    gate.open();
    client.await.unwrap().is_executed();
    assert_eq!(house.sent(), [Sent::Claim, Sent::Renew, Sent::GivenBack(Reason::Unknown)]);
    sleep(60 * SECOND).await;
    house.send("k").await.is_refused(RefusalKind::OutcomeUnknown);
}

#[tokio::test(start_paused = true)]
async fn f13_after_a_million_attempts_a_key_still_works() {
    let memory = MemoryStore::new();
    let (house, _) = answering(&memory, api(), &[503, 503, 503, 200]);
    house.send("k").await.is_executed();
    let key = house.record().await.key;
    memory.forget(&key).await;
    let (lease, hold) = (30 * SECOND, 7 * DAY);
    let claim = Claim::new(key, ClaimToken::random(), None, lease, hold, SECOND);
    let grant = claim.granted(Fence::new(1), 999_998, Previous::Nothing);
    assert_eq!(memory.renew(&grant).await.unwrap(), Written::Restored);
    memory.release(Release::of(&grant, Reason::DidNotHappen)).await.unwrap();
    for _ in 0..2 {
        house.send("k").await.is_executed();
        assert_eq!(house.record().await.attempt, 999_999);
    }
    house.send("k").await.is_executed();
    house.send("k").await.is_replayed();
}

#[tokio::test(start_paused = true)]
async fn f14_a_takeover_keeps_what_must_be_equal() {
    let memory = MemoryStore::new();
    let (house, _) = answering(&memory, api().rerun_abandoned(), &[504, 504, 200]);
    let other = || house.call(request("k", "another body"));
    house.send("k").await.is_executed();
    other().await.is_refused(RefusalKind::Mismatch);
    // A policy without a fingerprint takes it over, and does not wipe it out.
    let policy = api().no_fingerprint().rerun_abandoned();
    let (blind, _) = answering(&memory, policy, &[504]);
    blind.call(request("k", "anything")).await.is_executed();
    other().await.is_refused(RefusalKind::Mismatch);
    house.send("k").await.is_executed();
    house.send("k").await.is_executed();
    house.send("k").await.is_replayed();
    other().await.is_refused(RefusalKind::Mismatch);
}

#[tokio::test(start_paused = true)]
async fn answers_of_a_store_that_fit_no_question_are_refused_and_claim_nothing() {
    let key = {
        let house = House::new(api());
        house.send("k").await;
        house.record().await.key
    };
    for (planned, kind) in [
        (vec![Claimed::Dead], RefusalKind::StoreUnavailable),
        (vec![Claimed::TokenUnknown], RefusalKind::TokenUnknown),
        (vec![Claimed::DeliveryTaken(State::Completed)], RefusalKind::StoreUnavailable),
        (vec![Claimed::AliasOf(key), Claimed::AliasOf(key)], RefusalKind::RecordUnreadable),
    ] {
        let house = House::new(api());
        planned.iter().cloned().for_each(|claimed| house.store.answer_next(claimed));
        house.send("k").await.is_refused(kind);
        house.drained().await;
        assert_eq!(house.runs(), 0, "{planned:?}");
    }
}
