//! Unknown outcomes stay unknown.

use super::World;
use crate::Store;

/// Being built.
pub async fn a_crash_leaves_abandoned<S: Store, W: World>(store: &S, world: &W) {
    let _ = (store, world);
}

/// Being built.
pub async fn f1_unknown_is_never_laundered<S: Store, W: World>(store: &S, world: &W) {
    let _ = (store, world);
}

/// Being built.
pub async fn f10_failed_is_not_released<S: Store, W: World>(store: &S, world: &W) {
    let _ = (store, world);
}

/// Being built.
pub async fn f12_given_up_is_never_revived<S: Store, W: World>(store: &S, world: &W) {
    let _ = (store, world);
}
