//! Completed records kept in the process beside the store, so that a duplicate that follows soon needs
//! no round trip.
//!
//! An entry says what the store answered to one claim, of this key with exactly this fingerprint, or
//! what it would have answered once it had taken the completion. Completed is final, so that this stays
//! true until the record expires or an operator deletes it; a minute at most is what he has to wait.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use quick_cache::{
    DefaultHashBuilder, Lifecycle, OptionsBuilder, Weighter,
    sync::{Cache, DefaultLifecycle},
};
use tokio::time::Instant;

use crate::{
    record::{Fingerprint, RecordKey},
    telemetry::{Held, RecentMetrics},
};

/// No answer is given from memory that was stored, or seen in the store, longer ago.
const KEPT_AT_MOST: Duration = Duration::from_secs(60);
/// What an entry takes beside its payload: the key, the fingerprint, its place in the map and the list.
const BESIDE_PAYLOAD: usize = 256;
/// An answer that takes more than this part of the room is left to the store, and evicts nothing.
const SHARE: usize = 32;
/// Locks, each with its part of the room. They are held for a map operation, and few of them leave much
/// room to each.
const SHARDS: usize = 4;
/// The part of the room for what was replayed. What comes first goes there too, and stays there over its
/// time; all the rest is for what came last, which is what duplicates follow. The cache takes nothing that
/// is larger than one lock's part of this.
const REPLAYED: f64 = SHARDS as f64 / SHARE as f64;
/// An answer as there are many. Only the number of locks is chosen by it.
const USUAL_SIZE: usize = 1024;

/// Completed records, in a bounded number of bytes.
pub(crate) struct Recent {
    entries: Cache<RecordKey, Entry, ByBytes, DefaultHashBuilder, Counted>,
    metrics: RecentMetrics,
    largest: usize,
}

#[derive(Clone)]
struct Entry {
    print: Option<Fingerprint>,
    payload: Bytes,
    until: Instant,
    _held: Held,
}

#[derive(Clone)]
struct ByBytes;

impl Weighter<RecordKey, Entry> for ByBytes {
    fn weight(&self, _: &RecordKey, entry: &Entry) -> u64 {
        weight(&entry.payload)
    }
}

fn weight(payload: &Bytes) -> u64 {
    (BESIDE_PAYLOAD + payload.len()) as u64
}

/// Counts what had to go for want of room.
#[derive(Clone)]
struct Counted {
    metrics: RecentMetrics,
    inner: DefaultLifecycle<RecordKey, Entry>,
}

impl Lifecycle<RecordKey, Entry> for Counted {
    type RequestState =
        <DefaultLifecycle<RecordKey, Entry> as Lifecycle<RecordKey, Entry>>::RequestState;

    fn on_evict(&self, state: &mut Self::RequestState, key: RecordKey, entry: Entry) {
        // What is over goes like this too, and nobody misses it.
        if Instant::now() < entry.until {
            self.metrics.evicted();
        }
        self.inner.on_evict(state, key, entry);
    }
}

impl Recent {
    /// Room for so many bytes.
    pub(crate) fn new(bytes: usize) -> Arc<Self> {
        let options = OptionsBuilder::new()
            .weight_capacity(bytes as u64)
            .estimated_items_capacity(bytes / USUAL_SIZE)
            .shards(SHARDS)
            .hot_allocation(REPLAYED)
            // Traces of what was evicted would take room that nobody has counted.
            .ghost_allocation(0.0)
            .build()
            .expect("both capacities are set");
        let hasher = DefaultHashBuilder::default();
        let metrics = RecentMetrics::begin();
        let counted = Counted { metrics: metrics.clone(), inner: DefaultLifecycle::default() };
        let entries = Cache::with_options(options, ByBytes, hasher, counted);
        Arc::new(Self { entries, metrics, largest: bytes / SHARE })
    }

    /// What a claim of this key with this fingerprint would be answered, if that is known to be a stored
    /// answer.
    ///
    /// Another fingerprint is nothing that is known here: the record may be another one by now.
    pub(crate) fn get(&self, key: &RecordKey, print: Option<Fingerprint>) -> Option<Bytes> {
        let entry = self.entries.get(key)?;
        if Instant::now() >= entry.until {
            self.entries.remove_if(key, |now| now.until == entry.until);
            return None;
        }
        (entry.print == print).then_some(entry.payload)
    }

