//! The store contract over a real server, and what is left in the server afterwards.

use std::time::Duration;

use tower_idempotency::{
    RecordKey, RedisStore,
    test_util::contract::{self, World},
};
use tower_idempotency_test_support::{
    RedisServer,
    redis::{Cmd, Value, aio::MultiplexedConnection},
};

use crate::support::server_and_store;

/// Records as they are in the server, and its real time.
pub(crate) struct Server {
    connection: MultiplexedConnection,
    prefix: &'static str,
}

impl Server {
    pub(crate) async fn of(server: &RedisServer, prefix: &'static str) -> Self {
        Self { connection: server.connection().await, prefix }
    }

    async fn ask(&self, command: &Cmd) -> Value {
        self.connection.clone().send_packed_command(command).await.expect("the server answers")
    }

    async fn on(&self, command: &str, key: &RecordKey) -> Value {
        let mut words = Cmd::new();
        words.arg(command).arg(format!("{}:{key}", self.prefix));
        self.ask(&words).await
    }
}

impl World for Server {
    type Snapshot = Vec<u8>;

    fn tick(&self) -> Duration {
        Duration::from_millis(50)
    }

    async fn pass(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }

    async fn forget(&self, key: &RecordKey) {
        self.on("DEL", key).await;
    }

    async fn snapshot(&self, key: &RecordKey) -> Option<Vec<u8>> {
        match self.on("GET", key).await {
            Value::BulkString(record) => Some(record),
            _ => None,
        }
    }

    async fn put_back(&self, key: &RecordKey, record: Vec<u8>) {
        let mut set = Cmd::new();
        set.arg("SET").arg(format!("{}:{key}", self.prefix)).arg(record).arg("PX").arg(120_000);
        assert_eq!(self.ask(&set).await, Value::Okay);
    }

    async fn expires_in(&self, key: &RecordKey) -> Option<Duration> {
        match self.on("PTTL", key).await {
            Value::Int(-1) => Some(Duration::MAX),
            Value::Int(ms) => u64::try_from(ms).ok().map(Duration::from_millis),
            other => panic!("PTTL: {other:?}"),
        }
    }
}

async fn every_key_expires(server: &RedisServer) -> usize {
    let Value::Array(keys) = server.command(&["KEYS", "*"]).await else { panic!("no keys") };
    for key in &keys {
        let Value::BulkString(key) = key else { panic!("{key:?}") };
        let name = String::from_utf8_lossy(key);
        let left = server.command(&["PTTL", &name]).await;
        assert!(matches!(left, Value::Int(1..) | Value::Int(-2)), "{name}: {left:?}");
    }
    keys.len()
}

#[tokio::test]
async fn the_contract_is_kept_and_every_key_it_leaves_expires() {
    let (server, store) = server_and_store().await;
    contract::run_all(&store, &Server::of(&server, "idempotency").await).await;
    assert!(every_key_expires(&server).await > 20);
}

#[tokio::test]
async fn the_contract_is_kept_by_a_server_that_forgets_the_scripts_all_the_time() {
    let (server, store) = server_and_store().await;
    let mut flusher = server.connection().await;
    let flushing = tokio::spawn(async move {
        let mut flush = Cmd::new();
        flush.arg("SCRIPT").arg("FLUSH");
        loop {
            flusher.send_packed_command(&flush).await.expect("the server answers");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    contract::run_all(&store, &Server::of(&server, "idempotency").await).await;
    flushing.abort();
    assert!(every_key_expires(&server).await > 20);
}

#[tokio::test]
async fn the_contract_is_kept_under_a_prefix_of_braces_and_globs() {
    let server = RedisServer::start().await;
    let store = RedisStore::connect(&server.url()).await.expect("the server answers");
    let prefix = "{a}*[b]?\\:{";
    contract::run_all(&store.prefix(prefix), &Server::of(&server, prefix).await).await;
    assert!(every_key_expires(&server).await > 20);
}
