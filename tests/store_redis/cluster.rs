//! A cluster: each record on its node, through moves of slots and failovers, and nothing sent twice.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
    time::sleep,
};
use tower_idempotency::{
    Grant, RecordKey, RedisStore, Store,
    store::{Claim, Claimed, Cursor, Level, RedisServers, Written},
    test_util::contract::{self, World},
};
use tower_idempotency_test_support::{Log, Proxy, RedisCluster, RedisServer};

use crate::support::{
    Value, claim, completed, granted, kept, name, new_key, short_claim, until_done,
};

pub(crate) fn store(cluster: &RedisCluster) -> RedisStore {
    let urls = cluster.urls();
    let servers = RedisServers::cluster(urls.iter().map(String::as_str)).unwrap();
    RedisStore::of(servers).unwrap()
}

/// A key whose record is in a slot of this primary.
pub(crate) async fn key_on(cluster: &RedisCluster, nth: usize) -> RecordKey {
    loop {
        let key = new_key();
        if usize::from(cluster.slot(&name(key)).await / (16_384 / 3)).min(2) == nth {
            return key;
        }
    }
}

pub(crate) async fn is_on(server: &RedisServer, key: RecordKey) -> bool {
    server.command(&["EXISTS", &name(key)]).await == Value::Int(1)
}

struct Nodes(RedisCluster);

impl Nodes {
    async fn on(&self, command: &str, key: &RecordKey) -> Value {
        self.0.command(&[command, &name(*key)]).await
    }
}

impl World for Nodes {
    type Snapshot = Vec<u8>;

    fn tick(&self) -> Duration {
        Duration::from_millis(50)
    }

    async fn pass(&self, time: Duration) {
        sleep(time).await;
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
        for node in &self.0.nodes {
            let mut set = tower_idempotency_test_support::redis::Cmd::new();
            set.arg("SET").arg(name(*key)).arg(&record).arg("PX").arg(120_000);
            let mut connection = node.connection().await;
            if connection.send_packed_command(&set).await.unwrap() == Value::Okay {
                return;
            }
        }
        panic!("no node takes it")
    }

