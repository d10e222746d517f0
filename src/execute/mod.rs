//! The guarantee without HTTP: messages of a queue, runs of a timer, and whatever else has a key.
//!
//! It is the same as for requests: [`Idempotent`] claims the key in the store, runs the work under a
//! lease that is renewed, stores what it came to before its caller sees it, and gives that to whoever
//! comes later.
//!
//! # A consumer of a queue
//!
//! A queue delivers a message again when its consumer dies before it has acknowledged it, when it takes
//! too long, and when another takes its messages over. The key is what the message is about, an order and
//! an event, or the message's own id if that stays the same; a key from the producer covers a message
//! that was sent twice as well. Acknowledge what is [`Done`], leave what is [`Busy`](RunError::Busy) to be
//! delivered again, and put aside what is a [`Mismatch`](RunError::Mismatch),
//! [`Unknown`](RunError::Unknown) or [`Refused`](RunError::Refused), as a key that is empty or too long is.
//!
//! The example `stream_worker` is one, for a Redis Stream with a consumer group.
//!
//! # What a death in between means
//!
//! Between the effect and the moment in which the store has it there is a gap, here as for requests. A
//! process that dies in it, or before the effect, leaves its key *abandoned*: nobody can know from outside
//! which it was, so the message is not run again, and not acknowledged either, until somebody says so
//! ([`RunError::Unknown`]). Who can ask whether it happened settles it by itself:
//! [`Policy::resolve_abandoned`]. Where the effect is in a database of one's own, a row in the same
//! transaction closes the gap for good: `DedupTable::enter` of the crate `tower-idempotency-sqlx`, and
//! [`Policy::resolve_abandoned`] or [`Policy::ledger`] that asks it. [`Answer::of_value`] and
//! [`Answer::value`] are what such a row holds.
//!
//! [`Policy::resolve_abandoned`]: crate::Policy::resolve_abandoned
//! [`Policy::ledger`]: crate::Policy::ledger

mod end;

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use serde::{Serialize, de::DeserializeOwned};
use tracing::Instrument;

use end::replayed;
pub use end::{Done, End, IntoEnd, RunError};

use crate::{
    identity::Identity,
    operation::{Came, Drained, Ended, Job, Operation, Shared, run_job},
    record::{Answer, Secret},
    rule::Rule,
    store::Store,
    telemetry,
};

/// Runs work once for each key: the guarantee without HTTP.
///
/// Clones share all there is. [The module](crate::execute) says what a process that dies leaves behind.
///
/// # Example: a message that is delivered twice
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// use tower_idempotency::{
///     Idempotent, MemoryStore, Policy, Rule,
///     execute::{Done, End, RunError},
/// };
///
/// /// Charges an order; the key is the payment provider's, so that he does it once too.
/// async fn charge(order: &str, key: &str) -> Result<String, std::io::Error> {
///     assert_eq!(key.len(), 36);
///     Ok(format!("receipt of {order}"))
/// }
///
/// let jobs = Idempotent::new(MemoryStore::new(), Rule::new("charge", Policy::job()));
/// let mut ended = Vec::new();
/// for message in ["order-7: 960", "order-7: 960", "order-7: 1"] {
///     let (order, amount) = message.split_once(": ").unwrap();
///     let done = jobs.run(order, Some(amount.as_bytes()), async move |operation| {
///         match charge(order, &operation.downstream_key("charge")).await {
///             Ok(receipt) => End::Keep(receipt),
///             // Here it is known that it did not happen; any other error leaves that open.
///             Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => End::Release(error),
///             Err(error) => End::Uncertain(error),
///         }
///     });
///     ended.push(done.await);
/// }
/// let receipt = "receipt of order-7".to_owned();
/// assert!(matches!(&ended[0], Ok(Done::Executed(first)) if *first == receipt));
/// assert!(matches!(&ended[1], Ok(Done::Replayed(again)) if *again == receipt));
/// assert!(matches!(&ended[2], Err(RunError::Mismatch)));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Idempotent {
    shared: Arc<Shared>,
    rule: Arc<Rule>,
    scope: Bytes,
}

impl Idempotent {
    /// Runs work under this rule, whose policy is [`Policy::job`](crate::Policy::job), with records in
    /// this store. The rule's name is part of every key. A rule for requests of the same name has other keys, in
    /// the same store and in a table beside it ([`LedgerEntry::of_job`](crate::LedgerEntry::of_job)).
    ///
    /// # Panics
    ///
    /// When the rule's policy is one for requests, or it has a path or methods.
    #[track_caller]
    pub fn new(store: impl Store, rule: Rule) -> Self {
        if let Err(error) = rule.is_for_jobs() {
            panic!("{error}");
        }
        telemetry::begin(std::iter::once(&rule));
        let shared = Arc::new(Shared::new(Arc::new(store)));
        Self { shared, rule: Arc::new(rule), scope: Bytes::new() }
    }

    /// Makes record keys and fingerprints unguessable for whoever reads the store without knowing this
    /// secret: [`IdempotencyLayer::secret`](crate::IdempotencyLayer::secret). Default: none.
    ///
    /// Danger: setting, changing or removing it forgets all that is stored, and what comes again runs
    /// again.
    #[must_use]
    pub fn secret(self, secret: &[u8; 32]) -> Self {
        let mut shared = (*self.shared).clone();
        shared.secret = Some(Secret::new(secret));
        Self { shared: Arc::new(shared), ..self }
    }

