//! Clients that leave: during the body, during the handler, while they wait for somebody else's run.

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    body::Body,
    extract::Request,
    middleware::{Next, from_fn},
    response::Response,
    routing::post as routed,
};
use bytes::Bytes;
use http::{HeaderValue, StatusCode};
use http_body::Frame;
use http_body_util::BodyExt;
use tokio::sync::Semaphore;
use tower_idempotency::{
    IdempotencyLayer, MemoryStore, Policy, Rule, Scope,
    test_util::{Faults, FaultyStore, Transition},
};
use tower_idempotency_stack_tests::{BOTH, Protocol, send};
use tower_idempotency_test_support::{
    Http2Answer, Http2Client, Http2Stream, Log, Runs, Server, h2::Reason,
};

use crate::{is_replay, post, problem};

const REASONS: [Reason; 2] = [Reason::CANCEL, Reason::NO_ERROR];

/// A server whose handler waits for a word, and what there is to see of its requests.
struct Scene {
    server: Server,
    faults: Faults,
    started: Runs,
    finished: Runs,
    go: Arc<Semaphore>,
    /// Pieces of bodies that have come.
    pieces: Runs,
    /// Requests that are over for the layer, with an answer or without.
    over: Runs,
}

/// Counts when it is dropped.
struct Over(Runs);

impl Drop for Over {
    fn drop(&mut self) {
        self.0.add();
    }
}

impl Scene {
    async fn start(policy: Policy) -> Self {
        let store = FaultyStore::new(MemoryStore::new());
        let faults = store.faults();
        let (started, finished) = (Runs::new(), Runs::new());
        let go = Arc::new(Semaphore::new(0));
        let (starts, ends, waits) = (started.clone(), finished.clone(), go.clone());
        let handler = move |body: Bytes| async move {
            starts.add();
            waits.acquire().await.expect("it is never closed").forget();
            ends.add();
            body
        };
        let (pieces, over) = (Runs::new(), Runs::new());
        let (counted, left) = (pieces.clone(), over.clone());
        let watching = move |request: Request, next: Next| {
            let (pieces, over) = (counted.clone(), Over(left.clone()));
            async move {
                let request = request.map(|body| {
                    Body::new(body.map_frame(move |frame: Frame<Bytes>| {
                        pieces.add();
                        frame
                    }))
                });
                let response: Response = next.run(request).await;
                drop(over);
                response
            }
        };
        let router = Router::new()
            .route("/pay", routed(handler))
            .route_layer(IdempotencyLayer::new(store, Rule::new("pay", policy)))
            .layer(from_fn(watching));
        let server = Server::start(router).await;
        Self { server, faults, started, finished, go, pieces, over }
    }

    async fn open(&self, client: &Http2Client, length: Option<usize>) -> Http2Stream {
        let mut head = post("k").map(drop);
        if let Some(length) = length {
            head.headers_mut().insert("content-length", HeaderValue::from(length));
        }
        client.open(head).await
    }

    /// One delivery that has the handler's leave to end.
    async fn deliver(&self, protocol: Protocol) -> Http2Answer {
        self.go.add_permits(1);
        send(self.server.address(), protocol, post("k")).await
    }
}

fn api() -> Policy {
    Policy::api(Scope::everyone())
}

#[tokio::test]
async fn a_reset_during_the_body_claims_and_runs_nothing() {
    for reason in REASONS {
        for length in [None, Some(9)] {
            let scene = Scene::start(api()).await;
            let client = Http2Client::connect(scene.server.address()).await;
            let mut stream = scene.open(&client, length).await;
            stream.send("a pay", false);
            scene.pieces.wait_for(1).await;
            stream.reset(reason);
            scene.over.wait_for(1).await;
            assert_eq!(scene.started.count(), 0, "{reason:?} {length:?}");
            assert_eq!(scene.faults.calls(Transition::Claim), 0, "{reason:?} {length:?}");

            let next = scene.deliver(Protocol::Http2).await;
            assert_eq!((&next.body[..], is_replay(&next)), (&b"a payment"[..], false));
            assert_eq!(scene.started.count(), 1);
        }
    }
}

