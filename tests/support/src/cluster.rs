//! A real cluster of Redis for one test.

use std::time::{Duration, Instant};

use redis::Value;
use tokio::time::sleep;

use crate::{RedisBuilder, RedisServer};

const READY_WITHIN: Duration = Duration::from_secs(30);
const SLOTS: u16 = 16_384;
const PRIMARIES: usize = 3;

/// Three primaries with a third of the slots each, and a replica of each if wished. Killed when it is
/// dropped.
#[derive(Debug)]
pub struct RedisCluster {
    /// The primaries, then the replica of each in the same order.
    pub nodes: Vec<RedisServer>,
}

impl RedisCluster {
    /// Starts one, and waits until all of its slots are served.
    ///
    /// # Panics
    ///
    /// When there is no `redis-server`, or it does not get ready.
    pub async fn start(with_replicas: bool) -> Self {
        Self::start_with(with_replicas, |node| node).await
    }

    /// The same of nodes with settings of their own.
    ///
    /// # Panics
    ///
    /// The same.
    pub async fn start_with(
        with_replicas: bool,
        settings: impl Fn(RedisBuilder) -> RedisBuilder,
    ) -> Self {
        let mut nodes = Vec::new();
        for _ in 0..if with_replicas { 2 * PRIMARIES } else { PRIMARIES } {
            let mut node = RedisServer::builder().cluster_node();
            if with_replicas {
                // Nodes that wait for a busy machine are not to be taken for dead before a test has begun.
                node = node.argument("--cluster-node-timeout", "2000");
            }
            nodes.push(settings(node).start().await);
        }
        let cluster = Self { nodes };
        for (nth, node) in cluster.nodes.iter().enumerate() {
            ok(node, &["CLUSTER", "SET-CONFIG-EPOCH", &(nth + 1).to_string()]).await;
            let port = node.port_for_servers().to_string();
            let meet = ["CLUSTER", "MEET", "127.0.0.1", &port, &node.bus().to_string()];
            ok(&cluster.nodes[0], &meet).await;
        }
        let third = SLOTS / 3;
        for (nth, slots) in [(0, 0..third), (1, third..2 * third), (2, 2 * third..SLOTS)] {
            cluster.nodes[nth].add_slots(slots).await;
        }
        cluster.ready().await;
        cluster.replicate().await;
        cluster
    }

    async fn ready(&self) {
        let known = format!("cluster_known_nodes:{}", self.nodes.len());
        for node in &self.nodes {
            wait(async || {
                let info = text(node.command(&["CLUSTER", "INFO"]).await);
                info.contains("cluster_state:ok") && info.lines().any(|line| line == known)
            })
            .await;
        }
    }

    async fn replicate(&self) {
        for (nth, replica) in self.nodes.iter().enumerate().skip(PRIMARIES) {
            let id = self.id(nth - PRIMARIES).await;
            wait(async || replica.command(&["CLUSTER", "REPLICATE", &id]).await == Value::Okay)
                .await;
            wait(async || text(replica.command(&["INFO"]).await).contains("master_link_status:up"))
                .await;
            self.write_through(nth - PRIMARIES, replica).await;
        }
    }

    /// Until its primary has heard from it, up to a second after the link is up, a replica is told of no
    /// write and acknowledges none.
    async fn write_through(&self, primary: usize, replica: &RedisServer) {
        let mut keys = (0..).map(|number| format!("through-{number}"));
        let key = loop {
            let key = keys.next().expect("there is no end of them");
            if usize::from(self.slot(&key).await / (SLOTS / 3)) == primary {
                break key;
            }
        };
        let primary = &self.nodes[primary];
        let (set, gone) = (["SET", &key, ""], ["DEL", &key]);
        wait(async || primary.command(&set).await == Value::Okay).await;
        wait(async || replica.command(&["DBSIZE"]).await == Value::Int(1)).await;
        primary.command(&gone).await;
        wait(async || replica.command(&["DBSIZE"]).await == Value::Int(0)).await;
    }

    /// The id of a node.
    pub async fn id(&self, nth: usize) -> String {
        text(self.nodes[nth].command(&["CLUSTER", "MYID"]).await)
    }