    /// Keeps what is stored under this key for whoever brings this fingerprint. At `seen`, or later, the
    /// store had it, and was to keep it for `left`.
    pub(crate) fn put(
        &self,
        key: RecordKey,
        print: Option<Fingerprint>,
        payload: &Bytes,
        seen: Instant,
        left: Duration,
    ) {
        let until = seen + left.min(KEPT_AT_MOST);
        if BESIDE_PAYLOAD + payload.len() > self.largest || Instant::now() >= until {
            return;
        }
        let known = self.entries.peek(&key);
        if known.is_some_and(|known| known.print == print && known.until >= until) {
            // A thousand that waited for one run all learn of its answer.
            return;
        }
        // A payload may be a small part of a large buffer, all of which it would keep.
        let payload = Bytes::copy_from_slice(payload);
        let held = self.metrics.hold(weight(&payload));
        self.entries.insert(key, Entry { print, payload, until, _held: held });
    }

    #[cfg(test)]
    fn bytes(&self) -> u64 {
        self.entries.weight()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1024 * 1024;

    fn key(number: u64) -> RecordKey {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        RecordKey::from_bytes(bytes)
    }

    fn put(recent: &Recent, number: u64, size: usize) {
        recent.put(key(number), None, &Bytes::from(vec![7; size]), Instant::now(), KEPT_AT_MOST);
    }

    #[tokio::test(start_paused = true)]
    async fn however_much_is_put_in_the_bytes_are_bounded_and_the_latest_are_there() {
        let recent = Recent::new(MIB);
        for number in 0..20_000 {
            put(&recent, number, (number % 4_000) as usize);
        }
        assert!(recent.bytes() <= MIB as u64, "{}", recent.bytes());
        assert!(recent.bytes() > MIB as u64 / 2, "it keeps something: {}", recent.bytes());
        assert!(recent.get(&key(19_999), None).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn what_came_last_is_what_is_kept_however_long_others_were_there() {
        let recent = Recent::new(MIB);
        let fits = MIB / (BESIDE_PAYLOAD + 1000);
        for number in 0..10 * fits as u64 {
            put(&recent, number, 1000);
        }
        let has = |number: &u64| recent.get(&key(*number), None).is_some();
        let last = (10 * fits as u64 - fits as u64 * 3 / 4)..10 * fits as u64;
        let count = last.clone().count();
        assert!(last.filter(has).count() >= count * 19 / 20, "all but few");
        // Not all but the last: which lock an answer is under is chance, and one under which fewer have come
        // keeps older ones. What came first has the part for what was replayed.
        let old = (0..8 * fits as u64).filter(has).count();
        assert!(old <= fits / 8 + SHARDS, "and nearly nothing else: {old} of {fits}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_beyond_its_share_is_not_kept_and_evicts_nothing() {
        let recent = Recent::new(MIB);
        put(&recent, 1, 100);
        put(&recent, 2, MIB / SHARE);
        put(&recent, 3, MIB / SHARE - BESIDE_PAYLOAD);
        let has = |number| recent.get(&key(number), None).is_some();
        assert_eq!([1, 2, 3].map(has), [true, false, true]);
        let none = Recent::new(0);
        put(&none, 1, 0);
        assert!(none.get(&key(1), None).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_kept_for_a_minute_or_for_what_is_left_if_that_is_less() {
        let recent = Recent::new(MIB);
        let now = Instant::now();
        let second = Duration::from_secs(1);
        let payload = Bytes::from_static(b"a");
        recent.put(key(1), None, &payload, now, 3_600 * second);
        recent.put(key(2), None, &payload, now, 10 * second);
        recent.put(key(3), None, &payload, now, Duration::ZERO);
        let has = |number| recent.get(&key(number), None).is_some();
        assert_eq!([1, 2, 3].map(has), [true, true, false]);
        tokio::time::advance(10 * second).await;
        assert_eq!([1, 2].map(has), [true, false]);
        tokio::time::advance(50 * second - Duration::from_millis(1)).await;
        assert!(has(1));
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(!has(1));
        assert_eq!(recent.bytes(), 0, "what is over takes no room when it is met");
    }

    #[test]
    fn a_small_answer_does_not_keep_the_large_buffer_it_came_in() {
        let recent = Recent::new(MIB);
        let buffer = Bytes::from(vec![7; MIB]);
        recent.put(key(1), None, &buffer.slice(..100), Instant::now(), KEPT_AT_MOST);
        assert!(recent.get(&key(1), None).is_some());
        assert!(buffer.is_unique());
    }
}
