//! The caller's side through its public API: each promise with its negative twin.

mod keys;
mod placements;
mod resends;
mod server;
mod sockets;
mod tokens;
