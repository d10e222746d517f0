//! A memory store is its own world.

use std::{fmt, time::Duration};

use super::contract::World;
use crate::{MemoryStore, RecordKey, store::Stored};

/// A record of a [`MemoryStore`] as it is stored.
pub struct MemorySnapshot(Stored);

impl fmt::Debug for MemorySnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MemorySnapshot(..)")
    }
}

impl World for MemoryStore {
    type Snapshot = MemorySnapshot;

    fn tick(&self) -> Duration {
        Duration::from_millis(10)
    }

    async fn pass(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }

    async fn forget(&self, key: &RecordKey) {
        self.lose(key);
    }

    async fn snapshot(&self, key: &RecordKey) -> Option<MemorySnapshot> {
        self.stored(key).map(MemorySnapshot)
    }

    async fn put_back(&self, key: &RecordKey, record: MemorySnapshot) {
        self.replace(key, record.0);
    }

    async fn expires_in(&self, key: &RecordKey) -> Option<Duration> {
        self.kept_for(key)
    }
}
