//! How work ends, and what its caller is told.

use std::{error::Error, fmt, time::Duration};

use crate::{
    record::{Answer, ValueError},
    refusal::{Refusal, RefusalKind},
};

/// How work ends: what its end means for its key.
///
/// A `Result` is one too: `Ok` is [`End::Keep`], and `Err` is [`End::Uncertain`], since an error alone
/// does not say that nothing happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End<T, E> {
    /// It happened, or need not be tried again: this is kept, and given to whoever comes later. A
    /// failure that is final is such a value: `T` may be a `Result` itself.
    Keep(T),
    /// It did not happen: the key may be run again.
    Release(E),
    /// Nobody knows whether it happened: the key is refused until that is settled
    /// ([`RunError::Unknown`]).
    Uncertain(E),
}

/// What work may end in: an [`End`], or a `Result`.
pub trait IntoEnd {
    /// What it came to.
    type Value;
    /// Why it did not.
    type Error;

    /// What it means.
    fn into_end(self) -> End<Self::Value, Self::Error>;
}

impl<T, E> IntoEnd for End<T, E> {
    type Value = T;
    type Error = E;

    fn into_end(self) -> Self {
        self
    }
}

impl<T, E> IntoEnd for Result<T, E> {
    type Value = T;
    type Error = E;

    fn into_end(self) -> End<T, E> {
        match self {
            Ok(value) => End::Keep(value),
            Err(error) => End::Uncertain(error),
        }
    }
}

/// The work is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done<T> {
    /// It was run now, and came to this.
    Executed(T),
    /// It was run before, and came to this then.
    Replayed(T),
}

impl<T> Done<T> {
    /// What it came to.
    pub fn into_value(self) -> T {
        match self {
            Self::Executed(value) | Self::Replayed(value) => value,
        }
    }

    /// Whether it was run before.
    pub fn is_replayed(&self) -> bool {
        matches!(self, Self::Replayed(_))
    }
}

/// Why there is no value. Only after [`RunError::Released`] and [`RunError::Uncertain`] the work was
/// run by this call.
#[derive(Debug)]
#[non_exhaustive]
pub enum RunError<E> {
    /// It was run, and did not happen, because of this: it may be run again.
    Released(E),
    /// It was run, and ended in this, and nobody knows whether it happened: it is refused from now on,
    /// until that is settled.
    Uncertain(E),
    /// Somebody else runs it just now. Ask again after this time, by [`Policy::wait`] or later.
    ///
    /// [`Policy::wait`]: crate::Policy::wait
    Busy {
        /// How long the other run has lasted, at least 1 s and at most what is left of its lease.
        retry_after: Duration,
    },
    /// It was started before and nobody knows whether it happened: its process died, or it ended as
    /// [`End::Uncertain`]. It is not run until that is settled: by [`Policy::resolve_abandoned`],
    /// [`Policy::ledger`], or [by hand](crate::operating#settling-an-abandoned-key).
    ///
    /// [`Policy::resolve_abandoned`]: crate::Policy::resolve_abandoned
    /// [`Policy::ledger`]: crate::Policy::ledger
    Unknown,
    /// The key was used for something else: what must be the same differs. To come again is no use.
    Mismatch,
    /// It was run before and is done, and what it came to is not there: it was not kept
    /// ([`ValueError::is_not_kept`]), or is no `T`.
    DoneWithoutValue(ValueError),
    /// The store cannot be asked. Nothing was run.
    StoreUnavailable {
        /// When to ask again.
        retry_after: Duration,
    },
    /// [`Idempotent::drain`](crate::Idempotent::drain) was called. Nothing was run.
    ShuttingDown,
    /// Anything else: a key that is empty or longer than 255 bytes, a record that cannot be read.
    /// Nothing was run.
    Refused(Refusal),
}

impl<E> RunError<E> {
    /// When to ask again, if that is known.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Busy { retry_after } | Self::StoreUnavailable { retry_after } => {
                Some(*retry_after)
            }
            Self::Refused(refusal) => refusal.retry_after(),
            _ => None,
        }
    }

    pub(super) fn refused(refusal: Refusal) -> Self {
        let retry_after = refusal.retry_after().unwrap_or(Duration::from_secs(1));
        match refusal.kind() {
            RefusalKind::InProgress => Self::Busy { retry_after },
            RefusalKind::OutcomeUnknown => Self::Unknown,
            RefusalKind::Mismatch => Self::Mismatch,
            RefusalKind::StoreUnavailable => Self::StoreUnavailable { retry_after },
            RefusalKind::ShuttingDown => Self::ShuttingDown,
            _ => Self::Refused(refusal),
        }
    }
}

impl<E: fmt::Display> fmt::Display for RunError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Released(error) => write!(f, "it did not happen: {error}"),
            Self::Uncertain(error) => write!(f, "nobody knows whether it happened: {error}"),
            Self::Busy { retry_after } => {
                write!(f, "it is being run elsewhere; ask again in {} s", retry_after.as_secs_f32())
            }
            Self::Unknown => f.write_str(
                "it was started before and nobody knows whether it happened; it is not run until \
                 somebody has settled that",
            ),
            Self::Mismatch => {
                f.write_str("its key was used for something else; another one needs another key")
            }
            Self::DoneWithoutValue(error) => write!(f, "it was done before: {error}"),
            Self::StoreUnavailable { .. } => {
                f.write_str("the store of idempotency keys cannot be asked; nothing was run")
            }
            Self::ShuttingDown => f.write_str("this process is about to stop; nothing was run"),
            Self::Refused(refusal) => f.write_str(refusal.detail()),
        }
    }
}

impl<E: Error + 'static> Error for RunError<E> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Released(error) | Self::Uncertain(error) => Some(error),
            Self::DoneWithoutValue(error) => Some(error),
            _ => None,
        }
    }
}

/// The value in a stored answer.
pub(super) fn replayed<T, E>(answer: &Answer) -> Result<Done<T>, RunError<E>>
where
    T: serde::de::DeserializeOwned,
{
    answer.value().map(Done::Replayed).map_err(RunError::DoneWithoutValue)
}
