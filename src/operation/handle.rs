//! What a handler can ask about its execution, and what a response says about it.

use std::{
    fmt,
    future::Future,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::sync::Notify;

use super::subject::{Subject, to_text};
use crate::{
    identity::Identity,
    ledger::{Differs, LedgerEntry, RowPrint},
    record::{Answer, Fence, Grant, Kind, Previous, RecordKey, downstream_id},
    refusal::RefusalKind,
};

/// The execution a handler runs in. It is an extension of the request and, with feature `axum`, an
/// extractor.
///
/// It stays valid when the request is over, and tells nothing new then.
///
/// # Example: a charge that a payment provider makes only once
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// use http::{Request, Response};
/// use tower::{ServiceBuilder, ServiceExt};
/// use tower_idempotency::{
///     IdempotencyLayer, MemoryStore, Operation, Policy, Previous, RequestBody, Rule, Scope,
/// };
///
/// async fn charge(request: Request<RequestBody<String>>) -> Result<Response<String>, std::io::Error> {
///     let operation = request.extensions().get::<Operation>().expect("the layer is around this");
///     assert_eq!((operation.rule(), operation.key()), ("charge", "order-7"));
///     assert_eq!((operation.attempt(), operation.previous()), (1, Previous::Nothing));
///     // The same on every attempt of this operation, in every process.
///     Ok(Response::new(operation.downstream_key("charge")))
/// }
///
/// let rule = Rule::new("charge", Policy::api(Scope::everyone()));
/// let service = ServiceBuilder::new()
///     .layer(IdempotencyLayer::new(MemoryStore::new(), rule))
///     .service_fn(charge);
/// let request = Request::post("/").header("Idempotency-Key", "order-7").body(String::new())?;
/// assert_eq!(service.oneshot(request).await?.status(), 200);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Operation {
    inner: Arc<Inner>,
}

struct Inner {
    subject: Subject,
    grant: Grant,
    /// The scope and the identity as text, where they are none as they stand.
    scope_text: OnceLock<String>,
    key_text: OnceLock<String>,
    delivery_text: OnceLock<String>,
    uncertain: AtomicBool,
    entered: AtomicBool,
    /// The answer in the row that the handler left or found.
    row: OnceLock<Answer>,
    /// The row that the handler found is another request's.
    other: OnceLock<Differs>,
    over: AtomicBool,
    lost: AtomicBool,
    lost_notice: Notify,
}

impl Operation {
    pub(crate) fn new(subject: Subject, grant: Grant) -> Self {
        Self {
            inner: Arc::new(Inner {
                subject,
                grant,
                scope_text: OnceLock::new(),
                key_text: OnceLock::new(),
                delivery_text: OnceLock::new(),
                uncertain: AtomicBool::new(false),
                entered: AtomicBool::new(false),
                row: OnceLock::new(),
                other: OnceLock::new(),
                over: AtomicBool::new(false),
                lost: AtomicBool::new(false),
                lost_notice: Notify::new(),
            }),
        }
    }

    /// The name of the rule.
    pub fn rule(&self) -> &str {
        self.inner.subject.rule.name()
    }

    /// Whose identity it is; empty where the policy's scope is everyone. One that is no UTF-8 is
    /// percent-encoded.
    pub fn scope(&self) -> &str {
        as_text(&self.inner.subject.scope, &self.inner.scope_text)
    }

    /// The identity of the operation, as it was sent: the business key where the policy has one,
    /// else the delivery id. One that is no UTF-8 is percent-encoded. Of a one-time token that is all there
    /// is it is a hash, the same on every attempt.
    pub fn key(&self) -> &str {
        as_text(self.inner.subject.identity.as_bytes(), &self.inner.key_text)
    }

    /// The id of this delivery, where the operation has a business key. One that is no UTF-8 is
    /// percent-encoded. Where a one-time token is demanded it is a hash of the token.
    pub fn delivery_id(&self) -> Option<&str> {
        let delivery = self.inner.subject.delivery.as_ref()?;
        Some(as_text(delivery.as_bytes(), &self.inner.delivery_text))
    }

    /// [`Operation::scope`], byte by byte.
    pub fn scope_bytes(&self) -> &[u8] {
        &self.inner.subject.scope
    }

