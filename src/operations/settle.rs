//! A verdict by hand, and why it is refused.

use std::{error::Error, fmt, sync::Arc, time::Duration};

use super::{Found, Operations, Standing};
use crate::{
    in_words,
    ledger::{DynLedger, Ledger, LedgerEntry, LedgerError, LedgerRow, Sealed},
    operation::{find_row, seal_row, storable},
    record::{Answer, ClaimToken, Kind, RecordKey, State},
    store::{Kept, Resolve, Resolved, Store, StoreError, Verdict},
    telemetry,
};

/// What an operation turned out to be, by somebody's decision, and why.
#[derive(Clone)]
pub struct Settle {
    done: Option<Answer>,
    reason: String,
    force: bool,
    row: Option<(Arc<dyn DynLedger>, LedgerEntry)>,
}

impl Settle {
    /// It was done: every later delivery gets this answer.
    ///
    /// Where its policy has a [`Ledger`](crate::Ledger), say so with [`Settle::in_ledger`]. Else, when the
    /// store loses this answer, the operation runs.
    pub fn done(answer: Answer, reason: impl Into<String>) -> Self {
        Self { done: Some(answer), reason: reason.into(), force: false, row: None }
    }

    /// It was not done: the next delivery runs.
    pub fn not_done(reason: impl Into<String>) -> Self {
        Self { done: None, reason: reason.into(), force: false, row: None }
    }

    /// The same with the row of the operation, where its policy has a [`Ledger`](crate::Ledger): no
    /// answer is kept without one, given by hand or not.
    ///
    /// *Done* writes the row before the record. A row that is there wins: its answer is the one that
    /// is stored. *Not done* is refused where there is a row.
    ///
    /// A row that is written so has no [print](LedgerRow::print), since nobody knows here what the request
    /// was: should the store lose its record, whatever comes under this identity is answered from it.
    ///
    /// The entry is the one a handler would see ([`Operation::ledger_entry`](crate::Operation)): the
    /// rule's name, the scope, and the identity with its delivery id where it is a business key;
    /// [`LedgerEntry::of_job`] where it is no request. One
    /// that is not this operation's is refused, for which the layer's secret has to be known
    /// ([`Operations::secret`]).
    #[must_use]
    pub fn in_ledger(mut self, ledger: impl Ledger, entry: LedgerEntry) -> Self {
        self.row = Some((Arc::new(ledger), entry));
        self
    }

    /// Also where its owner may still be alive.
    ///
    /// Danger: *not done* of an operation that is running runs it twice. Only where the process is
    /// known to be dead, or its handler to hang for good.
    #[must_use]
    pub fn forced(mut self) -> Self {
        self.force = true;
        self
    }
}

impl fmt::Debug for Settle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settle")
            .field("done", &self.done)
            .field("reason", &self.reason)
            .field("force", &self.force)
            .field("row", &self.row.as_ref().map(|(_, entry)| entry))
            .finish()
    }
}

/// Why an operation was not settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SettleErrorKind {
    /// There is no reason.
    NoReason,
    /// Its owner may still be alive: wait, or force it.
    MayBeRunning,
    /// It is not as it was seen: its owner came back, or somebody else settled it. Look again.
    Changed,
    /// What is stored there is no record of ours, or a newer version's.
    Foreign,
    /// The store did not answer. The verdict may have been taken.
    Store,
    /// It was to be settled as not done, and its row says that it was done.
    HasRow,
    /// The ledger could not say, or could not write the row. Nothing was stored.
    Ledger,
    /// The ledger's entry is another operation's, or the secret is another one.
    OtherEntry,
}

/// An operation was not settled, or, where the store did not answer, may not be.
pub struct SettleError {
    kind: SettleErrorKind,
    message: String,
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl SettleError {
    /// Why it was not settled.
    pub fn kind(&self) -> SettleErrorKind {
        self.kind
    }

    fn new(kind: SettleErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), source: None }
    }

    fn store(error: StoreError) -> Self {
        let message = format!("the store did not answer: {error}");
        Self { kind: SettleErrorKind::Store, message, source: Some(error.into()) }
    }

    fn ledger(error: LedgerError) -> Self {
        let message = format!("the ledger did not answer, and nothing was settled: {error}");
        Self { kind: SettleErrorKind::Ledger, message, source: Some(error.into()) }
    }

    fn changed(state: State) -> Self {
        Self::new(
            SettleErrorKind::Changed,
            format!("it is not as it was seen, but {state:?} now: look again"),
        )
    }

    fn may_be_running(why: String) -> Self {
        Self::new(SettleErrorKind::MayBeRunning, why)
    }
}

impl fmt::Debug for SettleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        in_words::debug(f, Some(&self.kind), self)
    }
}

impl fmt::Display for SettleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for SettleError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_ref().map(|source| &**source as &(dyn Error + 'static))
    }
}

