//! The transitions of one record, as pure functions: what was found and what is asked gives the answer
//! and what is to be written. They mean the same as the scripts of `RedisStore`, line for line.

use std::time::Duration;

use bytes::Bytes;

use super::record::{Now, Record, Write};
use crate::{
    record::{ClaimToken, Fence, Fingerprint, Grant, OneTimeToken, Previous, RecordKey, State},
    store::{
        AbandonedRecord, Alias, Claim, Claimed, Completed, InProgress, Issue, Issued, Kept, Reason,
        Release, Resolve, Resolved, Takeover, Verdict, Written,
    },
};

const ATTEMPTS_AT_MOST: u32 = 999_999;

/// The answer, and what is to be written.
type Step<T> = (T, Option<Write>);

fn attempts(attempt: u32) -> u32 {
    attempt.min(ATTEMPTS_AT_MOST)
}

pub(super) fn claim(found: &Record, now: Now, late: bool, claim: &Claim) -> Step<Claimed> {
    if let Some(refused) = refuse(found, claim) {
        return (refused, None);
    }
    if found.state == State::Completed {
        let (age, fence) = (now.since_ms(found.stamp_ms), Fence::new(found.fence));
        let payload = found.payload.clone();
        let completed = Completed::new(age, fence, found.attempt, payload);
        return (Claimed::Completed(completed), None);
    }
    let again = found.state == State::InProgress && found.is_owned_by(claim.token);
    if again && found.is_given_up() {
        return (Claimed::Dead, None);
    }
    let previous = match found.state {
        // The same grant, written again: it is told what it was told before.
        State::InProgress if again => found.before,
        State::InProgress => match take_over(found, now, claim.takeover) {
            Some(previous) => previous,
            None => return (held(found, now), None),
        },
        State::Released if found.is_tombstone() => Previous::Nothing,
        State::Issued | State::Released if found.before == Previous::Failed => Previous::Failed,
        State::Issued => Previous::Issued,
        State::Released => Previous::Released,
        State::Absent | State::Completed | State::Alias => Previous::Nothing,
    };
    if late {
        return (Claimed::Free, None);
    }
    let (fence, attempt) = match again {
        true => (found.fence, found.attempt),
        false => (found.next_fence(now), attempts(found.attempt + 1)),
    };
    let bound = if found.state == State::Released { None } else { found.print };
    let record = Record {
        state: State::InProgress,
        token: Some(*claim.token.as_bytes()),
        stamp_ms: now.ms_after(claim.lease),
        fence,
        attempt,
        print: claim.print.or(bound),
        before: previous,
        payload: claim.label.clone(),
    };
    let granted = claim.granted(Fence::new(fence), attempt, previous);
    (Claimed::Granted(granted), Some(Write { record, keep: claim.hold }))
}

/// What speaks against a claim before the state of the record is told.
fn refuse(found: &Record, claim: &Claim) -> Option<Claimed> {
    if found.state == State::Alias {
        return Some(Claimed::AliasOf(target(found)));
    }
    if found.state == State::Released && found.is_owned_by(claim.token) {
        return Some(Claimed::Dead);
    }
    let brought = claim.one_time.as_ref().map(|token| *token.as_bytes());
    let unknown = match found.state {
        State::Absent => brought.is_some(),
        State::Released => found.is_tombstone() && brought.is_some(),
        State::Issued => found.token != brought,
        State::InProgress | State::Completed | State::Alias => false,
    };
    if unknown {
        return Some(Claimed::TokenUnknown);
    }
    if claim.one_time.is_some() {
        return refuse_token(found, claim);
    }
    match (found.print, claim.print) {
        // Another body may use a released key.
        (Some(bound), Some(wanted)) if found.state != State::Released && bound != wanted => {
            Some(Claimed::Mismatch)
        }
        _ => None,
    }
}

/// With a one-time token both halves of the fingerprint are compared, in every state.
fn refuse_token(found: &Record, claim: &Claim) -> Option<Claimed> {
    let halves = |print: Option<Fingerprint>| print.map(Fingerprint::halves).unwrap_or_default();
    let (bound, wanted) = (halves(found.print), halves(claim.print));
    let anybodys = found.state == State::Issued && bound.0 == [0; 16];
    if bound.0 != wanted.0 && !anybodys {
        return Some(Claimed::TokenUnknown);
    }
    (bound.1 != [0; 16] && bound.1 != wanted.1).then_some(Claimed::Mismatch)
}

