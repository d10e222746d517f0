//! The conformance cases 1 to 49 of HTTP idempotency, over HTTP/1.1 on real sockets: syntax of the
//! key, presence, replay, concurrency and crashes, mismatch and scope.

mod key_syntax;
