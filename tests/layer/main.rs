//! The layer through its public API, in process: each promise with its negative twin.

mod basics;
