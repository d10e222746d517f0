//! For tests of your own: the store contract as a suite, and a store that fails on demand.

pub mod contract;
mod faulty;
mod memory;

pub use faulty::{Fault, Faults, FaultyStore, Gate, Transition};
pub use memory::MemorySnapshot;
