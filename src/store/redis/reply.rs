//! What the scripts answer, read column by column. Anything else is an error that names the script,
//! never a panic.

use std::time::Duration;

use bytes::{Buf, Bytes};
use redis::Value;

use crate::{
    record::{ClaimToken, Fence, Fingerprint, Mark, OneTimeToken, Previous, RecordKey, State},
    store::{
        AbandonedRecord, Claim, Claimed, Completed, InProgress, Issued, Resolved, StoreError,
        StoreErrorKind, Written,
    },
};

/// The widest column.
const COLUMN: usize = 16;
/// A record begins with so many bytes, then comes what it holds.
const HEADER: usize = 90;
/// Where the stamp, the fence and the attempts of a record stand.
const TIMES: std::ops::Range<usize> = 19..57;

/// The answer of one script: a letter, the server's ms, and what the letter brings along.
pub(super) struct Reply {
    script: &'static str,
    /// The letter.
    pub(super) letter: u8,
    /// When the server answered, by its own clock; 0 where its clock was not asked.
    pub(super) now_ms: u64,
    /// What has not been read yet: the client's own buffer, never copied.
    rest: Bytes,
}

/// What a claim was answered.
pub(super) enum Answer {
    Claimed(Claimed),
    /// The answer of a run, too long to come through a script: these are the record's times.
    Fetch(Bytes),
    /// Nothing is granted: the server is none of those that the claim trusts.
    Untrusted,
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

/// A number of decimals alone: no sign, no space, no more of them than a record's columns have.
pub(super) fn decimal(decimals: &[u8]) -> Option<u64> {
    // That many cannot overflow, and SCAN's cursors have one or two more.
    if !(1..=COLUMN).contains(&decimals.len()) {
        return str::from_utf8(decimals).ok().filter(|text| !text.starts_with('+'))?.parse().ok();
    }
    let mut number = 0;
    let mut all_digits = true;
    for byte in decimals {
        let digit = byte.wrapping_sub(b'0');
        all_digits &= digit < 10;
        number = number * 10 + u64::from(digit);
    }
    all_digits.then_some(number)
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
        let Value::BulkString(answer) = value else { return Err(garbled(script)) };
        let mut reply = Self { script, letter: 0, now_ms: 0, rest: Bytes::from(answer) };
        reply.letter = reply.one()?;
        reply.now_ms = reply.number()?;
        Ok(reply)
    }

    fn garbled<T>(&self) -> Result<T, StoreError> {
        Err(garbled(self.script))
    }

    fn bytes(&mut self, length: usize) -> Result<Bytes, StoreError> {
        if self.rest.len() < length {
            return self.garbled();
        }
        Ok(self.rest.split_to(length))
    }

    /// All that is left.
    fn payload(&mut self) -> Bytes {
        std::mem::take(&mut self.rest)
    }

    /// After the last column: nothing may follow.
    fn end(&self) -> Result<(), StoreError> {
        if self.rest.is_empty() { Ok(()) } else { self.garbled() }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], StoreError> {
        let read = self.rest.first_chunk().copied();
        let Some(read) = read else { return self.garbled() };
        self.rest.advance(N);
        Ok(read)
    }

    fn one(&mut self) -> Result<u8, StoreError> {
        self.array::<1>().map(|[letter]| letter)
    }

    fn column<const N: usize>(&mut self) -> Result<u64, StoreError> {
        decimal(&self.array::<N>()?).ok_or_else(|| garbled(self.script))
    }

    fn number(&mut self) -> Result<u64, StoreError> {
        self.column::<COLUMN>()
    }