    async fn expires_in(&self, key: &RecordKey) -> Option<Duration> {
        match self.on("PTTL", key).await {
            Value::Int(-1) => Some(Duration::MAX),
            Value::Int(ms) => u64::try_from(ms).ok().map(Duration::from_millis),
            other => panic!("PTTL: {other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_contract_is_kept_by_a_cluster_with_names_in_many_slots() {
    let cluster = RedisCluster::start(false).await;
    let store = store(&cluster);
    contract::run_all(&store, &Nodes(cluster)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_are_on_all_nodes_and_all_of_them_are_listed_and_looked_at() {
    let cluster = RedisCluster::start(false).await;
    let store = store(&cluster);
    let mut keys = HashSet::new();
    for _ in 0..90 {
        keys.insert(granted(store.claim(claim(new_key())).await).key);
    }
    for node in &cluster.nodes {
        assert!(node.names().await.len() > 10);
    }
    let (mut listed, mut from) = (HashSet::new(), Some(Cursor::START));
    while let Some(cursor) = from {
        let page = store.scan(cursor, 10).await.unwrap();
        listed.extend(page.records.iter().map(|record| record.key));
        from = page.next;
    }
    assert_eq!(listed, keys);
    let report = store.preflight().await;
    assert!(report.is_passed(), "{report}");
    for what in ["slots", "scripts", "version"] {
        let found = report.findings().iter().filter(|found| found.what == what);
        assert_eq!(found.filter(|found| found.level == Level::Fine).count(), 3, "{what}: {report}");
    }
    assert!(store.scan(Cursor::from_bytes("x".into()), 10).await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_was_moved_is_followed_without_an_error() {
    let cluster = RedisCluster::start(false).await;
    let store = store(&cluster);
    let key = key_on(&cluster, 0).await;
    let slot = cluster.slot(&name(key)).await;
    let grant = granted(store.claim(claim(key)).await);
    cluster.begin_move(slot, 0, 1).await;
    // What is there is served where it is.
    assert_eq!(store.renew(&grant).await.unwrap(), Written::Stored);
    cluster.end_move(slot, 0, 1).await;
    assert_eq!(store.complete(&grant, kept("done")).await.unwrap(), Written::Stored);
    assert!(is_on(&cluster.nodes[1], key).await);
    assert_eq!(completed(store.claim(claim(key)).await), b"done");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_is_new_in_a_slot_on_the_move_is_granted_once_at_its_new_node() {
    let cluster = RedisCluster::start(false).await;
    let [one, other] = [store(&cluster), store(&cluster)];
    let key = key_on(&cluster, 0).await;
    let slot = cluster.slot(&name(key)).await;
    granted(one.claim(claim(new_key())).await);
    granted(other.claim(claim(new_key())).await);
    cluster.begin_move(slot, 0, 1).await;
    for node in &cluster.nodes {
        // So that both ways of running a script must say that they know of the move.
        node.command(&["SCRIPT", "FLUSH"]).await;
    }
    let grant = granted(one.claim(claim(key)).await);
    let busy = other.claim(claim(key)).await;
    assert!(matches!(busy, Ok(Claimed::InProgress(_))), "{busy:?}");
    assert_eq!(one.complete(&grant, kept("done")).await.unwrap(), Written::Stored);
    cluster.end_move(slot, 0, 1).await;
    assert_eq!(completed(other.claim(claim(key)).await), b"done");
    assert!(is_on(&cluster.nodes[1], key).await && !is_on(&cluster.nodes[2], key).await);
}

/// Claims, completes and asks again, twice at once, until it is over.
async fn load(stores: [RedisStore; 2], keys: Vec<RecordKey>) {
    for key in keys {
        let ask = |store: RedisStore| async move {
            let asked = claim(key);
            loop {
                match store.claim(asked.clone()).await {
                    Ok(Claimed::Granted(grant)) => {
                        assert!(store.complete(&grant, kept("done")).await.unwrap().is_stored());
                        return 1;
                    }
                    Ok(Claimed::Completed(_)) => return 0,
                    Ok(Claimed::InProgress(_) | Claimed::Free) | Err(_) => {
                        sleep(Duration::from_millis(2)).await;
                    }
                    Ok(other) => panic!("{other:?}"),
                }
            }
        };
        let [one, other] = stores.clone();
        let (first, second) = tokio::join!(tokio::spawn(ask(one)), tokio::spawn(ask(other)));
        assert_eq!(first.unwrap() + second.unwrap(), 1, "granted once");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_that_move_to_and_fro_under_load_grant_each_key_once() {
    let cluster = RedisCluster::start(false).await;
    let stores = [store(&cluster), store(&cluster)];
    // Keys of a few slots, which are moved all the while.
    let tag = {
        let key = key_on(&cluster, 0).await;
        cluster.slot(&name(key)).await
    };
    let mut keys = Vec::new();
    while keys.len() < 150 {
        let key = new_key();
        if cluster.slot(&name(key)).await.abs_diff(tag) < 60 {
            keys.push(key);
        }
    }
    let slots: HashSet<u16> = {
        let mut slots = HashSet::new();
        for key in &keys {
            slots.insert(cluster.slot(&name(*key)).await);
        }
        slots.into_iter().filter(|slot| *slot < 16_384 / 3).take(12).collect()
    };
    let loading = tokio::spawn(load(stores.clone(), keys.clone()));
    let mut at = 0;
    while !loading.is_finished() {
        let to = (at + 1) % 2;
        for slot in &slots {
            cluster.begin_move(*slot, at, to).await;
            cluster.end_move(*slot, at, to).await;
        }
        at = to;
    }
    loading.await.unwrap();
    for key in keys {
        assert_eq!(completed(stores[0].claim(claim(key)).await), b"done");
    }
}

/// Claims until it is granted; how long that took.
async fn until_granted(store: &RedisStore, asked: Claim) -> (Grant, Duration) {
    let started = Instant::now();
    loop {
        match store.claim(asked.clone()).await {
            Ok(Claimed::Granted(grant)) => return (grant, started.elapsed()),
            other => assert!(started.elapsed() < Duration::from_secs(20), "still: {other:?}"),
        }
        sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_primary_that_dies_is_followed_to_its_replica_and_others_do_not_notice() {
    let mut cluster = RedisCluster::start(true).await;
    let (log, _guard) = Log::listen();
    let store = store(&cluster);
    let (lost, well) = (key_on(&cluster, 0).await, key_on(&cluster, 1).await);
    let done = granted(store.claim(claim(lost)).await);
    store.complete(&done, kept("done")).await.unwrap();
    let held = granted(store.claim(claim(well)).await);
    // Its replica has it, as the record of a moment ago may not be.
    let started = Instant::now();
    while cluster.nodes[3].names().await.is_empty() {
        assert!(started.elapsed() < Duration::from_secs(5));
        sleep(Duration::from_millis(10)).await;
    }
    let fresh = [key_on(&cluster, 0).await, key_on(&cluster, 1).await];
    cluster.nodes[0].kill();
    assert!(store.claim(claim(lost)).await.is_err());
    let other = Instant::now();
    assert_eq!(store.renew(&held).await.unwrap(), Written::Stored);
    granted(store.claim(claim(fresh[1])).await);
    assert!(other.elapsed() < Duration::from_secs(1), "the other shards are well");
    let (_, took) = until_granted(&store, short_claim(fresh[0])).await;
    assert!(took < Duration::from_secs(15), "{took:?}");
    assert_eq!(completed(store.claim(claim(lost)).await), b"done");
    // The replica may not have had the last of it: owners write theirs again, and grants wait.
    assert_eq!(log.of("server changed").len(), 1, "{:?}", log.all());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_dies_under_load_lets_no_key_run_twice() {
    let mut cluster = RedisCluster::start(true).await;
    let stores = [store(&cluster), store(&cluster)];
    for store in &stores {
        // Each knows all three.
        assert!(store.preflight().await.findings().len() > 10);
    }
    let over = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..8)
        .map(|_| {
            let ([one, other], over) = (stores.clone(), over.clone());
            tokio::spawn(async move {
                let mut keys = 0;
                while !over.load(SeqCst) {
                    let key = new_key();
                    let runs = tokio::join!(
                        tokio::spawn(until_done(one.clone(), key)),
                        tokio::spawn(until_done(other.clone(), key))
                    );
                    assert_eq!(runs.0.unwrap() + runs.1.unwrap(), 1, "{key:?}");
                    keys += 1;
                }
                keys
            })
        })
        .collect();
    sleep(Duration::from_secs(1)).await;
    cluster.nodes[0].kill();
    sleep(Duration::from_secs(4)).await;
    over.store(true, SeqCst);
    let mut keys = 0;
    for client in clients {
        keys += client.await.unwrap();
    }
    assert!(keys > 50, "{keys}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_stopped_and_scripts_that_were_forgotten_hold_up_nobody_elsewhere() {
    let mut cluster = RedisCluster::start(false).await;
    let store = store(&cluster);
    let keys = [key_on(&cluster, 1).await, key_on(&cluster, 2).await, key_on(&cluster, 0).await];
    granted(store.claim(claim(new_key())).await);
    store.preflight().await;
    cluster.nodes[0].stop_signal();
    for node in &cluster.nodes[1..] {
        node.command(&["SCRIPT", "FLUSH"]).await;
    }
    for key in &keys[..2] {
        let started = Instant::now();
        granted(store.claim(claim(*key)).await);
        assert!(started.elapsed() < Duration::from_millis(900), "{:?}", started.elapsed());
    }
    let started = Instant::now();
    assert!(store.claim(claim(keys[2])).await.is_err());
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    cluster.nodes[0].cont_signal();
}

/// What clients send to the server from now on, a line a command.
async fn sent_to(server: &RedisServer) -> BufReader<TcpStream> {
    let mut stream = BufReader::new(TcpStream::connect(server.address()).await.unwrap());
    stream.write_all(b"MONITOR\r\n").await.unwrap();
    let mut line = String::new();
    stream.read_line(&mut line).await.unwrap();
    assert_eq!(line, "+OK\r\n");
    stream
}

/// How often a script was sent for this record before the server was sent this word.
async fn scripts_before(sent: &mut BufReader<TcpStream>, record: &str, word: &str) -> usize {
    let mut scripts = 0;
    loop {
        let mut line = String::new();
        assert!(sent.read_line(&mut line).await.unwrap() > 0, "the server is there");
        if line.contains(word) {
            return scripts;
        }
        scripts += usize::from(line.contains("\"EVAL") && line.contains(record));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_whose_answer_is_lost_is_not_sent_again_behind_the_callers_back() {
    // A cluster of one node, which names the proxy as its address.
    let proxy = Proxy::to(([127, 0, 0, 1], 1).into()).await;
    let port = proxy.address().port().to_string();
    let node = RedisServer::builder().cluster_node().argument("--cluster-announce-port", &port);
    let server = node.start().await;
    proxy.lead_to(server.address());
    server.add_slots(0..16_384).await;
    let url = proxy.redis_url();
    let store = RedisStore::of(RedisServers::cluster([&*url]).unwrap()).unwrap();
    let started = Instant::now();
    while store.claim(claim(new_key())).await.is_err() {
        assert!(started.elapsed() < Duration::from_secs(10));
        sleep(Duration::from_millis(50)).await;
    }
    let mut sent = sent_to(&server).await;
    let asked = loop {
        let asked = claim(new_key());
        proxy.cut_at_reply();
        match store.claim(asked.clone()).await {
            Err(lost) => {
                assert!(lost.is_unreachable(), "{lost}");
                break asked;
            }
            // The answer that was lost was that of the look at the canary.
            Ok(_) => sleep(Duration::from_millis(50)).await,
        }
        assert!(started.elapsed() < Duration::from_secs(20), "nothing is cut");
    };
    // Long enough for whoever would send it again.
    sleep(Duration::from_millis(300)).await;
    server.command(&["ECHO", "so far"]).await;
    assert_eq!(scripts_before(&mut sent, &name(asked.key), "so far").await, 1, "it ran, once");
    let grant = granted(store.claim(asked).await);
    assert_eq!(grant.attempt, 1);
}

#[tokio::test]
async fn a_cluster_that_is_not_there_or_is_none_is_an_error_in_time() {
    let gone = RedisStore::of(RedisServers::cluster(["redis://127.0.0.1:1"]).unwrap()).unwrap();
    let started = Instant::now();
    let error = gone.claim(claim(new_key())).await.unwrap_err();
    assert!(error.is_unreachable() && error.to_string().contains("127.0.0.1:1"), "{error}");
    assert!(started.elapsed() < Duration::from_secs(2));
    let report = gone.preflight().await;
    assert!(!report.is_passed());
    let server = RedisServer::start().await;
    let none = RedisStore::of(RedisServers::cluster([&*server.url()]).unwrap()).unwrap();
    let error = none.claim(claim(new_key())).await.unwrap_err();
    assert!(error.to_string().contains("cluster"), "{error}");
    assert!(RedisServers::cluster([]).is_err());
}
