//! Redis itself is killed, stopped and started again under load.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use serde_json::json;
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};
use tower_idempotency_test_support::RedisServer;

use crate::site::{Address, CLAIM_WITHIN, SLACK, Site, assert_records_are_of, times};

const LEASE: Duration = Duration::from_secs(3);
const HANDLER: Duration = Duration::from_millis(40);
/// The claim, the handler, and one call for the completion after a renewal that is on its way.
const ANSWER_WITHIN: Duration = Duration::from_millis(2000 + 40 + 1000 + 1500);
/// Longer than a lease, and than any answer may take.
const LONG_STALL: Duration = Duration::from_millis(5500);

/// What the clients share.
#[derive(Default)]
struct Load {
    next: AtomicU32,
    over: AtomicBool,
    /// The kinds of refusals that were heard.
    refused: Mutex<BTreeSet<String>>,
}

impl Load {
    /// Delivers one key after another, each to both servers at once and until both answers are
    /// final; how long the last one took to be so.
    async fn client(self: Arc<Self>, servers: [Address; 2]) -> u32 {
        let mut delivered = 0;
        while !self.over.load(Relaxed) {
            let id = format!("key-{}", self.next.fetch_add(1, Relaxed));
            let (one, other) =
                tokio::join!(self.until_final(servers[0], &id), self.until_final(servers[1], &id));
            assert_eq!(one, other, "{id}");
            delivered += 1;
            sleep(Duration::from_millis(150)).await;
        }
        delivered
    }

