//! A durable truth beside the store: one row for each operation that has an answer.

use std::{error::Error, fmt, future::Future, sync::Arc, time::Duration};

use bytes::Bytes;

use crate::{record::Answer, store::BoxFuture};

/// Which operation a row is for: its plain identity under an explicit scope, and never the hash the
/// store knows it by, so that a row outlives a change of the layer's secret.
///
/// All of it is bytes as they were sent, of which nothing says that they are UTF-8. Compare them as
/// bytes: a column whose collation ignores case or trailing spaces takes two operations for one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct LedgerEntry {
    /// The name of the rule.
    pub rule: String,
    /// Whose identity it is; empty where the policy's scope is everyone.
    pub scope: Bytes,
    /// The identity of the operation: the business key where there is one, else the delivery id. 1 to
    /// 255 bytes.
    pub key: Bytes,
    /// The id of the delivery, where `key` is a business key: then, and only then, is it there. Equal
    /// texts of the two kinds are different operations.
    pub delivery_id: Option<Bytes>,
}

impl LedgerEntry {
    /// The row of the operation `key`, which is a business key if there is a `delivery_id` beside it.
    pub fn new(
        rule: impl Into<String>,
        scope: impl Into<Bytes>,
        key: impl Into<Bytes>,
        delivery_id: Option<Bytes>,
    ) -> Self {
        Self { rule: rule.into(), scope: scope.into(), key: key.into(), delivery_id }
    }
}

/// What became of a seal.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Sealed {
    /// There was no row; now there is one with this answer.
    Written,
    /// There is a row already, and this is its answer.
    Existing(Answer),
}

/// A ledger could not say.
#[derive(Debug)]
pub struct LedgerError {
    message: String,
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl LedgerError {
    /// An error; the message says what was wrong and what to do.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), source: None }
    }

    /// The same with the error that caused it.
    #[must_use]
    pub fn caused_by(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }
}

impl fmt::Display for LedgerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for LedgerError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_ref().map(|source| &**source as &(dyn Error + 'static))
    }
}

