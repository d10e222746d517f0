//! Records in this process's memory.

mod record;
mod records;
#[cfg(feature = "test-util")]
mod tamper;
mod transitions;

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use tokio::time::Instant;

use self::{
    record::{Now, Write},
    records::{Entry, Limits, Records},
};
use super::{
    Alias, Claim, Claimed, Cursor, Issue, Issued, Kept, Page, Release, Resolve, Resolved, Store,
    StoreError, StoreErrorKind, Written,
};
use crate::record::{Grant, RecordKey};
#[cfg(feature = "test-util")]
pub(crate) use tamper::Stored;

const RECORDS_AT_MOST: usize = 100_000;
const BYTES_AT_MOST: usize = 64 * 1024 * 1024;
/// A page is read under the lock that every transition needs, so it is short whatever was asked.
const PAGE_AT_MOST: usize = 1_000;

/// Records in this process's memory: for one process, for tests and examples.
///
/// Clones share the same records. They are gone when the process ends, and with them every promise;
/// several processes need a store they share.
///
/// It keeps at most 100,000 records and 64 MiB. When it is full it refuses new claims with
/// [`StoreErrorKind::Full`], and answers that do not fit; it never forgets a record to make room.
/// A completion of at most 300 bytes always fits over the grant it belongs to. Expired records are
/// cleared away by later operations, a few at a time.
///
/// Time is tokio's, so tests can pause it. Keys are kept in order, so an operation costs the
/// logarithm of the number of records, under one lock that is never held for long.
///
/// # Cancel safety
///
/// Every method does all of its work when its future is first polled.
///
/// # Example: a store for a small service
///
/// ```
/// use tower_idempotency::MemoryStore;
///
/// let store = MemoryStore::new().records_at_most(10_000).bytes_at_most(8 * 1024 * 1024);
/// assert!(store.is_empty());
/// ```
#[derive(Clone)]
pub struct MemoryStore {
    shared: Arc<Shared>,
}

struct Shared {
    /// A mutex of the standard library: what happens under it is short, waits for nothing, and is
    /// over before the future of the call is left.
    records: Mutex<Records>,
    started: Instant,
    /// The time of the world when the store was made; from there on time only grows.
    started_us: u64,
}

impl MemoryStore {
    /// An empty store.
    pub fn new() -> Self {
        let limits = Limits { records: RECORDS_AT_MOST, bytes: BYTES_AT_MOST };
        // A world clock before 1970 gives small fences; they grow all the same.
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            shared: Arc::new(Shared {
                records: Mutex::new(Records::new(limits)),
                started: Instant::now(),
                started_us: u64::try_from(since_epoch.as_micros()).unwrap_or(u64::MAX),
            }),
        }
    }

    /// How many records are kept at most, aliases and issued tokens included. Default: 100,000.
    ///
    /// It holds for every clone. Records that are there already stay.
    #[must_use]
    pub fn records_at_most(self, records: usize) -> Self {
        self.lock().limits.records = records;
        self
    }

    /// How many bytes are kept at most. Default: 64 MiB.
    ///
    /// A record counts 640 bytes, and what its payload has beyond 300. It holds for every clone.
    /// Records that are there already stay.
    #[must_use]
    pub fn bytes_at_most(self, bytes: usize) -> Self {
        self.lock().limits.bytes = bytes;
        self
    }

    /// How many records there are, expired ones that were not cleared away yet included.
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// Whether there is no record.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn lock(&self) -> MutexGuard<'_, Records> {
        // Nothing under the lock panics, and a record is written whole or not at all.
        self.shared.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Now {
        let elapsed = Instant::now().saturating_duration_since(self.shared.started);
        let elapsed_us = u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX);
        Now { us: self.shared.started_us.saturating_add(elapsed_us) }
    }

    /// Locks the records and reads the clock, in this order: so time never goes back from one
    /// transition to the next.
    fn begin(&self) -> (MutexGuard<'_, Records>, Now) {
        let mut records = self.lock();
        let now = self.now();
        records.clear(now);
        (records, now)
    }

    /// One whole transition of one record.
    fn step<T>(
        &self,
        key: RecordKey,
        transition: impl FnOnce(&Entry, Now) -> (T, Option<Write>),
    ) -> Result<T, StoreError> {
        let (mut records, now) = self.begin();
        let (answer, write) = transition(records.get(&key, now), now);
        if let Some(write) = write {
            records.put(key, write, now)?;
        }
        Ok(answer)
    }

    fn bind_and_claim(
        &self,
        alias: Alias,
        claim: &Claim,
        asked: Now,
    ) -> Result<Claimed, StoreError> {
        let (mut records, now) = self.begin();
        let late = is_late(claim, asked, now);
        let unbound = records.get(&alias.key, now).clone();
        let (taken, write) = transitions::bind(&unbound.record, now, alias, claim.key);
        let bound = match write {
            // A look writes nothing.
            Some(write) if !claim.is_look() => {
                records.put(alias.key, write, now)?;
                true
            }
            _ => false,
        };
        // As everywhere the two are separate: the claim is carried out although the name is taken.
        let found = records.get(&claim.key, now);
        let (claimed, write) = transitions::claim(&found.record, now, late, claim);
        if let Some(write) = write
            && let Err(full) = records.put(claim.key, write, now)
        {
            if bound {
                restore(&mut records, alias.key, unbound);
            }
            return Err(full);
        }
        Ok(taken.map_or(claimed, Claimed::DeliveryTaken))
    }
}

