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
    bytes: usize,
}

struct Held {
    grant: Grant,
    seen: Instant,
}

struct Done {
    at: Instant,
    grant: Grant,
    kept: Kept,
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
        let mut inner = self.inner();
        inner.grants.remove(&grant.token);
        inner.bytes += kept.payload.len();
        let now = Instant::now();
        // Completed records have no label: there is no need to hold it for a minute.
        let grant = Grant { label: Bytes::new(), ..grant.clone() };
        inner.done.push_back(Done { at: now, grant, kept });
        inner.forget(now);
    }

    /// The grants that are held, and what was completed.
    pub(super) fn all(&self) -> (Vec<Grant>, Vec<(Grant, Kept)>) {
        let mut inner = self.inner();
        inner.forget(Instant::now());
        let held = inner.grants.values().filter(|held| !held.is_over());
        let held = held.map(|held| held.grant.clone()).collect();
        let done = inner.done.iter().map(|done| (done.grant.clone(), done.kept.clone())).collect();
        (held, done)
    }
}

impl Inner {
    fn forget(&mut self, now: Instant) {
        while let Some(oldest) = self.done.front()
            && (now.duration_since(oldest.at) > COMPLETIONS_FOR
                || self.done.len() > COMPLETIONS_AT_MOST
                || self.bytes > BYTES_AT_MOST)
        {
            self.bytes -= oldest.kept.payload.len();
            self.done.pop_front();
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