    /// The URLs of all nodes.
    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(RedisServer::url).collect()
    }

    /// The slot of a key.
    pub async fn slot(&self, name: &str) -> u16 {
        match self.command(&["CLUSTER", "KEYSLOT", name]).await {
            Value::Int(slot) => slot.try_into().expect("a slot"),
            other => panic!("{other:?}"),
        }
    }

    /// Runs one command about this key on whichever node answers it.
    ///
    /// # Panics
    ///
    /// When none does.
    pub async fn command(&self, words: &[&str]) -> Value {
        for node in &self.nodes {
            // A node that was killed has no connection.
            let Ok(client) = redis::Client::open(node.url()) else { continue };
            let Ok(mut connection) = client.get_multiplexed_async_connection().await else {
                continue;
            };
            let mut command = redis::Cmd::new();
            for word in words {
                command.arg(*word);
            }
            match connection.send_packed_command(&command).await {
                Ok(Value::ServerError(_)) | Err(_) => {}
                Ok(answer) => return answer,
            }
        }
        panic!("no node answers {words:?}")
    }

    /// Begins to move a slot between two primaries: what is there stays, what is new goes to the other.
    ///
    /// # Panics
    ///
    /// When a node refuses.
    pub async fn begin_move(&self, slot: u16, from: usize, to: usize) {
        let slot = slot.to_string();
        let (source, target) = (self.id(from).await, self.id(to).await);
        ok(&self.nodes[to], &["CLUSTER", "SETSLOT", &slot, "IMPORTING", &source]).await;
        ok(&self.nodes[from], &["CLUSTER", "SETSLOT", &slot, "MIGRATING", &target]).await;
    }

    /// Moves the keys, and not the slot.
    ///
    /// # Panics
    ///
    /// When a node refuses.
    pub async fn move_keys(&self, slot: u16, from: usize, to: usize) {
        let slot = slot.to_string();
        let port = self.nodes[to].port_for_servers().to_string();
        loop {
            let keys = ["CLUSTER", "GETKEYSINSLOT", &slot, "10"];
            let Value::Array(keys) = self.nodes[from].command(&keys).await else {
                panic!("no keys")
            };
            if keys.is_empty() {
                break;
            }
            for key in keys {
                let key = text(key);
                let migrate = ["MIGRATE", "127.0.0.1", &port, &key, "0", "1000"];
                let answer = self.nodes[from].command(&migrate).await;
                assert!(matches!(answer, Value::Okay | Value::SimpleString(_)), "{answer:?}");
            }
        }
    }

    /// Moves the keys, and then the slot.
    ///
    /// # Panics
    ///
    /// When a node refuses.
    pub async fn end_move(&self, slot: u16, from: usize, to: usize) {
        self.move_keys(slot, from, to).await;
        let (slot, target) = (slot.to_string(), self.id(to).await);
        let owned = ["CLUSTER", "SETSLOT", &slot, "NODE", &target];
        ok(&self.nodes[to], &owned).await;
        // With its first slot it took an epoch. Whoever has not heard of that yet believes older news, and
        // spreads them: the next owner would lose a slot to them that it has just been given.
        for nth in self.primaries(to).await {
            self.knows_epoch(nth, to).await;
            ok(&self.nodes[nth], &owned).await;
        }
    }

    /// Which nodes are primaries, as one of them knows it.
    async fn primaries(&self, told_by: usize) -> Vec<usize> {
        let told = text(self.nodes[told_by].command(&["CLUSTER", "NODES"]).await);
        let is_one = |nth: &usize| {
            let address = format!(" 127.0.0.1:{}@", self.nodes[*nth].port_for_servers());
            let line = told.lines().find(|line| line.contains(&address)).unwrap_or_default();
            line.contains("master") && !line.contains("fail")
        };
        (0..self.nodes.len()).filter(is_one).collect()
    }

    /// Waits until one node has heard of another's epoch.
    async fn knows_epoch(&self, nth: usize, of: usize) {
        let started = Instant::now();
        while self.epoch(nth, of).await != self.epoch(of, of).await {
            assert!(started.elapsed() < READY_WITHIN, "no news of node {of} come to node {nth}");
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// The epoch of one node as another knows it.
    async fn epoch(&self, told_by: usize, of: usize) -> String {
        let nodes = text(self.nodes[told_by].command(&["CLUSTER", "NODES"]).await);
        let id = self.id(of).await;
        let line = nodes.lines().find(|line| line.starts_with(&id));
        let epoch = line.and_then(|line| line.split(' ').nth(6));
        epoch.expect("the nodes know each other, and their epochs").to_owned()
    }
}

async fn ok(node: &RedisServer, words: &[&str]) {
    let answer = node.command(words).await;
    assert_eq!(answer, Value::Okay, "{words:?}");
}

fn text(value: Value) -> String {
    match value {
        Value::BulkString(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        other => panic!("{other:?} is no text"),
    }
}

async fn wait(is_so: impl AsyncFn() -> bool) {
    let started = Instant::now();
    while !is_so().await {
        assert!(started.elapsed() < READY_WITHIN, "the cluster does not get ready");
        sleep(Duration::from_millis(20)).await;
    }
}
