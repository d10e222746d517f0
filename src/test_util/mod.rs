//! For tests of your own: the store contract as a suite, and a store that fails on demand.

pub mod contract;
mod faulty;

pub use faulty::{Fault, Faults, FaultyStore, Gate, Transition};