    /// Keeps the answers of the last minute in this many bytes of the process's memory:
    /// [`IdempotencyLayer::recent`](crate::IdempotencyLayer::recent), with all that it says. Default: 0, none.
    #[cfg(feature = "recent")]
    #[must_use]
    pub fn recent(self, bytes: usize) -> Self {
        let shared = (*self.shared).clone().recent(bytes);
        Self { shared: Arc::new(shared), ..self }
    }

    /// The same, with keys that are this tenant's: the same key of another is another. Default: everyone's.
    ///
    /// # Example: two tenants
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// use tower_idempotency::{Idempotent, MemoryStore, Policy, Rule, execute::RunError};
    ///
    /// let jobs = Idempotent::new(MemoryStore::new(), Rule::new("bill", Policy::job()));
    /// for tenant in ["acme", "other", "acme"] {
    ///     let work = async move |_| Ok::<_, std::io::Error>(format!("bill for {tenant}"));
    ///     let done = jobs.scope(tenant).run("2026-11", None, work).await.unwrap();
    ///     assert_eq!(done.into_value(), format!("bill for {tenant}"));
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn scope(&self, scope: impl AsRef<[u8]>) -> Self {
        Self { scope: Bytes::copy_from_slice(scope.as_ref()), ..self.clone() }
    }

    /// Runs `work` unless it was run for this key before, and gives what it came to.
    ///
    /// `key` has 1 to 255 bytes. `same` is what must be the same when the key comes again, such as the
    /// message; only a hash of it is stored. `None` compares nothing.
    ///
    /// The [`Operation`] that `work` gets says which attempt it is and what came before, has a key for
    /// whoever does a step downstream, and tells when the lease is lost. What work comes to is stored as
    /// JSON, up to [`Policy::answer_limit`](crate::Policy::answer_limit) (1 MiB); of more it is only
    /// remembered that it is done.
    ///
    /// # Errors
    ///
    /// [`RunError`], whose cases say whether it was run and when to come again.
    ///
    /// # Panics
    ///
    /// The future panics outside of a Tokio runtime, and when `work` does: then nobody knows whether it
    /// happened.
    ///
    /// # Cancel safety
    ///
    /// Dropped before the grant, what was claimed is called off. Dropped after it, the work goes on in a
    /// task of its own, and what it comes to is stored. It takes a `tokio::time::timeout` for no more than
    /// the caller's patience: bound the work inside of it, and end it as [`End::Uncertain`].
    pub fn run<W, F>(
        &self,
        key: impl AsRef<[u8]>,
        same: Option<&[u8]>,
        work: W,
    ) -> Run<<F::Output as IntoEnd>::Value, <F::Output as IntoEnd>::Error>
    where
        W: FnOnce(Operation) -> F + Send + 'static,
        F: Future + Send + 'static,
        F::Output: IntoEnd,
        <F::Output as IntoEnd>::Value: Serialize + DeserializeOwned + Send + 'static,
        <F::Output as IntoEnd>::Error: Send + 'static,
    {
        let shared = self.shared.clone();
        let key = Identity::new(Bytes::copy_from_slice(key.as_ref()));
        let job = Job::new(&shared, self.rule.clone(), self.scope.clone(), key, same);
        let span = telemetry::request_span(self.rule.name());
        let work = async move |operation| to_ended(work(operation).await.into_end());
        let came = run_job(shared, job, work, span.clone()).instrument(span);
        Run(Box::pin(async move {
            match came.await {
                Came::Ran(End::Keep(value)) => Ok(Done::Executed(value)),
                Came::Ran(End::Release(error)) => Err(RunError::Released(error)),
                Came::Ran(End::Uncertain(error)) => Err(RunError::Uncertain(error)),
                Came::Stored(answer) => replayed(&answer),
                Came::Refused(refusal) => Err(RunError::refused(refusal)),
            }
        }))
    }

    /// Ends gracefully: call it once nothing new is taken from the queue.
    ///
    /// From the call on, [`run`](Self::run) is refused with [`RunError::ShuttingDown`]. It ends when all
    /// work has ended and is stored, what was left by its caller among it, or when `within` is over.
    /// There is no way back.
    ///
    /// # Cancel safety
    ///
    /// May be dropped and called again; work is refused all the same.
    pub async fn drain(&self, within: Duration) -> Drained {
        self.shared.keeper.drain(within).await
    }
}

/// What is stored of it, beside what its caller gets.
fn to_ended<T: Serialize, E>(end: End<T, E>) -> Ended<End<T, E>> {
    match end {
        End::Keep(value) => Ended::Keep(Answer::of_value(&value), End::Keep(value)),
        End::Release(error) => Ended::Release(End::Release(error)),
        End::Uncertain(error) => Ended::Uncertain(End::Uncertain(error)),
    }
}

impl fmt::Debug for Idempotent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Idempotent").field("rule", &self.rule).finish_non_exhaustive()
    }
}

type Running<T, E> = Pin<Box<dyn Future<Output = Result<Done<T>, RunError<E>>> + Send>>;

/// Work that is run once: the future of [`Idempotent::run`], which says what happens when it is dropped.
#[must_use = "nothing is run before it is awaited"]
pub struct Run<T, E>(Running<T, E>);

impl<T, E> Future for Run<T, E> {
    type Output = Result<Done<T>, RunError<E>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(cx)
    }
}

impl<T, E> fmt::Debug for Run<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Run")
    }
}
