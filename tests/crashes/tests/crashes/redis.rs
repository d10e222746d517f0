//! A Redis that loses what it has, at an address that stays the same.

use std::time::{Duration, Instant};

use tokio::time::sleep;
use tower_idempotency_test_support::{Proxy, RedisServer, redis::Value};

/// On a busy machine.
const SOON: Duration = Duration::from_secs(20);

/// What becomes of Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Kept,
    Flushed,
    RestartedEmpty,
    /// By a replica that lacks the last writes.
    Replaced,
}

pub(crate) const FATES: [Fate; 4] =
    [Fate::Kept, Fate::Flushed, Fate::RestartedEmpty, Fate::Replaced];

/// The Redis of the servers, which they reach through a proxy.
pub(crate) struct Redis {
    current: RedisServer,
    front: Proxy,
    replica: Option<Replica>,
}

/// One that follows the current one, through a proxy that can stop that.
struct Replica {
    server: RedisServer,
    link: Proxy,
}

impl Redis {
    pub(crate) async fn start() -> Self {
        let current = server().await;
        let front = Proxy::to(current.address()).await;
        Self { current, front, replica: None }
    }

    pub(crate) fn url(&self) -> String {
        self.front.redis_url()
    }

    /// Gets ready for this fate: a replica needs a while to have everything.
    pub(crate) async fn expect(&mut self, fate: Fate) {
        if fate != Fate::Replaced || self.replica.is_some() {
            return;
        }
        let link = Proxy::to(self.current.address()).await;
        let server = server().await;
        let port = link.address().port().to_string();
        server.command(&["REPLICAOF", "127.0.0.1", &port]).await;
        let started = Instant::now();
        while field(&server, "master_link_status").await != "up" {
            assert!(started.elapsed() < SOON, "the replica has no copy within {SOON:?}");
            sleep(Duration::from_millis(20)).await;
        }
        self.replica = Some(Replica { server, link });
    }

    /// What is written from now on is what a replica lacks.
    pub(crate) fn stop_replication(&self) {
        if let Some(replica) = &self.replica {
            replica.link.black_hole();
        }
    }

    /// Waits until a replica lacks something, if there is one: somebody has to go on writing.
    pub(crate) async fn fall_behind(&self) {
        let Some(replica) = &self.replica else { return };
        replica.link.black_hole();
        let started = Instant::now();
        while self.behind(replica).await == 0 {
            assert!(started.elapsed() < SOON, "nothing was written within {SOON:?}");
            sleep(Duration::from_millis(10)).await;
        }
    }

    /// By how many bytes of writes.
    async fn behind(&self, replica: &Replica) -> u64 {
        let had = number(&self.current, "master_repl_offset").await;
        had.saturating_sub(number(&replica.server, "slave_repl_offset").await)
    }

    pub(crate) async fn flush(&self) {
        self.current.command(&["FLUSHALL"]).await;
    }

    /// Lets it happen; by how many bytes of writes the new one is behind, if there is one.
    pub(crate) async fn suffer(&mut self, fate: Fate) -> u64 {
        match fate {
            Fate::Kept => {}
            Fate::Flushed => self.flush().await,
            Fate::RestartedEmpty => self.current.restart().await,
            Fate::Replaced => {
                let replica = self.replica.take().expect("it was expected");
                let behind = self.behind(&replica).await;
                self.current.kill();
                replica.server.command(&["REPLICAOF", "NO", "ONE"]).await;
                self.current = replica.server;
                self.front.lead_to(self.current.address());
                self.front.cut().await;
                assert!(behind > 0, "a replica that has everything is no loss");
                return behind;
            }
        }
        0
    }
}

async fn server() -> RedisServer {
    // A copy is sent at once, and not when more replicas may have come.
    RedisServer::builder().argument("--repl-diskless-sync-delay", "0").start().await
}

async fn number(server: &RedisServer, name: &str) -> u64 {
    field(server, name).await.parse().expect("an offset is a number")
}

/// A field of what the server says of its replication.
async fn field(server: &RedisServer, name: &str) -> String {
    let said = match server.command(&["INFO", "replication"]).await {
        Value::BulkString(bytes) => String::from_utf8(bytes).expect("INFO is a text"),
        Value::VerbatimString { text, .. } => text,
        other => panic!("INFO is a text, and not {other:?}"),
    };
    let found = said.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    found.unwrap_or_else(|| panic!("there is no {name} in {said}")).trim().to_owned()
}
