//! What `RedisStore` promises, over real servers: the contract, its scripts, its connection.

mod bug_reports;
mod commands;
mod connection;
mod contract;
mod loss;
mod lost_answers;
mod preflight;
mod scripts;
mod staying_up;
mod support;
mod tokens;
