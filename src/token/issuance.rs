//! What comes of asking for a token.

use std::{error::Error, fmt, time::Duration};

use crate::{identity::IDENTITY_BYTES_AT_MOST, in_words, record::OneTimeToken, store::StoreError};

/// What came of asking for a token. `Display` says it to whoever asked, without the token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Issuance {
    /// This token may be used: a new one, or the one that was outstanding.
    Token {
        /// The token.
        token: OneTimeToken,
        /// How long it may be used still.
        remaining: Duration,
    },
    /// One is outstanding for the business key, bound to somebody else or to something else. No other is
    /// issued before it has expired or been used.
    BoundOtherwise {
        /// When it expires.
        remaining: Duration,
    },
    /// The operation of the business key is being executed; or its state has just changed: ask again.
    InProgress,
    /// The operation of the business key was started and nobody knows whether it happened. It is settled as
    /// its policy says, or by hand.
    OutcomeUnknown,
    /// The operation of the business key is done. Its answer is for whoever has the token that was used.
    Done,
}

impl fmt::Display for Issuance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Token { .. } => "a token was issued",
            Self::BoundOtherwise { .. } => {
                "a token for this was issued to somebody else, or for something else"
            }
            Self::InProgress => "this is being done",
            Self::OutcomeUnknown => "this was begun, and it is not known whether it was done",
            Self::Done => "this is done already",
        })
    }
}

/// No token was issued, or nobody knows whether one was; there is none to give out.
pub struct IssueError {
    kind: IssueErrorKind,
    message: String,
    source: Option<StoreError>,
}

/// Why there is no token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum IssueErrorKind {
    /// The business key has no length that an identity may have.
    BusinessKey,
    /// The store cannot answer.
    StoreUnavailable,
    /// What is stored under the business key cannot be read.
    RecordUnreadable,
}

impl IssueError {
    pub(super) fn business_key(length: usize) -> Self {
        Self {
            kind: IssueErrorKind::BusinessKey,
            message: format!(
                "the business key has {length} bytes; it must have 1 to {IDENTITY_BYTES_AT_MOST}"
            ),
            source: None,
        }
    }

    pub(super) fn unreadable(why: String) -> Self {
        Self {
            kind: IssueErrorKind::RecordUnreadable,
            message: format!("what is stored for this business key cannot be read: {why}"),
            source: None,
        }
    }

    /// Why.
    pub fn kind(&self) -> IssueErrorKind {
        self.kind
    }

    /// The store cannot answer; asked a little later, it may.
    pub fn is_store_unavailable(&self) -> bool {
        self.kind == IssueErrorKind::StoreUnavailable
    }
}

impl From<StoreError> for IssueError {
    fn from(error: StoreError) -> Self {
        Self {
            kind: IssueErrorKind::StoreUnavailable,
            message: "the store of one-time tokens cannot be asked".to_owned(),
            source: Some(error),
        }
    }
}

impl fmt::Debug for IssueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        in_words::debug(f, Some(&self.kind), self)
    }
}

impl fmt::Display for IssueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for IssueError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_ref().map(|error| error as &(dyn Error + 'static))
    }
}
