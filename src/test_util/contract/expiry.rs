//! Every record goes away.

use super::World;
use crate::Store;

/// Being built.
pub async fn every_record_expires<S: Store, W: World>(store: &S, world: &W) {
    let _ = (store, world);
}

/// Being built.
pub async fn unfinished_outlives_its_lease<S: Store, W: World>(store: &S, world: &W) {
    let _ = (store, world);
}
