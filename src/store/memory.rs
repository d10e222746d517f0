//! Records in this process's memory.

use super::{
    Claim, Claimed, Cursor, Issue, Issued, Kept, Page, Release, Resolve, Resolved, Store,
    StoreError, StoreErrorKind, Written,
};
use crate::record::Grant;

/// Records in this process's memory: for one process, for tests and examples.
#[derive(Clone, Debug, Default)]
pub struct MemoryStore {}

impl MemoryStore {
    /// An empty store.
    pub fn new() -> Self {
        Self {}
    }
}

fn no() -> StoreError {
    StoreError::new(StoreErrorKind::Refused, "being built")
}

impl Store for MemoryStore {
    async fn claim(&self, _: Claim) -> Result<Claimed, StoreError> {
        Err(no())
    }
    async fn renew(&self, _: &Grant) -> Result<Written, StoreError> {
        Err(no())
    }
    async fn complete(&self, _: &Grant, _: Kept) -> Result<Written, StoreError> {
        Err(no())
    }
    async fn release(&self, _: Release) -> Result<Written, StoreError> {
        Err(no())
    }
    async fn resolve(&self, _: Resolve) -> Result<Resolved, StoreError> {
        Err(no())
    }
    async fn issue(&self, _: Issue) -> Result<Issued, StoreError> {
        Err(no())
    }
    async fn scan(&self, _: Cursor, _: usize) -> Result<Page, StoreError> {
        Err(no())
    }
}

#[cfg(feature = "test-util")]
impl crate::test_util::contract::World for MemoryStore {
    type Snapshot = ();

    fn tick(&self) -> std::time::Duration {
        std::time::Duration::from_millis(10)
    }
    async fn pass(&self, time: std::time::Duration) {
        tokio::time::sleep(time).await;
    }
    async fn forget(&self, _: &crate::RecordKey) {}
    async fn snapshot(&self, _: &crate::RecordKey) -> Option<()> {
        None
    }
    async fn put_back(&self, _: &crate::RecordKey, (): ()) {}
    async fn expires_in(&self, _: &crate::RecordKey) -> Option<std::time::Duration> {
        None
    }
}
