//! What must never happen, whatever is thrown at the layer: by handlers, by what is stored, by a server
//! that is none, by clocks and by runtimes that stop.

mod answers;
mod deliveries;
mod durations;
mod fake_redis;
mod operations;
mod overload;
mod redis_replies;
mod room;
mod runtimes;
mod shop;