/// Puts back what was there before, so that a transition that was refused has written nothing.
fn restore(records: &mut Records, key: RecordKey, entry: Entry) {
    match entry.record.is_absent() {
        true => records.remove(&key),
        false => records.insert(key, entry),
    }
}

fn is_late(claim: &Claim, asked: Now, now: Now) -> bool {
    claim.is_look() || u128::from(now.us.saturating_sub(asked.us)) > claim.within.as_micros()
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let records = self.lock();
        f.debug_struct("MemoryStore")
            .field("records", &records.len())
            .field("bytes", &records.bytes())
            .field("limits", &records.limits)
            .finish()
    }
}

impl Store for MemoryStore {
    /// It has nothing to wait for.
    fn answers_within(&self) -> Option<Duration> {
        Some(Duration::ZERO)
    }

    async fn claim(&self, claim: Claim) -> Result<Claimed, StoreError> {
        let asked = self.now();
        if let Some(alias) = claim.alias {
            return self.bind_and_claim(alias, &claim, asked);
        }
        self.step(claim.key, |found, now| {
            transitions::claim(&found.record, now, is_late(&claim, asked, now), &claim)
        })
    }

    async fn renew(&self, grant: &Grant) -> Result<Written, StoreError> {
        self.step(grant.key, |found, now| transitions::renew(&found.record, now, grant))
    }

    async fn complete(&self, grant: &Grant, kept: Kept) -> Result<Written, StoreError> {
        self.step(grant.key, |found, now| transitions::complete(&found.record, now, grant, &kept))
    }

    async fn release(&self, release: Release) -> Result<Written, StoreError> {
        self.step(release.key(), |found, now| transitions::release(&found.record, now, &release))
    }

    async fn resolve(&self, resolve: Resolve) -> Result<Resolved, StoreError> {
        self.step(resolve.key, |found, now| transitions::resolve(&found.record, now, &resolve))
    }

    async fn issue(&self, issue: Issue) -> Result<Issued, StoreError> {
        self.step(issue.key, |found, now| {
            transitions::issue(&found.record, now, found.expires_ms, &issue)
        })
    }

    /// Pages have 1,000 records at most.
    async fn scan(&self, from: Cursor, at_most: usize) -> Result<Page, StoreError> {
        let after = match from.as_bytes().as_ref() {
            [] => None,
            bytes => Some(RecordKey::from_bytes(bytes.try_into().map_err(|_| {
                StoreError::new(
                    StoreErrorKind::Refused,
                    format!("a cursor of the memory store has 32 bytes, this one {}", bytes.len()),
                )
            })?)),
        };
        let (records, now) = self.begin();
        let (listed, last) = records.page(after, at_most.clamp(1, PAGE_AT_MOST), now);
        let next = last.map(|key| Cursor::from_bytes(Bytes::copy_from_slice(key.as_bytes())));
        Ok(Page::new(listed, next))
    }
}
