//! For tests of your own: the store contract as a suite, and a store that fails on demand.

mod codec;
pub mod contract;
mod faulty;
mod memory;

#[doc(hidden)]
pub use codec::recode;
pub use faulty::{Fault, Faults, FaultyStore, Gate, Transition};
pub use memory::MemorySnapshot;
