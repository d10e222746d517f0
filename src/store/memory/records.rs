//! The map of a memory store: what is kept, until when, and how much of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
    time::Duration,
};

use super::record::{Now, Record, Write};
use crate::{
    record::RecordKey,
    store::{Listed, StoreError, StoreErrorKind},
};

/// What every record counts: its place in the map and in the index, about 300 bytes, and the payload
/// below.
pub(super) const RECORD_BYTES: usize = 640;
/// The payload a record may have without counting more. It is room kept free for the completion
/// that says "done, body not kept", so that what was granted can always be finished.
pub(super) const PAYLOAD_INCLUDED: usize = 300;
/// How many expired records one operation clears away at most, unless it needs their room. An
/// operation adds two at most, so the expired ones never pile up.
const CLEARED_AT_ONCE: usize = 32;

/// How much is kept at most.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) records: usize,
    pub(super) bytes: usize,
}

/// A record and the millisecond at which it is gone.
#[derive(Clone)]
pub(super) struct Entry {
    pub(super) record: Record,
    pub(super) expires_ms: u64,
}

impl Entry {
    fn bytes(&self) -> usize {
        RECORD_BYTES + self.record.payload_bytes().saturating_sub(PAYLOAD_INCLUDED)
    }
}

/// The records, the order in which they expire, and what they count.
pub(super) struct Records {
    /// In the order of the keys, so that a scan can go on where it was.
    entries: BTreeMap<RecordKey, Entry>,
    /// Exactly the entries, by the time they expire.
    expiry: BTreeSet<(u64, RecordKey)>,
    bytes: usize,
    pub(super) limits: Limits,
}

static ABSENT: Entry = Entry { record: Record::ABSENT, expires_ms: 0 };

impl Records {
    pub(super) fn new(limits: Limits) -> Self {
        Self { entries: BTreeMap::new(), expiry: BTreeSet::new(), bytes: 0, limits }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The record of this key, absent if it has expired.
    pub(super) fn get(&self, key: &RecordKey, now: Now) -> &Entry {
        self.entries.get(key).filter(|entry| entry.expires_ms > now.ms()).unwrap_or(&ABSENT)
    }

    /// Writes a record, if there is room. Nothing that has not expired makes room for it.
    pub(super) fn put(&mut self, key: RecordKey, write: Write, now: Now) -> Result<(), StoreError> {
        // A store that drops a record as it is written would have granted nothing.
        let keep = write.keep.max(Duration::from_millis(1));
        let entry = Entry { record: write.record, expires_ms: now.ms_after(keep) };
        while !self.has_room(&key, &entry) {
            if !self.clear_one(now) {
                return Err(self.full());
            }
        }
        self.insert(key, entry);
        Ok(())
    }

    /// Writes an entry whatever the limits say.
    pub(super) fn insert(&mut self, key: RecordKey, entry: Entry) {
        let expires_ms = entry.expires_ms;
        self.bytes += entry.bytes();
        self.expiry.insert((expires_ms, key));
        if let Some(old) = self.entries.insert(key, entry) {
            self.bytes -= old.bytes();
            if old.expires_ms != expires_ms {
                self.expiry.remove(&(old.expires_ms, key));
            }
        }
    }

    pub(super) fn remove(&mut self, key: &RecordKey) {
        if let Some(old) = self.entries.remove(key) {
            self.bytes -= old.bytes();
            self.expiry.remove(&(old.expires_ms, *key));
        }
    }

    /// Gives back some of the memory that has expired.
    pub(super) fn clear(&mut self, now: Now) {
        for _ in 0..CLEARED_AT_ONCE {
            if !self.clear_one(now) {
                return;
            }
        }
    }

    /// Up to `at_most` records behind `after`, and the last key that was looked at, if others follow.
    pub(super) fn page(
        &self,
        after: Option<RecordKey>,
        at_most: usize,
        now: Now,
    ) -> (Vec<Listed>, Option<RecordKey>) {
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut rest = self.entries.range((start, Bound::Unbounded));
        let (mut listed, mut last) = (Vec::new(), None);
        for (key, entry) in rest.by_ref().take(at_most) {
            last = Some(*key);
            if entry.expires_ms > now.ms() {
                listed.push(entry.record.listed(*key, now, entry.expires_ms));
            }
        }
        (listed, rest.next().and(last))
    }

    fn has_room(&self, key: &RecordKey, entry: &Entry) -> bool {
        let bytes = entry.bytes();
        match self.entries.get(key) {
            Some(old) if bytes <= old.bytes() => true,
            Some(old) => self.bytes - old.bytes() + bytes <= self.limits.bytes,
            None => self.len() < self.limits.records && self.bytes + bytes <= self.limits.bytes,
        }
    }

    fn clear_one(&mut self, now: Now) -> bool {
        match self.expiry.first() {
            Some((expires_ms, key)) if *expires_ms <= now.ms() => {
                let key = *key;
                self.remove(&key);
                true
            }
            _ => false,
        }
    }

    fn full(&self) -> StoreError {
        let Limits { records, bytes } = self.limits;
        StoreError::new(
            StoreErrorKind::Full,
            format!(
                "the memory store is full: {} of at most {records} records, {} of at most {bytes} \
                 bytes; raise `records_at_most` or `bytes_at_most`, or keep records for less long",
                self.len(),
                self.bytes,
            ),
        )
    }
}
