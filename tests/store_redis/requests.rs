//! Keyed requests through the layers of two processes, while a cluster is re-sharded and fails over and
//! while sentinels replace a primary: what a client hears, and how often its handler ran.

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};
use tower::{ServiceBuilder, ServiceExt, service_fn};
use tower_idempotency::{
    IdempotencyLayer, Operation, Policy, Previous, RedisStore, Refusal, RefusalKind, RequestBody,
    Rule, State, Store, header,
    store::{Cursor, RedisServers},
};
use tower_idempotency_test_support::RedisCluster;

use crate::sentinel::Site;

/// After a change nothing is granted for a third of it and a second.
const LEASE: Duration = Duration::from_secs(6);
const HANDLER: Duration = Duration::from_millis(20);
/// A claim with its resends, a look, the handler, a renewal on its way and two calls that store the
/// answer, and what busy cores add.
const ANSWER_WITHIN: Duration = Duration::from_millis(1500 + 500 + 20 + 3 * 500 + 2500);
/// An election, the pause after it, and as much again.
const BACK_WITHIN: Duration = Duration::from_secs(30);

type Asked = Request<RequestBody<Full<Bytes>>>;

/// What the clients and the handlers of both processes share.
#[derive(Default)]
struct Load {
    next: AtomicUsize,
    over: AtomicBool,
    /// The fences under which each key ran.
    runs: Mutex<BTreeMap<String, Vec<u64>>>,
    refused: Mutex<BTreeSet<&'static str>>,
}

impl Load {
    /// What the handler does: it writes down that it ran, and answers its fence.
    async fn handle(&self, request: Asked) -> Result<Response<Full<Bytes>>, Infallible> {
        let operation = request.extensions().get::<Operation>().expect("nothing runs ungranted");
        assert_eq!((operation.attempt(), operation.previous()), (1, Previous::Nothing));
        let fence = operation.fence().get();
        self.started(operation.key(), fence);
        sleep(HANDLER).await;
        Ok(Response::new(Full::new(fence.to_string().into())))
    }

    /// Delivers once, and says what was answered if it is the handler's answer.
    async fn deliver(self: &Arc<Self>, layer: &IdempotencyLayer, key: &str) -> Option<Bytes> {
        let load = self.clone();
        let handler = service_fn(move |request: Asked| {
            let load = load.clone();
            async move { load.handle(request).await }
        });
        let service = ServiceBuilder::new().layer(layer.clone()).service(handler);
        let request = Request::post("/pay").header("idempotency-key", key);
        let sent = Instant::now();
        let answer = service.oneshot(request.body(Full::default()).unwrap()).await.unwrap();
        let (head, body) = answer.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        assert!(sent.elapsed() < ANSWER_WITHIN, "{key}: {:?}", sent.elapsed());
        let Some(refusal) = head.extensions.get::<Refusal>() else {
            assert_eq!(head.status, StatusCode::OK);
            return Some(body);
        };
        match refusal.kind() {
            RefusalKind::StoreUnavailable | RefusalKind::InProgress => {}
            // An answer that cannot be stored for a whole lease; but something did run.
            RefusalKind::OutcomeUnknown => assert!(self.ran(key) > 0, "{key} never ran"),
            other => panic!("{key}: {other:?}"),
        }
        self.refused.lock().unwrap().insert(refusal.kind().name());
        None
    }

    async fn until_answered(self: &Arc<Self>, layer: &IdempotencyLayer, key: &str) -> Bytes {
        let since = Instant::now();
        loop {
            if let Some(answer) = self.deliver(layer, key).await {
                return answer;
            }
            assert!(since.elapsed() < BACK_WITHIN, "{key} is not answered");
            sleep(Duration::from_millis(20)).await;
        }
    }

    fn started(&self, key: &str, fence: u64) {
        self.runs.lock().unwrap().entry(key.to_owned()).or_default().push(fence);
    }

    fn ran(&self, key: &str) -> usize {
        self.runs.lock().unwrap().get(key).map_or(0, Vec::len)
    }

    /// Delivers one key after the other, each to both processes at once; how many there were.
    async fn client(self: Arc<Self>, layers: [IdempotencyLayer; 2]) -> usize {
        let mut keys = 0;
        while !self.over.load(SeqCst) {
            let key = format!("key-{}", self.next.fetch_add(1, SeqCst));
            let [one, other] = &layers;
            let (one, other) =
                tokio::join!(self.until_answered(one, &key), self.until_answered(other, &key));
            assert_eq!(one, other, "{key}");
            keys += 1;
            sleep(Duration::from_millis(10)).await;
        }
        keys
    }
}

