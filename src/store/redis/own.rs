//! What this process has in the store: the grants it holds, and what it completed within the last
//! minute. A server that has lost them is told them again.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use bytes::Bytes;
use rustc_hash::FxHashMap;

use crate::{
    record::{ClaimToken, Grant},
    store::Kept,
};

/// Longer than a replica lags behind its primary in all but a disaster.
const COMPLETIONS_FOR: Duration = Duration::from_secs(60);
const COMPLETIONS_AT_MOST: usize = 50_000;
const BYTES_AT_MOST: usize = 16 * 1024 * 1024;
/// Answers shorter than this are copied. Kept as they are, each would keep a place of the heap for a
/// minute, and whatever a busy process allocates would come from memory that no cache has any more.
const COPIED_BELOW: usize = 4 * 1024;
/// A buffer of this size is kept, however little is in it.
const SMALL: usize = 64 * 1024;
/// Fewer grants than this are not looked through for those that are over.
const FEW: usize = 1024;

/// What this process has in the store. Bounded: completions by time, number and bytes, grants by how
/// many of them are renewed.
#[derive(Default)]
pub(super) struct Own(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    /// Tokens are random, and of our own making.
    grants: FxHashMap<ClaimToken, Held>,
    /// As many grants are looked through for those that are over.
    look_through_at: usize,
    done: VecDeque<Done>,
    /// The short answers of all of them, one behind the other.
    short: VecDeque<u8>,
    /// Of all answers.
    bytes: usize,
}

struct Held {
    grant: Grant,
    seen: Instant,
}

struct Done {
    at: Instant,
    grant: Grant,
    retention: Duration,
    payload: Payload,
}

enum Payload {
    /// The next so many of the short ones.
    Short(usize),
    Long(Bytes),
}

impl Payload {
    fn len(&self) -> usize {
        match self {
            Self::Short(length) => *length,
            Self::Long(answer) => answer.len(),
        }
    }
}

impl Held {
    /// Whoever does not renew has ended, or must not go on.
    fn is_over(&self) -> bool {
        self.seen.elapsed() > self.grant.lease
    }
}

impl Own {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        // Nothing under the lock can leave it half changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The grant is held, by a claim or a renewal.
    pub(super) fn holds(&self, grant: &Grant) {
        let mut inner = self.inner();
        if inner.grants.len() >= inner.look_through_at.max(FEW) {
            inner.grants.retain(|_, held| !held.is_over());
            inner.look_through_at = 2 * inner.grants.len();
        }
        let held = Held { grant: grant.clone(), seen: Instant::now() };
        inner.grants.insert(grant.token, held);
    }

    /// The grant is over.
    pub(super) fn ended(&self, token: &ClaimToken) {
        self.inner().grants.remove(token);
    }

    /// The grant is over, and this is stored of it.
    pub(super) fn completed(&self, grant: &Grant, kept: Kept) {
        let Kept { payload, retention } = kept;
        let at = Instant::now();
        // Completed records have no label: there is no need to hold it for a minute.
        let grant = Grant { label: Bytes::new(), ..grant.clone() };
        let mut inner = self.inner();
        inner.grants.remove(&grant.token);
        inner.bytes += payload.len();
        let payload = if payload.len() < COPIED_BELOW {
            inner.short.extend(&payload[..]);
            Payload::Short(payload.len())
        } else {
            Payload::Long(payload)
        };
        inner.done.push_back(Done { at, grant, retention, payload });
        inner.forget(at);
    }

    /// The grants that are held, and what was completed.
    pub(super) fn all(&self) -> (Vec<Grant>, Vec<(Grant, Kept)>) {
        let mut inner = self.inner();
        inner.forget(Instant::now());
        let held = inner.grants.values().filter(|held| !held.is_over());
        let held = held.map(|held| held.grant.clone()).collect();
        let mut short = inner.short.iter().copied();
        let done = inner.done.iter().map(|done| {
            let payload = match &done.payload {
                Payload::Short(length) => short.by_ref().take(*length).collect(),
                Payload::Long(answer) => answer.clone(),
            };
            (done.grant.clone(), Kept::new(payload, done.retention))
        });
        (held, done.collect())
    }
}

