//! A verdict by hand, and why it is refused.

use std::{error::Error, fmt, time::Duration};

use super::{Found, Operations, Standing};
use crate::{
    record::{Answer, ClaimToken, State},
    store::{Kept, Resolve, Resolved, Store, StoreError, Verdict},
    telemetry,
};

/// What an operation turned out to be, by somebody's decision, and why.
#[derive(Clone, Debug)]
pub struct Settle {
    done: Option<Answer>,
    reason: String,
    force: bool,
}

impl Settle {
    /// It was done: every later delivery gets this answer.
    ///
    /// With a [`Ledger`](crate::Ledger) write its row too. Else, when the store loses this answer, the
    /// operation runs.
    pub fn done(answer: Answer, reason: impl Into<String>) -> Self {
        Self { done: Some(answer), reason: reason.into(), force: false }
    }

    /// It was not done: the next delivery runs.
    pub fn not_done(reason: impl Into<String>) -> Self {
        Self { done: None, reason: reason.into(), force: false }
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
}

/// An operation was not settled, or, where the store did not answer, may not be.
#[derive(Debug)]
pub struct SettleError {
    kind: SettleErrorKind,
    message: String,
    source: Option<StoreError>,
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
        Self { kind: SettleErrorKind::Store, message, source: Some(error) }
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

impl fmt::Display for SettleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for SettleError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_ref().map(|source| source as &(dyn Error + 'static))
    }
}

impl<S: Store> Operations<S> {
    /// Settles an operation as done or not done, exactly as it was seen: a sign of life of its owner
    /// since then voids the verdict. The event *settled by hand*, or *settled by force*, has the reason.
    ///
    /// It refuses what could be a double run, unless forced: any verdict on an operation whose owner is
    /// alive, and *not done* where its owner may be, since it lapsed less than the longest run ago. Of
    /// one that was given up that is so where an earlier attempt may be.
    ///
    /// # Errors
    ///
    /// When it is refused, when the operation has changed, and when the store cannot answer.
    ///
    /// # Cancel safety
    ///
    /// Dropped, it may have settled the operation, without an event.
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
        let stored = match &verdict.done {
            Some(answer) => {
                Verdict::Done(Kept::new(answer.to_payload(&operation.key), self.retention))
            }
            None => Verdict::NotDone { hold: self.hold },
        };
        let resolve = Resolve::new(operation.key, operation.mark, stored, ClaimToken::random());
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
