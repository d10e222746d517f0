//! Faults of other projects of this kind, as their users reported them, shown absent in this one.

mod claiming;
mod framing;
mod keys;
mod lifecycle;
mod recorded;
mod replay;
mod support;
