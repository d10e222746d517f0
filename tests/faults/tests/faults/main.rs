//! Real server processes, a real Redis and what may befall them: each is killed, stopped, cut off and
//! told to end, and what was run is counted outside of both.
//!
//! The whole takes about a minute on two busy cores. With `FAULTS_LONG=1` in the environment the
//! loads are longer.
#![cfg(unix)]

mod broken_redis;
mod broken_wire;
mod disconnects;
mod killed;
mod orders;
mod shared_redis;
mod shutdown;
mod site;
mod stalled;
mod tokens;
