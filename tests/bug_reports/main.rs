//! Faults of other projects of this kind, as their users reported them, shown absent in this one.

mod cancellation;
mod claiming;
mod consumers;
mod contention;
mod framing;
mod keys;
mod leases;
mod lifecycle;
mod recorded;
mod replay;
mod store_faults;
mod support;
