//! Signals to processes that this process has started.

use std::process::Child;

pub use nix::sys::signal::Signal;
use nix::{sys::signal, unistd::Pid};

/// Sends a signal to a child. One that has ended already takes none.
///
/// # Panics
///
/// When the child is there and cannot be signalled.
pub fn send_signal(child: &mut Child, signal: Signal) {
    // A child that was waited for may have given its number to somebody else.
    if child.try_wait().is_ok_and(|ended| ended.is_some()) {
        return;
    }
    let id = i32::try_from(child.id()).expect("a process id is an i32 on every Unix");
    signal::kill(Pid::from_raw(id), signal)
        .unwrap_or_else(|error| panic!("cannot send {signal} to process {id}: {error}"));
}
