//! Why a store could not answer.

use std::{error::Error, fmt};

type BoxError = Box<dyn Error + Send + Sync>;

/// A store could not answer. What was asked of it may have happened all the same.
#[derive(Debug)]
pub struct StoreError {
    kind: StoreErrorKind,
    message: String,
    source: Option<BoxError>,
}

/// Why a store could not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// No answer came in time.
    Timeout,
    /// There is no connection to the store.
    Unreachable,
    /// The store has no room for what should be written; nothing was written.
    Full,
    /// The store answers, but refuses: read-only, out of memory, loading, no permission.
    Refused,
    /// The store answered something that is no answer to what was asked.
    Garbled,
}

impl StoreError {
    /// An error of this kind; the message says what was wrong and what to do.
    pub fn new(kind: StoreErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), source: None }
    }

    pub(crate) fn too_slow() -> Self {
        Self::new(StoreErrorKind::Timeout, "the store did not answer in time")
    }

    /// The same with the error that caused it.
    #[must_use]
    pub fn caused_by(mut self, source: impl Into<BoxError>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Why the store could not answer.
    pub fn kind(&self) -> StoreErrorKind {
        self.kind
    }

    /// No answer came in time.
    pub fn is_timeout(&self) -> bool {
        self.kind == StoreErrorKind::Timeout
    }

    /// There is no connection to the store.
    pub fn is_unreachable(&self) -> bool {
        self.kind == StoreErrorKind::Unreachable
    }

    /// The store has no room.
    pub fn is_full(&self) -> bool {
        self.kind == StoreErrorKind::Full
    }

    /// The store answered something that is no answer to what was asked.
    pub fn is_garbled(&self) -> bool {
        self.kind == StoreErrorKind::Garbled
    }

    /// The store answers, but refuses.
    pub fn is_refused(&self) -> bool {
        self.kind == StoreErrorKind::Refused
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for StoreError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_ref().map(|source| &**source as &(dyn Error + 'static))
    }
}