/// What a claim finds that takes this unfinished record over, if it may.
fn take_over(found: &Record, now: Now, takeover: Takeover) -> Option<Previous> {
    match takeover {
        _ if found.is_leased(now) => None,
        Takeover::Any => Some(Previous::AbandonedUnknown),
        Takeover::Only(mark) if mark == found.mark() => Some(Previous::AbandonedNotDone),
        Takeover::Only(_) | Takeover::Refuse => None,
    }
}

/// What a claim hears that may not take this unfinished record over.
fn held(found: &Record, now: Now) -> Claimed {
    let since = now.since_fence(found.fence);
    if found.is_leased(now) {
        let remaining = now.until_ms(found.stamp_ms);
        return Claimed::InProgress(InProgress::new(remaining, since, found.attempt));
    }
    let lapsed = (!found.is_given_up()).then(|| now.since_ms(found.stamp_ms));
    let label = found.payload.clone();
    let record = AbandonedRecord::new(found.mark(), lapsed, since, found.attempt, label);
    Claimed::Abandoned(record)
}

pub(super) fn renew(found: &Record, now: Now, grant: &Grant) -> Step<Written> {
    let lost = found.has_lost(grant, now);
    let mine = found.is_owned_by(grant.token);
    if !lost && (found.state != State::InProgress || !mine || found.is_given_up()) {
        return (if mine { Written::Over } else { Written::Lost(found.state) }, None);
    }
    let record = Record {
        state: State::InProgress,
        token: Some(*grant.token.as_bytes()),
        stamp_ms: now.ms_after(grant.lease),
        fence: found.fence.max(grant.fence.get()),
        attempt: attempts(grant.attempt),
        print: if lost { grant.print } else { found.print },
        before: grant.previous,
        payload: grant.label.clone(),
    };
    (written(lost), Some(Write { record, keep: grant.hold }))
}

pub(super) fn complete(found: &Record, now: Now, grant: &Grant, kept: &Kept) -> Step<Written> {
    let mine = found.is_owned_by(grant.token);
    if mine && found.state == State::Completed {
        return (Written::Stored, None);
    }
    // Also over a released record, a token issued over one, and a stranger's lapsed grant: this
    // execution did happen.
    let lost = matches!(found.state, State::Released | State::Issued)
        || found.has_lost(grant, now)
        || (found.is_lapsed(now) && !mine);
    if !lost && (found.state != State::InProgress || !mine) {
        return (Written::Lost(found.state), None);
    }
    let record = Record {
        state: State::Completed,
        token: Some(*grant.token.as_bytes()),
        stamp_ms: now.ms(),
        fence: found.fence.max(grant.fence.get()),
        attempt: attempts(grant.attempt),
        print: if lost && found.state != State::Released { grant.print } else { found.print },
        before: Previous::Nothing,
        payload: kept.payload.clone(),
    };
    (written(lost), Some(Write { record, keep: kept.retention }))
}

pub(super) fn release(found: &Record, now: Now, release: &Release) -> Step<Written> {
    match release {
        Release::Grant { grant, reason } => give_back(found, now, grant, *reason),
        Release::CalledOff { token, hold, .. } => call_off(found, now, *token, *hold),
    }
}

fn give_back(found: &Record, now: Now, grant: &Grant, reason: Reason) -> Step<Written> {
    let mine = found.is_owned_by(grant.token);
    let unknown = reason == Reason::Unknown;
    if !unknown && let Some(over) = ended(found, mine) {
        return (over, None);
    }
    let unheld = matches!(found.state, State::Released | State::Issued);
    let lost = found.has_lost(grant, now) || (unknown && unheld && !mine);
    if !lost && (found.state != State::InProgress || !mine) {
        return (Written::Lost(found.state), None);
    }
    let mut record = Record {
        state: State::InProgress,
        token: Some(*grant.token.as_bytes()),
        stamp_ms: 0,
        ..found.clone()
    };
    if lost {
        record.fence = found.fence.max(grant.fence.get());
        record.attempt = found.attempt.max(attempts(grant.attempt));
        record.print = grant.print;
        record.before = grant.previous;
        record.payload = grant.label.clone();
    }
    // What was taken over blindly may have happened before this run, whatever this run says.
    if !unknown && record.before != Previous::AbandonedUnknown {
        let failed = reason == Reason::Failed;
        let before = if failed { Previous::Failed } else { Previous::Nothing };
        set_released(&mut record, now, before);
    }
    (written(lost), Some(Write { record, keep: grant.hold }))
}

