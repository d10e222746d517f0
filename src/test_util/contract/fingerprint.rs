//! What must be equal when an identity comes again.

use super::World;
use crate::Store;

/// Being built.
pub async fn f14_bound_fingerprint_survives<S: Store, W: World>(store: &S, world: &W) {
    let _ = (store, world);
}

/// Being built.
pub async fn fingerprint_first<S: Store, W: World>(store: &S, world: &W) {
    let _ = (store, world);
}
