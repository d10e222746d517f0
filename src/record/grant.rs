//! A grant and the small values around it: claim tokens, fences, marks, states.

use std::{fmt, time::Duration};

use bytes::Bytes;
use rand::RngExt;

use super::RecordKey;

/// The owner of one claim: 16 random bytes, made once for a request and sent with every resend of
/// its claim. Knowing it is the right to renew, complete and release, so it is never shown.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ClaimToken([u8; 16]);

impl ClaimToken {
    /// A new token from the operating system's randomness.
    pub fn random() -> Self {
        // As one number: of an array each byte would take four.
        Self(rand::rng().random::<u128>().to_ne_bytes())
    }

    /// A token of these bytes, for stores and their tests.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The bytes of the token.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl fmt::Debug for ClaimToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClaimToken(..)")
    }
}

/// A keyed hash of what must be equal when an identity comes again.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// A fingerprint of these bytes.
    ///
    /// All zeros mean "no fingerprint" in a record, so they cannot be one.
    pub const fn from_bytes(mut bytes: [u8; 32]) -> Self {
        let mut i = 0;
        while i < 32 {
            if bytes[i] != 0 {
                return Self(bytes);
            }
            i += 1;
        }
        bytes[31] = 1;
        Self(bytes)
    }

    /// The fingerprint of a claim with a one-time token: whose token it is, and what must match; zeros
    /// where nothing must.
    pub const fn of_halves(whose: [u8; 16], what: [u8; 16]) -> Self {
        let mut bytes = [0; 32];
        let mut i = 0;
        while i < 16 {
            bytes[i] = whose[i];
            bytes[16 + i] = what[i];
            i += 1;
        }
        Self::from_bytes(bytes)
    }

    /// The two halves of a fingerprint, for stores: see [`Store`](crate::Store), rule 15.
    pub const fn halves(self) -> ([u8; 16], [u8; 16]) {
        let (mut whose, mut what) = ([0; 16], [0; 16]);
        let mut i = 0;
        while i < 16 {
            whose[i] = self.0[i];
            what[i] = self.0[16 + i];
            i += 1;
        }
        (whose, what)
    }

    /// The bytes of the fingerprint.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Fingerprint(..)")
    }
}

/// A number that grows with every grant of a key while its record is retained.
///
/// It is the time of the grant in microseconds by the store's clock, or one more than the fence
/// before it, whichever is larger. A resource that remembers the largest fence it has seen can
/// refuse a stalled owner. It may fall if the store loses the record and its clock went back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fence(u64);

impl Fence {
    /// A fence of this number.
    pub const fn new(fence: u64) -> Self {
        Self(fence)
    }

    /// Smaller than that of every grant: an execution without one.
    pub(crate) const NONE: Self = Self(0);

    /// The number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// An abandoned grant exactly as it was seen: whatever its owner does afterwards changes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The fence of the abandoned grant.
    pub fence: Fence,
    /// The end of its lease in milliseconds by the store's clock; 0 if it was given up as unknown.
    pub stamp_ms: u64,
}

impl Mark {
    /// A mark of these two numbers.
    pub const fn new(fence: Fence, stamp_ms: u64) -> Self {
        Self { fence, stamp_ms }
    }
}

/// What a record is. *Abandoned* is not among them: it is `InProgress` past its lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum State {
    /// Nothing is remembered.
    Absent,
    /// A one-time token was issued and not used yet.
    Issued,
    /// Somebody was granted the right to execute.
    InProgress,
    /// It was executed, and the answer is stored.
    Completed,
    /// It was granted and did not happen: it may run again.
    Released,
    /// Another name of an operation.
    Alias,
}

/// What a grant found when it was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Previous {
    /// Nothing: nobody was granted this key before, as far as the store remembers.
    Nothing,
    /// A one-time token, which this grant has used up.
    Issued,
    /// A run that said explicitly that it did not happen.
    Released,
    /// A run that answered with a failure which is not kept. Whether all of it was undone is known
    /// to the handler alone.
    Failed,
    /// A run whose outcome nobody knows: it may have happened.
    AbandonedUnknown,
    /// A run that stopped, and of which it is known that it did not happen.
    AbandonedNotDone,
}

/// The right to execute, and all that the store needs to write it again if it is lost there.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Grant {
    /// The record.
    pub key: RecordKey,
    /// The owner.
    pub token: ClaimToken,
    /// What must be equal when the identity comes again, if anything.
    pub print: Option<Fingerprint>,
    /// The number of this grant.
    pub fence: Fence,
    /// Grants of this key so far, this one included. Stays at 999,999.
    pub attempt: u32,
    /// What the grant found.
    pub previous: Previous,
    /// How long the grant holds without renewal.
    pub lease: Duration,
    /// How long an unfinished record is kept.
    pub hold: Duration,
    /// What an operator may read of it, at most 256 bytes.
    pub label: Bytes,
}

/// What the end of a handler means for its key.
///
/// A handler says it by its status, or explicitly by putting one into its answer's extensions. In
/// axum: `(StatusCode::OK, Extension(Outcome::Release), "not yet")`.
///
/// Where the policy has a [`Ledger`](crate::Ledger), a row that the handler has committed or found counts
/// over both: it has happened, and the row's answer is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Outcome {
    /// It happened, or is final: store the answer and replay it.
    Keep,
    /// It did not happen: the key may run again.
    Release,
    /// Nobody knows whether it happened: the key is abandoned at once.
    Uncertain,
}