    /// [`Operation::key`], byte by byte: what a table of one's own has to compare, since two keys
    /// that are no UTF-8 may read the same.
    pub fn key_bytes(&self) -> &[u8] {
        self.inner.subject.identity.as_bytes()
    }

    /// [`Operation::delivery_id`], byte by byte.
    pub fn delivery_id_bytes(&self) -> Option<&[u8]> {
        self.inner.subject.delivery.as_ref().map(Identity::as_bytes)
    }

    /// Which execution this is: 1 for the first. Stays at 999,999.
    pub fn attempt(&self) -> u32 {
        self.inner.grant.attempt
    }

    /// The number of this grant, larger than that of every one before it while the record is kept;
    /// 0 if it runs without a grant ([`Policy::run_unprotected`](crate::Policy::run_unprotected),
    /// [`Policy::observe`](crate::Policy::observe)).
    pub fn fence(&self) -> Fence {
        self.inner.grant.fence
    }

    /// What this grant found.
    pub fn previous(&self) -> Previous {
        self.inner.grant.previous
    }

    /// A UUID for one step of this operation: the idempotency key to send to whoever does that step.
    ///
    /// It is the same on every attempt, in every process, and does not depend on the layer's secret,
    /// its store or the route. It depends on the rule's name, the scope and the identity.
    pub fn downstream_key(&self, step: &str) -> String {
        let subject = &self.inner.subject;
        downstream_id(
            &[subject.rule.name().as_bytes(), &subject.scope],
            subject.kind,
            subject.identity.as_bytes(),
            step,
        )
    }

    /// Says that nobody will know whether this execution happened, whatever its answer is: the key
    /// is abandoned at its end. An `Outcome` in the answer's extensions counts over it.
    pub fn mark_uncertain(&self) {
        self.inner.uncertain.store(true, Ordering::Relaxed);
    }

    /// Whether it is a job of [`Idempotent`](crate::Idempotent), and not a request.
    pub fn is_job(&self) -> bool {
        self.inner.subject.kind == Kind::Job
    }

    /// Which row of a [`Ledger`](crate::Ledger) is this operation's.
    pub fn ledger_entry(&self) -> LedgerEntry {
        self.inner.subject.ledger_entry()
    }

    /// What is to be written beside the answer in that row ([`LedgerRow::print`](crate::LedgerRow)): what
    /// this request has of what must be the same when its identity comes again. `None` where the policy
    /// compares nothing.
    pub fn ledger_print(&self) -> Option<RowPrint> {
        self.inner.subject.row_print()
    }

    /// For a ledger's part in the handler: there is a row of this operation, written with this print.
    /// Whether it is this request's, so that its answer may be given ([`Operation::left_row`]).
    ///
    /// Where it is not, nothing may be done. Whatever the handler answers, it is told as if the store's
    /// record had said so: 422, which names the fields that differ, where they are known, to
    /// [`Policy::on_mismatch`](crate::Policy::on_mismatch); or 403 where a one-time token was another
    /// caller's. Nothing of it is kept, and the key is released. Implies [`Operation::entered`].
    ///
    /// What one of the two does not say does not differ: a row without a print is every request's.
    #[must_use = "the answer of another request's row may not be given"]
    pub fn met_row(&self, print: Option<&RowPrint>) -> bool {
        self.entered();
        match self.inner.subject.differs_from(print) {
            None => true,
            Some(differs) => {
                let _ = self.inner.other.set(differs);
                false
            }
        }
    }

    /// For a ledger's part in the handler: the id of this delivery has a row that is for another business
    /// key. Nothing may be done, and whatever the handler answers, it is told 422, as with
    /// [`Operation::met_row`].
    pub fn met_foreign_row(&self) {
        self.entered();
        let _ = self.inner.other.set(Differs::Business);
    }

    /// How the request differs from the one whose row the handler has met.
    pub(crate) fn other(&self) -> Option<&Differs> {
        self.inner.other.get()
    }

    /// For a ledger's part in the handler: it has entered, so that all of the handler's effects stand
    /// in one transaction with the row, or do not stand.
    ///
    /// A policy with a ledger warns of a handler that succeeds and did not enter.
    pub fn entered(&self) {
        self.inner.entered.store(true, Ordering::Relaxed);
    }