/// Puts a load on two processes with these stores while `trouble` goes on, and judges what came of it.
async fn under_load(stores: [RedisStore; 2], trouble: impl Future<Output = ()>) {
    let layers = stores.clone().map(|store| {
        let policy = Policy::webhook(header("idempotency-key")).lease(LEASE);
        IdempotencyLayer::new(store, Rule::new("pay", policy))
    });
    let load = Arc::new(Load::default());
    let mut clients = JoinSet::new();
    for _ in 0..8 {
        clients.spawn(load.clone().client(layers.clone()));
    }
    trouble.await;
    // By itself it is well again: a key that nobody has sent before is run.
    load.until_answered(&layers[0], "after").await;
    load.over.store(true, SeqCst);
    let keys = timeout(BACK_WITHIN, clients.join_all()).await.expect("no key stays busy");
    let keys: usize = keys.into_iter().sum();
    assert!(keys > 50, "there was a load: {keys}");

    let runs = load.runs.lock().unwrap().clone();
    assert_eq!(runs.len(), keys + 1);
    for (key, fences) in &runs {
        assert_eq!(fences.len(), 1, "{key} ran under {fences:?}");
    }
    for layer in &layers {
        let drained = layer.drain(Duration::from_secs(5)).await;
        assert_eq!((drained.running, drained.unsent), (0, 0));
    }
    // Each run has its record, by its own grant, and nobody holds one.
    let ran: BTreeSet<u64> = runs.into_values().flatten().collect();
    assert_eq!(completed(&stores[1]).await, ran);
    println!("{keys} keys, refused: {:?}", load.refused.lock().unwrap());
}

/// The fences of all records that are completed, as all must be that stand for anything.
async fn completed(store: &RedisStore) -> BTreeSet<u64> {
    let (mut fences, mut from) = (BTreeSet::new(), Some(Cursor::START));
    while let Some(cursor) = from {
        let page = store.scan(cursor, 500).await.unwrap();
        for record in page.records {
            match record.state {
                State::Completed => drop(fences.insert(record.mark.fence.get())),
                // Called off: as good as absent.
                State::Released if record.attempt == 0 => {}
                _ => panic!("nobody runs, but there is {record:?}"),
            }
        }
        from = page.next;
    }
    fences
}

/// Stores of a cluster all of whose records are in one slot, so that all that is asked meets its moves.
fn of_one_slot(cluster: &RedisCluster) -> [RedisStore; 2] {
    let urls = cluster.urls();
    [(); 2].map(|()| {
        let servers = RedisServers::cluster(urls.iter().map(String::as_str)).unwrap();
        RedisStore::of(servers).unwrap().prefix("{shop}")
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_a_cluster_is_resharded_under_requests_each_key_runs_once() {
    let cluster = RedisCluster::start(false).await;
    let slot = cluster.slot("{shop}").await;
    let mut at = usize::from(slot / (16_384 / 3)).min(2);
    under_load(of_one_slot(&cluster), async {
        sleep(Duration::from_millis(500)).await;
        for _ in 0..9 {
            let to = (at + 1) % 3;
            cluster.begin_move(slot, at, to).await;
            sleep(Duration::from_millis(150)).await;
            cluster.end_move(slot, at, to).await;
            at = to;
            sleep(Duration::from_millis(100)).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_a_primary_of_a_cluster_dies_under_requests_each_key_runs_once() {
    let mut cluster = RedisCluster::start(true).await;
    let slot = cluster.slot("{shop}").await;
    let at = usize::from(slot / (16_384 / 3)).min(2);
    under_load(of_one_slot(&cluster), async {
        sleep(Duration::from_secs(1)).await;
        cluster.nodes[at].kill();
        sleep(Duration::from_secs(4)).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_sentinels_replace_a_primary_under_requests_each_key_runs_once() {
    let site = Site::new().await;
    under_load([site.store(), site.store()], async {
        sleep(Duration::from_millis(500)).await;
        site.sentinels.fail_over().await;
        // The old one lives, and is demoted only some seconds later.
        sleep(Duration::from_secs(4)).await;
    })
    .await;
}
