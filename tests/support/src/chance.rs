//! Random numbers that come again with their seed.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

/// A stream of random numbers (splitmix64). Clones draw from the same stream.
#[derive(Clone, Debug)]
pub struct Chance(Arc<Mutex<u64>>);

impl Chance {
    /// The stream of this seed.
    pub fn new(seed: u64) -> Self {
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

    /// Less than `bound`, which is not 0.
    pub fn below(&self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// Whether the one in so many times is now.
    pub fn one_in(&self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// One of these.
    ///
    /// # Panics
    ///
    /// When there is none.
    pub fn pick<T: Copy>(&self, from: &[T]) -> T {
        let length = u64::try_from(from.len()).expect("a short list");
        from[usize::try_from(self.below(length)).expect("less than a length")]
    }

    /// Up to so many milliseconds, in which short times are as likely as long ones.
    pub fn up_to_ms(&self, at_most: u64) -> Duration {
        let magnitude = self.below(u64::from(at_most.ilog2()) + 1);
        Duration::from_micros(self.below((1000 << magnitude).min(at_most * 1000) + 1))
    }

    /// Brings them into an order in which each is as likely as any other.
    ///
    /// # Panics
    ///
    /// When they are more than a u64 counts.
    pub fn shuffle<T>(&self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let among = u64::try_from(last + 1).expect("a list in memory");
            let chosen = usize::try_from(self.below(among)).expect("less than a length");
            items.swap(last, chosen);
        }
    }
}
