//! The conformance cases 50 to 75 of HTTP idempotency over real sockets: fidelity of answers, which
//! outcomes are kept, bodies and their sizes, failures of the store.

mod body;
mod fidelity;
mod outcomes;
mod store_down;

use std::convert::Infallible;

use axum::{Router, body::Body, response::Response, routing::any};
use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::Full;
use tower_idempotency::{IdempotencyLayer, MemoryStore, Policy, Rule, Scope, Store};
use tower_idempotency_test_support::{Http2Client, Runs, Server};

const REPLAYED: &str = "idempotent-replayed";

/// A server with one protected route, `/pay`, and what is needed to see what its handler did.
struct Case {
    server: Server,
    runs: Runs,
}

/// How a request is sent.
#[derive(Clone, Copy, Debug)]
enum Protocol {
    Http1,
    Http2,
}

const BOTH: [Protocol; 2] = [Protocol::Http1, Protocol::Http2];

/// What a client got.
#[derive(Debug)]
struct Heard {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

impl Heard {
    fn is_replay(&self) -> bool {
        self.headers.get(REPLAYED).is_some_and(|value| value == "true")
    }

    /// The last part of the problem's type.
    #[track_caller]
    fn problem(&self) -> String {
        assert_eq!(self.headers["content-type"], "application/problem+json", "{self:?}");
        let problem: serde_json::Value = serde_json::from_slice(&self.body).unwrap();
        assert_eq!(problem["status"], self.status.as_u16());
        let kind = problem["type"].as_str().unwrap().trim_end_matches("/index.html");
        kind.rsplit('/').next().unwrap().replace('_', "-")
    }
}

fn api() -> Policy {
    Policy::api(Scope::everyone())
}

impl Case {
    /// A handler that gives this answer, which may depend on how many runs there were with this one.
    async fn answering<F>(policy: Policy, answer: F) -> Self
    where
        F: Fn(usize) -> Response + Clone + Send + Sync + 'static,
    {
        Self::over(MemoryStore::new(), policy, answer).await
    }

    async fn over<F>(store: impl Store, policy: Policy, answer: F) -> Self
    where
        F: Fn(usize) -> Response + Clone + Send + Sync + 'static,
    {
        let runs = Runs::new();
        let app = app(store, policy, &runs, answer);
        Self { server: Server::start(app).await, runs }
    }

    async fn send(&self, protocol: Protocol, request: Request<&'static str>) -> Heard {
        match protocol {
            Protocol::Http1 => {
                let answer = self.server.send(request.map(Full::<Bytes>::from)).await;
                let (head, body) = answer.into_parts();
                Heard { status: head.status, headers: head.headers, body }
            }
            Protocol::Http2 => {
                let answer = Http2Client::connect(self.server.address()).await.send(request).await;
                Heard { status: answer.status, headers: answer.headers, body: answer.body }
            }
        }
    }

    /// A POST with this key and always the same body.
    async fn post(&self, protocol: Protocol, key: &str) -> Heard {
        self.send(protocol, post(key, "a payment")).await
    }

    /// The first delivery and the second, over HTTP/1.1: the handler ran, the second is a replay.
    async fn first_and_replay(&self, key: &str) -> (Heard, Heard) {
        let first = self.post(Protocol::Http1, key).await;
        let runs = self.runs.count();
        let second = self.post(Protocol::Http1, key).await;
        assert!(!first.is_replay(), "{first:?}");
        assert!(second.is_replay(), "{second:?}");
        assert_eq!(self.runs.count(), runs, "a replay runs nothing");
        assert_eq!((first.status, &first.body), (second.status, &second.body));
        (first, second)
    }
}

/// The route `/pay`, for every method the layer lets through, with the layer around it.
fn app<F>(store: impl Store, policy: Policy, runs: &Runs, answer: F) -> Router
where
    F: Fn(usize) -> Response + Clone + Send + Sync + 'static,
{
    let runs = runs.clone();
    let handler = move || async move { answer(runs.add()) };
    around(store, policy, Router::new().route("/pay", any(handler)))
}

fn around(store: impl Store, policy: Policy, router: Router) -> Router {
    router.route_layer(IdempotencyLayer::new(store, Rule::new("pay", policy)))
}

fn post(key: &str, body: &'static str) -> Request<&'static str> {
    Request::post("/pay").header("idempotency-key", key).body(body).unwrap()
}

/// The same as bytes on the wire, with these further lines.
fn raw_post(key: &str, lines: &[&str], body: &str) -> String {
    let mut lines: String = lines.iter().map(|line| format!("{line}\r\n")).collect();
    if !lines.to_ascii_lowercase().contains("transfer-encoding")
        && !lines.contains("content-length")
    {
        lines.push_str(&format!("content-length: {}\r\n", body.len()));
    }
    format!("POST /pay HTTP/1.1\r\nhost: x\r\nidempotency-key: {key}\r\n{lines}\r\n{body}")
}

fn text(body: &'static str) -> Response {
    Response::new(Body::from(body))
}

/// A body in these pieces, whose length is not known before its end.
fn streamed(pieces: impl IntoIterator<Item = Bytes>) -> Body {
    let (sender, receiver) = tokio::sync::mpsc::unbounded_channel();
    for piece in pieces {
        let frame = Ok::<_, Infallible>(http_body::Frame::data(piece));
        sender.send(frame).expect("the receiver is here");
    }
    Body::new(Channel(receiver))
}

/// A body whose frames come through a channel; it ends with its senders.
struct Channel<E>(tokio::sync::mpsc::UnboundedReceiver<Result<http_body::Frame<Bytes>, E>>);

impl<E> http_body::Body for Channel<E> {
    type Data = Bytes;
    type Error = E;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, E>>> {
        self.0.poll_recv(cx)
    }
}
