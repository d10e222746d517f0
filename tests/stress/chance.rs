//! The seeds of this test's random numbers.

use std::{env, ops::Range};

pub(crate) use tower_idempotency_test_support::Chance;

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
