//! One owner at a time, and what a grant carries.

use super::World;
use crate::Store;

/// Being built.
pub async fn completed_is_final<S: Store, W: World>(store: &S, world: &W) {
    let _ = (store, world);
}

/// Being built.
pub async fn f11_the_same_token_gets_a_fresh_lease<S: Store, W: World>(store: &S, world: &W) {
    let _ = (store, world);
}

/// Being built.
pub async fn f13_attempts_stop_at_999_999<S: Store, W: World>(store: &S, world: &W) {
    let _ = (store, world);
}

/// Being built.
pub async fn fences_grow<S: Store, W: World>(store: &S, world: &W) {
    let _ = (store, world);
}

/// Being built.
pub async fn one_owner<S: Store, W: World>(store: &S, world: &W) {
    let _ = (store, world);
}

/// Being built.
pub async fn same_token_same_grant<S: Store, W: World>(store: &S, world: &W) {
    let _ = (store, world);
}