    /// For a ledger's part in the handler: the row of this operation has this answer, and is committed.
    /// Where the policy has a ledger, the layer then need not seal one, and keeps this answer and gives
    /// it to everybody, whatever the handler answers, be it a status or an outcome that would not be
    /// kept. Implies [`Operation::entered`]. A row never changes: the first word counts.
    ///
    /// Danger: said before the commit has succeeded, it is an answer to something that may not happen.
    pub fn left_row(&self, answer: &Answer) {
        self.entered();
        let _ = self.inner.row.set(answer.clone());
    }

    pub(crate) fn has_entered(&self) -> bool {
        self.inner.entered.load(Ordering::Relaxed)
    }

    pub(crate) fn row(&self) -> Option<&Answer> {
        self.inner.row.get()
    }

    /// Ends when this execution has lost its lease: another may be granted, or has been. It never
    /// ends otherwise.
    ///
    /// # Cancel safety
    ///
    /// May be dropped and asked again.
    pub fn lease_lost(&self) -> impl Future<Output = ()> + Send + 'static {
        let inner = self.inner.clone();
        async move {
            let notice = inner.lost_notice.notified();
            let mut notice = std::pin::pin!(notice);
            // Registered before the look, so that a loss in between is not missed.
            notice.as_mut().enable();
            if !inner.lost.load(Ordering::Acquire) {
                notice.await;
            }
        }
    }

    /// Whether this execution has lost its lease.
    pub fn is_lease_lost(&self) -> bool {
        self.inner.lost.load(Ordering::Acquire)
    }

    pub(crate) fn lose_lease(&self) {
        self.inner.lost.store(true, Ordering::Release);
        self.inner.lost_notice.notify_waiters();
    }

    /// The execution has ended, however it did: this is no grant any more.
    pub(crate) fn end(&self) {
        self.inner.over.store(true, Ordering::Release);
    }

    /// Whether this record was granted to this execution, and it runs.
    pub(crate) fn is_grant_of(&self, named: &RecordKey) -> bool {
        self.subject().named == *named && !self.inner.over.load(Ordering::Acquire)
    }

    pub(crate) fn is_uncertain(&self) -> bool {
        self.inner.uncertain.load(Ordering::Relaxed)
    }

    pub(crate) fn subject(&self) -> &Subject {
        &self.inner.subject
    }

    /// What it runs under.
    pub(crate) fn grant(&self) -> &Grant {
        &self.inner.grant
    }
}

fn as_text<'a>(bytes: &'a [u8], otherwise: &'a OnceLock<String>) -> &'a str {
    match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(_) => otherwise.get_or_init(|| to_text(bytes).into_owned()),
    }
}

impl fmt::Debug for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operation")
            .field("rule", &self.rule())
            .field("record", &self.inner.subject.record.digest())
            .field("attempt", &self.attempt())
            .field("previous", &self.previous())
            .finish_non_exhaustive()
    }
}

/// How a response came to be: an extension of every response of a protected request that was not
/// refused. One that passed, since it has no identity and need not have one, has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Handled {
    /// The handler was run.
    Executed {
        /// Which execution it was.
        attempt: u32,
    },
    /// It is the stored answer of an earlier execution; its header `Idempotent-Replayed` is `true`.
    Replayed,
    /// The handler was run without a grant, since the policy only observes
    /// ([`Policy::observe`](crate::Policy::observe)).
    Observed {
        /// What would have become of the request.
        would: Would,
    },
}

/// What would have become of a request that was only observed, and was not granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Would {
    /// It would have got the stored answer of an earlier execution.
    Replay,
    /// It would have waited for another's run, as [`Policy::wait`](crate::Policy::wait) says, and then got
    /// its answer, or been refused.
    Wait,
    /// It would have been refused.
    Refuse(RefusalKind),
}

impl Would {
    /// Its name in words: `replayed`, `waited`, or that of the refusal.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Replay => "replayed",
            Self::Wait => "waited",
            Self::Refuse(kind) => kind.name(),
        }
    }
}
