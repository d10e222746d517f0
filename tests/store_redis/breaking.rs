//! A layer over a Redis that hangs in each way there is: every request is answered in time, nothing runs, and
//! what nothing ran for may run once the server is back.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tokio::{net::TcpListener, task::JoinSet};
use tower::{ServiceBuilder, ServiceExt, service_fn};
use tower_idempotency::{
    Handled, IdempotencyLayer, Policy, RedisStore, Refusal, RefusalKind, RequestBody, Rule, Scope,
    Store, StoreError,
    store::{Claimed, RedisCommand, RedisConnection, RedisServers, RedisValue},
};
use tower_idempotency_test_support::{RedisCluster, RedisServer};

use crate::{
    cluster::{key_on, store},
    loss::{is_held, until},
    support::{HOLD, Value, claim, claim_until_granted, granted, kept, new_key, short_claim},
};

/// A claim with its resends has a second and a half; the rest is for a busy machine.
const IN_TIME: Duration = Duration::from_millis(1500 + 1500);

type Asked = Request<RequestBody<Full<Bytes>>>;

/// A layer, and how often what is in it ran.
#[derive(Clone)]
struct House {
    layer: IdempotencyLayer,
    runs: Arc<AtomicUsize>,
}

impl House {
    fn new(store: RedisStore) -> Self {
        Self::of(store, Policy::api(Scope::everyone()))
    }

    fn of(store: RedisStore, policy: Policy) -> Self {
        Self { layer: IdempotencyLayer::new(store, Rule::new("pay", policy)), runs: Arc::default() }
    }

    async fn send(&self, key: String) -> (Option<Handled>, Option<RefusalKind>, Duration) {
        let runs = self.runs.clone();
        let handler = service_fn(move |_: Asked| {
            runs.fetch_add(1, SeqCst);
            async { Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(b"done")))) }
        });
        let service = ServiceBuilder::new().layer(self.layer.clone()).service(handler);
        let request = Request::post("/pay").header("idempotency-key", key);
        let began = Instant::now();
        let answer = service.oneshot(request.body(Full::new(Bytes::new())).unwrap()).await.unwrap();
        let refused = answer.extensions().get().map(Refusal::kind);
        (answer.extensions().get().copied(), refused, began.elapsed())
    }

    /// Sends so many at once, each of which is refused in time.
    async fn refused_in_time(&self, what: &str, requests: usize) {
        let mut all = JoinSet::new();
        for nth in 0..requests {
            let (house, key) = (self.clone(), format!("{what}-{nth}"));
            all.spawn(async move { house.send(key).await });
        }
        while let Some(sent) = all.join_next().await {
            let (handled, refused, took) = sent.unwrap();
            assert_eq!((handled, refused), (None, Some(RefusalKind::StoreUnavailable)), "{what}");
            assert!(took < IN_TIME, "{what}: {took:?}");
        }
        assert_eq!(self.runs.load(SeqCst), 0, "{what}");
    }
}

/// A connection of the program's own that is no good.
struct Own {
    panics: bool,
    sent: Arc<AtomicUsize>,
}

