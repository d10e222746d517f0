//! What a delivery asks of a store and what it is answered: one pair of types a transition.

use std::time::Duration;

use bytes::Bytes;

use crate::record::{
    ClaimToken, Fence, Fingerprint, Grant, Mark, OneTimeToken, Previous, RecordKey, State,
};

/// What a claim may take over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Takeover {
    /// Nothing: an abandoned record is answered as such.
    Refuse,
    /// Whatever is abandoned, blindly.
    Any,
    /// This abandoned grant alone, if there was no sign of life since it was seen.
    Only(Mark),
}

/// What a claim is answered where nothing is stored, but the store has lost records and may have lost
/// this one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum IfForgotten {
    /// What the store is set to do about it: it grants, or refuses.
    #[default]
    AsTheStoreSays,
    /// [`Claimed::Forgotten`]: there is somebody else to ask.
    Tell,
    /// A grant: somebody else was asked.
    Grant,
}

/// A second name for the operation that is claimed, bound in the same trip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Alias {
    /// The name that becomes an alias of the claim's key.
    pub key: RecordKey,
    /// How long it is kept: hold and retention together.
    pub ttl: Duration,
}

impl Alias {
    /// `key` as another name, kept for `ttl`.
    pub const fn new(key: RecordKey, ttl: Duration) -> Self {
        Self { key, ttl }
    }
}

/// Asking for the right to execute, or, with no time left, for a look.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Claim {
    /// The record that is claimed.
    pub key: RecordKey,
    /// Another name to bind to it first.
    pub alias: Option<Alias>,
    /// Who claims. The same token asking again gets the same grant.
    pub token: ClaimToken,
    /// What must be equal when the identity comes again. `None` where the policy has none.
    pub print: Option<Fingerprint>,
    /// How long the grant holds without renewal.
    pub lease: Duration,
    /// How long the record is kept while it is unfinished.
    pub hold: Duration,
    /// What may be taken over.
    pub takeover: Takeover,
    /// A one-time token that must have been issued for this key.
    pub one_time: Option<OneTimeToken>,
    /// What an operator may read of the operation while it is unfinished, at most 256 bytes.
    pub label: Bytes,
    /// Not granted later than this from now. Zero makes it a *look*: it reads and is never granted.
    pub within: Duration,
    /// What is answered where the store may have lost the record.
    pub if_forgotten: IfForgotten,
}

impl Claim {
    /// A claim that takes over nothing, brings no one-time token, binds no alias and has no label.
    pub fn new(
        key: RecordKey,
        token: ClaimToken,
        print: Option<Fingerprint>,
        lease: Duration,
        hold: Duration,
        within: Duration,
    ) -> Self {
        Self {
            key,
            alias: None,
            token,
            print,
            lease,
            hold,
            takeover: Takeover::Refuse,
            one_time: None,
            label: Bytes::new(),
            within,
            if_forgotten: IfForgotten::AsTheStoreSays,
        }
    }

    /// Whether this is a look: it reads and is never granted.
    pub fn is_look(&self) -> bool {
        self.within.is_zero()
    }

    /// The grant that answers this claim.
    pub fn granted(&self, fence: Fence, attempt: u32, previous: Previous) -> Grant {
        Grant {
            key: self.key,
            token: self.token,
            print: self.print,
            fence,
            attempt,
            previous,
            lease: self.lease,
            hold: self.hold,
            label: self.label.clone(),
        }
    }
}

/// What a claim found.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Claimed {
    /// The right to execute.
    Granted(Grant),
    /// It was executed; this is what was stored.
    Completed(Completed),
    /// Somebody holds it.
    InProgress(InProgress),
    /// Somebody held it and gave no sign of life.
    Abandoned(AbandonedRecord),
    /// The same identity was used for something else.
    Mismatch,
    /// This key is another name of an operation: claim that one.
    AliasOf(RecordKey),
    /// The one-time token is unknown, expired or another's; or one is outstanding and none was
    /// brought.
    TokenUnknown,
    /// This claim token was given up before.
    Dead,
    /// Nobody holds it and nothing is known, but the claim came too late by its own deadline, or
    /// was a look. Nothing was written.
    Free,
    /// The same as free, of a store that has lost records and may have lost this one: whoever claims
    /// wanted to be told so ([`IfForgotten::Tell`]). Nothing was written.
    Forgotten,
    /// The alias could not be bound: that name has this state of its own. The claim on the key may
    /// have been granted all the same: call it off.
    DeliveryTaken(State),
    /// What is stored there, or under the name of the alias, is no record of ours, or a newer
    /// version's. It was not touched. With an alias the claim on the key may have been granted all
    /// the same: call it off.
    Foreign,
}

