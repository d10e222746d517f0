//! Exactly once, whatever Redis loses and whenever a process dies: real shops as processes that share a
//! Redis and a database, killed with -9 at every point of a request, and senders that deliver until
//! they are acknowledged. What was charged is counted in the database.
//!
//! Each storm has a seed, which is in the message of what fails: `CRASHES_SEED=7` runs that one.
//! `CRASHES_MINUTES=120` runs one after the other for two hours. Requests meet in another order each
//! time all the same, so a failure may take a few runs to come again.
#![cfg(unix)]

mod databases;
mod findings;
mod redis;
mod sender;
mod site;
mod stalled;
mod storm;
mod verdict;
mod without;
