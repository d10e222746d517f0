//! The conformance cases 1 to 49 of HTTP idempotency, over HTTP/1.1 on real sockets: syntax of the
//! key, presence, replay, concurrency and crashes, mismatch and scope.
//!
//! Where a case and the crate's own promises differ, the test shows what the case is about under the
//! policy that has it.

mod concurrency;
mod crashes;
mod key_syntax;
mod mismatch;
mod presence;
mod replay;
mod shop;
