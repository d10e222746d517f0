//! What must never happen, whatever is thrown at the layer: by handlers, by what is stored, by a server
//! that is none, by clocks and by runtimes that stop.

mod answers;
mod bodies;
mod charsets;
mod deliveries;
mod durations;
mod fake_redis;
mod framing;
mod late_claims;
mod operations;
mod overload;
mod places;
mod redis_replies;
mod room;
mod runtimes;
mod shop;
