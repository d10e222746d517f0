//! The order of layers that the README prints, as one app.

use std::{io::Write, time::Duration};

use axum::{
    Router,
    body::Body,
    extract::Request,
    middleware::{Next, from_fn},
    response::{IntoResponse, Response},
    routing::post as routed,
};
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use tower::ServiceBuilder;
use tower_http::{
    catch_panic::CatchPanicLayer,
    compression::{CompressionLayer, predicate::SizeAbove},
    cors::CorsLayer,
    decompression::RequestDecompressionLayer,
    limit::RequestBodyLimitLayer,
    map_request_body::MapRequestBodyLayer,
    timeout::TimeoutLayer,
    trace::TraceLayer,
};
use tower_idempotency::{IdempotencyLayer, MemoryStore, Policy, Rule, Scope};
use tower_idempotency_stack_tests::{BOTH, Protocol, send};
use tower_idempotency_test_support::{Http2Answer, Runs, Server};

use crate::{is_replay, problem};

#[derive(Clone)]
struct UserId(String);

impl AsRef<str> for UserId {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

async fn auth(mut request: Request, next: Next) -> Response {
    match request.headers().get("authorization").and_then(|value| value.to_str().ok()) {
        Some(user) if user != "revoked" => {
            let user = UserId(user.to_owned());
            request.extensions_mut().insert(user);
            next.run(request).await
        }
        _ => StatusCode::UNAUTHORIZED.into_response(),
    }
}

fn app(runs: &Runs) -> Router {
    let runs = runs.clone();
    let handler = move |headers: HeaderMap, body: String| async move {
        let run = runs.add();
        if headers.contains_key("x-panic") {
            panic!("the handler was told to");
        }
        if headers.contains_key("x-slow") {
            tokio::time::sleep(Duration::from_millis(600)).await;
        }
        format!("run {run}: {body}")
    };
    let policy = Policy::api(Scope::extension::<UserId>());
    let idempotency = IdempotencyLayer::new(MemoryStore::new(), Rule::new("pay", policy));
    // Outside to inside.
    let stack = ServiceBuilder::new()
        .layer(RequestBodyLimitLayer::new(64))
        .layer(TraceLayer::new_for_http())
        .layer(CatchPanicLayer::new())
        .layer(CorsLayer::very_permissive())
        .layer(CompressionLayer::new().compress_when(SizeAbove::new(1)))
        .layer(TimeoutLayer::with_status_code(
            StatusCode::GATEWAY_TIMEOUT,
            Duration::from_millis(300),
        ))
        .layer(MapRequestBodyLayer::new(Body::new))
        .layer(from_fn(auth))
        .layer(RequestDecompressionLayer::new())
        .layer(idempotency);
    Router::new().route("/pay", routed(handler)).layer(stack)
}

struct App {
    server: Server,
    runs: Runs,
    protocol: Protocol,
}

impl App {
    async fn start(protocol: Protocol) -> Self {
        let runs = Runs::new();
        Self { server: Server::start(app(&runs)).await, runs, protocol }
    }

    async fn send(&self, headers: &[(&str, &str)], body: impl Into<Bytes>) -> Http2Answer {
        let mut request = http::Request::post("/pay").header("idempotency-key", "k");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        send(self.server.address(), self.protocol, request.body(body).unwrap()).await
    }
}

const ALICE: (&str, &str) = ("authorization", "alice");

#[tokio::test]
async fn a_first_answer_and_its_replay_are_coded_and_marked_for_their_callers() {
    for protocol in BOTH {
        let app = App::start(protocol).await;
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(b"a payment").unwrap();
        let coded = encoder.finish().unwrap();
        let first = app
            .send(
                &[
                    ALICE,
                    ("content-encoding", "gzip"),
                    ("accept-encoding", "gzip"),
                    ("origin", "https://a.example"),
                ],
                coded,
            )
            .await;
        assert_eq!((first.status, is_replay(&first)), (StatusCode::OK, false));
        assert_eq!(first.headers["content-encoding"], "gzip");
        let decoded = std::io::read_to_string(flate2::read::GzDecoder::new(&first.body[..]));
        assert_eq!(decoded.unwrap(), "run 1: a payment");

        let second = app.send(&[ALICE, ("origin", "https://b.example")], "a payment").await;
        assert!(is_replay(&second));
        assert_eq!(second.body, "run 1: a payment");
        assert_eq!(second.headers["access-control-allow-origin"], "https://b.example");
        assert!(!second.headers.contains_key("content-encoding"));
        assert_eq!(app.runs.count(), 1);
    }
}

#[tokio::test]
async fn who_may_not_gets_no_replay_and_another_no_answer_of_somebody_else() {
    for protocol in BOTH {
        let app = App::start(protocol).await;
        app.send(&[ALICE], "a payment").await;
        let revoked = app.send(&[("authorization", "revoked")], "a payment").await;
        assert_eq!((revoked.status, is_replay(&revoked)), (StatusCode::UNAUTHORIZED, false));
        assert_eq!(app.runs.count(), 1);
        let bob = app.send(&[("authorization", "bob")], "a payment").await;
        assert_eq!(bob.body, "run 2: a payment");
        assert!(is_replay(&app.send(&[ALICE], "a payment").await));
    }
}

#[tokio::test]
async fn panics_time_outs_and_limits_end_as_they_should() {
    for protocol in BOTH {
        let app = App::start(protocol).await;
        let large = app.send(&[ALICE], "x".repeat(65)).await;
        assert_eq!((large.status, app.runs.count()), (StatusCode::PAYLOAD_TOO_LARGE, 0));

        let slow = app.send(&[ALICE, ("x-slow", "1")], "slow").await;
        assert_eq!(slow.status, StatusCode::GATEWAY_TIMEOUT);
        // It goes on behind the time-out, and its answer is there in the end.
        let replay = loop {
            let again = app.send(&[ALICE], "slow").await;
            if again.status != StatusCode::CONFLICT {
                break again;
            }
            assert_eq!(problem(&again), "in-progress");
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        assert!(is_replay(&replay));
        assert_eq!((&replay.body[..], app.runs.count()), (&b"run 1: slow"[..], 1));

        let carol = ("authorization", "carol");
        let panicked = app.send(&[carol, ("x-panic", "1")], "x").await;
        assert_eq!(panicked.status, StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(problem(&app.send(&[carol], "x").await), "outcome-unknown");
        assert_eq!(app.runs.count(), 2);
    }
}
