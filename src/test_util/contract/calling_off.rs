//! Claims called off, and looks.

use super::World;
use crate::Store;

/// Being built.
pub async fn a_look_is_never_granted<S: Store, W: World>(store: &S, world: &W) {
    let _ = (store, world);
}

/// Being built.
pub async fn f2_called_off_is_as_good_as_absent<S: Store, W: World>(store: &S, world: &W) {
    let _ = (store, world);
}
