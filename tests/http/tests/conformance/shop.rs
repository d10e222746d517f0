//! The server under test: every request to it that is executed is counted, outside of the layer.

use std::time::Duration;

use axum::{
    Router,
    extract::Request as AnyRequest,
    middleware::{Next, from_fn},
    response::IntoResponse,
};
use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode, header::CONTENT_TYPE};
use http_body_util::Full;
use tokio::sync::watch;
use tower_idempotency::{
    IdempotencyLayer, MemoryStore, Operation, Policy, Rule, Rules, Scope, Store,
    store::{Cursor, Listed},
    test_util::{Faults, FaultyStore},
};
use tower_idempotency_test_support::{Runs, Server};

/// A server that takes every path and method, behind a layer.
pub(crate) struct Shop<S = MemoryStore> {
    pub(crate) server: Server,
    /// How often a handler was started.
    pub(crate) runs: Runs,
    /// How often a handler came to its end.
    pub(crate) finished: Runs,
    /// How many requests have come to the service, before their bodies.
    pub(crate) came: Runs,
    /// How many requests have left the service, answered or dropped.
    pub(crate) gone: Runs,
    /// The store, behind the faults.
    pub(crate) store: S,
    pub(crate) faults: Faults,
    open: watch::Sender<bool>,
}

/// What a handler does, besides being counted.
#[derive(Clone)]
struct Handler {
    runs: Runs,
    finished: Runs,
    open: watch::Receiver<bool>,
}

impl Shop {
    /// One rule with this policy, and a memory store.
    pub(crate) async fn open(policy: Policy) -> Self {
        Self::with(Rule::new("pay", policy)).await
    }

    /// These rules, and a memory store.
    pub(crate) async fn with(rules: impl Into<Rules>) -> Self {
        Self::over(MemoryStore::new(), rules).await
    }
}

impl<S: Store + Clone> Shop<S> {
    /// These rules over this store.
    pub(crate) async fn over(store: S, rules: impl Into<Rules>) -> Self {
        Self::inside(store, rules, |app| app).await
    }

    /// The same with something around the layer.
    pub(crate) async fn inside(
        store: S,
        rules: impl Into<Rules>,
        around: impl FnOnce(Router) -> Router,
    ) -> Self {
        Self::counted(store, rules, around, Runs::new()).await
    }

    /// Another process with these rules over this store. What is executed here and there is counted
    /// together.
    pub(crate) async fn beside(&self, store: S, rules: impl Into<Rules>) -> Self {
        Self::counted(store, rules, |app| app, self.runs.clone()).await
    }

    async fn counted(
        store: S,
        rules: impl Into<Rules>,
        around: impl FnOnce(Router) -> Router,
        runs: Runs,
    ) -> Self {
        let faulty = FaultyStore::new(store.clone());
        let faults = faulty.faults();
        let [finished, came, gone] = std::array::from_fn(|_| Runs::new());
        let open = watch::Sender::new(true);
        let handler =
            Handler { runs: runs.clone(), finished: finished.clone(), open: open.subscribe() };
        let app = Router::new()
            .fallback(move |operation: Option<Operation>, headers: HeaderMap| {
                handler.clone().answer(operation, headers)
            })
            .layer(IdempotencyLayer::new(faulty, rules));
        let counted = (came.clone(), gone.clone());
        let app = around(app).layer(from_fn(move |request: AnyRequest, next: Next| {
            counted.0.add();
            let leaving = Leaving(counted.1.clone());
            async move {
                let _leaving = leaving;
                next.run(request).await
            }
        }));
        let server = Server::start(app).await;
        Self { server, runs, finished, came, gone, store, faults, open }
    }

    /// Handlers wait from now on, each after it was counted.
    pub(crate) fn hold(&self) {
        self.open.send_replace(false);
    }

    /// Handlers go on.
    pub(crate) fn let_go(&self) {
        self.open.send_replace(true);
    }

    /// `POST /pay` with this value of the header, as it stands, and this body.
    pub(crate) async fn pay(&self, key: &str, body: &str) -> Response<Bytes> {
        self.server.send(pay(key, body)).await
    }

    /// `POST /pay` with these lines of the header, byte by byte.
    pub(crate) async fn pay_raw(&self, lines: &[&[u8]]) -> Response<Bytes> {
        let mut client = self.server.connect().await;
        client.send(raw_pay(lines, "Content-Length: 2\r\n\r\n10")).await;
        client.answer().await.into_response()
    }

    /// All records.
    pub(crate) async fn records(&self) -> Vec<Listed> {
        let mut from = Some(Cursor::START);
        let mut records = Vec::new();
        while let Some(cursor) = from {
            let page = self.store.scan(cursor, 1000).await.unwrap();
            records.extend(page.records);
            from = page.next;
        }
        records
    }

    /// The only record.
    pub(crate) async fn record(&self) -> Listed {
        let mut records = self.records().await;
        assert_eq!(records.len(), 1, "{records:?}");
        records.remove(0)
    }

