//! What the scripts answer, read field by field. Anything else is an error that names the script,
//! never a panic.

use std::{time::Duration, vec};

use bytes::Bytes;
use redis::Value;

use crate::{
    record::{ClaimToken, Fence, Fingerprint, Mark, OneTimeToken, Previous, RecordKey, State},
    store::{
        AbandonedRecord, Claim, Claimed, Completed, InProgress, Issued, Resolved, StoreError,
        StoreErrorKind, Written,
    },
};

/// The answer of one script: a letter, the server's ms, and what the letter brings along.
pub(super) struct Reply {
    script: &'static str,
    /// The letter.
    pub(super) letter: u8,
    /// When the server answered, by its own clock.
    pub(super) now_ms: u64,
    fields: vec::IntoIter<Value>,
}

/// An answer to `what` that is none.
pub(super) fn garbled(what: &str) -> StoreError {
    StoreError::new(
        StoreErrorKind::Garbled,
        format!(
            "Redis answered {what} with something that is no answer to it: is there a proxy, or a \
             newer version of this crate, in between?"
        ),
    )
}

/// The ms of an answer to `TIME`.
pub(super) fn time_ms(value: Value) -> Option<u64> {
    let Value::Array(fields) = value else { return None };
    let [seconds, micros] = &fields[..] else { return None };
    number(seconds)?.checked_mul(1000)?.checked_add(number(micros)? / 1000)
}

/// A number as the scripts print it: decimals, or an integer.
pub(super) fn number(value: &Value) -> Option<u64> {
    match value {
        Value::Int(number) => u64::try_from(*number).ok(),
        Value::BulkString(decimals) => decimal(decimals),
        _ => None,
    }
}

/// A number of decimals alone: no sign, no space.
pub(super) fn decimal(decimals: &[u8]) -> Option<u64> {
    if !decimals.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(decimals).ok()?.parse().ok()
}

/// The state of a record's letter; `-` is none.
pub(super) fn state(letter: u8) -> Option<State> {
    Some(match letter {
        b'-' => State::Absent,
        b'P' => State::Issued,
        b'I' => State::InProgress,
        b'C' => State::Completed,
        b'R' => State::Released,
        b'L' => State::Alias,
        _ => return None,
    })
}

/// The letter of what a grant found.
pub(super) fn letter(previous: Previous) -> &'static str {
    match previous {
        Previous::Nothing => "-",
        Previous::Issued => "P",
        Previous::Released => "R",
        Previous::Failed => "F",
        Previous::AbandonedUnknown => "X",
        Previous::AbandonedNotDone => "N",
    }
}

fn previous(letter: u8) -> Option<Previous> {
    Some(match letter {
        b'-' => Previous::Nothing,
        b'P' => Previous::Issued,
        b'R' => Previous::Released,
        b'F' => Previous::Failed,
        b'X' => Previous::AbandonedUnknown,
        b'N' => Previous::AbandonedNotDone,
        _ => return None,
    })
}

impl Reply {
    /// The letter and the time of an answer of `script`.
    pub(super) fn read(script: &'static str, value: Value) -> Result<Self, StoreError> {
        let Value::Array(fields) = value else { return Err(garbled(script)) };
        let mut reply = Self { script, letter: 0, now_ms: 0, fields: fields.into_iter() };
        reply.letter = reply.one()?;
        reply.now_ms = reply.number()?;
        Ok(reply)
    }

    fn garbled<T>(&self) -> Result<T, StoreError> {
        Err(garbled(self.script))
    }

    fn number(&mut self) -> Result<u64, StoreError> {
        let read = self.fields.next().as_ref().and_then(number);
        read.ok_or_else(|| garbled(self.script))
    }

    /// Without a copy: the client's own buffer.
    fn bytes(&mut self) -> Result<Vec<u8>, StoreError> {
        match self.fields.next() {
            Some(Value::BulkString(bytes)) => Ok(bytes),
            _ => self.garbled(),
        }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], StoreError> {
        self.bytes()?.try_into().map_err(|_| garbled(self.script))
    }

    fn one(&mut self) -> Result<u8, StoreError> {
        self.array::<1>().map(|[letter]| letter)
    }

    fn attempt(&mut self) -> Result<u32, StoreError> {
        u32::try_from(self.number()?).map_err(|_| garbled(self.script))
    }

    fn fence(&mut self) -> Result<Fence, StoreError> {
        self.number().map(Fence::new)
    }

    fn state(&mut self) -> Result<State, StoreError> {
        let letter = self.one()?;
        state(letter).ok_or_else(|| garbled(self.script))
    }

    fn print(&mut self) -> Result<Option<Fingerprint>, StoreError> {
        let print = self.array()?;
        Ok((print != [0; 32]).then(|| Fingerprint::from_bytes(print)))
    }

    /// How long ago a time of the server's clock was; zero if it is still to come.
    fn since(&self, ms: u64) -> Duration {
        Duration::from_millis(self.now_ms.saturating_sub(ms))
    }

    /// A fence is the time of its grant, in us.
    fn since_grant(&self, fence: Fence) -> Duration {
        Duration::from_micros(self.now_ms.saturating_mul(1000).saturating_sub(fence.get()))
    }

