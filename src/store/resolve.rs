//! Settling an abandoned operation: what is asked of a store, and what it answers.

use std::time::Duration;

use super::Kept;
use crate::record::{ClaimToken, Mark, RecordKey, State};

/// What an abandoned operation turned out to be.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Verdict {
    /// It was done, and this is its answer.
    Done(Kept),
    /// It was not done: the key may run again, remembered for this long.
    NotDone {
        /// How long the record is kept.
        hold: Duration,
    },
}

/// Settling an abandoned operation.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Resolve {
    /// The record.
    pub key: RecordKey,
    /// The grant as it was seen. Without a stamp in the mind of the caller, see [`Resolve::forced`].
    pub mark: Mark,
    /// What it turned out to be.
    pub verdict: Verdict,
    /// The owner of the verdict: 16 random bytes, the same when it is sent again.
    pub token: ClaimToken,
    /// Also while the grant is leased, and whatever its stamp is now. A human's decision.
    pub force: bool,
    /// The lease of the grant's policy. A store that may have lost renewals refuses a verdict of *not
    /// done* for so long after that, since whoever it is about may be alive.
    pub lease: Duration,
}

impl Resolve {
    /// Settles the grant seen at `mark`, unless it gave a sign of life since. Without a
    /// [`lease`](Self::lease) it is not held back by a store that has changed.
    pub const fn new(key: RecordKey, mark: Mark, verdict: Verdict, token: ClaimToken) -> Self {
        Self { key, mark, verdict, token, force: false, lease: Duration::ZERO }
    }

    /// The lease of the grant's policy; default none, which holds nothing back.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// Settles it although it is still leased, and whatever its stamp is now.
    #[must_use]
    pub fn forced(mut self) -> Self {
        self.force = true;
        self
    }
}

/// What became of a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Resolved {
    /// It is settled, by this call or an earlier one with the same token.
    Settled,
    /// Not settled: the record, now in this state, is not as it was seen.
    Changed(State),
    /// Not settled: somebody holds it for this long still.
    Leased(Duration),
    /// Not settled: what is stored there is no record of ours, or a newer version's.
    Foreign,
}
