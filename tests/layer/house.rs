//! A layer around a handler of the test's own, over a memory store that fails on demand and says what
//! it was asked and when.

use std::{
    collections::VecDeque,
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use tokio::{sync::Semaphore, task::JoinHandle, time::Instant};
use tower::{Service, ServiceBuilder, ServiceExt, service_fn, util::BoxCloneService};
use tower_idempotency::{
    Grant, Handled, IdempotencyLayer, MemoryStore, Operation, Policy, Refusal, RefusalKind,
    RequestBody, ResponseBody, Rule, Rules, Scope, State, Store, StoreError,
    store::{
        Claim, Claimed, Cursor, Issue, Issued, Kept, Listed, Page, Reason, Release, Resolve,
        Resolved, Written,
    },
    test_util::{Faults, FaultyStore},
};

pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;
pub(crate) type Body = UnsyncBoxBody<Bytes, std::io::Error>;
pub(crate) type Asked = Request<RequestBody<Body>>;
pub(crate) type Answered = Result<Response<Body>, String>;
type Wrapped = BoxCloneService<Request<Body>, Response<ResponseBody<Body>>, String>;

pub(crate) const SECOND: Duration = Duration::from_secs(1);

pub(crate) fn api() -> Policy {
    Policy::api(Scope::everyone())
}

/// What a store was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    Claim,
    Look,
    Renew,
    Complete,
    CalledOff,
    GivenBack(Reason),
    Resolve,
}

/// A store that writes down what it is asked.
#[derive(Clone)]
pub(crate) struct Logged {
    store: Arc<FaultyStore<MemoryStore>>,
    log: Arc<Mutex<Vec<(Instant, Sent)>>>,
    planned: Arc<Mutex<VecDeque<Claimed>>>,
}

impl Logged {
    pub(crate) fn new(memory: MemoryStore) -> Self {
        Self {
            store: Arc::new(FaultyStore::new(memory)),
            log: Arc::default(),
            planned: Arc::default(),
        }
    }

    /// The next claim or look is answered with this, and does not reach the store.
    pub(crate) fn answer_next(&self, claimed: Claimed) {
        self.planned.lock().unwrap().push_back(claimed);
    }

    fn write(&self, sent: Sent) {
        self.log.lock().unwrap().push((Instant::now(), sent));
    }
}

impl Store for Logged {
    async fn claim(&self, claim: Claim) -> Result<Claimed, StoreError> {
        self.write(if claim.is_look() { Sent::Look } else { Sent::Claim });
        let planned = self.planned.lock().unwrap().pop_front();
        match planned {
            Some(claimed) => Ok(claimed),
            None => self.store.claim(claim).await,
        }
    }
    async fn renew(&self, grant: &Grant) -> Result<Written, StoreError> {
        self.write(Sent::Renew);
        self.store.renew(grant).await
    }
    async fn complete(&self, grant: &Grant, kept: Kept) -> Result<Written, StoreError> {
        self.write(Sent::Complete);
        self.store.complete(grant, kept).await
    }
    async fn release(&self, release: Release) -> Result<Written, StoreError> {
        self.write(match &release {
            Release::Grant { reason, .. } => Sent::GivenBack(*reason),
            _ => Sent::CalledOff,
        });
        self.store.release(release).await
    }
    async fn resolve(&self, resolve: Resolve) -> Result<Resolved, StoreError> {
        self.write(Sent::Resolve);
        self.store.resolve(resolve).await
    }
    async fn issue(&self, issue: Issue) -> Result<Issued, StoreError> {
        self.store.issue(issue).await
    }
    async fn scan(&self, from: Cursor, at_most: usize) -> Result<Page, StoreError> {
        self.store.scan(from, at_most).await
    }
}

/// A layer, its store, and the service in it.
#[derive(Clone)]
pub(crate) struct House {
    pub(crate) layer: IdempotencyLayer,
    pub(crate) store: Logged,
    pub(crate) memory: MemoryStore,
    pub(crate) faults: Faults,
    pub(crate) service: Wrapped,
    runs: Arc<AtomicUsize>,
}

impl House {
    /// A handler that answers `done`.
    pub(crate) fn new(policy: Policy) -> Self {
        Self::with(policy, |_| async { text(200, "done") })
    }

    pub(crate) fn with<H, F>(policy: Policy, handler: H) -> Self
    where
        H: Fn(Asked) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Answered> + Send + 'static,
    {
        Self::of(MemoryStore::new(), Rule::new("pay", policy), handler)
    }

