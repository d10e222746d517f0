//! What `RedisStore` promises, over real servers: the contract, its scripts, its connection.

mod breaking;
mod bug_reports;
mod cluster;
mod cluster_listing;
mod cluster_loss;
mod commands;
mod connection;
mod contract;
mod counted;
mod loss;
mod lost_answers;
mod one_write;
mod preflight;
mod requests;
mod rights;
mod scripts;
mod sentinel;
mod start;
mod staying_up;
mod stored;
mod support;
mod tls;
mod tls_many;
mod tokens;
mod verdicts;
mod wait;
