//! Real servers, processes and faults for the tests and benches.
//!
//! Everything listens on 127.0.0.1 alone, ends when it is dropped, and ends nothing that it did not
//! start. A server or a process that cannot be started is a panic that says what is missing.

mod certificates;
mod chance;
mod chunks;
mod cluster;
mod database;
mod directory;
mod http;
#[cfg(feature = "http2")]
mod http2;
mod log;
mod mariadb_server;
mod postgres_server;
mod process;
mod proxy;
mod redis_server;
mod runs;
mod sentinel;
mod signal;

pub use certificates::Certificates;
pub use chance::Chance;
pub use chunks::Chunks;
pub use cluster::RedisCluster;
pub use directory::Directory;
#[cfg(feature = "http2")]
pub use h2;
pub use http::{RawAnswer, RawClient, Server};
#[cfg(feature = "http2")]
pub use http2::{Http2Answer, Http2Client, Http2Stream};
pub use log::Log;
pub use mariadb_server::MariadbServer;
pub use postgres_server::PostgresServer;
pub use process::Process;
pub use proxy::Proxy;
pub use redis;
pub use redis_server::{Builder as RedisBuilder, RedisServer};
pub use runs::Runs;
pub use sentinel::Sentinels;
pub use signal::{Signal, send_signal};
