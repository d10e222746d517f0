//! One-time tokens.

use super::World;
use crate::Store;

/// Being built.
pub async fn f6_a_one_time_token_is_checked_after_a_release<S: Store, W: World>(
    store: &S,
    world: &W,
) {
    let _ = (store, world);
}

/// Being built.
pub async fn one_time_token_is_used_once<S: Store, W: World>(store: &S, world: &W) {
    let _ = (store, world);
}

/// Being built.
pub async fn the_outstanding_token_is_issued_again<S: Store, W: World>(store: &S, world: &W) {
    let _ = (store, world);
}
