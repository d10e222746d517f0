//! What these tests share: a shop whose handler can be held, requests to it, and servers around it.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    thread,
    time::{Duration, Instant},
};

use axum::{
    Router,
    body::Body,
    extract::Request as AxumRequest,
    handler::Handler,
    middleware::{Next, from_fn},
    response::Response as AxumResponse,
    routing::any,
};
use bytes::Bytes;
use http::{Request, Response, header::RETRY_AFTER};
use http_body::{Body as HttpBody, Frame};
use http_body_util::{BodyExt, Full};
use tokio::{
    runtime::{Builder, Runtime},
    sync::{mpsc, watch},
    task::{JoinHandle, JoinSet},
};
use tower::ServiceExt;
use tower_idempotency::{
    IdempotencyLayer, Policy, RecordKey, RedisStore, Rule, Scope, Store, json, store::Cursor,
};
pub(crate) use tower_idempotency_test_support::{RawClient, RedisServer, Runs, Server};

pub(crate) type Answer = Response<Bytes>;
pub(crate) type Sent = Request<Full<Bytes>>;

/// The usual policy of an API, with nobody's scope.
pub(crate) fn api() -> Policy {
    Policy::api(Scope::everyone())
}

/// The usual policy of notifications.
pub(crate) fn webhook() -> Policy {
    Policy::webhook(json("/notifyId"))
}

/// A POST to this path with this key.
pub(crate) fn keyed(path: &str, key: &str, body: impl Into<Bytes>) -> Sent {
    let request = Request::post(path).header("idempotency-key", key);
    request.body(Full::new(body.into())).expect("a request")
}

/// A POST to `/pay` with this key.
pub(crate) fn pay(key: &str) -> Sent {
    keyed("/pay", key, "amount=20")
}

/// A POST to this path with this body and no key.
pub(crate) fn post(path: &str, body: impl Into<Bytes>) -> Sent {
    Request::post(path).body(Full::new(body.into())).expect("a request")
}

