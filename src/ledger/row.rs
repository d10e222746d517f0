//! A durable truth beside the store: one row for each operation that has an answer.

use std::{error::Error, fmt, future::Future, sync::Arc, time::Duration};

use bytes::Bytes;

use super::RowPrint;
use crate::{in_words, record::Answer, store::BoxFuture};

/// Which operation a row is for: its plain identity under an explicit scope, and never the hash the
/// store knows it by, so that a row outlives a change of the layer's secret. All of it together is what a row
/// is unique by, but for the delivery id beside a business key.
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
    /// Whether it is of a job ([`Idempotent`](crate::Idempotent)) and not of a request: a rule for jobs and
    /// one for requests may have one name, and their operations are different ones.
    pub job: bool,
}

impl LedgerEntry {
    /// The row of the request `key`, which is a business key if there is a `delivery_id` beside it.
    pub fn new(
        rule: impl Into<String>,
        scope: impl Into<Bytes>,
        key: impl Into<Bytes>,
        delivery_id: Option<Bytes>,
    ) -> Self {
        Self { rule: rule.into(), scope: scope.into(), key: key.into(), delivery_id, job: false }
    }

    /// The same of a job.
    #[must_use]
    pub fn of_job(self) -> Self {
        Self { job: true, ..self }
    }
}

/// What a row holds: the answer of an operation, and what its request had of what must match.
///
/// One that is made of an answer alone has no print, and is given to every request of its identity.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LedgerRow {
    /// The answer that everybody gets.
    pub answer: Answer,
    /// What must be the same when the identity comes again, byte for byte as the row was written with it.
    /// `None` where nothing is compared, where somebody gave the answer by hand, and in rows that were
    /// written before there was a column for it.
    pub print: Option<RowPrint>,
}

impl LedgerRow {
    /// A row with this answer for requests with this print.
    pub fn new(answer: Answer, print: Option<RowPrint>) -> Self {
        Self { answer, print }
    }
}

impl From<Answer> for LedgerRow {
    fn from(answer: Answer) -> Self {
        Self::new(answer, None)
    }
}

/// What became of a seal.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[expect(clippy::large_enum_variant, reason = "it is moved once, which a box would cost more than")]
pub enum Sealed {
    /// There was no row; now there is this one.
    Written,
    /// There is a row already: this.
    Existing(LedgerRow),
}

/// A ledger could not say.
pub struct LedgerError {
    message: String,
    source: Option<Box<dyn Error + Send + Sync>>,
    foreign: bool,
}

impl LedgerError {
    /// An error; the message says what was wrong and what to do.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), source: None, foreign: false }
    }

    /// That the id of this delivery has a row which is for another business key: the request is refused as
    /// if the store's record had said so, with 422.
    pub fn foreign(message: impl Into<String>) -> Self {
        Self { foreign: true, ..Self::new(message) }
    }

    pub(crate) fn is_foreign(&self) -> bool {
        self.foreign
    }

    /// The same with the error that caused it.
    #[must_use]
    pub fn caused_by(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }
}

