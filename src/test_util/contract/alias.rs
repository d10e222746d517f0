//! Other names of an operation.

use super::World;
use crate::Store;

/// Being built.
pub async fn alias_leads_to_its_operation<S: Store, W: World>(store: &S, world: &W) {
    let _ = (store, world);
}

/// Being built.
pub async fn f17_a_taken_delivery_is_told_with_its_state<S: Store, W: World>(store: &S, world: &W) {
    let _ = (store, world);
}

/// Being built.
pub async fn released_delivery_is_bound_over<S: Store, W: World>(store: &S, world: &W) {
    let _ = (store, world);
}
