//! Work that is not HTTP, run once: each promise of `Idempotent` with its negative twin.

mod ends;
mod jobs;
mod others;
mod recovery;
mod wrong;
