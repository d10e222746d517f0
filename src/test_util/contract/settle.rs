//! Verdicts over abandoned operations.

use super::World;
use crate::Store;

/// Being built.
pub async fn f20_a_forced_verdict_does_not_hide_what_happened<S: Store, W: World>(
    store: &S,
    world: &W,
) {
    let _ = (store, world);
}

/// Being built.
pub async fn f8_a_sign_of_life_voids_a_verdict<S: Store, W: World>(store: &S, world: &W) {
    let _ = (store, world);
}

/// Being built.
pub async fn resolve_settles_what_is_abandoned<S: Store, W: World>(store: &S, world: &W) {
    let _ = (store, world);
}
