//! What the owner writes again when the store lost it.

use super::World;
use crate::Store;

/// Being built.
pub async fn f5_an_older_state_is_written_over<S: Store, W: World>(store: &S, world: &W) {
    let _ = (store, world);
}

/// Being built.
pub async fn f7_a_living_owner_comes_back<S: Store, W: World>(store: &S, world: &W) {
    let _ = (store, world);
}

/// Being built.
pub async fn the_executed_answer_outweighs_a_lapsed_stranger<S: Store, W: World>(
    store: &S,
    world: &W,
) {
    let _ = (store, world);
}

/// Being built.
pub async fn what_was_lost_is_written_again<S: Store, W: World>(store: &S, world: &W) {
    let _ = (store, world);
}