fn call_off(found: &Record, now: Now, token: ClaimToken, hold: Duration) -> Step<Written> {
    let mine = found.is_owned_by(token);
    if let Some(over) = ended(found, mine) {
        return (over, None);
    }
    let unknown_here = found.state == State::Absent;
    if !unknown_here && (found.state != State::InProgress || !mine) {
        return (Written::Lost(found.state), None);
    }
    let mut record = Record {
        state: State::InProgress,
        token: Some(*token.as_bytes()),
        stamp_ms: 0,
        ..found.clone()
    };
    // Nothing ran under this token, so the record goes back to what the claim found: abandoned,
    // released, or a tombstone that counts as nothing.
    match found.before {
        Previous::AbandonedUnknown | Previous::AbandonedNotDone => {}
        before => {
            if before == Previous::Nothing {
                record.attempt = 0;
            }
            // A failed run before it is told to the next one as it was told to this one.
            let failed = before == Previous::Failed;
            let before = if failed { Previous::Failed } else { Previous::Nothing };
            set_released(&mut record, now, before);
        }
    }
    (written(unknown_here), Some(Write { record, keep: hold }))
}

/// What an owner hears that gives back again what it released, or gave up as unknown: no later word
/// makes that "did not happen".
fn ended(found: &Record, mine: bool) -> Option<Written> {
    match mine {
        true if found.state == State::Released => Some(Written::Stored),
        true if found.is_given_up() => Some(Written::Over),
        _ => None,
    }
}

fn set_released(record: &mut Record, now: Now, before: Previous) {
    record.state = State::Released;
    record.stamp_ms = now.ms();
    record.before = before;
    record.payload = Bytes::new();
}

pub(super) fn resolve(found: &Record, now: Now, resolve: &Resolve) -> Step<Resolved> {
    let (state, payload, keep) = match &resolve.verdict {
        Verdict::Done(kept) => (State::Completed, kept.payload.clone(), kept.retention),
        Verdict::NotDone { hold } => (State::Released, Bytes::new(), *hold),
    };
    if found.state == state && found.is_owned_by(resolve.token) {
        return (Resolved::Settled, None);
    }
    if found.state != State::InProgress || found.fence != resolve.mark.fence.get() {
        return (Resolved::Changed(found.state), None);
    }
    if found.is_leased(now) && !resolve.force {
        return (Resolved::Leased(now.until_ms(found.stamp_ms)), None);
    }
    // A sign of life since it was seen voids the verdict.
    if !resolve.force && found.stamp_ms != resolve.mark.stamp_ms {
        return (Resolved::Changed(found.state), None);
    }
    let record = Record {
        state,
        // The record leaves the owner's hands: its own late completion is not answered as stored.
        token: Some(*resolve.token.as_bytes()),
        stamp_ms: now.ms(),
        before: Previous::Nothing,
        payload,
        ..found.clone()
    };
    (Resolved::Settled, Some(Write { record, keep }))
}

/// Makes a name an alias of `operation`; in the answer, the state of its own that it has instead.
pub(super) fn bind(
    found: &Record,
    now: Now,
    alias: Alias,
    operation: RecordKey,
) -> Step<Option<State>> {
    match found.state {
        State::Absent | State::Released => {
            let record = Record {
                state: State::Alias,
                stamp_ms: now.ms(),
                fence: found.next_fence(now),
                payload: Bytes::copy_from_slice(operation.as_bytes()),
                ..Record::ABSENT
            };
            (None, Some(Write { record, keep: alias.ttl }))
        }
        State::Alias if target(found) == operation => (None, None),
        state => (Some(state), None),
    }
}

pub(super) fn issue(found: &Record, now: Now, expires_ms: u64, issue: &Issue) -> Step<Issued> {
    match (found.state, found.token) {
        (State::Absent | State::Released, _) => {
            let record = Record {
                state: State::Issued,
                token: Some(*issue.token.as_bytes()),
                stamp_ms: now.ms(),
                fence: found.next_fence(now),
                attempt: found.attempt,
                print: issue.print,
                // A failed run before it is told to the next one all the same.
                before: match found.before {
                    Previous::Failed => Previous::Failed,
                    _ => Previous::Nothing,
                },
                payload: Bytes::new(),
            };
            let (token, remaining, print) = (issue.token, issue.ttl, issue.print);
            let issued = Issued::Token { token, remaining, print };
            (issued, Some(Write { record, keep: issue.ttl }))
        }
        (State::Issued, Some(token)) => {
            let token = OneTimeToken::from_bytes(token);
            let (remaining, print) = (now.until_ms(expires_ms), found.print);
            (Issued::Token { token, remaining, print }, None)
        }
        (state, _) => (Issued::Taken(state), None),
    }
}

fn target(alias: &Record) -> RecordKey {
    let bytes = alias.payload.as_ref().try_into();
    RecordKey::from_bytes(bytes.expect("an alias holds the 32 bytes of its target, see `bind`"))
}

fn written(lost: bool) -> Written {
    if lost { Written::Restored } else { Written::Stored }
}