    /// That it is the answer to what this token asked, which stands last: replies may be out of step with
    /// what was sent.
    fn is_for(&mut self, token: ClaimToken) -> Result<(), StoreError> {
        match self.fields.next_back() {
            Some(Value::BulkString(bytes)) if bytes == token.as_bytes() => Ok(()),
            _ => self.garbled(),
        }
    }

    /// What `bind` answered, if it was not bound.
    pub(super) fn not_bound(mut self) -> Result<Option<Claimed>, StoreError> {
        match self.letter {
            b'O' => Ok(None),
            b'K' => Ok(Some(Claimed::DeliveryTaken(self.state()?))),
            b'V' => Ok(Some(Claimed::Foreign)),
            _ => self.garbled(),
        }
    }

    /// What a look at a name says about making it an alias of this claim's key, if that cannot be.
    pub(super) fn seen_by_look(self, claim: &Claim) -> Result<Option<Claimed>, StoreError> {
        let state = match self.claimed(claim)? {
            Claimed::AliasOf(target) if target != claim.key => State::Alias,
            Claimed::Completed(_) => State::Completed,
            Claimed::InProgress(_) | Claimed::Abandoned(_) => State::InProgress,
            Claimed::TokenUnknown => State::Issued,
            Claimed::Foreign => return Ok(Some(Claimed::Foreign)),
            _ => return Ok(None),
        };
        Ok(Some(Claimed::DeliveryTaken(state)))
    }

    /// What `claim` answered to this claim.
    pub(super) fn claimed(mut self, claim: &Claim) -> Result<Claimed, StoreError> {
        if self.letter == b'V' {
            return Ok(Claimed::Foreign);
        }
        self.is_for(claim.token)?;
        // The server's identity, which no claim asks for.
        self.bytes()?;
        Ok(match self.letter {
            b'A' => {
                // The deadline of the lease; its owner counts it from before the claim was sent.
                self.number()?;
                let (fence, attempt) = (self.fence()?, self.attempt()?);
                let Some(previous) = previous(self.one()?) else { return self.garbled() };
                Claimed::Granted(claim.granted(fence, attempt, previous))
            }
            b'C' => {
                let age = self.number().map(|stored| self.since(stored))?;
                let (fence, attempt) = (self.fence()?, self.attempt()?);
                Claimed::Completed(Completed::new(age, fence, attempt, self.bytes()?.into()))
            }
            b'I' => {
                let remaining = self.number()?.saturating_sub(self.now_ms);
                let running = self.fence().map(|fence| self.since_grant(fence))?;
                let remaining = Duration::from_millis(remaining);
                Claimed::InProgress(InProgress::new(remaining, running, self.attempt()?))
            }
            b'X' => Claimed::Abandoned(self.abandoned()?),
            b'L' => match <[u8; 32]>::try_from(self.bytes()?) {
                Ok(target) => Claimed::AliasOf(RecordKey::from_bytes(target)),
                // Something that no version of ours has written.
                Err(_) => Claimed::Foreign,
            },
            b'M' => Claimed::Mismatch,
            b'U' => Claimed::TokenUnknown,
            b'D' => Claimed::Dead,
            b'T' => Claimed::Free,
            _ => return self.garbled(),
        })
    }

    fn abandoned(&mut self) -> Result<AbandonedRecord, StoreError> {
        let (stamp_ms, fence, attempt) = (self.number()?, self.fence()?, self.attempt()?);
        Ok(AbandonedRecord::new(
            Mark::new(fence, stamp_ms),
            (stamp_ms != 0).then(|| self.since(stamp_ms)),
            self.since_grant(fence),
            attempt,
            Bytes::from(self.bytes()?),
        ))
    }

    /// What `renew`, `complete` or `release` answered to the owner of this token.
    pub(super) fn written(mut self, token: ClaimToken) -> Result<Written, StoreError> {
        if self.letter == b'V' {
            return Ok(Written::Foreign);
        }
        self.is_for(token)?;
        Ok(match self.letter {
            b'O' => Written::Stored,
            b'Z' => Written::Restored,
            b'F' => Written::Lost(self.state()?),
            b'E' => Written::Over,
            _ => return self.garbled(),
        })
    }

    /// What `resolve` answered.
    pub(super) fn resolved(mut self) -> Result<Resolved, StoreError> {
        Ok(match self.letter {
            b'O' => Resolved::Settled,
            b'F' => Resolved::Changed(self.state()?),
            b'I' => {
                let remaining = self.number()?.saturating_sub(self.now_ms);
                Resolved::Leased(Duration::from_millis(remaining))
            }
            b'V' => Resolved::Foreign,
            _ => return self.garbled(),
        })
    }

    /// What `issue` answered.
    pub(super) fn issued(mut self) -> Result<Issued, StoreError> {
        match self.letter {
            b'O' => Ok(Issued::Token {
                token: OneTimeToken::from_bytes(self.array()?),
                remaining: Duration::from_millis(self.number()?),
                print: self.print()?,
            }),
            b'V' => Ok(Issued::Foreign),
            letter => {
                state(letter).map_or_else(|| self.garbled(), |state| Ok(Issued::Taken(state)))
            }
        }
    }
}

#[cfg(test)]
mod tests;