    pub(crate) fn of<H, F>(memory: MemoryStore, rules: impl Into<Rules>, handler: H) -> Self
    where
        H: Fn(Asked) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Answered> + Send + 'static,
    {
        let runs = Arc::new(AtomicUsize::new(0));
        let counted = runs.clone();
        let inner = service_fn(move |request: Asked| {
            counted.fetch_add(1, Ordering::SeqCst);
            handler(request)
        });
        Self::around(memory, rules, inner, runs)
    }

    pub(crate) fn around<S>(
        memory: MemoryStore,
        rules: impl Into<Rules>,
        inner: S,
        runs: Arc<AtomicUsize>,
    ) -> Self
    where
        S: Service<Asked, Response = Response<Body>, Error = String> + Clone + Send + 'static,
        S::Future: Send + 'static,
    {
        Self::layered(memory, rules, inner, runs, |layer| layer)
    }

    /// The same with choices of the layer's.
    pub(crate) fn layered<S>(
        memory: MemoryStore,
        rules: impl Into<Rules>,
        inner: S,
        runs: Arc<AtomicUsize>,
        chosen: impl FnOnce(IdempotencyLayer) -> IdempotencyLayer,
    ) -> Self
    where
        S: Service<Asked, Response = Response<Body>, Error = String> + Clone + Send + 'static,
        S::Future: Send + 'static,
    {
        let store = Logged::new(memory.clone());
        let faults = store.store.faults();
        let layer = chosen(IdempotencyLayer::new(store.clone(), rules));
        let service = ServiceBuilder::new().layer(layer.clone()).service(inner);
        Self { layer, store, memory, faults, service: BoxCloneService::new(service), runs }
    }

    pub(crate) fn runs(&self) -> usize {
        self.runs.load(Ordering::SeqCst)
    }

    /// Sends a request with this key, and waits for the whole answer.
    pub(crate) fn send(&self, key: &str) -> impl Future<Output = Reply> + Send + use<> {
        self.call(request(key, "body"))
    }

    pub(crate) fn call(
        &self,
        request: Request<Body>,
    ) -> impl Future<Output = Reply> + Send + use<> {
        let service = self.service.clone();
        async move { Reply::of(service.oneshot(request).await).await }
    }

    /// A client that may leave.
    pub(crate) fn client(&self, key: &str) -> JoinHandle<Reply> {
        tokio::spawn(self.send(key))
    }

    /// What the store was asked, in order.
    pub(crate) fn sent(&self) -> Vec<Sent> {
        self.store.log.lock().unwrap().iter().map(|(_, sent)| *sent).collect()
    }

    /// When the store was asked for this.
    pub(crate) fn times(&self, what: Sent) -> Vec<Instant> {
        let log = self.store.log.lock().unwrap();
        log.iter().filter(|(_, sent)| *sent == what).map(|(at, _)| *at).collect()
    }

    pub(crate) async fn records(&self) -> Vec<Listed> {
        self.memory.scan(Cursor::START, 100).await.unwrap().records
    }

    /// What the records are, in a fixed order.
    pub(crate) async fn store_states(&self) -> Vec<State> {
        let mut states: Vec<_> = self.records().await.iter().map(|record| record.state).collect();
        states.sort_by_key(|state| format!("{state:?}"));
        states
    }

    /// The only record.
    pub(crate) async fn record(&self) -> Listed {
        let mut records = self.records().await;
        assert_eq!(records.len(), 1, "{records:?}");
        records.remove(0)
    }

    pub(crate) async fn drained(&self) {
        let left = self.layer.drain(60 * SECOND).await;
        assert!(left.is_clean(), "{left:?}");
    }
}

/// Lets everything that can go on go on, without time passing.
pub(crate) async fn settle() {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
}

/// The client leaves.
pub(crate) async fn leave(client: JoinHandle<Reply>) {
    client.abort();
    assert!(client.await.unwrap_err().is_cancelled(), "it left before it was answered");
}

/// A door a handler stands before: it says that it came, and goes on when it is let through.
#[derive(Clone)]
pub(crate) struct Door {
    came: Arc<Semaphore>,
    open: Arc<Semaphore>,
}

impl Door {
    pub(crate) fn new() -> Self {
        Self { came: Arc::new(Semaphore::new(0)), open: Arc::new(Semaphore::new(0)) }
    }