impl Inner {
    fn forget(&mut self, now: Instant) {
        while let Some(oldest) = self.done.front()
            && (now.duration_since(oldest.at) > COMPLETIONS_FOR
                || self.done.len() > COMPLETIONS_AT_MOST
                || self.bytes > BYTES_AT_MOST)
        {
            self.bytes -= oldest.payload.len();
            if let Payload::Short(length) = oldest.payload {
                self.short.drain(..length);
            }
            self.done.pop_front();
        }
        if self.short.capacity() > SMALL && self.short.len() < self.short.capacity() / 8 {
            let twice = 2 * self.short.len();
            self.short.shrink_to(twice.max(SMALL));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        record::{Fence, Previous, RecordKey},
        store::Claim,
    };

    fn grant(lease: Duration) -> Grant {
        let (key, token) = (RecordKey::from_bytes([1; 32]), ClaimToken::random());
        Claim::new(key, token, None, lease, lease, lease).granted(
            Fence::new(1),
            1,
            Previous::Nothing,
        )
    }

    fn kept(bytes: usize) -> Kept {
        Kept::new(Bytes::from(vec![0; bytes]), COMPLETIONS_FOR)
    }

    #[test]
    fn every_answer_comes_back_with_its_own_grant_whatever_was_forgotten_before_it() {
        let own = Own::default();
        let lengths = [0, 1, COPIED_BELOW - 1, COPIED_BELOW, 3 * COPIED_BELOW, 7];
        let mut all = Vec::new();
        for nth in 0..6000 {
            let payload = vec![nth as u8; lengths[nth % lengths.len()]];
            let retention = Duration::from_millis(nth as u64 + 1);
            let completed = (grant(COMPLETIONS_FOR), Kept::new(payload.into(), retention));
            own.completed(&completed.0, completed.1.clone());
            all.push(completed);
        }
        let kept = own.all().1;
        assert!((100..6000).contains(&kept.len()), "some were forgotten: {}", kept.len());
        let newest = &all[all.len() - kept.len()..];
        for ((grant, kept), (own_grant, own_kept)) in newest.iter().zip(&kept) {
            assert_eq!(grant, own_grant);
            assert!(kept.payload == own_kept.payload && kept.retention == own_kept.retention);
        }
        let inner = own.inner();
        assert!(inner.bytes <= BYTES_AT_MOST);
        let short =
            |done: &Done| matches!(done.payload, Payload::Short(_)).then(|| done.payload.len());
        assert_eq!(inner.short.len(), inner.done.iter().filter_map(short).sum::<usize>());
    }

    #[test]
    fn the_room_of_many_short_answers_is_given_back() {
        let own = Own::default();
        for _ in 0..1000 {
            own.completed(&grant(COMPLETIONS_FOR), kept(COPIED_BELOW - 1));
        }
        assert!(own.inner().short.capacity() > 8 * SMALL);
        // Two of these are all that there is room for.
        for _ in 0..3 {
            own.completed(&grant(COMPLETIONS_FOR), kept(BYTES_AT_MOST / 2));
        }
        assert!(own.inner().short.capacity() <= SMALL + 1);
    }

    #[test]
    fn completions_are_bounded_by_bytes_and_number_and_the_oldest_goes_first() {
        let own = Own::default();
        let lease = Duration::from_secs(30);
        let (first, last) = (grant(lease), grant(lease));
        own.completed(&first, kept(BYTES_AT_MOST / 2));
        own.completed(&grant(lease), kept(BYTES_AT_MOST / 2));
        assert_eq!(own.all().1.len(), 2);
        own.completed(&last, kept(1));
        let done = own.all().1;
        assert_eq!(done.len(), 2);
        assert!(done.iter().all(|(grant, _)| *grant != first));
        for _ in 0..COMPLETIONS_AT_MOST + 10 {
            own.completed(&last, kept(0));
        }
        assert_eq!(own.all().1.len(), COMPLETIONS_AT_MOST);
    }

    #[test]
    fn completions_are_kept_for_a_minute_and_their_room_is_given_back() {
        let own = Own::default();
        let second = Duration::from_secs(1);
        own.completed(&grant(second), kept(10));
        own.completed(&grant(second), kept(20));
        let now = Instant::now();
        let mut inner = own.inner();
        inner.forget(now + 59 * second);
        assert_eq!((inner.done.len(), inner.bytes), (2, 30));
        inner.forget(now + 61 * second);
        assert_eq!((inner.done.len(), inner.bytes), (0, 0));
    }

    #[test]
    fn grants_that_nobody_renews_are_not_written_again_and_do_not_pile_up() {
        let own = Own::default();
        let (alive, ended) = (grant(Duration::from_secs(30)), grant(Duration::from_secs(30)));
        own.holds(&alive);
        own.holds(&ended);
        own.ended(&ended.token);
        for _ in 0..10 * FEW {
            own.holds(&grant(Duration::ZERO));
        }
        assert_eq!(own.all().0, [alive]);
        assert!(own.inner().grants.len() <= FEW + 1);
    }
}
