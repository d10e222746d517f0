//! A memory store at the end of a bad network: calls are lost, late, or answered late, and what was
//! sent arrives although its caller has given it up.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::oneshot,
    time::{Instant, sleep},
};
use tower_idempotency::{
    Grant, MemoryStore, Store, StoreError,
    store::{
        Claim, Claimed, Cursor, Issue, Issued, Kept, Page, Release, Resolve, Resolved,
        StoreErrorKind, Written,
    },
};

use crate::chance::Chance;

/// A store, and the way to it. Clones go different ways to the same store.
#[derive(Clone)]
pub(crate) struct Weather {
    pub(crate) store: MemoryStore,
    pub(crate) chance: Chance,
    /// Of a thousand calls, so many go wrong.
    pub(crate) storm: Arc<AtomicU64>,
}

enum Fate {
    Through,
    /// It never arrives.
    Lost,
    Fails(StoreErrorKind),
    /// It is done, and the answer is an error.
    AnswerFails(StoreErrorKind),
    /// It is done, and the answer never comes.
    AnswerLost,
    /// It arrives, and is answered, so much later.
    Slow(Duration, Duration),
}

impl Weather {
    fn fate(&self) -> Fate {
        if self.chance.below(1000) >= self.storm.load(Ordering::SeqCst) {
            return Fate::Through;
        }
        let kind = self.chance.pick(&[
            StoreErrorKind::Timeout,
            StoreErrorKind::Unreachable,
            StoreErrorKind::Full,
            StoreErrorKind::Refused,
            StoreErrorKind::Garbled,
        ]);
        match self.chance.below(6) {
            0 => Fate::Lost,
            1 => Fate::Fails(kind),
            2 if kind != StoreErrorKind::Full => Fate::AnswerFails(kind),
            3 => Fate::AnswerLost,
            _ => Fate::Slow(self.chance.up_to_ms(2000), self.chance.up_to_ms(2000)),
        }
    }

    async fn send<T, F>(&self, call: impl FnOnce() -> F + Send + 'static) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, StoreError>> + Send,
    {
        let planned = |kind| StoreError::new(kind, "bad weather");
        let (before, after, lost, error) = match self.fate() {
            Fate::Lost => return std::future::pending().await,
            Fate::Fails(kind) => return Err(planned(kind)),
            Fate::Through => (self.chance.up_to_ms(2), self.chance.up_to_ms(2), false, None),
            Fate::AnswerFails(kind) => (Duration::ZERO, Duration::ZERO, false, Some(kind)),
            Fate::AnswerLost => (self.chance.up_to_ms(500), Duration::ZERO, true, None),
            Fate::Slow(before, after) => (before, after, false, None),
        };
        let (answered, answer) = oneshot::channel();
        // What was sent arrives, whether its caller waits or not.
        tokio::spawn(async move {
            sleep(before).await;
            let result = call().await;
            sleep(after).await;
            let result = error.map_or(result, |kind| Err(planned(kind)));
            if lost {
                std::future::pending::<()>().await;
            }
            let _ = answered.send(result);
        });
        match answer.await {
            Ok(result) => result,
            Err(_) => std::future::pending().await,
        }
    }
}

impl Store for Weather {
    async fn claim(&self, mut claim: Claim) -> Result<Claimed, StoreError> {
        let (store, sent) = (self.store.clone(), Instant::now());
        self.send(move || async move {
            // The time of a claim goes on while it is on its way; without any left it is a look.
            claim.within = claim.within.saturating_sub(sent.elapsed());
            store.claim(claim).await
        })
        .await
    }
    async fn renew(&self, grant: &Grant) -> Result<Written, StoreError> {
        let (store, grant) = (self.store.clone(), grant.clone());
        self.send(move || async move { store.renew(&grant).await }).await
    }
    async fn complete(&self, grant: &Grant, kept: Kept) -> Result<Written, StoreError> {
        let (store, grant) = (self.store.clone(), grant.clone());
        self.send(move || async move { store.complete(&grant, kept).await }).await
    }
    async fn release(&self, release: Release) -> Result<Written, StoreError> {
        let store = self.store.clone();
        self.send(move || async move { store.release(release).await }).await
    }
    async fn resolve(&self, resolve: Resolve) -> Result<Resolved, StoreError> {
        let store = self.store.clone();
        self.send(move || async move { store.resolve(resolve).await }).await
    }
    async fn issue(&self, issue: Issue) -> Result<Issued, StoreError> {
        self.store.issue(issue).await
    }
    async fn scan(&self, from: Cursor, at_most: usize) -> Result<Page, StoreError> {
        self.store.scan(from, at_most).await
    }
}
