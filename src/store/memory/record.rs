//! A record as a memory store keeps it, and what can be told from it alone.

use std::time::Duration;

use bytes::Bytes;

use crate::{
    record::{ClaimToken, Fence, Fingerprint, Grant, Mark, Previous, RecordKey, State},
    store::Listed,
};

/// The time by the store's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Now {
    pub(super) us: u64,
}

impl Now {
    pub(super) fn ms(self) -> u64 {
        self.us / 1000
    }

    /// The millisecond at which what lasts `time` from now ends.
    pub(super) fn ms_after(self, time: Duration) -> u64 {
        self.ms().saturating_add(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
    }

    pub(super) fn since_ms(self, ms: u64) -> Duration {
        Duration::from_millis(self.ms().saturating_sub(ms))
    }

    pub(super) fn until_ms(self, ms: u64) -> Duration {
        Duration::from_millis(ms.saturating_sub(self.ms()))
    }

    pub(super) fn since_fence(self, fence: u64) -> Duration {
        Duration::from_micros(self.us.saturating_sub(fence))
    }
}

/// One record. It has no `Debug`, so that no payload is ever printed.
#[derive(Clone)]
pub(super) struct Record {
    pub(super) state: State,
    /// The claim's owner; in `Issued` the one-time token; of nobody in `Alias`.
    pub(super) token: Option<[u8; 16]>,
    /// In `InProgress` the end of the lease, 0 when it was given up as unknown; elsewhere the time
    /// of the transition.
    pub(super) stamp_ms: u64,
    /// In microseconds; grows with every grant.
    pub(super) fence: u64,
    /// Grants so far. 0 in `Released`: called off, nothing ever ran.
    pub(super) attempt: u32,
    pub(super) print: Option<Fingerprint>,
    /// In `InProgress` what the grant found; in `Released`, and in `Issued` over that, whether it had
    /// failed.
    pub(super) before: Previous,
    /// In `Completed` what was stored, in `InProgress` the label, in `Alias` the target.
    pub(super) payload: Bytes,
}

/// What is to be written, and for how long.
pub(super) struct Write {
    pub(super) record: Record,
    pub(super) keep: Duration,
}

impl Record {
    pub(super) const ABSENT: Self = Self {
        state: State::Absent,
        token: None,
        stamp_ms: 0,
        fence: 0,
        attempt: 0,
        print: None,
        before: Previous::Nothing,
        payload: Bytes::new(),
    };

    pub(super) fn is_absent(&self) -> bool {
        self.state == State::Absent
    }

    pub(super) fn payload_bytes(&self) -> usize {
        self.payload.len()
    }

    pub(super) fn is_owned_by(&self, token: ClaimToken) -> bool {
        self.token.as_ref() == Some(token.as_bytes())
    }

    pub(super) fn is_given_up(&self) -> bool {
        self.state == State::InProgress && self.stamp_ms == 0
    }

    pub(super) fn is_leased(&self, now: Now) -> bool {
        self.state == State::InProgress && self.stamp_ms > now.ms()
    }

    pub(super) fn is_lapsed(&self, now: Now) -> bool {
        self.state == State::InProgress && self.stamp_ms <= now.ms()
    }

    /// A claim that was called off left this behind: as good as nothing.
    pub(super) fn is_tombstone(&self) -> bool {
        self.state == State::Released && self.attempt == 0
    }

    pub(super) fn mark(&self) -> Mark {
        Mark::new(Fence::new(self.fence), self.stamp_ms)
    }

    pub(super) fn next_fence(&self, now: Now) -> u64 {
        now.us.max(self.fence.saturating_add(1))
    }

    /// A one-time token was issued where, as far as the store remembers, nothing ever ran.
    fn is_issued_over_nothing(&self) -> bool {
        self.state == State::Issued && self.attempt == 0
    }

    /// The store has lost this grant: there is nothing, or what is as good as nothing, or something
    /// older than the grant that nobody holds.
    pub(super) fn has_lost(&self, grant: &Grant, now: Now) -> bool {
        if self.state == State::Absent {
            return true;
        }
        if self.is_owned_by(grant.token) {
            return false;
        }
        let unheld = matches!(self.state, State::Issued | State::Released) || self.is_lapsed(now);
        self.is_tombstone()
            || self.is_issued_over_nothing()
            || (self.fence < grant.fence.get() && unheld)
    }

    /// The record as an operator sees it.
    pub(super) fn listed(&self, key: RecordKey, now: Now, expires_ms: u64) -> Listed {
        let unfinished = self.state == State::InProgress;
        Listed::new(
            key,
            self.state,
            self.mark(),
            self.attempt,
            self.is_leased(now).then(|| now.until_ms(self.stamp_ms)),
            now.until_ms(expires_ms),
            if unfinished { self.payload.clone() } else { Bytes::new() },
        )
    }
}