impl<S: Store> Operations<S> {
    /// Settles an operation as done or not done, exactly as it was seen: a sign of life of its owner
    /// since then voids the verdict. The event *settled by hand*, or *settled by force*, has the reason.
    ///
    /// It refuses what could be a double run, unless forced: any verdict on an operation whose owner is
    /// alive, and *not done* where its owner may be, since it lapsed less than the longest run ago. Of
    /// one that was given up that is so where an earlier attempt may be. A store that has just changed
    /// may have lost signs of life, and refuses *not done* for one lease.
    ///
    /// Requests that wait for the operation, in whatever process, hear of it at their next look: half a
    /// second later at most. No layer knows that its store is settled in, not even one of the same process.
    ///
    /// # Errors
    ///
    /// When it is refused, when the operation has changed, and when the store or the ledger cannot
    /// answer.
    ///
    /// # Cancel safety
    ///
    /// Dropped, it may have settled the operation, or its row alone, without an event.
    pub async fn settle(&self, operation: &Found, verdict: Settle) -> Result<(), SettleError> {
        if verdict.reason.trim().is_empty() {
            let message = "a verdict needs a reason, for whoever reads the log later";
            return Err(SettleError::new(SettleErrorKind::NoReason, message));
        }
        let (standing, mark) = self.look(&operation.key).await.map_err(SettleError::store)?;
        if let Standing::Ended(state) = standing {
            return Err(SettleError::changed(state));
        }
        if !verdict.force {
            self.refuse_a_double_run(&standing, operation.attempt, verdict.done.is_none())?;
            if mark != Some(operation.mark) {
                return Err(SettleError::changed(State::InProgress));
            }
        }
        let stored = match self.with_its_row(&operation.key, &verdict).await? {
            Some(answer) => {
                Verdict::Done(Kept::new(answer.to_payload(&operation.key), self.retention))
            }
            None => Verdict::NotDone { hold: self.hold },
        };
        let resolve = Resolve::new(operation.key, operation.mark, stored, ClaimToken::random());
        let resolve = resolve.lease(self.lease);
        let resolve = if verdict.force { resolve.forced() } else { resolve };
        match self.store.resolve(resolve).await.map_err(SettleError::store)? {
            Resolved::Settled => {
                let what = if verdict.done.is_some() { "done" } else { "not done" };
                telemetry::settled(operation, what, &verdict.reason, verdict.force);
                Ok(())
            }
            Resolved::Changed(state) => Err(SettleError::changed(state)),
            Resolved::Leased(remaining) => Err(is_alive(remaining)),
            Resolved::Foreign => Err(SettleError::new(
                SettleErrorKind::Foreign,
                "what is stored there is no record of this version, and was not touched",
            )),
        }
    }

    /// The answer that everybody gets, after its row was looked after; none if it was not done.
    ///
    /// The row comes before the record: an owner that goes on meanwhile finds it, or is found.
    async fn with_its_row(
        &self,
        key: &RecordKey,
        verdict: &Settle,
    ) -> Result<Option<Answer>, SettleError> {
        let Some((ledger, entry)) = &verdict.row else { return Ok(verdict.done.clone()) };
        let kind = match entry.delivery_id {
            _ if entry.job => Kind::Job,
            Some(_) => Kind::Business,
            None => Kind::Delivery,
        };
        let scope = [entry.rule.as_bytes(), &entry.scope];
        if RecordKey::derive(self.secret.as_ref(), &scope, kind, &entry.key) != *key {
            let message = "the entry is not this operation's: give its rule, scope and identity, \
                LedgerEntry::of_job of a job, and the layer's secret if it has one";
            return Err(SettleError::new(SettleErrorKind::OtherEntry, message));
        }
        let (ledger, entry) = (ledger.clone(), entry.clone());
        let Some(answer) = &verdict.done else {
            return match find_row(ledger, entry).await.map_err(SettleError::ledger)? {
                None => Ok(None),
                Some(row) => Err(SettleError::new(
                    SettleErrorKind::HasRow,
                    format!("its row says that it was done and answered {}", row.answer.status()),
                )),
            };
        };
        // What its request had of what must match is not known here: this row is every request's.
        let row = LedgerRow::from(answer.clone());
        match seal_row(ledger, entry, row).await.map_err(SettleError::ledger)? {
            Sealed::Written => Ok(Some(answer.clone())),
            Sealed::Existing(row) => Ok(Some(storable(row.answer, false))),
        }
    }

    fn refuse_a_double_run(
        &self,
        standing: &Standing,
        attempt: u32,
        not_done: bool,
    ) -> Result<(), SettleError> {
        let (seen, ago) = match standing {
            Standing::Running { remaining, .. } => return Err(is_alive(*remaining)),
            Standing::Lapsed { ago, .. } => ("its lease ended", *ago),
            // Its last owner has ended; one that it was taken over from may only stall.
            Standing::GivenUp { age } if attempt > 1 => ("it was granted anew", *age),
            Standing::GivenUp { .. } | Standing::Ended(_) => return Ok(()),
        };
        if !not_done || ago >= self.max_run {
            return Ok(());
        }
        Err(SettleError::may_be_running(format!(
            "{seen} {} s ago, and handlers may run for {} s: a process that only stalls would run on \
             beside the next delivery. Wait, or force it if that process is known to be dead",
            ago.as_secs(),
            self.max_run.as_secs_f32()
        )))
    }
}

fn is_alive(remaining: Duration) -> SettleError {
    SettleError::may_be_running(format!(
        "its owner is alive and holds it for {:.1} s still: wait until it ends, or force it if its \
         handler hangs for good",
        remaining.as_secs_f32()
    ))
}
