//! Erases a store once, so that the layer is not generic over it.

use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

use tokio::time::timeout;

use super::{
    Claim, Claimed, Issue, Issued, Kept, Release, Resolve, Resolved, Store, StoreError, Written,
};
use crate::record::Grant;

pub(crate) type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A [`Store`] behind a pointer. Its futures own what they need: a claim's future outlives the
/// request that sent it when the client leaves.
pub(crate) trait DynStore: Send + Sync {
    /// The claim is in a box, or the call would hold it twice.
    fn claim(self: Arc<Self>, claim: Box<Claim>) -> BoxFuture<Result<Claimed, StoreError>>;
    fn renew(self: Arc<Self>, grant: Grant) -> BoxFuture<Result<Written, StoreError>>;
    fn complete(
        self: Arc<Self>,
        grant: Grant,
        kept: Kept,
    ) -> BoxFuture<Result<Written, StoreError>>;
    fn release(self: Arc<Self>, release: Release) -> BoxFuture<Result<Written, StoreError>>;
    fn resolve(self: Arc<Self>, resolve: Resolve) -> BoxFuture<Result<Resolved, StoreError>>;
    fn issue(self: Arc<Self>, issue: Issue) -> BoxFuture<Result<Issued, StoreError>>;
    fn answers_within(&self) -> Option<Duration>;
}

/// A call of the store, for so long at most; without a timer where the store needs none.
pub(crate) async fn in_time<T>(
    store: &dyn DynStore,
    within: Duration,
    call: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    if store.answers_within().is_some_and(|at_most| at_most <= within) {
        return call.await;
    }
    // In a box: a store that needs no timer has smaller calls.
    Box::pin(timeout(within, call)).await.unwrap_or_else(|_| Err(StoreError::too_slow()))
}

impl<S: Store> DynStore for S {
    fn claim(self: Arc<Self>, claim: Box<Claim>) -> BoxFuture<Result<Claimed, StoreError>> {
        Box::pin(async move { Store::claim(&*self, *claim).await })
    }

    fn renew(self: Arc<Self>, grant: Grant) -> BoxFuture<Result<Written, StoreError>> {
        Box::pin(async move { Store::renew(&*self, &grant).await })
    }

    fn complete(
        self: Arc<Self>,
        grant: Grant,
        kept: Kept,
    ) -> BoxFuture<Result<Written, StoreError>> {
        Box::pin(async move { Store::complete(&*self, &grant, kept).await })
    }

    fn release(self: Arc<Self>, release: Release) -> BoxFuture<Result<Written, StoreError>> {
        Box::pin(async move { Store::release(&*self, release).await })
    }

    fn resolve(self: Arc<Self>, resolve: Resolve) -> BoxFuture<Result<Resolved, StoreError>> {
        Box::pin(async move { Store::resolve(&*self, resolve).await })
    }

    fn issue(self: Arc<Self>, issue: Issue) -> BoxFuture<Result<Issued, StoreError>> {
        Box::pin(async move { Store::issue(&*self, issue).await })
    }

    fn answers_within(&self) -> Option<Duration> {
        Store::answers_within(self)
    }
}
