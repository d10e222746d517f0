//! One-time tokens: what is asked of a store, and what it answers.

use std::time::Duration;

use crate::record::{Fingerprint, OneTimeToken, RecordKey, State};

/// Asking for a one-time token for a key.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Issue {
    /// The record.
    pub key: RecordKey,
    /// The token to issue if none is outstanding.
    pub token: OneTimeToken,
    /// What it is bound to, if anything.
    pub print: Option<Fingerprint>,
    /// How long it may be used.
    pub ttl: Duration,
}

impl Issue {
    /// A token for `key`, to be used within `ttl`.
    pub const fn new(
        key: RecordKey,
        token: OneTimeToken,
        print: Option<Fingerprint>,
        ttl: Duration,
    ) -> Self {
        Self { key, token, print, ttl }
    }
}

/// What became of an issue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Issued {
    /// This token may be used: the one that was brought, or the one that was outstanding already.
    Token {
        /// The token that is valid.
        token: OneTimeToken,
        /// How long it may be used still.
        remaining: Duration,
        /// What it is bound to.
        print: Option<Fingerprint>,
    },
    /// None: the record is in this state.
    Taken(State),
    /// None: what is stored there is no record of ours, or a newer version's.
    Foreign,
}
