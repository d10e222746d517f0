//! Random numbers that come again with their seed.

use std::{
    env,
    ops::Range,
    sync::{Arc, Mutex},
    time::Duration,
};

/// A stream of random numbers (splitmix64). Clones draw from the same stream.
#[derive(Clone, Debug)]
pub(crate) struct Chance(Arc<Mutex<u64>>);

impl Chance {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(seed.wrapping_mul(0x5851_f42d_4c95_7f2d))))
    }

    fn next(&self) -> u64 {
        let mut state = self.0.lock().expect("no holder panics");
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = *state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Less than `bound`.
    pub(crate) fn below(&self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub(crate) fn one_in(&self, times: u64) -> bool {
        self.below(times) == 0
    }

    pub(crate) fn pick<T: Copy>(&self, from: &[T]) -> T {
        let length = u64::try_from(from.len()).expect("a short list");
        from[usize::try_from(self.below(length)).expect("less than a length")]
    }

    /// Up to so many milliseconds, in which short times are as likely as long ones.
    pub(crate) fn up_to_ms(&self, at_most: u64) -> Duration {
        let magnitude = self.below(u64::from(at_most.ilog2()) + 1);
        Duration::from_micros(self.below((1000 << magnitude).min(at_most * 1000) + 1))
    }
}

/// The seeds to run: so many from zero on, those of `STRESS_SEEDS=100..200`, or the one of
/// `STRESS_SEED=7`.
pub(crate) fn seeds(usual: u64) -> Range<u64> {
    let number = |text: &str| text.parse::<u64>().expect("a seed is a number");
    if let Ok(seed) = env::var("STRESS_SEED") {
        return number(&seed)..number(&seed) + 1;
    }
    match env::var("STRESS_SEEDS") {
        Ok(seeds) => {
            let (from, to) = seeds.split_once("..").expect("STRESS_SEEDS=100..200");
            number(from)..number(to)
        }
        Err(_) => 0..usual,
    }
}