    async fn until_final(&self, server: Address, id: &str) -> String {
        let run = json!({ "id": id, "takes_ms": HANDLER.as_millis() as u64 });
        loop {
            let answer = server.send(&run).await;
            assert!(answer.took < ANSWER_WITHIN, "{id}: {answer:?}");
            if answer.is_final() {
                return answer.body;
            }
            for kind in ["store_unavailable", "in_progress", "outcome_unknown"] {
                if answer.is_refusal(kind) {
                    self.refused.lock().unwrap().insert(kind.to_owned());
                }
            }
            assert_eq!(answer.status, 503, "{answer:?}");
            sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Everything that can happen to a Redis that keeps its writes.
async fn break_it(redis: &mut RedisServer) {
    let calm = || sleep(Duration::from_millis(600));
    calm().await;
    redis.restart().await;
    calm().await;
    redis.kill();
    sleep(Duration::from_millis(700)).await;
    redis.restart().await;
    calm().await;
    redis.stop_signal();
    sleep(Duration::from_millis(1000)).await;
    redis.cont_signal();
    calm().await;
    redis.stop_signal();
    sleep(LONG_STALL).await;
    redis.cont_signal();
    calm().await;
    redis.stop_signal();
    sleep(Duration::from_millis(300)).await;
    redis.restart().await;
}

/// Everything that a Redis may refuse while it is there.
async fn trouble_it(redis: &mut RedisServer) {
    let calm = || sleep(Duration::from_millis(600));
    calm().await;
    // Full.
    redis.command(&["CONFIG", "SET", "maxmemory", "1"]).await;
    calm().await;
    redis.command(&["CONFIG", "SET", "maxmemory", "0"]).await;
    calm().await;
    // Without the replicas that it should have.
    redis.command(&["CONFIG", "SET", "min-replicas-to-write", "1"]).await;
    calm().await;
    redis.command(&["CONFIG", "SET", "min-replicas-to-write", "0"]).await;
    calm().await;
    redis.command(&["CLIENT", "PAUSE", "800", "WRITE"]).await;
    sleep(Duration::from_millis(1000)).await;
    redis.command(&["SCRIPT", "FLUSH"]).await;
    calm().await;
    // Demoted, and promoted again: its connections stay all the while.
    redis.command(&["REPLICAOF", "127.0.0.1", "1"]).await;
    calm().await;
    redis.command(&["REPLICAOF", "NO", "ONE"]).await;
    sleep(Duration::from_millis(2500)).await;
    redis.command(&["CLIENT", "KILL", "TYPE", "normal"]).await;
    calm().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_killed_stopped_and_restarted_under_load_loses_no_run_and_starts_none_twice() {
    under_load(async |redis| break_it(redis).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_full_paused_demoted_and_without_replicas_under_load_starts_no_run_twice() {
    under_load(async |redis| trouble_it(redis).await).await;
}

async fn under_load(trouble: impl AsyncFn(&mut RedisServer)) {
    let mut redis = RedisServer::builder().append_only().start().await;
    let site = Site::new().lease(LEASE);
    let servers = [site.server(&redis.url()), site.server(&redis.url())];
    let load = Arc::new(Load::default());
    let mut clients = JoinSet::new();
    for _ in 0..16 {
        clients.spawn(load.clone().client([servers[0].address, servers[1].address]));
    }
    for _ in 0..times() {
        trouble(&mut redis).await;
    }
    let recovered = Instant::now();
    load.over.store(true, Relaxed);
    // Each client ends with the key it is at: all are usable again, whatever had befallen them.
    let delivered = timeout(LEASE + SLACK, clients.join_all()).await;
    let delivered: u32 = delivered.expect("keys are usable again within a lease").into_iter().sum();
    println!("{delivered} keys, usable again after {:?}", recovered.elapsed());

    let runs = site.runs();
    assert_eq!(runs.started.len(), delivered as usize);
    assert!(delivered > 60, "there was a load: {delivered}");
    runs.assert_each_once();
    for id in runs.started.keys() {
        assert!(runs.has_ended(&runs.only(id)));
    }
    let refused = load.refused.lock().unwrap().clone();
    assert!(refused.contains("store_unavailable"), "Redis was away: {refused:?}");
    // The grants of the runs are those in Redis, and no record is held by anybody.
    assert_records_are_of(&runs, &redis).await;
    servers.into_iter().for_each(crate::site::Server::stop);
}

#[tokio::test(flavor = "multi_thread")]
async fn while_redis_is_away_nothing_is_run_and_its_keys_are_free_when_it_is_back() {
    let mut redis = RedisServer::builder().append_only().start().await;
    let site = Site::new().lease(LEASE);
    let server = site.server(&redis.url());
    assert!(server.address.deliver("first").await.is_final());
    redis.kill();
    for key in 0..5 {
        let answer = server.address.deliver(&format!("key-{key}")).await;
        answer.assert_refusal("store_unavailable");
        assert!(answer.took < CLAIM_WITHIN + SLACK, "{answer:?}");
    }
    assert_eq!(site.runs().started.len(), 1);
    redis.restart().await;
    for key in 0..5 {
        let run = json!({ "id": format!("key-{key}") });
        // A third of the lease and a second, in which a living owner could write its record again.
        let within = LEASE / 3 + Duration::from_secs(1) + SLACK;
        assert!(!server.address.deliver_until_final(&run, within).await.replayed);
    }
    assert!(server.address.deliver("first").await.replayed, "Redis keeps what it has written");
    site.runs().assert_each_once();
    server.stop();
}

/// Sends so many deliveries of new keys, a few at a time, all of which are refused.
#[cfg(target_os = "linux")]
async fn refused(server: Address, name: &str, count: u32) {
    let next = Arc::new(AtomicU32::new(0));
    let mut clients = JoinSet::new();
    for _ in 0..16 {
        let (next, name) = (next.clone(), name.to_owned());
        clients.spawn(async move {
            loop {
                let nth = next.fetch_add(1, Relaxed);
                if nth >= count {
                    return;
                }
                server.deliver(&format!("{name}-{nth}")).await.assert_refusal("store_unavailable");
            }
        });
    }
    clients.join_all().await;
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn while_redis_is_away_what_is_unprotected_is_answered_at_once_and_memory_is_flat() {
    let mut redis = RedisServer::builder().append_only().start().await;
    let site = Site::new().lease(LEASE);
    let server = site.server(&redis.url());
    assert!(server.address.deliver("first").await.is_final());
    assert_eq!(server.address.unprotected().await.0, 405, "axum's word: it passed the layer");
    // There and mute, so that claims are on their way when it is given up.
    redis.stop_signal();
    refused(server.address, "mute", 50).await;
    redis.cont_signal();
    redis.kill();
    // What a process needs for so many connections and refusals it has by then.
    refused(server.address, "warm", 4000).await;
    let before = server.resident();
    let (mut slowest, refusing) = (Duration::ZERO, refused(server.address, "away", 12_000));
    let mut refusing = std::pin::pin!(refusing);
    loop {
        tokio::select! {
            () = &mut refusing => break,
            (status, took) = server.address.unprotected() => {
                assert_eq!(status, 405);
                slowest = slowest.max(took);
            }
        }
        sleep(Duration::from_millis(20)).await;
    }
    let grown = server.resident().saturating_sub(before);
    println!("{grown} bytes more, unprotected within {slowest:?}");
    assert!(slowest < SLACK, "{slowest:?}");
    // A claim that is kept to be called off is half a kilobyte and more, and there were 12,000.
    assert!(grown < 4 << 20, "{grown} bytes");
    redis.restart().await;
    let within = LEASE / 3 + Duration::from_secs(1) + SLACK;
    server.address.deliver_until_final(&json!({ "id": "mute-0" }), within).await;
    site.runs().assert_each_once();
    server.stop();
}
