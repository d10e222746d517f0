//! Records in Redis or Valkey.

use super::{
    Claim, Claimed, Cursor, Issue, Issued, Kept, Page, Release, Resolve, Resolved, Store,
    StoreError, StoreErrorKind, Written,
};
use crate::record::Grant;

/// Records in Redis or Valkey.
#[derive(Clone, Debug, Default)]
pub struct RedisStore {}

impl RedisStore {
    /// An empty store.
    pub fn new() -> Self {
        Self {}
    }
}

fn no() -> StoreError {
    StoreError::new(StoreErrorKind::Refused, "being built")
}

impl Store for RedisStore {
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