/// The notification of this id.
pub(crate) fn notify(id: &str) -> Sent {
    post("/notify", format!(r#"{{"notifyId":"{id}"}}"#))
}

/// The layer of these tests: one rule, whose name is the same everywhere.
pub(crate) fn layer(store: impl Store, policy: Policy) -> IdempotencyLayer {
    IdempotencyLayer::new(store, Rule::new("shop", policy))
}

/// `handler` on `/pay` and `/notify`, every method, inside of this layer.
pub(crate) fn around<H, T>(layer: IdempotencyLayer, handler: H) -> Router
where
    H: Handler<T, ()>,
    T: 'static,
{
    bare(handler).route_layer(layer)
}

/// The same without the layer.
pub(crate) fn bare<H, T>(handler: H) -> Router
where
    H: Handler<T, ()>,
    T: 'static,
{
    let handler = any(handler);
    Router::new().route("/pay", handler.clone()).route("/notify", handler)
}

/// Serves `handler` over this store with this policy.
pub(crate) async fn serve<H, T>(store: impl Store, policy: Policy, handler: H) -> Arc<Server>
where
    H: Handler<T, ()>,
    T: 'static,
{
    start(around(layer(store, policy), handler)).await
}

/// Serves a router.
pub(crate) async fn start(router: Router) -> Arc<Server> {
    Arc::new(Server::start(router).await)
}

/// Sends in a task of its own, which ends its connection when it is aborted.
pub(crate) fn send_aside(server: &Arc<Server>, request: Sent) -> JoinHandle<Answer> {
    let server = server.clone();
    tokio::spawn(async move { server.send(request).await })
}

/// Sends as many copies at once, spread over the servers. All but one are refused while the one
/// runs; then it is let go. Gives back the refusals and the answer.
pub(crate) async fn all_at_once(
    servers: &[Arc<Server>],
    shop: &Shop,
    copies: usize,
    request: impl Fn() -> Sent,
) -> (Vec<Answer>, Answer) {
    shop.hold();
    let before = shop.runs();
    let mut sending = JoinSet::new();
    for (copy, server) in servers.iter().cycle().take(copies).enumerate() {
        let (server, request) = (server.clone(), request());
        sending.spawn(async move { (copy, server.send(request).await) });
    }
    let mut next = async || sending.join_next().await.expect("one is left").expect("no panic").1;
    let mut refused = Vec::new();
    while refused.len() + 1 < copies {
        refused.push(next().await);
    }
    shop.started.wait_for(before + 1).await;
    shop.let_go();
    let answer = next().await;
    assert_eq!(shop.runs(), before + 1, "and no other");
    (refused, answer)
}

/// Sends a request to a router in this process, without a network: for tests with paused time.
pub(crate) async fn ask(router: &Router, request: Sent) -> Answer {
    let answer = router.clone().oneshot(request.map(Body::new)).await.expect("it cannot fail");
    let (head, body) = answer.into_parts();
    Response::from_parts(head, body.collect().await.expect("a whole answer").to_bytes())
}

/// A handler that counts its runs and answers `run 1`, `run 2`, .. when it is let go.
#[derive(Clone, Debug)]
pub(crate) struct Shop {
    pub(crate) started: Runs,
    pub(crate) finished: Runs,
    open: Arc<watch::Sender<bool>>,
}

impl Shop {
    /// One that answers at once.
    pub(crate) fn open() -> Self {
        Self {
            started: Runs::new(),
            finished: Runs::new(),
            open: Arc::new(watch::Sender::new(true)),
        }
    }

    /// One whose runs wait.
    pub(crate) fn held() -> Self {
        let shop = Self::open();
        shop.hold();
        shop
    }

    /// Runs from now on wait.
    pub(crate) fn hold(&self) {
        self.open.send_replace(false);
    }

    /// All runs go on.
    pub(crate) fn let_go(&self) {
        self.open.send_replace(true);
    }

    /// A run.
    pub(crate) async fn run(&self) -> String {
        let run = self.started.add();
        let _ = self.open.subscribe().wait_for(|open| *open).await;
        self.finished.add();
        format!("run {run}")
    }

    /// It as an axum handler.
    pub(crate) fn handler(&self) -> impl Handler<((),), ()> + use<> {
        let shop = self.clone();
        move || async move { shop.run().await }
    }

    /// How many runs were started.
    pub(crate) fn runs(&self) -> usize {
        self.started.count()
    }
}

/// Adds one to `gone` for each request whose future is dropped before its answer is there.
pub(crate) fn notice_gone(router: Router, gone: &Runs) -> Router {
    struct Guard(Option<Runs>);
    impl Drop for Guard {
        fn drop(&mut self) {
            if let Some(gone) = &self.0 {
                gone.add();
            }
        }
    }
    let gone = gone.clone();
    router.layer(from_fn(move |request: AxumRequest, next: Next| {
        let guard = Guard(Some(gone.clone()));
        async move {
            let mut guard = guard;
            let response = next.run(request).await;
            guard.0 = None;
            response
        }
    }))
}

/// A layer of the shape of an error mapper: what it makes of each answer.
pub(crate) fn map_answers(
    router: Router,
    map: impl Fn(AxumResponse) -> AxumResponse + Clone + Send + Sync + 'static,
) -> Router {
    router.layer(from_fn(move |request: AxumRequest, next: Next| {
        let map = map.clone();
        async move { map(next.run(request).await) }
    }))
}

/// A real Redis, and two servers over it, each with a connection of its own.
pub(crate) async fn two_instances(policy: Policy, shop: &Shop) -> (RedisServer, [Arc<Server>; 2]) {
    let redis = RedisServer::start().await;
    let one = serve(store_on(&redis).await, policy.clone(), shop.handler()).await;
    let two = serve(store_on(&redis).await, policy, shop.handler()).await;
    (redis, [one, two])
}

/// A store on this server.
pub(crate) async fn store_on(redis: &RedisServer) -> RedisStore {
    RedisStore::connect(&redis.url()).await.expect("a server that runs can be reached")
}

/// A server in a runtime of its own, which can be killed as a process can.
#[derive(Debug)]
pub(crate) struct Instance {
    pub(crate) server: Server,
    runtime: Option<Runtime>,
}

impl Instance {
    pub(crate) async fn start(router: Router) -> Self {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime can be made");
        let server = runtime.spawn(Server::start(router)).await.expect("the server starts");
        Self { server, runtime: Some(runtime) }
    }

    /// Everything in it stops where it is: no handler goes on, nothing is renewed or stored.
    pub(crate) fn kill(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // On a thread of its own, since this one belongs to another runtime.
            let ending = thread::spawn(move || runtime.shutdown_timeout(Duration::from_secs(5)));
            ending.join().expect("a runtime ends");
        }
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Whether the answer says that it comes from the store.
pub(crate) fn is_replay(answer: &Answer) -> bool {
    answer.headers().contains_key("idempotent-replayed")
}

/// The answer of a run, with this body.
#[track_caller]
pub(crate) fn assert_fresh(answer: &Answer, body: &str) {
    assert_eq!(answer.body(), body, "{answer:?}");
    assert!(!is_replay(answer), "{answer:?}");
}

/// A replay of an answer with this body.
#[track_caller]
pub(crate) fn assert_replay(answer: &Answer, body: &str) {
    assert_eq!(answer.body(), body, "{answer:?}");
    assert!(is_replay(answer), "{answer:?}");
}

/// A refusal of this status and kind, such as `in-progress`.
#[track_caller]
pub(crate) fn assert_refused(answer: &Answer, status: u16, kind: &str) {
    assert_eq!(refusal(answer).as_deref(), Some(kind), "{answer:?}");
    assert_eq!(answer.status(), status, "{answer:?}");
    assert_eq!(answer.headers()["cache-control"], "no-store");
}

/// The kind of a refusal; `None` of an answer that is none.
pub(crate) fn refusal(answer: &Answer) -> Option<String> {
    let content_type = answer.headers().get("content-type")?;
    if content_type != "application/problem+json" {
        return None;
    }
    let problem: serde_json::Value = serde_json::from_slice(answer.body()).ok()?;
    let page = problem["type"].as_str()?.strip_suffix("/index.html")?;
    Some(page.rsplit('/').next()?.replace('_', "-"))
}

/// The seconds of `Retry-After`.
#[track_caller]
pub(crate) fn retry_after(answer: &Answer) -> u64 {
    let value = answer.headers().get(RETRY_AFTER);
    let value = value.unwrap_or_else(|| panic!("no Retry-After: {answer:?}"));
    value.to_str().expect("digits").parse().expect("a number of seconds")
}

/// Sends until the answer is so; `meanwhile` looks at every answer before it.
pub(crate) async fn send_until(
    server: &Server,
    request: impl Fn() -> Sent,
    is_so: impl Fn(&Answer) -> bool,
    meanwhile: impl Fn(&Answer),
) -> Answer {
    let started = Instant::now();
    loop {
        let answer = server.send(request()).await;
        if is_so(&answer) {
            return answer;
        }
        meanwhile(&answer);
        assert!(started.elapsed() < Duration::from_secs(15), "still: {answer:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Sends until the operation is not in progress any more.
pub(crate) async fn when_ended(server: &Server, request: impl Fn() -> Sent) -> Answer {
    let in_progress = |answer: &Answer| refusal(answer).as_deref() == Some("in-progress");
    send_until(server, request, |answer| !in_progress(answer), |_| {}).await
}

/// The keys of all records.
pub(crate) async fn keys(store: &impl Store) -> Vec<RecordKey> {
    let page = store.scan(Cursor::START, 1000).await.expect("the store answers");
    assert!(page.next.is_none(), "these tests have few records");
    page.records.iter().map(|record| record.key).collect()
}

/// The key of the only record.
pub(crate) async fn only_key(store: &impl Store) -> RecordKey {
    let keys = keys(store).await;
    assert_eq!(keys.len(), 1, "{keys:?}");
    keys[0]
}

/// A body whose frames come when the test sends them, and whose length nobody knows before its end.
#[derive(Debug)]
pub(crate) struct Pieces(mpsc::UnboundedReceiver<Frame<Bytes>>);

/// Such a body and its sender; dropped, the sender ends it.
pub(crate) fn pieces() -> (mpsc::UnboundedSender<Frame<Bytes>>, Pieces) {
    let (send, receive) = mpsc::unbounded_channel();
    (send, Pieces(receive))
}

impl HttpBody for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(cx).map(|frame| frame.map(Ok))
    }
}

/// An answer of these chunks, which are all there.
pub(crate) fn streamed(chunks: impl IntoIterator<Item = &'static str>) -> AxumResponse {
    let (send, body) = pieces();
    for chunk in chunks {
        send.send(Frame::data(chunk.into())).expect("the body is there");
    }
    AxumResponse::new(Body::new(body))
}
