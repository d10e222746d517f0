//! What `RedisStore` promises, over real servers: the contract, its scripts, its connection.

mod bug_reports;
mod commands;
mod connection;
mod contract;
mod lost_answers;
mod scripts;
mod support;
mod tokens;
