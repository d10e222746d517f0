//! What an operator sees.

use super::World;
use crate::Store;

/// Being built.
pub async fn scan_finds_every_record<S: Store, W: World>(store: &S, world: &W) {
    let _ = (store, world);
}

/// Being built.
pub async fn scan_may_be_abandoned<S: Store, W: World>(store: &S, world: &W) {
    let _ = (store, world);
}

/// Being built.
pub async fn scan_tells_what_an_operator_needs<S: Store, W: World>(store: &S, world: &W) {
    let _ = (store, world);
}
