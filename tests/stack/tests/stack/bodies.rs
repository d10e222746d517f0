//! Bodies and upgrades on their way through: trailers in and out, and what is no operation at all.

use axum::{Router, body::Body, extract::Request as AxumRequest, response::Response, routing::any};
use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tower::ServiceBuilder;
use tower_idempotency::{IdempotencyLayer, MemoryStore, Policy, Rule, Scope};
use tower_idempotency_stack_tests::{BOTH, Protocol, send, serve};
use tower_idempotency_test_support::{Http2Client, RawAnswer, RawClient, Runs, Server};

use crate::{Handler, REPLAYED, is_replay, layer, post};

/// Answers with what it was sent, trailers included, and announces them.
fn echo(runs: &Runs, announced: bool) -> Router {
    let runs = runs.clone();
    let handler = move |body: Body| async move {
        runs.add();
        let whole = body.collect().await.expect("a whole body");
        let trailers = whole.trailers().cloned().unwrap_or_default();
        let body = Full::new(whole.to_bytes()).with_trailers(async { Some(Ok(trailers)) });
        let mut response = Response::new(Body::new(body));
        if announced {
            response.headers_mut().insert("trailer", "x-sum, x-other".parse().unwrap());
        }
        response
    };
    Router::new().route("/pay", any(handler)).route_layer(layer())
}

fn sums() -> HeaderMap {
    let mut trailers = HeaderMap::new();
    trailers.insert("x-sum", "1".parse().unwrap());
    trailers.append("x-sum", "2".parse().unwrap());
    trailers.insert("x-other", "3".parse().unwrap());
    trailers
}

#[tokio::test]
async fn b86_trailers_go_in_and_out_over_http2_first_and_replayed() {
    for body in ["a payment", ""] {
        let runs = Runs::new();
        let server = Server::start(echo(&runs, false)).await;
        let client = Http2Client::connect(server.address()).await;
        for delivery in 0..2 {
            let mut stream = client.open(post("k").map(drop)).await;
            if !body.is_empty() {
                stream.send(body, false);
            }
            stream.send_trailers(sums());
            let answer = stream.answer().await;
            assert_eq!((is_replay(&answer), &answer.body[..]), (delivery > 0, body.as_bytes()));
            assert_eq!(answer.trailers, Some(sums()));
        }
        assert_eq!(runs.count(), 1);
    }
}

async fn chunked(server: &Server, te: &str) -> RawAnswer {
    let mut client = server.connect().await;
    client.send("POST /pay HTTP/1.1\r\nhost: x\r\nidempotency-key: k\r\ntrailer: x-sum\r\n").await;
    client.send(te).await;
    client.send("transfer-encoding: chunked\r\n\r\n9\r\na payment\r\n0\r\n").await;
    client.send("x-sum: 1\r\nx-sum: 2\r\nx-other: 3\r\n\r\n").await;
    client.answer().await
}

#[tokio::test]
async fn b86_trailers_go_in_and_out_over_http1_first_and_replayed() {
    let runs = Runs::new();
    let server = Server::start(echo(&runs, true)).await;
    for delivery in 0..2 {
        let answer = chunked(&server, "te: trailers\r\nconnection: te\r\n").await;
        assert_eq!(answer.headers.contains_key(REPLAYED), delivery > 0);
        assert_eq!(answer.body, "a payment");
        assert_eq!(answer.trailers, sums(), "{answer:?}");
    }
    // A client that takes no trailers gets the rest.
    let answer = chunked(&server, "").await;
    assert_eq!((&answer.body[..], answer.trailers.len()), (&b"a payment"[..], 0));
    // Who asks over HTTP/2 gets what was stored over HTTP/1.1.
    let client = Http2Client::connect(server.address()).await;
    let answer = client.send(post("k")).await;
    assert_eq!((is_replay(&answer), answer.trailers), (true, Some(sums())));
    assert_eq!(runs.count(), 1);
}

#[tokio::test]
async fn a_body_without_a_length_over_http2_is_the_same_as_one_with() {
    let handler = Handler::default();
    let runs = handler.runs.clone();
    let server = serve(ServiceBuilder::new().layer(layer()).service(handler)).await;
    let client = Http2Client::connect(server.address()).await;
    let mut stream = client.open(post("k").map(drop)).await;
    stream.send("a pay", false);
    stream.send("ment", false);
    stream.send("", true);
    let first = stream.answer().await;
    assert_eq!((&first.body[..], is_replay(&first)), (&b"run 1: a payment"[..], false));
    let mut declared = post("k");
    declared.headers_mut().insert("content-length", "9".parse().unwrap());
    assert!(is_replay(&client.send(declared).await));
    assert!(is_replay(&server.send(Protocol::Http1, post("k")).await));
    assert_eq!(runs.count(), 1);
}

