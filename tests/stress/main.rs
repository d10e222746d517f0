//! Many requests at once, over stores that fail, with handlers that end in every way and clients that
//! leave at any moment. What must never happen is watched from outside of the layer.
//!
//! Each run has a seed, which is in the message of what fails: `STRESS_SEED=7` runs that one alone,
//! `STRESS_SEEDS=100..200` runs others than the usual.

mod chance;
mod client;
mod journal;
mod memory;
mod over_redis;
mod plan;
mod runtimes;
mod shop;
mod weather;