/// A durable truth beside the store: a table in the handler's own database, with one row for each
/// operation that has an answer. [`Policy::ledger`](crate::Policy::ledger) sets it. The crate
/// `tower-idempotency-sqlx` has one, `DedupTable`, for PostgreSQL, MySQL, MariaDB and SQLite.
///
/// # What makes it exactly once
///
/// The handler writes the row in the transaction that has its effect: it *enters* first, and then
/// either it holds the row, or it finds the answer of whoever was before it. It says both to its
/// [`Operation`](crate::Operation): [`entered`](crate::Operation::entered), and, once the row is
/// committed or found, [`left_row`](crate::Operation::left_row). Then:
///
/// * An abandoned operation with a row was done, and its row's answer is stored and replayed; one
///   without was not done and runs again.
/// * Every answer that is kept has a row. Where the handler left none the layer seals one before the
///   answer is stored. A row that is there wins: its answer is the one that everybody gets.
/// * When the store has lost everything, a delivery is granted, the handler finds its row, and its
///   answer is stored again.
///
/// A ledger that cannot be asked, or takes longer than five seconds, leaves an abandoned operation
/// unknown, and makes the outcome of one that it should seal uncertain.
///
/// Implementations write the methods as `async fn`, whose futures must be `Send`.
///
/// # The contract
///
/// 1. The row of an operation is the one with its rule, scope and `key`, of the kind that
///    `delivery_id` tells; or else the one that has its delivery's id, as its key or beside its
///    business key: an operation may have been known by that alone.
/// 2. A row that is committed never changes, and is kept at least as long as
///    [`Policy::hold`](crate::Policy::hold).
/// 3. `seal` inserts, and never overwrites. While a handler's transaction holds the row, it waits.
/// 4. A delivery id whose row is for another business key is an error, not that row's answer.
///
/// # Cancel safety
///
/// The futures may be dropped at any time. A seal that was may have written its row.
///
/// # Example: a table in memory, for a policy without business keys
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// # use http::{Request, Response};
/// # use tower::{ServiceBuilder, ServiceExt};
/// # use tower_idempotency::{IdempotencyLayer, MemoryStore, RequestBody, Rule};
/// use std::{collections::HashMap, sync::{Arc, Mutex}};
///
/// use tower_idempotency::{Answer, Ledger, LedgerEntry, LedgerError, Policy, Sealed, json};
///
/// #[derive(Clone, Default)]
/// struct Table(Arc<Mutex<HashMap<LedgerEntry, Answer>>>);
///
/// impl Ledger for Table {
///     async fn find(&self, entry: &LedgerEntry) -> Result<Option<Answer>, LedgerError> {
///         Ok(self.0.lock().unwrap().get(entry).cloned())
///     }
///
///     async fn seal(&self, entry: &LedgerEntry, answer: &Answer) -> Result<Sealed, LedgerError> {
///         let mut rows = self.0.lock().unwrap();
///         if let Some(row) = rows.get(entry) {
///             return Ok(Sealed::Existing(row.clone()));
///         }
///         rows.insert(entry.clone(), answer.clone());
///         Ok(Sealed::Written)
///     }
/// }
///
/// let table = Table::default();
/// let policy = Policy::webhook(json("/notifyId")).ledger(table.clone());
/// # let service = ServiceBuilder::new()
/// #     .layer(IdempotencyLayer::new(MemoryStore::new(), Rule::new("fulfil", policy)))
/// #     .service_fn(async |_: Request<RequestBody<String>>| {
/// #         Ok::<_, std::io::Error>(Response::new("success".to_owned()))
/// #     });
/// # service.oneshot(Request::post("/").body(r#"{"notifyId": "N-1"}"#.to_owned())?).await?;
///
/// // After a delivery was answered, its row is there.
/// let row = table.find(&LedgerEntry::new("fulfil", "", "N-1", None)).await?.unwrap();
/// assert_eq!(row.body().unwrap(), "success");
/// # Ok(())
/// # }
/// ```
pub trait Ledger: Send + Sync + 'static {
    /// The answer in the row of an operation; `None` where there is no row.
    ///
    /// # Errors
    ///
    /// When it cannot be said. `None` lets the operation run.
    fn find(
        &self,
        entry: &LedgerEntry,
    ) -> impl Future<Output = Result<Option<Answer>, LedgerError>> + Send;

    /// Writes a row with this answer, unless there is one.
    ///
    /// # Errors
    ///
    /// When it cannot be said whether there is a row now.
    fn seal(
        &self,
        entry: &LedgerEntry,
        answer: &Answer,
    ) -> impl Future<Output = Result<Sealed, LedgerError>> + Send;

    /// How long a row is kept at least, where they are deleted at all. A policy whose
    /// [`hold`](crate::Policy::hold) is longer is refused where it is built: what it still knows to be
    /// abandoned would be called not done. Default: `None`, for ever.
    fn hold(&self) -> Option<Duration> {
        None
    }
}

macro_rules! forward_ledger {
    ($pointer:ident) => {
        impl<L: Ledger> Ledger for $pointer<L> {
            async fn find(&self, entry: &LedgerEntry) -> Result<Option<Answer>, LedgerError> {
                (**self).find(entry).await
            }
            async fn seal(
                &self,
                entry: &LedgerEntry,
                answer: &Answer,
            ) -> Result<Sealed, LedgerError> {
                (**self).seal(entry, answer).await
            }
            fn hold(&self) -> Option<Duration> {
                (**self).hold()
            }
        }
    };
}

forward_ledger!(Arc);
forward_ledger!(Box);

/// A ledger as a policy holds it. Its futures own what they need.
pub(crate) trait DynLedger: Send + Sync {
    fn find(self: Arc<Self>, entry: LedgerEntry) -> BoxFuture<Result<Option<Answer>, LedgerError>>;
    fn seal(
        self: Arc<Self>,
        entry: LedgerEntry,
        answer: Answer,
    ) -> BoxFuture<Result<Sealed, LedgerError>>;
    fn hold(&self) -> Option<Duration>;
}

impl<L: Ledger> DynLedger for L {
    fn find(self: Arc<Self>, entry: LedgerEntry) -> BoxFuture<Result<Option<Answer>, LedgerError>> {
        Box::pin(async move { Ledger::find(&*self, &entry).await })
    }

    fn seal(
        self: Arc<Self>,
        entry: LedgerEntry,
        answer: Answer,
    ) -> BoxFuture<Result<Sealed, LedgerError>> {
        Box::pin(async move { Ledger::seal(&*self, &entry, &answer).await })
    }

    fn hold(&self) -> Option<Duration> {
        Ledger::hold(self)
    }
}