/// An app that switches protocols for GET, tunnels for CONNECT, and echoes what comes through.
async fn upgrading(mut request: AxumRequest) -> Response {
    let wants = request.headers().contains_key("upgrade") || *request.method() == Method::CONNECT;
    let connect = *request.method() == Method::CONNECT;
    let upgrade = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let Ok(upgraded) = upgrade.await else { return };
        let mut stream = TokioIo::new(upgraded);
        let mut four = [0; 4];
        stream.read_exact(&mut four).await.expect("four bytes");
        stream.write_all(&four).await.expect("four bytes back");
        stream.flush().await.expect("four bytes back");
    });
    let mut response = Response::new(Body::empty());
    if wants && !connect {
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        response.headers_mut().insert("connection", "upgrade".parse().unwrap());
        response.headers_mut().insert("upgrade", "echo".parse().unwrap());
    }
    response
}

/// Every method is protected, so that only what the layer sees in a request lets it pass.
fn for_every_method() -> IdempotencyLayer {
    let rule = Rule::new("pay", Policy::api(Scope::everyone()));
    let methods = [Method::GET, Method::CONNECT, Method::POST];
    IdempotencyLayer::new(MemoryStore::new(), rule.methods(methods))
}

#[tokio::test]
async fn b85_an_upgrade_passes_untouched_and_leaves_no_claim() {
    let app = Router::new().fallback(upgrading).layer(for_every_method());
    let server = serve(app).await;
    for head in
        ["GET /ws HTTP/1.1\r\nconnection: upgrade\r\nupgrade: echo\r\n", "CONNECT x:1 HTTP/1.1\r\n"]
    {
        // Twice: what passed once is not replayed.
        for _ in 0..2 {
            let mut client = RawClient::connect(server.address()).await;
            client.send(format!("{head}host: x\r\nidempotency-key: k\r\n\r\n")).await;
            if head.starts_with("GET") {
                let answer = client.any_answer().await;
                assert_eq!(answer.status, StatusCode::SWITCHING_PROTOCOLS);
                assert!(!answer.headers.contains_key(REPLAYED));
                client.send("ping").await;
                assert_eq!(client.rest().await, "ping");
            } else {
                client.send("ping").await;
                let all = client.rest().await;
                assert!(
                    all.starts_with(b"HTTP/1.1 200") && all.ends_with(b"\r\n\r\nping"),
                    "{all:?}"
                );
            }
        }
    }
}

#[tokio::test]
async fn b85_a_connect_over_http2_passes_untouched() {
    let app = Router::new().fallback(upgrading).layer(for_every_method());
    let server = serve(app).await;
    let client = Http2Client::connect(server.address()).await;
    for _ in 0..2 {
        let request = Request::connect("/").header("idempotency-key", "k").body(()).unwrap();
        let mut stream = client.open(request).await;
        stream.send("ping", false);
        let answer = stream.answer().await;
        assert_eq!((answer.status, &answer.body[..]), (StatusCode::OK, &b"ping"[..]));
        assert!(!answer.headers.contains_key(REPLAYED));
    }
}

#[tokio::test]
async fn b85_a_post_that_offers_an_upgrade_is_protected_all_the_same() {
    let handler = Handler::default();
    let runs = handler.runs.clone();
    let server = serve(ServiceBuilder::new().layer(layer()).service(handler)).await;
    let offering = || {
        let mut request = post("k");
        for (name, value) in
            [("connection", "upgrade, http2-settings"), ("upgrade", "h2c"), ("http2-settings", "")]
        {
            request.headers_mut().insert(name, value.parse().unwrap());
        }
        request
    };
    for delivery in 0..2 {
        let answer = server.send(Protocol::Http1, offering()).await;
        assert_eq!(
            (&answer.body[..], is_replay(&answer)),
            (&b"run 1: a payment"[..], delivery > 0)
        );
    }
    let mut keyless = offering();
    keyless.headers_mut().remove("idempotency-key");
    assert_eq!(server.send(Protocol::Http1, keyless).await.status, StatusCode::BAD_REQUEST);
    assert_eq!(runs.count(), 1);
}

#[tokio::test]
async fn what_no_rule_is_for_passes_with_its_body_in_both_directions() {
    let runs = Runs::new();
    let server = Server::start(echo(&runs, true)).await;
    let client = Http2Client::connect(server.address()).await;
    for run in 1..=2 {
        let mut put = post("k").map(drop);
        *put.method_mut() = Method::PUT;
        let mut stream = client.open(put).await;
        stream.send(Bytes::from_static(b"x"), false);
        stream.send_trailers(sums());
        let answer = stream.answer().await;
        assert_eq!((answer.body, answer.trailers), (Bytes::from_static(b"x"), Some(sums())));
        assert_eq!(runs.count(), run);
    }
    for protocol in BOTH {
        let get = Request::get("/pay").header("idempotency-key", "\"").body("").unwrap();
        assert_eq!(send(server.address(), protocol, get).await.status, StatusCode::OK);
    }
}
