//! Who can say what became of an operation: a resolver that is asked, and a ledger that knows.

mod print;
mod row;

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    time::{Duration, SystemTime},
};

pub(crate) use print::Differs;
pub use print::RowPrint;
pub(crate) use row::DynLedger;
pub use row::{Ledger, LedgerEntry, LedgerError, LedgerRow, Sealed};

use crate::record::{Answer, Fence, RecordKey};

/// An operation that was started and gave no sign of life.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Abandoned {
    /// The name of the rule.
    pub rule: String,
    /// Whose identity it is; empty where the policy's scope is everyone.
    pub scope: String,
    /// The identity of the operation, as it was sent; one that is no UTF-8 is percent-encoded, and so
    /// is a scope. A business key where there is a `delivery_id` beside it, and else the id of a delivery.
    pub key: String,
    /// The id of the delivery that asks now, where `key` is a business key.
    pub delivery_id: Option<String>,
    /// The record.
    pub record: RecordKey,
    /// Which attempt was abandoned.
    pub attempt: u32,
    /// The fence of the grant that was abandoned.
    pub fence: Fence,
    /// When it was granted, by this process's clock.
    pub since: SystemTime,
}

/// What became of an abandoned operation.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Resolution {
    /// It was done, and this is its answer: it is stored and given to every delivery.
    Done(Answer),
    /// It was not done: this delivery may run.
    NotDone,
    /// It cannot be said: the delivery is refused.
    Unknown,
}

/// Says what became of an abandoned operation, by asking whoever must know: the payment provider, a
/// table.
///
/// Implemented by every closure `Fn(Abandoned) -> Future<Output = Resolution>`. It is asked on the
/// request's own future, and one that takes longer than five seconds has said
/// [`Resolution::Unknown`]. A sign of life of the operation's owner meanwhile voids the verdict. Two
/// deliveries at once may both ask; one verdict counts.
///
/// A delivery without a business key runs under its id, and so did all from before the policy had one.
/// Where such a run is abandoned and the delivery comes again with a business key, the resolver is asked
/// twice: about the delivery id alone, which is the `key` that the handler was told, and about the business
/// key. It is not done only if both were not. What is abandoned under a business key, and met by a delivery
/// that does not say which, since the policy has none any more, may be called done and nothing else.
///
/// # Example: a payment provider that knows
///
/// ```
/// use tower_idempotency::{Abandoned, Answer, Policy, Resolution, json};
///
/// /// Asks for the charge of this order; `None` where there is no answer.
/// async fn was_charged(order: &str) -> Option<bool> {
///     Some(order == "O-1")
/// }
///
/// let policy = Policy::webhook(json("/notifyId")).resolve_abandoned(|abandoned: Abandoned| async move {
///     match was_charged(&abandoned.key).await {
///         Some(true) => Resolution::Done(Answer::text("success")),
///         Some(false) => Resolution::NotDone,
///         None => Resolution::Unknown,
///     }
/// });
/// assert!(policy.check().is_ok());
/// ```
pub trait Resolver: Send + Sync + 'static {
    /// Says what became of `abandoned`.
    ///
    /// # Cancel safety
    ///
    /// The future is dropped when the client leaves or the time is over.
    fn resolve(&self, abandoned: Abandoned) -> impl Future<Output = Resolution> + Send;
}

impl<F, Fut> Resolver for F
where
    F: Fn(Abandoned) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Resolution> + Send,
{
    fn resolve(&self, abandoned: Abandoned) -> impl Future<Output = Resolution> + Send {
        self(abandoned)
    }
}

/// How long a resolver may take.
pub(crate) const RESOLVER_WITHIN: Duration = Duration::from_secs(5);
/// How long a call of a ledger may take.
pub(crate) const LEDGER_WITHIN: Duration = Duration::from_secs(5);

/// A resolver as a policy holds it.
pub(crate) trait DynResolver: Send + Sync {
    fn resolve(
        self: Arc<Self>,
        abandoned: Abandoned,
    ) -> Pin<Box<dyn Future<Output = Resolution> + Send>>;
}

impl<R: Resolver> DynResolver for R {
    fn resolve(
        self: Arc<Self>,
        abandoned: Abandoned,
    ) -> Pin<Box<dyn Future<Output = Resolution> + Send>> {
        Box::pin(async move { Resolver::resolve(&*self, abandoned).await })
    }
}
