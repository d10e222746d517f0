//! Faults of other projects of this kind, as their users reported them, shown absent in this one.

mod claiming;
mod lifecycle;
mod support;