impl fmt::Debug for LedgerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        in_words::debug(f, None, self)
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
/// either it holds the row, or it finds the one of whoever was before it. It says all of it to its
/// [`Operation`](crate::Operation): [`entered`](crate::Operation::entered);
/// [`met_row`](crate::Operation::met_row) of a row that it finds, which says whether that is this request's;
/// and, once the row is committed, or found and this request's, [`left_row`](crate::Operation::left_row).
/// Then:
///
/// * An abandoned operation with a row was done, and its row's answer is stored and replayed; one
///   without was not done and runs again.
/// * Every answer that is kept has a row. Where the handler left none the layer seals one before the
///   answer is stored. A row that is there wins: its answer is the one that everybody gets.
/// * When the store has lost everything, a delivery is granted, the handler finds its row, and its
///   answer is stored again.
/// * A row that is another request's, by what the policy compares or by the caller of a one-time token,
///   answers nobody else: they are refused as if the store's record had said so, and nothing of them is kept.
///
/// A ledger that cannot be asked, or takes longer than five seconds, leaves an abandoned operation
/// unknown, and makes the outcome of one that it should seal uncertain.
///
/// Implementations write the methods as `async fn`, whose futures must be `Send`.
///
/// # The contract
///
/// 1. The row of an operation is the one with its rule, scope and `key`, of the kind that
///    `delivery_id` and `job` tell; or else the one that has its delivery's id, as its key or beside its
///    business key: an operation may have been known by that alone.
/// 2. A row that is committed never changes, and is kept at least as long as
///    [`Policy::hold`](crate::Policy::hold). Its print is given back as it came.
/// 3. `seal` inserts, and never overwrites. While a handler's transaction holds the row, it waits.
/// 4. A delivery id whose row is for another business key is an error, [`LedgerError::foreign`], and not
///    that row's answer.
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
/// use tower_idempotency::{Ledger, LedgerEntry, LedgerError, LedgerRow, Policy, Sealed, json};
///
/// #[derive(Clone, Default)]
/// struct Table(Arc<Mutex<HashMap<LedgerEntry, LedgerRow>>>);
///
/// impl Ledger for Table {
///     async fn find(&self, entry: &LedgerEntry) -> Result<Option<LedgerRow>, LedgerError> {
///         Ok(self.0.lock().unwrap().get(entry).cloned())
///     }
///
///     async fn seal(&self, entry: &LedgerEntry, row: &LedgerRow) -> Result<Sealed, LedgerError> {
///         let mut rows = self.0.lock().unwrap();
///         if let Some(row) = rows.get(entry) {
///             return Ok(Sealed::Existing(row.clone()));
///         }
///         rows.insert(entry.clone(), row.clone());
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
/// assert_eq!(row.answer.body().unwrap(), "success");
/// # Ok(())
/// # }
/// ```
pub trait Ledger: Send + Sync + 'static {
    /// The row of an operation; `None` where there is none. Whether its answer may be given to the
    /// request that asks is for the layer to say.
    ///
    /// # Errors
    ///
    /// When it cannot be said. `None` lets the operation run.
    fn find(
        &self,
        entry: &LedgerEntry,
    ) -> impl Future<Output = Result<Option<LedgerRow>, LedgerError>> + Send;

    /// Writes this row, unless there is one.
    ///
    /// # Errors
    ///
    /// When it cannot be said whether there is a row now.
    fn seal(
        &self,
        entry: &LedgerEntry,
        row: &LedgerRow,
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
            async fn find(&self, entry: &LedgerEntry) -> Result<Option<LedgerRow>, LedgerError> {
                (**self).find(entry).await
            }
            async fn seal(
                &self,
                entry: &LedgerEntry,
                row: &LedgerRow,
            ) -> Result<Sealed, LedgerError> {
                (**self).seal(entry, row).await
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
    fn find(
        self: Arc<Self>,
        entry: LedgerEntry,
    ) -> BoxFuture<Result<Option<LedgerRow>, LedgerError>>;
    fn seal(
        self: Arc<Self>,
        entry: LedgerEntry,
        row: LedgerRow,
    ) -> BoxFuture<Result<Sealed, LedgerError>>;
    fn hold(&self) -> Option<Duration>;
}

impl<L: Ledger> DynLedger for L {
    fn find(
        self: Arc<Self>,
        entry: LedgerEntry,
    ) -> BoxFuture<Result<Option<LedgerRow>, LedgerError>> {
        Box::pin(async move { Ledger::find(&*self, &entry).await })
    }

    fn seal(
        self: Arc<Self>,
        entry: LedgerEntry,
        row: LedgerRow,
    ) -> BoxFuture<Result<Sealed, LedgerError>> {
        Box::pin(async move { Ledger::seal(&*self, &entry, &row).await })
    }

    fn hold(&self) -> Option<Duration> {
        Ledger::hold(self)
    }
}
