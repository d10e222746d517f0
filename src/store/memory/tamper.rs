//! Losses from outside, which the contract suite puts a memory store through.

use std::time::Duration;

use super::{MemoryStore, records::Entry};
use crate::record::RecordKey;

/// A record as it is stored.
pub(crate) struct Stored(Entry);

impl MemoryStore {
    pub(crate) fn lose(&self, key: &RecordKey) {
        self.lock().remove(key);
    }

    pub(crate) fn stored(&self, key: &RecordKey) -> Option<Stored> {
        let (records, now) = self.begin();
        let entry = records.get(key, now);
        (!entry.record.is_absent()).then(|| Stored(entry.clone()))
    }

    pub(crate) fn replace(&self, key: &RecordKey, stored: Stored) {
        let (mut records, now) = self.begin();
        let expires_ms = now.ms_after(Duration::from_secs(60));
        records.insert(*key, Entry { expires_ms, ..stored.0 });
    }

    pub(crate) fn kept_for(&self, key: &RecordKey) -> Option<Duration> {
        let (records, now) = self.begin();
        let entry = records.get(key, now);
        let left = Duration::from_millis(entry.expires_ms.saturating_sub(now.ms()));
        (!entry.record.is_absent()).then_some(left)
    }
}
