//! Cases 28 and 29: what is for one connection alone, and what is for the request.

use axum::{Router, body::Body, routing::post};
use tower_idempotency::{IdempotencyLayer, MemoryStore, Rule};
use tower_idempotency_test_support::{Chunks, Http2Client, Runs, Server};

use crate::{
    connect, head, pay, response,
    shop::{Shop, api, assert_ran, assert_refused, assert_replayed, raw_pay},
};

/// RFC 9113, section 8.2.2: a message with one of these is malformed.
const OF_HTTP_1: [&str; 5] =
    ["connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"];
/// What the handler below sends of its own.
const BODY: &str = "three chunks long";

/// Answers in chunks; over HTTP/1.1, with every field that is for one connection alone.
fn chunked(runs: &Runs) -> Router {
    let runs = runs.clone();
    let handler = post(move |version: http::Version| async move {
        runs.add();
        let mut headers = http::HeaderMap::new();
        if version == http::Version::HTTP_11 {
            headers.insert("keep-alive", "timeout=5".parse().unwrap());
            headers.insert("proxy-connection", "keep-alive".parse().unwrap());
            headers.insert("connection", "x-hop".parse().unwrap());
            headers.insert("upgrade", "h2c".parse().unwrap());
        }
        headers.insert("x-kept", "1".parse().unwrap());
        (headers, Body::new(Chunks::new(["three ", "chunks ", "long"])))
    });
    let layer = IdempotencyLayer::new(MemoryStore::new(), Rule::new("pay", api()));
    Router::new().route("/pay", handler).layer(layer)
}

#[tokio::test]
async fn case_28_an_answer_over_http_1_is_replayed_over_http_2() {
    let runs = Runs::new();
    let server = Server::start(chunked(&runs)).await;
    let mut client = server.connect().await;
    client.send(raw_pay(&[b"\"k\""], "Content-Length: 2\r\n\r\n10")).await;
    let first = client.answer().await;
    assert_eq!(first.body, BODY);
    assert!(first.headers.contains_key("keep-alive"), "it had fields of its connection");

    // The client takes a malformed answer for no answer at all.
    let client = Http2Client::connect(server.address()).await;
    for _ in 0..2 {
        let replay = client.send(pay("10")).await;
        assert_eq!((replay.status, &replay.body[..]), (http::StatusCode::OK, BODY.as_bytes()));
        assert_eq!(replay.headers["idempotent-replayed"], "true");
        assert_eq!(replay.headers["x-kept"], "1");
        for name in OF_HTTP_1 {
            assert!(!replay.headers.contains_key(name), "{name} in {:?}", replay.headers);
        }
    }
    assert_eq!(runs.count(), 1);
}

#[tokio::test]
async fn case_28_an_answer_over_http_2_is_replayed_over_http_1() {
    let runs = Runs::new();
    let server = Server::start(chunked(&runs)).await;
    let first = Http2Client::connect(server.address()).await.send(pay("10")).await;
    assert_eq!(first.body, BODY);
    assert!(!first.headers.contains_key("idempotent-replayed"));

    let mut client = server.connect().await;
    client.send(raw_pay(&[b"\"k\""], "Content-Length: 2\r\n\r\n10")).await;
    let replay = client.answer().await;
    assert_eq!(replay.body, BODY);
    assert_eq!(replay.headers["idempotent-replayed"], "true");
    assert_eq!(replay.headers["content-length"], "17");
    assert_eq!(runs.count(), 1);
}

#[tokio::test]
async fn case_29_a_body_in_frames_is_the_same_body() {
    let shop = Shop::open(api()).await;
    let client = connect(&shop).await;
    assert_ran(&response(client.send(pay("0123456789")).await), "run 1 of k");

    for length in [None, Some(10)] {
        let mut stream = client.open(head(length)).await;
        stream.send("0123", false);
        stream.send("", false);
        stream.send("456789", true);
        assert_replayed(&response(stream.answer().await), "run 1 of k");
    }
    // Trailers end it as well.
    let mut stream = client.open(head(None)).await;
    stream.send("0123456789", false);
    stream.send_trailers([("x-sum".parse().unwrap(), "1".parse().unwrap())].into_iter().collect());
    assert_replayed(&response(stream.answer().await), "run 1 of k");

    assert_refused(&response(client.send(pay("012345678X")).await), 422, "mismatch");
    assert_eq!(shop.runs.count(), 1);
}

#[tokio::test]
async fn case_29_a_retry_over_another_version_of_http_is_the_same_request() {
    let shop = Shop::open(api()).await;
    assert_ran(&shop.pay("\"k\"", "10").await, "run 1 of k");
    let client = connect(&shop).await;
    assert_replayed(&response(client.send(pay("10")).await), "run 1 of k");
    assert_refused(&response(client.send(pay("20")).await), 422, "mismatch");
    let mut chunked = shop.server.connect().await;
    chunked
        .send(raw_pay(&[b"\"k\""], "Transfer-Encoding: chunked\r\n\r\n2\r\n10\r\n0\r\n\r\n"))
        .await;
    assert_replayed(&chunked.answer().await.into_response(), "run 1 of k");
    assert_eq!(shop.runs.count(), 1);
}