/// A stored answer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Completed {
    /// How long ago it was stored.
    pub age: Duration,
    /// The fence of the grant that executed it.
    pub fence: Fence,
    /// The attempt that executed it.
    pub attempt: u32,
    /// What was stored.
    pub payload: Bytes,
}

impl Completed {
    /// A stored answer.
    pub const fn new(age: Duration, fence: Fence, attempt: u32, payload: Bytes) -> Self {
        Self { age, fence, attempt, payload }
    }
}

/// A grant that is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct InProgress {
    /// What is left of its lease.
    pub remaining: Duration,
    /// How long ago it was granted.
    pub running: Duration,
    /// Which attempt it is.
    pub attempt: u32,
}

impl InProgress {
    /// A grant that is held.
    pub const fn new(remaining: Duration, running: Duration, attempt: u32) -> Self {
        Self { remaining, running, attempt }
    }
}

/// A grant that lapsed or was given up as unknown.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AbandonedRecord {
    /// The grant exactly as it was seen.
    pub mark: Mark,
    /// How long ago its lease ended; `None` if it was given up as unknown.
    pub lapsed: Option<Duration>,
    /// How long ago it was granted.
    pub granted: Duration,
    /// Which attempt it was.
    pub attempt: u32,
    /// What its owner left for an operator to read.
    pub label: Bytes,
}

impl AbandonedRecord {
    /// A grant that lapsed or was given up.
    pub const fn new(
        mark: Mark,
        lapsed: Option<Duration>,
        granted: Duration,
        attempt: u32,
        label: Bytes,
    ) -> Self {
        Self { mark, lapsed, granted, attempt, label }
    }
}

/// What became of a renewal, a completion or a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Written {
    /// As asked.
    Stored,
    /// As asked, although the store had lost the grant, or over what was as good as nothing. Data
    /// was lost somewhere.
    Restored,
    /// Not written: the record, now in this state, is not this grant's any more.
    Lost(State),
    /// Not written: this grant was completed, released or given up before.
    Over,
    /// Not written: what is stored there is no record of ours, or a newer version's.
    Foreign,
}

impl Written {
    /// Whether the store has it now.
    pub fn is_stored(self) -> bool {
        matches!(self, Self::Stored | Self::Restored)
    }
}

/// What is kept of an operation that was executed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Kept {
    /// What is stored, and answered to every later claim.
    pub payload: Bytes,
    /// How long it is kept.
    pub retention: Duration,
}

impl Kept {
    /// `payload`, kept for `retention`.
    pub const fn new(payload: Bytes, retention: Duration) -> Self {
        Self { payload, retention }
    }
}

/// Why a grant is given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// The handler said that it did not happen.
    DidNotHappen,
    /// It answered a failure that is not kept.
    Failed,
    /// Nobody knows: abandoned as of now.
    Unknown,
}

/// Giving a grant back, or calling off a claim.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Release {
    /// A grant whose handler has ended.
    Grant {
        /// The grant.
        grant: Grant,
        /// Why it is given back.
        reason: Reason,
    },
    /// A claim under which nothing was started, granted or not, known to the store or not.
    CalledOff {
        /// The record that was claimed.
        key: RecordKey,
        /// Who claimed it.
        token: ClaimToken,
        /// How long that is remembered.
        hold: Duration,
    },
}

impl Release {
    /// Gives a grant back.
    pub fn of(grant: &Grant, reason: Reason) -> Self {
        Self::Grant { grant: grant.clone(), reason }
    }

    /// Calls a claim off: no handler was started under this token.
    pub const fn called_off(key: RecordKey, token: ClaimToken, hold: Duration) -> Self {
        Self::CalledOff { key, token, hold }
    }

    /// Whose grant or claim it is.
    pub fn token(&self) -> ClaimToken {
        match self {
            Self::Grant { grant, .. } => grant.token,
            Self::CalledOff { token, .. } => *token,
        }
    }

    /// The record it is about.
    pub fn key(&self) -> RecordKey {
        match self {
            Self::Grant { grant, .. } => grant.key,
            Self::CalledOff { key, .. } => *key,
        }
    }
}
