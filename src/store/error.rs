//! Why a store could not answer.

use std::{error::Error, fmt, time::Duration};

use crate::in_words;

type BoxError = Box<dyn Error + Send + Sync>;

/// A store could not answer. What was asked of it may have happened all the same.
pub struct StoreError {
    kind: StoreErrorKind,
    message: String,
    retry_after: Option<Duration>,
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
    /// The store was not asked: for now it would be in vain, or grant what it must not. Nothing was
    /// sent, or nothing that could be granted, and trying again at once is no use.
    Suspended,
}

impl StoreError {
    /// An error of this kind; the message says what was wrong and what to do.
    pub fn new(kind: StoreErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), retry_after: None, source: None }
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

    /// The same with the time after which it is worth to ask again; nobody is told one under a second.
    #[must_use]
    pub fn with_retry_after(mut self, after: Duration) -> Self {
        self.retry_after = Some(after);
        self
    }

    /// After which time it is worth to ask again, where the store knows.
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
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

    /// The store was not asked, or could not have granted anything.
    pub fn is_suspended(&self) -> bool {
        self.kind == StoreErrorKind::Suspended
    }

    /// The store answers, but refuses.
    pub fn is_refused(&self) -> bool {
        self.kind == StoreErrorKind::Refused
    }
}

impl fmt::Debug for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        in_words::debug(f, Some(&self.kind), self)
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
