//! Section B.