    /// Waits until the lease of the only record is over, at a server whose clock cannot be turned.
    pub(crate) async fn wait_until_abandoned(&self) {
        let abandoned = async {
            while !self.record().await.is_abandoned() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), abandoned).await.expect("a lease ends");
    }
}

impl Handler {
    /// What it answers tells one run from another. The header `x-answer`, which no fingerprint
    /// covers, makes it end otherwise.
    async fn answer(
        mut self,
        operation: Option<Operation>,
        headers: HeaderMap,
    ) -> axum::response::Response {
        let run = self.runs.add();
        self.open.wait_for(|open| *open).await.expect("the shop outlives its requests");
        self.finished.add();
        let (key, attempt) = match &operation {
            Some(operation) => (operation.key(), operation.attempt()),
            None => ("-", 0),
        };
        match headers.get("x-answer").map(|answer| answer.to_str().unwrap()) {
            None => {
                let attempt = [("x-attempt", attempt.to_string())];
                (StatusCode::CREATED, attempt, format!("run {run} of {key}")).into_response()
            }
            Some("panic") => panic!("a handler that was told to"),
            Some(status) => status.parse::<StatusCode>().unwrap().into_response(),
        }
    }
}

/// Counts a request when it leaves.
struct Leaving(Runs);

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.add();
    }
}

/// The policy of an API with one client.
pub(crate) fn api() -> Policy {
    Policy::api(Scope::everyone())
}

/// `POST /pay` with this value of the header, as it stands, and this body.
pub(crate) fn pay(key: &str, body: &str) -> Request<Full<Bytes>> {
    request(Method::POST, "/pay", key, body)
}

pub(crate) fn request(method: Method, path: &str, key: &str, body: &str) -> Request<Full<Bytes>> {
    Request::builder()
        .method(method)
        .uri(path)
        .header("Idempotency-Key", key)
        .body(Full::new(Bytes::copy_from_slice(body.as_bytes())))
        .unwrap()
}

/// The bytes of a `POST /pay` with these lines of the header; `rest` is what follows them.
pub(crate) fn raw_pay(lines: &[&[u8]], rest: &str) -> Vec<u8> {
    let mut bytes = b"POST /pay HTTP/1.1\r\nHost: shop\r\n".to_vec();
    for line in lines {
        bytes.extend_from_slice(b"Idempotency-Key: ");
        bytes.extend_from_slice(line);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes.extend_from_slice(rest.as_bytes());
    bytes
}

pub(crate) fn text(response: &Response<Bytes>) -> &str {
    std::str::from_utf8(response.body()).unwrap()
}

pub(crate) fn is_replay(response: &Response<Bytes>) -> bool {
    match response.headers().get("idempotent-replayed") {
        Some(value) => value == "true",
        None => false,
    }
}

/// Executed, and not answered from the store.
#[track_caller]
pub(crate) fn assert_ran(response: &Response<Bytes>, body: &str) {
    assert_eq!((response.status(), text(response)), (StatusCode::CREATED, body));
    assert!(!response.headers().contains_key("idempotent-replayed"), "{response:?}");
}

/// Answered from the store.
#[track_caller]
pub(crate) fn assert_replayed(response: &Response<Bytes>, body: &str) {
    assert_eq!((response.status(), text(response)), (StatusCode::CREATED, body));
    assert!(is_replay(response), "{response:?}");
}

/// Refused with problem details of this type, whose URI leads to their page; what it says in detail.
#[track_caller]
pub(crate) fn assert_refused(response: &Response<Bytes>, status: u16, kind: &str) -> String {
    assert_eq!(response.status(), status, "{}", text(response));
    assert_eq!(response.headers()[CONTENT_TYPE], "application/problem+json");
    assert_eq!(response.headers()["cache-control"], "no-store");
    assert!(!response.headers().contains_key("idempotent-replayed"), "{response:?}");
    let problem: serde_json::Value = serde_json::from_slice(response.body()).unwrap();
    let page = format!("/{}/index.html", kind.replace('-', "_"));
    let link = problem["type"].as_str().unwrap();
    assert!(link.starts_with("https://") && link.ends_with(&page), "{link} is no page of {kind}");
    assert_eq!(problem["status"], status);
    problem["detail"].as_str().unwrap().to_owned()
}

/// Which attempt at its operation the answer comes from.
#[track_caller]
pub(crate) fn attempt(response: &Response<Bytes>) -> u32 {
    response.headers()["x-attempt"].to_str().unwrap().parse().unwrap()
}

/// Turns the clock of this test's runtime, which is the memory store's. Whatever waits for a time
/// that is over then goes on.
pub(crate) async fn turn_the_clock(by: Duration) {
    tokio::time::pause();
    tokio::time::advance(by).await;
    tokio::time::resume();
}

/// How many seconds the answer asks its client to wait.
#[track_caller]
pub(crate) fn retry_after(response: &Response<Bytes>) -> u64 {
    response.headers()["retry-after"].to_str().unwrap().parse().unwrap()
}