    fn attempt(&mut self) -> Result<u32, StoreError> {
        u32::try_from(self.column::<6>()?).map_err(|_| garbled(self.script))
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

    /// The one text of an answer.
    pub(super) fn text(mut self) -> Result<String, StoreError> {
        String::from_utf8(self.payload().into()).map_err(|_| garbled(self.script))
    }

    /// A fence is the time of its grant, in us.
    fn since_grant(&self, fence: Fence) -> Duration {
        Duration::from_micros(self.now_ms.saturating_mul(1000).saturating_sub(fence.get()))
    }

    /// That it is the answer to what this token asked: replies may be out of step with what was sent.
    fn is_for(&mut self, token: ClaimToken) -> Result<(), StoreError> {
        if self.array()? == *token.as_bytes() { Ok(()) } else { self.garbled() }
    }

    /// What `bind` answered, if it was not bound.
    pub(super) fn not_bound(mut self) -> Result<Option<Claimed>, StoreError> {
        let not_bound = match self.letter {
            // Whether it is bound since just now makes no difference to a claim.
            b'O' => match self.one()? {
                b'0' | b'1' => None,
                _ => return self.garbled(),
            },
            b'K' => Some(Claimed::DeliveryTaken(self.state()?)),
            b'V' => Some(Claimed::Foreign),
            _ => return self.garbled(),
        };
        self.end()?;
        Ok(not_bound)
    }

    /// What a look at a name says about making it an alias of this claim's key, if that cannot be.
    pub(super) fn seen_by_look(self, claim: &Claim) -> Result<Option<Claimed>, StoreError> {
        let (_, Answer::Claimed(seen)) = self.told(claim, 0)? else {
            return Ok(Some(Claimed::DeliveryTaken(State::Completed)));
        };
        let state = match seen {
            Claimed::AliasOf(target) if target != claim.key => State::Alias,
            Claimed::Completed(_) => State::Completed,
            Claimed::InProgress(_) | Claimed::Abandoned(_) => State::InProgress,
            Claimed::TokenUnknown => State::Issued,
            Claimed::Foreign => return Ok(Some(Claimed::Foreign)),
            _ => return Ok(None),
        };
        Ok(Some(Claimed::DeliveryTaken(state)))
    }

    /// What `claim` answered to this claim, and which server it was, empty if that was not asked.
    /// `server_ms` is the server's clock as it was last heard.
    pub(super) fn told(
        mut self,
        claim: &Claim,
        server_ms: u64,
    ) -> Result<(Bytes, Answer), StoreError> {
        if self.letter == b'V' {
            return Ok((Bytes::new(), Answer::Claimed(Claimed::Foreign)));
        }
        self.is_for(claim.token)?;
        let identity = self.column::<2>()?;
        let identity = self.bytes(identity as usize)?;
        if self.now_ms == 0 {
            self.now_ms = server_ms;
        }
        Ok((identity, self.answer(claim)?))
    }

    fn answer(mut self, claim: &Claim) -> Result<Answer, StoreError> {
        let claimed = match self.letter {
            b'A' => {
                // The deadline of the lease; its owner counts it from before the claim was sent.
                self.number()?;
                let (fence, attempt) = (self.fence()?, self.attempt()?);
                let Some(previous) = previous(self.one()?) else { return self.garbled() };
                Claimed::Granted(claim.granted(fence, attempt, previous))
            }
            b'C' => Claimed::Completed(self.completed()?),
            b'B' => {
                let times = self.bytes(TIMES.len())?;
                self.end()?;
                return Ok(Answer::Fetch(times));
            }
            b'I' => {
                let remaining = self.number()?.saturating_sub(self.now_ms);
                let running = self.fence().map(|fence| self.since_grant(fence))?;
                let remaining = Duration::from_millis(remaining);
                Claimed::InProgress(InProgress::new(remaining, running, self.attempt()?))
            }
            b'X' => Claimed::Abandoned(self.abandoned()?),
            b'L' => match <[u8; 32]>::try_from(&self.payload()[..]) {
                Ok(target) => Claimed::AliasOf(RecordKey::from_bytes(target)),
                // Something that no version of ours has written.
                Err(_) => Claimed::Foreign,
            },
            b'E' => {
                self.end()?;
                return Ok(Answer::Untrusted);
            }
            b'M' => Claimed::Mismatch,
            b'U' => Claimed::TokenUnknown,
            b'D' => Claimed::Dead,
            b'T' => Claimed::Free,
            _ => return self.garbled(),
        };
        self.end()?;
        Ok(Answer::Claimed(claimed))
    }

    /// A completed record as it stands in the store.
    fn completed(&mut self) -> Result<Completed, StoreError> {
        self.array::<{ TIMES.start }>()?;
        let age = self.number().map(|stored| self.since(stored))?;
        let (fence, attempt) = (self.fence()?, self.attempt()?);
        self.array::<{ HEADER - TIMES.end }>()?;
        Ok(Completed::new(age, fence, attempt, self.payload()))
    }

    /// A record that was fetched because it holds a long answer, if it is still the one with these times.
    pub(super) fn fetched(record: Value, times: &[u8], server_ms: u64) -> Option<Completed> {
        let Value::BulkString(record) = record else { return None };
        if !record.starts_with(b"I1C") || record.get(TIMES)? != times {
            return None;
        }
        let rest = Bytes::from(record);
        Self { script: "claim", letter: b'C', now_ms: server_ms, rest }.completed().ok()
    }

    fn abandoned(&mut self) -> Result<AbandonedRecord, StoreError> {
        let (stamp_ms, fence, attempt) = (self.number()?, self.fence()?, self.attempt()?);
        Ok(AbandonedRecord::new(
            Mark::new(fence, stamp_ms),
            (stamp_ms != 0).then(|| self.since(stamp_ms)),
            self.since_grant(fence),
            attempt,
            self.payload(),
        ))
    }

    /// What `renew`, `complete` or `release` answered to the owner of this token.
    pub(super) fn written(mut self, token: ClaimToken) -> Result<Written, StoreError> {
        if self.letter == b'V' {
            return Ok(Written::Foreign);
        }
        self.is_for(token)?;
        let written = match self.letter {
            b'O' => Written::Stored,
            b'Z' => Written::Restored,
            b'F' => Written::Lost(self.state()?),
            b'E' => Written::Over,
            _ => return self.garbled(),
        };
        self.end()?;
        Ok(written)
    }

    /// What `resolve` answered.
    pub(super) fn resolved(mut self) -> Result<Resolved, StoreError> {
        let resolved = match self.letter {
            b'O' => Resolved::Settled,
            b'F' => Resolved::Changed(self.state()?),
            b'I' => {
                let remaining = self.number()?.saturating_sub(self.now_ms);
                Resolved::Leased(Duration::from_millis(remaining))
            }
            b'V' => Resolved::Foreign,
            _ => return self.garbled(),
        };
        self.end()?;
        Ok(resolved)
    }

    /// What `issue` answered to one who brought this token.
    pub(super) fn issued(mut self, brought: OneTimeToken) -> Result<Issued, StoreError> {
        if self.letter == b'V' {
            return Ok(Issued::Foreign);
        }
        if self.array::<16>()? != *brought.as_bytes() {
            return self.garbled();
        }
        let issued = match self.letter {
            b'O' => Issued::Token {
                token: OneTimeToken::from_bytes(self.array()?),
                remaining: Duration::from_millis(self.number()?),
                print: self.print()?,
            },
            letter => match state(letter) {
                Some(state) => Issued::Taken(state),
                None => return self.garbled(),
            },
        };
        self.end()?;
        Ok(issued)
    }
}

#[cfg(test)]
mod tests;
