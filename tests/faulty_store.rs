//! The faulty store does what a test planned, and nothing else.

use std::time::Duration;

use bytes::Bytes;
use tower_idempotency::{
    ClaimToken, Grant, MemoryStore, RecordKey, Store,
    store::{Claim, Claimed, Kept, StoreErrorKind, Written},
    test_util::{Fault, FaultyStore, Gate, Transition},
};

const MINUTE: Duration = Duration::from_secs(60);

fn ask() -> Claim {
    let key = RecordKey::from_bytes([7; 32]);
    Claim::new(key, ClaimToken::random(), None, MINUTE, MINUTE, MINUTE)
}

fn kept() -> Kept {
    Kept::new(Bytes::from_static(b"done"), MINUTE)
}

async fn granted(store: &impl Store) -> Grant {
    match store.claim(ask()).await {
        Ok(Claimed::Granted(grant)) => grant,
        other => panic!("it should be granted: {other:?}"),
    }
}

async fn is_completed(store: &FaultyStore<MemoryStore>) -> bool {
    matches!(store.inner().claim(ask()).await, Ok(Claimed::Completed(_)))
}

#[tokio::test(start_paused = true)]
async fn without_a_plan_everything_goes_through_and_is_counted() {
    let store = FaultyStore::new(MemoryStore::new());
    let faults = store.faults();
    let grant = granted(&store).await;
    assert_eq!(store.renew(&grant).await.unwrap(), Written::Stored);
    assert_eq!(store.complete(&grant, kept()).await.unwrap(), Written::Stored);
    assert!(matches!(store.claim(ask()).await, Ok(Claimed::Completed(_))));
    let counted = [Transition::Claim, Transition::Renew, Transition::Complete, Transition::Release];
    assert_eq!(counted.map(|transition| faults.calls(transition)), [2, 1, 1, 0]);
}

#[tokio::test(start_paused = true)]
async fn a_planned_failure_does_nothing_and_a_lost_answer_does_everything() {
    let store = FaultyStore::new(MemoryStore::new());
    let faults = store.faults();
    let grant = granted(&store).await;
    faults.next(Transition::Complete, Fault::Fail(StoreErrorKind::Unreachable));
    faults.next(Transition::Complete, Fault::None);
    assert!(store.complete(&grant, kept()).await.unwrap_err().is_unreachable());
    assert!(!is_completed(&store).await);
    assert_eq!(store.complete(&grant, kept()).await.unwrap(), Written::Stored);

    let store = FaultyStore::new(MemoryStore::new());
    let grant = granted(&store).await;
    store.faults().next(Transition::Complete, Fault::LoseAnswer(StoreErrorKind::Timeout));
    assert!(store.complete(&grant, kept()).await.unwrap_err().is_timeout());
    assert!(is_completed(&store).await);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_down_answers_again_when_it_is_healed() {
    let store = FaultyStore::new(MemoryStore::new());
    let faults = store.faults();
    faults.down(StoreErrorKind::Unreachable);
    for _ in 0..3 {
        assert!(store.claim(ask()).await.unwrap_err().is_unreachable());
    }
    faults.heal();
    granted(&store).await;
    assert_eq!(faults.calls(Transition::Claim), 4);
}

#[tokio::test(start_paused = true)]
async fn a_gate_holds_the_call_or_its_answer() {
    for answered in [false, true] {
        let store = std::sync::Arc::new(FaultyStore::new(MemoryStore::new()));
        let (faults, gate) = (store.faults(), Gate::new());
        let grant = granted(&*store).await;
        let fault =
            if answered { Fault::HoldAnswer(gate.clone()) } else { Fault::Hold(gate.clone()) };
        faults.next(Transition::Complete, fault);
        let call = tokio::spawn({
            let store = store.clone();
            async move { store.complete(&grant, kept()).await.unwrap() }
        });
        faults.called(Transition::Complete, 1).await;
        gate.arrived(1).await;
        assert_eq!(is_completed(&store).await, answered);
        assert!(!call.is_finished());
        gate.open();
        assert_eq!(call.await.unwrap(), Written::Stored);
        assert!(is_completed(&store).await);
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_dropped_at_the_gate_was_never_sent() {
    let store = FaultyStore::new(MemoryStore::new());
    let (faults, gate) = (store.faults(), Gate::new());
    let grant = granted(&store).await;
    faults.next(Transition::Complete, Fault::Hold(gate.clone()));
    let waited = tokio::time::timeout(MINUTE / 2, store.complete(&grant, kept())).await;
    assert!(waited.is_err());
    gate.open();
    assert!(!is_completed(&store).await);
}

#[tokio::test(start_paused = true)]
async fn a_delay_takes_its_time() {
    let store = FaultyStore::new(MemoryStore::new());
    let started = tokio::time::Instant::now();
    store.faults().always(Transition::Claim, Fault::Delay(Duration::from_secs(1)));
    granted(&store).await;
    assert!(store.claim(ask()).await.is_ok());
    assert_eq!(started.elapsed(), Duration::from_secs(2));
}