impl RedisConnection for Own {
    async fn send(&self, _: Vec<RedisCommand>) -> Result<Vec<RedisValue>, StoreError> {
        self.sent.fetch_add(1, SeqCst);
        assert!(!self.panics, "the adapter's own panic");
        std::future::pending().await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_a_connection_that_never_answers_each_request_is_refused_in_time() {
    let store = RedisStore::over(Own { panics: false, sent: Arc::default() });
    let house = House::new(store);
    for round in 0..4 {
        house.refused_in_time(&format!("mute-{round}"), 30).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_adapter_that_panics_is_not_asked_all_the_time_and_each_request_is_refused_in_time() {
    let sent = Arc::<AtomicUsize>::default();
    let store = RedisStore::over(Own { panics: true, sent: sent.clone() });
    let house = House::new(store);
    let began = Instant::now();
    house.refused_in_time("panics", 20).await;
    let sent = sent.load(SeqCst);
    assert!(sent < 40, "{sent} times in {:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tls_handshake_that_hangs_holds_up_no_request() {
    let mute = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = mute.local_addr().unwrap().port();
    let servers = RedisServers::url(&format!("rediss://127.0.0.1:{port}")).unwrap();
    let house = House::new(RedisStore::of(servers).unwrap());
    for round in 0..4 {
        house.refused_in_time(&format!("tls-{round}"), 30).await;
    }
    // And one that is accepted and says nothing.
    let accepting = tokio::spawn(async move {
        let mut streams = Vec::new();
        while let Ok((stream, _)) = mute.accept().await {
            streams.push(stream);
        }
    });
    for round in 0..2 {
        house.refused_in_time(&format!("accepted-{round}"), 30).await;
    }
    accepting.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_and_nodes_that_hang_hold_up_no_request() {
    let mute = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}", mute.local_addr().unwrap());
    let sentinel =
        RedisServers::sentinel([&url[..], &url[..], &url[..]], "redis://mymaster").unwrap();
    let cluster = RedisServers::cluster([&url[..], &url[..]]).unwrap();
    for (name, servers) in [("sentinel", sentinel), ("cluster", cluster)] {
        let house = House::new(RedisStore::of(servers).unwrap());
        for round in 0..3 {
            house.refused_in_time(&format!("{name}-{round}"), 30).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_that_wait_for_replicas_that_are_not_there_are_refused_in_time_and_called_off() {
    let server = RedisServer::start().await;
    let store = RedisStore::connect(&server.url()).await.unwrap();
    let waiting = store.clone().wait_for_replicas(1, Duration::from_millis(400));
    let house = House::new(waiting);
    house.refused_in_time("waits", 100).await;
    let left = house.layer.drain(Duration::from_secs(20)).await;
    assert!(left.is_clean(), "{left:?}");
    let plain = House::new(store);
    for nth in 0..100 {
        let (handled, refused, _) = plain.send(format!("waits-{nth}")).await;
        assert_eq!(refused, None, "{nth}");
        assert!(matches!(handled, Some(Handled::Executed { .. })));
    }
}

#[test]
fn a_connection_whose_runtime_stands_still_holds_up_nobody_elsewhere() {
    let run = |threads| {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(threads)
            .enable_all()
            .build()
            .unwrap()
    };
    let (servers, other) = (run(1), run(2));
    let server = servers.block_on(RedisServer::start());
    let still = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let store = still.block_on(RedisStore::connect(&server.url())).unwrap();
    let house = House::new(store);
    still.block_on(house.send("first".to_owned()));
    // From here on nobody runs that one.
    other.block_on(async {
        let began = Instant::now();
        let mut nth = 0;
        loop {
            let (handled, refused, took) = house.send(format!("still-{nth}")).await;
            assert!(took < IN_TIME, "{took:?}");
            if handled.is_some() {
                break;
            }
            assert_eq!(refused, Some(RefusalKind::StoreUnavailable));
            assert!(began.elapsed() < Duration::from_secs(8), "it does not come back");
            nth += 1;
        }
        // What was not granted to anybody is free, now or once it was called off.
        let began = Instant::now();
        for key in 0..nth {
            while house.send(format!("still-{key}")).await.0.is_none() {
                assert!(began.elapsed() < Duration::from_secs(8), "still-{key} stays refused");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    });
    assert_eq!(other.block_on(house.layer.drain(Duration::from_secs(8))).unsent, 0);
}

/// How long a claim may wait that only waits for replicas.
const REPLICAS_WITHIN: Duration = Duration::from_millis(200);

#[tokio::test]
async fn claims_that_wait_for_replicas_of_a_cluster_that_was_never_used_otherwise_are_granted() {
    let cluster = RedisCluster::start(true).await;
    let urls = cluster.urls();
    let servers = RedisServers::cluster(urls.iter().map(|url| &url[..])).unwrap();
    let store = RedisStore::of(servers).unwrap().wait_for_replicas(1, REPLICAS_WITHIN);
    for _ in 0..30 {
        granted(store.claim(short_claim(new_key())).await);
    }
}

#[tokio::test]
async fn claims_that_wait_for_replicas_are_granted_again_by_a_server_that_was_restarted() {
    let server = RedisServer::builder().append_only();
    let mut server = server.argument("--repl-diskless-sync-delay", "0").start().await;
    let done = claim(new_key());
    let one = RedisStore::connect(&server.url()).await.unwrap();
    let grant = claim_until_granted(&one, &done).await;
    one.complete(&grant, kept("done")).await.unwrap();
    let replica = RedisServer::builder().replica_of(&server).start().await;
    let store = RedisStore::lazy(&server.url()).unwrap().wait_for_replicas(1, REPLICAS_WITHIN);
    // All it has been asked for is a replay.
    let again = store.claim(claim(done.key)).await;
    assert!(matches!(again, Ok(Claimed::Completed(_))), "{again:?}");
    server.kill();
    server.restart().await;
    let (asked, began) = (short_claim(new_key()), Instant::now());
    loop {
        match store.claim(asked.clone()).await {
            Ok(Claimed::Granted(_)) => break,
            // The replica has to find it again too.
            still => assert!(began.elapsed() < Duration::from_secs(20), "{still:?}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    drop(replica);
}

/// What the node says its history of data is called.
async fn history(server: &RedisServer) -> String {
    let Value::BulkString(info) = server.command(&["INFO", "replication"]).await else {
        panic!("no info")
    };
    let info = String::from_utf8(info).unwrap();
    info.lines().find_map(|line| line.strip_prefix("master_replid:")).unwrap().trim().to_owned()
}

#[tokio::test]
async fn a_successor_is_known_though_its_primary_had_no_replica_when_it_was_connected_to() {
    let mut cluster = RedisCluster::start(true).await;
    let store = store(&cluster);
    let known = key_on(&cluster, 0).await;
    let mut asked = claim(known);
    asked.lease = HOLD;
    granted(store.claim(asked).await);
    // A primary that had no replica for a while calls its history another name for the next.
    let before = history(&cluster.nodes[0]).await;
    cluster.nodes[0].command(&["CONFIG", "SET", "repl-backlog-ttl", "1"]).await;
    cluster.nodes[3].stop_signal();
    cluster.nodes[0].command(&["CLIENT", "KILL", "TYPE", "replica"]).await;
    until(async || history(&cluster.nodes[0]).await != before).await;
    cluster.nodes[3].cont_signal();
    until(async || {
        let name = history(&cluster.nodes[0]).await;
        name != before && history(&cluster.nodes[3]).await == name
    })
    .await;
    tokio::time::sleep(Duration::from_secs(7)).await;
    cluster.nodes[0].kill();
    let is_there = async || {
        let met = store.claim(claim(known)).await;
        met.is_ok_and(|met| matches!(met, Claimed::InProgress(_)))
    };
    until(is_there).await;
    let mut asked = claim(key_on(&cluster, 0).await);
    asked.lease = HOLD;
    is_held(store.claim(asked).await);
}

#[tokio::test]
async fn a_server_that_got_its_first_replica_is_the_same_after_a_blip() {
    let server = RedisServer::builder().argument("--repl-diskless-sync-delay", "0").start().await;
    let store = RedisStore::connect(&server.url()).await.unwrap();
    granted(store.claim(claim(new_key())).await);
    let before = history(&server).await;
    let replica = RedisServer::builder().replica_of(&server).start().await;
    until(async || history(&replica).await != before).await;
    until(async || history(&server).await == history(&replica).await).await;
    assert_ne!(history(&server).await, before);
    tokio::time::sleep(Duration::from_secs(7)).await;
    server.command(&["CLIENT", "KILL", "TYPE", "normal"]).await;
    let began = Instant::now();
    // After a change it would be nearly eight seconds.
    claim_until_granted(&store, &claim(new_key())).await;
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
}
