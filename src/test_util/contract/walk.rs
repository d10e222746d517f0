//! Random operations against a model.

use super::World;
use crate::Store;

/// How a random walk goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Walk {
    /// Where its randomness starts: the same seed takes the same steps.
    pub seed: u64,
    /// How many keys it walks, one after the other.
    pub runs: u32,
    /// How many operations on each.
    pub steps: u32,
}

impl Default for Walk {
    /// 20 keys, 25 operations each, from a seed of the operating system's randomness.
    fn default() -> Self {
        Self { seed: rand::random(), runs: 20, steps: 25 }
    }
}

/// Being built.
pub async fn random_walk<S: Store, W: World>(store: &S, world: &W, walk: Walk) {
    let _ = (store, world, walk);
}
