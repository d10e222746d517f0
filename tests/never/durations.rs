//! Times that are as short, as long or as equal as they can be.

use std::time::Duration;

use tokio::time::{advance, sleep};
use tower_idempotency::{
    Grant, MemoryStore, RefusalKind, State, Store, StoreError,
    store::{
        Claim, Claimed, Cursor, InProgress, Issue, Issued, Kept, Page, Release, Resolve, Resolved,
        Written,
    },
    test_util::{Fault, FaultyStore, Gate, Transition},
};

use crate::shop::{Shop, api, keyed, only_state, records, text};

#[tokio::test]
async fn a_drain_may_be_told_to_wait_for_ever() {
    let shop = Shop::new(MemoryStore::new(), api(), |_| async { text(200, "paid") });
    shop.send(keyed("k")).await.assert_text("paid");
    assert!(shop.layer.drain(Duration::MAX).await.is_clean());
    assert_eq!(shop.send(keyed("k")).await.refusal(), Some(RefusalKind::ShuttingDown));
}

/// A store that says of every key that it is in progress, for ever.
struct Busy(MemoryStore);

impl Store for Busy {
    async fn claim(&self, _: Claim) -> Result<Claimed, StoreError> {
        Ok(Claimed::InProgress(InProgress::new(Duration::MAX, Duration::MAX, u32::MAX)))
    }
    async fn renew(&self, grant: &Grant) -> Result<Written, StoreError> {
        self.0.renew(grant).await
    }
    async fn complete(&self, grant: &Grant, kept: Kept) -> Result<Written, StoreError> {
        self.0.complete(grant, kept).await
    }
    async fn release(&self, release: Release) -> Result<Written, StoreError> {
        self.0.release(release).await
    }
    async fn resolve(&self, resolve: Resolve) -> Result<Resolved, StoreError> {
        self.0.resolve(resolve).await
    }
    async fn issue(&self, issue: Issue) -> Result<Issued, StoreError> {
        self.0.issue(issue).await
    }
    async fn scan(&self, from: Cursor, at_most: usize) -> Result<Page, StoreError> {
        self.0.scan(from, at_most).await
    }
}

#[tokio::test]
async fn a_store_that_says_for_ever_is_repeated_and_panics_nowhere() {
    let shop = Shop::new(Busy(MemoryStore::new()), api(), |_| async { text(200, "paid") });
    let answer = shop.send(keyed("k")).await;
    assert_eq!(answer.refusal(), Some(RefusalKind::InProgress));
    assert!(answer.head.headers.contains_key("retry-after"));
    assert_eq!(shop.runs.count(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_lease_of_a_millisecond_runs_no_key_twice_and_leaves_none_busy() {
    let store = MemoryStore::new();
    let policy = api().lease(Duration::from_millis(1));
    let shop = Shop::new(store.clone(), policy, |_| async {
        sleep(Duration::from_millis(50)).await;
        text(200, "paid")
    });
    let mut sending = Vec::new();
    for _ in 0..20 {
        let shop = shop.clone();
        sending.push(tokio::spawn(async move { shop.send(keyed("k")).await }));
        sleep(Duration::from_millis(3)).await;
    }
    for sent in sending {
        let answer = sent.await.expect("no panic");
        let refused =
            matches!(answer.refusal(), Some(RefusalKind::InProgress | RefusalKind::OutcomeUnknown));
        assert!(refused || answer.body == "paid", "{answer:?}");
    }
    assert_eq!(shop.runs.count(), 1);
    shop.send(keyed("k")).await.assert_text("paid");
    assert_eq!(only_state(&store).await, State::Completed);
    assert!(shop.layer.drain(Duration::ZERO).await.is_clean());
}

#[tokio::test(start_paused = true)]
async fn a_lease_shorter_than_a_claim_may_take_grants_only_with_half_of_it_left() {
    let store = FaultyStore::new(MemoryStore::new());
    let faults = store.faults();
    let store = std::sync::Arc::new(store);
    let lease = Duration::from_millis(40);
    let policy = api().lease(lease).claim_within(Duration::from_millis(400));
    let shop = Shop::new(store.clone(), policy, |_| async { text(200, "paid") });
    faults.always(Transition::Claim, Fault::Delay(Duration::from_millis(25)));
    let refused = shop.send(keyed("k")).await;
    assert_eq!(refused.refusal(), Some(RefusalKind::StoreUnavailable));
    assert_eq!(shop.runs.count(), 0, "each grant was stale when it was heard of");
    faults.heal();
    sleep(Duration::from_secs(1)).await;
    // What was granted and not used was called off: the key is free.
    shop.send(keyed("k")).await.assert_text("paid");
    assert_eq!(shop.runs.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_retention_as_long_as_the_hold_forgets_both_at_once_and_no_sooner() {
    let store = MemoryStore::new();
    let day = Duration::from_secs(24 * 60 * 60);
    let policy = api().retention(day).hold(day);
    let shop = Shop::new(store.clone(), policy, |_| async { text(200, "paid") });
    shop.send(keyed("k")).await.assert_text("paid");
    advance(day - Duration::from_millis(2)).await;
    assert!(shop.send(keyed("k")).await.is_replay());
    advance(Duration::from_millis(3)).await;
    assert!(!shop.send(keyed("k")).await.is_replay());
    assert_eq!(shop.runs.count(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_jumps_past_every_time_while_all_is_on_its_way_leaves_nothing_behind() {
    let store = FaultyStore::new(MemoryStore::new());
    let faults = store.faults();
    let store = std::sync::Arc::new(store);
    let shop = Shop::new(store.clone(), api(), |_| async {
        sleep(Duration::from_secs(5)).await;
        text(200, "paid")
    });
    let gate = Gate::new();
    faults.always(Transition::Complete, Fault::HoldAnswer(gate.clone()));
    faults.always(Transition::Renew, Fault::Hold(gate.clone()));
    let sent = tokio::spawn({
        let shop = shop.clone();
        async move { shop.send(keyed("k")).await }
    });
    shop.runs.wait_for(1).await;
    // Ten years at once, over lease, longest run, retention and hold.
    advance(Duration::from_secs(10 * 365 * 24 * 60 * 60)).await;
    sent.await.expect("no panic").assert_text("paid");
    gate.open();
    faults.heal();
    sleep(Duration::from_secs(3600)).await;
    assert!(shop.layer.drain(Duration::ZERO).await.is_clean());
    assert!(records(&store).await.iter().all(|record| record.leased.is_none()));
}
