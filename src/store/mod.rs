//! Where records are kept: the contract every store keeps, and the stores that come with the crate.

mod dynamic;
mod error;
mod issue;
mod memory;
#[cfg(feature = "recent")]
mod recent;
#[cfg(feature = "redis")]
mod redis;
mod resolve;
mod scan;
mod transition;

use std::{future::Future, sync::Arc, time::Duration};

pub(crate) use dynamic::{BoxFuture, DynStore, in_time};
pub use error::{StoreError, StoreErrorKind};
pub use issue::{Issue, Issued};
pub use memory::MemoryStore;
#[cfg(feature = "test-util")]
pub(crate) use memory::Stored;
#[cfg(feature = "recent")]
pub(crate) use recent::Recent;
#[cfg(feature = "redis-tls")]
pub use redis::RedisTls;
#[cfg(feature = "redis")]
pub use redis::{
    Finding, Level, OnDataLoss, Preflight, RedisCommand, RedisConnection, RedisServers, RedisStore,
    RedisTrouble, RedisValue,
};
pub use resolve::{Resolve, Resolved, Verdict};
pub use scan::{Cursor, Listed, Page};
pub use transition::{
    AbandonedRecord, Alias, Claim, Claimed, Completed, IfForgotten, InProgress, Kept, Reason,
    Release, Takeover, Written,
};

use crate::record::Grant;

/// Where records are kept.
///
/// Every method is one whole, atomic transition of one record. None is a read that a later write
/// relies on. The layer calls them from many tasks at once.
///
/// # The contract
///
/// 1. **One owner.** While a grant is leased, no claim with another token is granted.
/// 2. **Same token, same grant.** A claim sent again with its token gets the same fence, attempt and
///    previous, and its lease starts anew. A token that was released or given up is answered
///    [`Claimed::Dead`], whenever it comes.
/// 3. **Completed is final.** A completed record never changes while it is kept; each claim with the
///    same fingerprint, or none, is answered from it.
/// 4. **A crash leaves abandoned, never absent.** An unfinished record is kept for its whole hold,
///    long past its lease. Time is judged by one clock alone, the store's.
/// 5. **Unknown never becomes "did not happen".** What was taken over blindly, or called off after a
///    takeover, goes back to abandoned. A grant given up as unknown is never revived, renewed or
///    released.
/// 6. **Fingerprint first.** A fingerprint that differs is answered [`Claimed::Mismatch`] before
///    anything is said about the state, except over a released record without a one-time token.
///    The bound fingerprint survives takeover, renewal and completion.
/// 7. **The owner writes again what the store lost.** Renew, complete and release restore a record
///    that vanished, or that is older than the grant and held by nobody, and say
///    [`Written::Restored`]; a one-time token that was issued where nothing is known to have run
///    counts as vanished. Completion also replaces a released record, a token issued over one, and
///    a stranger's lapsed grant: it did happen. Never a completed record, never a lease.
/// 8. **Too late is not granted.** A claim that arrives later than [`Claim::within`] after it was
///    sent is answered [`Claimed::Free`] where it would have been granted, and writes nothing. So is
///    a look, always.
/// 9. **Called off is as good as absent.** A claim called off before it arrives is not granted; what
///    that leaves behind does not count as a grant for anybody else.
/// 10. **Fences grow** with every grant of a key while its record is kept.
/// 11. **Every record expires.** Retention counts from completion, hold from the last write.
/// 12. **What is not ours is never overwritten**, and answered as foreign.
/// 13. **A store that has no room refuses**; it never forgets a record to make room.
/// 14. **An error means unknown.** Only an answer says what happened; an error may come although the
///     transition was carried out.
///
/// The suite of feature `test-util` drives any store through these rules.
///
/// Implementations write the methods as `async fn`, whose futures must be `Send`.
///
/// # Cancel safety
///
/// A future of these methods may be dropped at any time. What it asked for may then have happened.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no store of idempotency records",
    label = "this is no `Store`",
    note = "one is `MemoryStore::new()`, or `RedisStore::connect(\"redis://127.0.0.1:6379\").await?`"
)]
pub trait Store: Send + Sync + 'static {
    /// Asks for the right to execute, or looks.
    ///
    /// With an alias it binds that name first, in the same trip: see [`Claimed::DeliveryTaken`].
    ///
    /// # Errors
    ///
    /// When the store cannot answer; the claim may have been granted all the same.
    fn claim(&self, claim: Claim) -> impl Future<Output = Result<Claimed, StoreError>> + Send;

    /// Gives a grant its whole lease again, and writes down what it found ([`Grant::previous`]): its owner
    /// may have learned of more.
    ///
    /// # Errors
    ///
    /// When the store cannot answer.
    fn renew(&self, grant: &Grant) -> impl Future<Output = Result<Written, StoreError>> + Send;

    /// Stores what came of the execution. Sent again, it is answered [`Written::Stored`] again.
    ///
    /// # Errors
    ///
    /// When the store cannot answer.
    fn complete(
        &self,
        grant: &Grant,
        kept: Kept,
    ) -> impl Future<Output = Result<Written, StoreError>> + Send;

    /// Gives a grant back, or calls a claim off. Sent again, it is answered the same.
    ///
    /// # Errors
    ///
    /// When the store cannot answer.
    fn release(&self, release: Release)
    -> impl Future<Output = Result<Written, StoreError>> + Send;

    /// Settles an abandoned operation.
    ///
    /// # Errors
    ///
    /// When the store cannot answer.
    fn resolve(
        &self,
        resolve: Resolve,
    ) -> impl Future<Output = Result<Resolved, StoreError>> + Send;

    /// Issues a one-time token, or answers with the one that is outstanding.
    ///
    /// # Errors
    ///
    /// When the store cannot answer.
    fn issue(&self, issue: Issue) -> impl Future<Output = Result<Issued, StoreError>> + Send;

    /// Lists records, about `at_most` a page, each at least once if it is there all the while.
    ///
    /// # Errors
    ///
    /// When the store cannot answer.
    fn scan(
        &self,
        from: Cursor,
        at_most: usize,
    ) -> impl Future<Output = Result<Page, StoreError>> + Send;

    /// The longest that any of these calls takes, if the store sees to that itself; then the layer sets no
    /// timer of its own for a call that may take as long. Default: nobody sees to it.
    fn answers_within(&self) -> Option<Duration> {
        None
    }
}

macro_rules! forward_store {
    ($pointer:ident) => {
        impl<S: Store> Store for $pointer<S> {
            async fn claim(&self, claim: Claim) -> Result<Claimed, StoreError> {
                (**self).claim(claim).await
            }
            async fn renew(&self, grant: &Grant) -> Result<Written, StoreError> {
                (**self).renew(grant).await
            }
            async fn complete(&self, grant: &Grant, kept: Kept) -> Result<Written, StoreError> {
                (**self).complete(grant, kept).await
            }
            async fn release(&self, release: Release) -> Result<Written, StoreError> {
                (**self).release(release).await
            }
            async fn resolve(&self, resolve: Resolve) -> Result<Resolved, StoreError> {
                (**self).resolve(resolve).await
            }
            async fn issue(&self, issue: Issue) -> Result<Issued, StoreError> {
                (**self).issue(issue).await
            }
            async fn scan(&self, from: Cursor, at_most: usize) -> Result<Page, StoreError> {
                (**self).scan(from, at_most).await
            }
            fn answers_within(&self) -> Option<Duration> {
                (**self).answers_within()
            }
        }
    };
}

forward_store!(Arc);
forward_store!(Box);
