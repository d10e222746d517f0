//! Listing records for an operator: what is asked of a store, and what it answers.

use std::time::Duration;

use bytes::Bytes;

use crate::record::{Mark, RecordKey, State};

/// A place in a scan. The first is [`Cursor::START`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor(Bytes);

impl Cursor {
    /// Where a scan starts.
    pub const START: Self = Self(Bytes::new());

    /// A cursor of these bytes, which only the store that made it understands.
    pub const fn from_bytes(bytes: Bytes) -> Self {
        Self(bytes)
    }

    /// The bytes of the cursor.
    pub const fn as_bytes(&self) -> &Bytes {
        &self.0
    }
}

/// Some records, and where to go on.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Page {
    /// The records of this page; none is no sign of the end.
    pub records: Vec<Listed>,
    /// Where to go on; `None` at the end.
    pub next: Option<Cursor>,
}

impl Page {
    /// A page.
    pub const fn new(records: Vec<Listed>, next: Option<Cursor>) -> Self {
        Self { records, next }
    }
}

/// A record as an operator sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Listed {
    /// The record.
    pub key: RecordKey,
    /// What it is.
    pub state: State,
    /// Its fence and stamp, as [`Resolve`](super::Resolve) wants them.
    pub mark: Mark,
    /// Grants so far.
    pub attempt: u32,
    /// What is left of the lease of a grant that is held; `None` in every other state, and of a
    /// grant that lapsed or was given up: that one is abandoned.
    pub leased: Option<Duration>,
    /// How long the record is kept still.
    pub expires_in: Duration,
    /// What the owner of an unfinished grant left for an operator to read.
    pub label: Bytes,
}

impl Listed {
    /// A record as an operator sees it.
    pub const fn new(
        key: RecordKey,
        state: State,
        mark: Mark,
        attempt: u32,
        leased: Option<Duration>,
        expires_in: Duration,
        label: Bytes,
    ) -> Self {
        Self { key, state, mark, attempt, leased, expires_in, label }
    }

    /// Whether it is in progress past its lease, or given up as unknown.
    pub fn is_abandoned(&self) -> bool {
        self.state == State::InProgress && self.leased.is_none()
    }
}
