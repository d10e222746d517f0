//! Claims that arrive when their request has long had its answer, and grants of others.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::time::sleep;
use tower_idempotency::{
    Grant, MemoryStore, RefusalKind, State, Store, StoreError,
    store::{
        Claim, Claimed, Cursor, Issue, Issued, Kept, Page, Release, Resolve, Resolved,
        StoreErrorKind, Written,
    },
};

use crate::shop::{Shop, api, keyed, only_state, records, text};

const LATE: Duration = Duration::from_millis(900);

/// A store to which the first claim finds its way late, whoever still waits for it, and the first release
/// not at all, if told so.
#[derive(Clone)]
struct FirstIsLate {
    store: MemoryStore,
    was_first: Arc<AtomicBool>,
    loses_release: Arc<AtomicBool>,
}

impl Store for FirstIsLate {
    async fn claim(&self, mut claim: Claim) -> Result<Claimed, StoreError> {
        if self.was_first.swap(true, Ordering::SeqCst) {
            return self.store.claim(claim).await;
        }
        let store = self.store.clone();
        tokio::spawn(async move {
            sleep(LATE).await;
            claim.within -= LATE;
            store.claim(claim).await
        });
        std::future::pending().await
    }
    async fn renew(&self, grant: &Grant) -> Result<Written, StoreError> {
        self.store.renew(grant).await
    }
    async fn complete(&self, grant: &Grant, kept: Kept) -> Result<Written, StoreError> {
        self.store.complete(grant, kept).await
    }
    async fn release(&self, release: Release) -> Result<Written, StoreError> {
        if self.loses_release.swap(false, Ordering::SeqCst) {
            return Err(StoreError::new(StoreErrorKind::Unreachable, "it is away"));
        }
        self.store.release(release).await
    }
    async fn resolve(&self, resolve: Resolve) -> Result<Resolved, StoreError> {
        self.store.resolve(resolve).await
    }
    async fn issue(&self, issue: Issue) -> Result<Issued, StoreError> {
        self.store.issue(issue).await
    }
    async fn scan(&self, from: Cursor, at_most: usize) -> Result<Page, StoreError> {
        self.store.scan(from, at_most).await
    }
}

async fn after_a_late_claim(status: u16, loses_release: bool) -> (Shop, MemoryStore) {
    let store = MemoryStore::new();
    let loses_release = Arc::new(loses_release.into());
    let way = FirstIsLate { store: store.clone(), was_first: Arc::default(), loses_release };
    let shop = Shop::new(way, api(), move |_| async move { text(status, "answer") });
    // Sent twice: the first is on its way still when the second is granted and has run.
    shop.send(keyed("k")).await.assert_text("answer");
    // A release that came to nothing is sent again.
    sleep(LATE / 3).await;
    shop.send(keyed("k")).await.assert_text("answer");
    sleep(LATE).await;
    sleep(Duration::from_secs(60)).await;
    (shop, store)
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_arrives_after_its_run_was_given_back_leaves_the_key_free() {
    for loses_release in [false, true] {
        let (shop, store) = after_a_late_claim(503, loses_release).await;
        assert_eq!(shop.runs.count(), 2, "{loses_release}");
        assert_eq!(only_state(&store).await, State::Released, "{:?}", records(&store).await);
        shop.send(keyed("k")).await.assert_text("answer");
        assert!(shop.layer.drain(Duration::from_secs(5)).await.is_clean());
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_arrives_after_its_run_was_kept_changes_nothing() {
    let (shop, store) = after_a_late_claim(200, false).await;
    assert_eq!(shop.runs.count(), 1);
    assert_eq!(only_state(&store).await, State::Completed);
    assert!(shop.layer.drain(Duration::ZERO).await.is_clean());
}

/// A store that answers each claim with the first grant that it made.
#[derive(Clone, Default)]
struct MixesUp {
    store: MemoryStore,
    first: Arc<Mutex<Option<Grant>>>,
}

impl Store for MixesUp {
    async fn claim(&self, claim: Claim) -> Result<Claimed, StoreError> {
        let claimed = self.store.claim(claim).await?;
        let Claimed::Granted(grant) = claimed else { return Ok(claimed) };
        let mut first = self.first.lock().expect("no holder panics");
        Ok(Claimed::Granted(first.get_or_insert(grant).clone()))
    }
    async fn renew(&self, grant: &Grant) -> Result<Written, StoreError> {
        self.store.renew(grant).await
    }
    async fn complete(&self, grant: &Grant, kept: Kept) -> Result<Written, StoreError> {
        self.store.complete(grant, kept).await
    }
    async fn release(&self, release: Release) -> Result<Written, StoreError> {
        self.store.release(release).await
    }
    async fn resolve(&self, resolve: Resolve) -> Result<Resolved, StoreError> {
        self.store.resolve(resolve).await
    }
    async fn issue(&self, issue: Issue) -> Result<Issued, StoreError> {
        self.store.issue(issue).await
    }
    async fn scan(&self, from: Cursor, at_most: usize) -> Result<Page, StoreError> {
        self.store.scan(from, at_most).await
    }
}

#[tokio::test(start_paused = true)]
async fn a_grant_of_another_claim_starts_no_handler_and_leaves_the_key_free() {
    let store = MixesUp::default();
    let shop = Shop::new(store.clone(), api(), |_| async { text(503, "not yet") });
    shop.send(keyed("one")).await.assert_text("not yet");
    let refused = shop.send(keyed("two")).await;
    assert_eq!(refused.refusal(), Some(RefusalKind::StoreUnavailable));
    assert_eq!(shop.runs.count(), 1);
    assert!(shop.layer.drain(Duration::from_secs(5)).await.is_clean());
    assert!(records(&store).await.iter().all(|record| record.state == State::Released));
}
