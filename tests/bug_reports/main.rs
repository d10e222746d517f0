//! Faults of other projects of this kind, as their users reported them, shown absent in this one.

mod claiming;
mod keys;
mod lifecycle;
mod recorded;
mod support;