    pub(crate) async fn pass(&self) {
        self.came.add_permits(1);
        self.open.acquire().await.unwrap().forget();
    }

    /// Waits until somebody more stands before it.
    pub(crate) async fn came(&self) {
        let came = tokio::time::timeout(600 * SECOND, self.came.acquire()).await;
        came.expect("nobody came to the door").unwrap().forget();
    }

    pub(crate) fn let_one_in(&self) {
        self.open.add_permits(1);
    }
}

/// A house whose handler waits at the door, and then answers with this status.
pub(crate) fn with_door(policy: Policy, status: u16) -> (House, Door) {
    let door = Door::new();
    let inside = door.clone();
    let house = House::with(policy, move |_| {
        let door = inside.clone();
        async move {
            door.pass().await;
            text(status, "done")
        }
    });
    (house, door)
}

pub(crate) fn request(key: &str, body: &str) -> Request<Body> {
    request_of(key, Full::new(Bytes::copy_from_slice(body.as_bytes())))
}

pub(crate) fn request_of<B>(key: &str, body: B) -> Request<Body>
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    Request::post("/pay").header("idempotency-key", key).body(boxed(body)).unwrap()
}

fn boxed<B>(body: B) -> Body
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    body.map_err(std::io::Error::other).boxed_unsync()
}

/// A body whose chunks come from a channel. When the sender is dropped it ends; with an error it breaks
/// off.
pub(crate) struct Chunks(tokio::sync::mpsc::Receiver<Result<Bytes, std::io::Error>>);

pub(crate) type ChunkSender = tokio::sync::mpsc::Sender<Result<Bytes, std::io::Error>>;

impl Chunks {
    pub(crate) fn new() -> (ChunkSender, Self) {
        let (sender, receiver) = tokio::sync::mpsc::channel(1);
        (sender, Self(receiver))
    }
}

impl http_body::Body for Chunks {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, std::io::Error>>> {
        self.0.poll_recv(cx).map(|chunk| chunk.map(|chunk| chunk.map(http_body::Frame::data)))
    }
}

pub(crate) fn text(status: u16, body: &'static str) -> Answered {
    respond(status, Full::new(Bytes::from(body)))
}

pub(crate) fn respond<B>(status: u16, body: B) -> Answered
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    Ok(Response::builder().status(status).body(boxed(body)).unwrap())
}

pub(crate) fn operation(request: &Asked) -> Operation {
    request.extensions().get::<Operation>().expect("the layer granted this request").clone()
}

/// An answer as a client has it in the end.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Result<Bytes, String>,
    pub(crate) handled: Option<Handled>,
    pub(crate) refused: Option<RefusalKind>,
    /// The inner service's error.
    pub(crate) error: Option<String>,
}

impl Reply {
    pub(crate) async fn of(answer: Result<Response<ResponseBody<Body>>, String>) -> Self {
        let (head, body) = match answer {
            Ok(response) => response.into_parts(),
            Err(error) => {
                return Self {
                    status: 0,
                    headers: HeaderMap::new(),
                    body: Ok(Bytes::new()),
                    handled: None,
                    refused: None,
                    error: Some(error),
                };
            }
        };
        let body = body.collect().await.map(http_body_util::Collected::to_bytes);
        Self {
            status: head.status.as_u16(),
            handled: head.extensions.get::<Handled>().copied(),
            refused: head.extensions.get::<Refusal>().map(Refusal::kind),
            headers: head.headers,
            body: body.map_err(|error| error.to_string()),
            error: None,
        }
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(self.body.as_ref().expect("the body is whole")).unwrap()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    #[track_caller]
    pub(crate) fn is_executed(&self) -> &Self {
        assert!(matches!(self.handled, Some(Handled::Executed { .. })), "{self:?}");
        assert_eq!(self.header("idempotent-replayed"), None);
        self
    }

    #[track_caller]
    pub(crate) fn is_replayed(&self) -> &Self {
        assert_eq!(self.handled, Some(Handled::Replayed), "{self:?}");
        assert_eq!(self.header("idempotent-replayed"), Some("true"));
        self
    }

    #[track_caller]
    pub(crate) fn is_refused(&self, kind: RefusalKind) -> &Self {
        assert_eq!(self.refused, Some(kind), "{self:?}");
        assert_eq!(self.handled, None);
        self
    }
}