#[tokio::test]
async fn a_connection_that_ends_during_the_body_claims_and_runs_nothing() {
    let scene = Scene::start(api()).await;
    let client = Http2Client::connect(scene.server.address()).await;
    let mut stream = scene.open(&client, None).await;
    stream.send("a pay", false);
    scene.pieces.wait_for(1).await;
    client.cut();
    drop(stream);
    scene.over.wait_for(1).await;

    let mut client = scene.server.connect().await;
    client.send("POST /pay HTTP/1.1\r\nhost: x\r\nidempotency-key: k\r\n").await;
    client.send("transfer-encoding: chunked\r\n\r\n5\r\na pay\r\n").await;
    scene.pieces.wait_for(2).await;
    client.reset();
    scene.over.wait_for(2).await;

    assert_eq!((scene.started.count(), scene.faults.calls(Transition::Claim)), (0, 0));
    assert_eq!(scene.deliver(Protocol::Http1).await.body, "a payment");
}

#[tokio::test]
async fn b91_a_reset_during_the_handler_lets_it_run_to_its_end() {
    for reason in REASONS {
        for retried_over in BOTH {
            let scene = Scene::start(api().wait(Duration::from_secs(20))).await;
            let client = Http2Client::connect(scene.server.address()).await;
            let mut stream = scene.open(&client, None).await;
            stream.send("a payment", true);
            scene.started.wait_for(1).await;
            stream.reset(reason);
            scene.over.wait_for(1).await;
            assert_eq!(scene.finished.count(), 0);

            let retry = scene.deliver(retried_over).await;
            assert_eq!((&retry.body[..], is_replay(&retry)), (&b"a payment"[..], true));
            assert_eq!((scene.started.count(), scene.finished.count()), (1, 1));
        }
    }
}

#[tokio::test]
async fn b91_a_connection_that_ends_during_the_handler_lets_it_run_to_its_end() {
    for protocol in BOTH {
        let scene = Scene::start(api().wait(Duration::from_secs(20))).await;
        match protocol {
            Protocol::Http1 => {
                let mut client = scene.server.connect().await;
                client.send("POST /pay HTTP/1.1\r\nhost: x\r\nidempotency-key: k\r\n").await;
                client.send("content-length: 9\r\n\r\na payment").await;
                scene.started.wait_for(1).await;
                client.reset();
            }
            Protocol::Http2 => {
                let client = Http2Client::connect(scene.server.address()).await;
                let mut stream = scene.open(&client, None).await;
                stream.send("a payment", true);
                scene.started.wait_for(1).await;
                client.cut();
            }
        }
        scene.over.wait_for(1).await;
        let retry = scene.deliver(protocol).await;
        assert_eq!((&retry.body[..], is_replay(&retry)), (&b"a payment"[..], true));
        assert_eq!((scene.started.count(), scene.finished.count()), (1, 1));
    }
}

#[tokio::test]
async fn a_waiter_that_resets_is_gone_and_the_run_it_waited_for_goes_on() {
    for reason in REASONS {
        let (log, _guard) = Log::listen();
        let scene = Scene::start(api().wait(Duration::from_secs(20))).await;
        let client = Http2Client::connect(scene.server.address()).await;
        let mut first = scene.open(&client, None).await;
        first.send("a payment", true);
        scene.started.wait_for(1).await;
        let mut waiter = scene.open(&client, None).await;
        waiter.send("a payment", true);
        log.said("waiting", 1).await;
        waiter.reset(reason);
        scene.over.wait_for(1).await;

        scene.go.add_permits(1);
        let answer = first.answer().await;
        assert_eq!((&answer.body[..], is_replay(&answer)), (&b"a payment"[..], false));
        assert!(is_replay(&client.send(post("k")).await));
        assert_eq!((scene.started.count(), scene.finished.count()), (1, 1));
    }
}

#[tokio::test]
async fn a_reset_after_the_answer_changes_nothing() {
    let scene = Scene::start(api()).await;
    let client = Http2Client::connect(scene.server.address()).await;
    let first = scene.deliver(Protocol::Http2).await;
    assert_eq!(first.status, StatusCode::OK);
    client.cut();
    assert!(is_replay(&scene.deliver(Protocol::Http2).await));
    let mut other = post("k");
    *other.body_mut() = "another";
    let mismatch = send(scene.server.address(), Protocol::Http2, other).await;
    assert_eq!(problem(&mismatch), "mismatch");
}
