//! Cases 24 to 29: what the second delivery gets.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU32, Ordering},
};

use axum::{
    Json, Router,
    body::Body,
    extract::Request as AnyRequest,
    middleware::{Next, from_fn},
    response::IntoResponse,
    routing::post,
};
use http::StatusCode;
use tower_idempotency::{IdempotencyLayer, MemoryStore, Rule};
use tower_idempotency_test_support::{Chunks, RawAnswer, Runs, Server};

use crate::shop::{Shop, api, assert_ran, assert_refused, assert_replayed, pay, raw_pay, text};

#[tokio::test]
async fn case_24_the_second_delivery_gets_the_first_one_s_answer_and_says_so() {
    let shop = Shop::open(api()).await;
    let first = shop.pay("\"k\"", "10").await;
    assert_ran(&first, "run 1 of k");
    let second = shop.pay("\"k\"", "10").await;
    assert_replayed(&second, "run 1 of k");
    assert_eq!(first.headers()["content-type"], second.headers()["content-type"]);
    assert_eq!(shop.runs.count(), 1);
    // Over one connection as over two.
    let mut client = shop.server.connect().await;
    for replayed in [false, true, true] {
        client.send(raw_pay(&[b"\"k-2\""], "Content-Length: 2\r\n\r\n10")).await;
        let answer = client.answer().await.into_response();
        assert_eq!(answer.headers().contains_key("idempotent-replayed"), replayed);
        assert_eq!(text(&answer), "run 2 of k-2");
    }
}

#[tokio::test]
async fn case_24_a_handler_cannot_pass_its_answer_off_as_a_replay() {
    let layer = IdempotencyLayer::new(MemoryStore::new(), Rule::new("pay", api()));
    let handler = || async { ([("Idempotent-Replayed", "true")], "paid") };
    let server = Server::start(Router::new().route("/pay", post(handler)).layer(layer)).await;
    for replayed in [false, true] {
        let answer = server.send(pay("\"k\"", "10")).await;
        assert_eq!(answer.headers().contains_key("idempotent-replayed"), replayed);
    }
}

#[tokio::test]
async fn case_25_headers_are_no_part_of_what_must_be_equal() {
    let shop = Shop::open(api()).await;
    let first = "User-Agent: one\r\nTraceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n\
         Date: Sun, 29 Nov 2026 00:00:00 GMT\r\nContent-Length: 2\r\n\r\n10";
    let second = "Content-Length: 2\r\nDate: Mon, 30 Nov 2026 00:00:00 GMT\r\nX-Forwarded-For: 192.0.2.1\r\n\
         Traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00\r\n\
         User-Agent: two\r\nAccept: */*\r\nContent-Type: text/plain\r\n\r\n10";
    for (rest, run) in [(first, true), (second, false)] {
        let mut client = shop.server.connect().await;
        client.send(raw_pay(&[b"\"k\""], rest)).await;
        let answer = client.answer().await.into_response();
        if run {
            assert_ran(&answer, "run 1 of k");
        } else {
            assert_replayed(&answer, "run 1 of k");
        }
    }
    assert_eq!(shop.runs.count(), 1);
}

#[tokio::test]
async fn case_26_a_replay_is_what_was_answered_then_and_not_what_is_true_now() {
    let balance = Arc::new(AtomicU32::new(100));
    let charged = balance.clone();
    let app = Router::new()
        .route(
            "/pay",
            post(move || async move {
                let now = charged.fetch_sub(10, Ordering::SeqCst) - 10;
                Json(serde_json::json!({ "balance": now }))
            }),
        )
        .layer(IdempotencyLayer::new(MemoryStore::new(), Rule::new("pay", api())));
    let server = Server::start(app).await;
    let answers = [
        (pay("\"mine\"", ""), r#"{"balance":90}"#),
        (pay("\"theirs\"", ""), r#"{"balance":80}"#),
        (pay("\"mine\"", ""), r#"{"balance":90}"#),
        (pay("\"theirs\"", ""), r#"{"balance":80}"#),
    ];
    for (request, expected) in answers {
        assert_eq!(text(&server.send(request).await), expected);
    }
    assert_eq!(balance.load(Ordering::SeqCst), 80);
}

#[tokio::test]
async fn case_27_who_lost_the_right_to_ask_gets_no_replay() {
    let allowed = Arc::new(AtomicBool::new(true));
    let asked = allowed.clone();
    let authenticate = from_fn(move |request: AnyRequest, next: Next| {
        let allowed = asked.load(Ordering::SeqCst);
        async move {
            match allowed {
                true => next.run(request).await,
                false => StatusCode::UNAUTHORIZED.into_response(),
            }
        }
    });
    let rule = Rule::new("pay", api());
    let shop = Shop::inside(MemoryStore::new(), rule, |app| app.layer(authenticate)).await;
    assert_ran(&shop.pay("\"k\"", "10").await, "run 1 of k");
    assert_replayed(&shop.pay("\"k\"", "10").await, "run 1 of k");

    allowed.store(false, Ordering::SeqCst);
    let answer = shop.pay("\"k\"", "10").await;
    assert_eq!((answer.status(), text(&answer)), (StatusCode::UNAUTHORIZED, ""));

    // Nor has the refusal harmed what is stored.
    allowed.store(true, Ordering::SeqCst);
    assert_replayed(&shop.pay("\"k\"", "10").await, "run 1 of k");
    assert_eq!(shop.runs.count(), 1);
}

/// Answers in chunks, and with every field that is for one connection alone.
fn chunked(runs: &Runs) -> Router {
    let runs = runs.clone();
    let handler = post(move || async move {
        runs.add();
        let headers = [
            ("keep-alive", "timeout=5"),
            ("proxy-connection", "keep-alive"),
            ("connection", "x-hop"),
            ("x-hop", "1"),
            ("upgrade", "h2c"),
            ("x-kept", "1"),
        ];
        (headers, Body::new(Chunks::new(["three ", "chunks ", "long"])))
    });
    let layer = IdempotencyLayer::new(MemoryStore::new(), Rule::new("pay", api()));
    Router::new().route("/pay", handler).layer(layer)
}

#[tokio::test]
async fn case_28_a_chunked_answer_is_replayed_whole_and_without_its_connection_s_fields() {
    let runs = Runs::new();
    let server = Server::start(chunked(&runs)).await;
    let mut answers: Vec<RawAnswer> = Vec::new();
    for _ in 0..2 {
        let mut client = server.connect().await;
        client.send(raw_pay(&[b"\"k\""], "Content-Length: 2\r\n\r\n10")).await;
        answers.push(client.answer().await);
    }
    let [first, second] = &answers[..] else { panic!("two were sent") };
    assert_eq!(first.body, "three chunks long");
    assert_eq!(second.body, "three chunks long");
    assert_eq!(second.headers["content-length"], "17");
    for name in
        ["transfer-encoding", "connection", "keep-alive", "proxy-connection", "upgrade", "x-hop"]
    {
        assert!(!second.headers.contains_key(name), "{name} in {:?}", second.headers);
    }
    assert_eq!(second.headers["x-kept"], "1");
    assert_eq!(second.headers["idempotent-replayed"], "true");
    assert_eq!(runs.count(), 1);
}

#[tokio::test]
async fn case_29_a_retry_may_frame_its_body_otherwise() {
    let length = "Content-Length: 10\r\n\r\n0123456789";
    let chunked = "Transfer-Encoding: chunked\r\n\r\n4\r\n0123\r\n6\r\n456789\r\n0\r\n\r\n";
    let other_chunks =
        "Transfer-Encoding: chunked\r\n\r\n1;x=y\r\n0\r\n9\r\n123456789\r\n0\r\nX-Sum: 1\r\n\r\n";
    let other_body = "Transfer-Encoding: chunked\r\n\r\n4\r\n0123\r\n6\r\n45678X\r\n0\r\n\r\n";
    for [first, second, third] in [[length, chunked, other_chunks], [chunked, other_chunks, length]]
    {
        let shop = Shop::open(api()).await;
        let send = async |framed: &str| {
            let mut client = shop.server.connect().await;
            client.send(raw_pay(&[b"\"k\""], framed)).await;
            client.answer().await.into_response()
        };
        assert_ran(&send(first).await, "run 1 of k");
        assert_replayed(&send(second).await, "run 1 of k");
        assert_replayed(&send(third).await, "run 1 of k");
        assert_refused(&send(other_body).await, 422, "mismatch");
        assert_eq!(shop.runs.count(), 1);
    }
}

#[tokio::test]
async fn case_29_an_empty_body_is_one_whatever_says_so() {
    let shop = Shop::open(api()).await;
    for rest in ["\r\n", "Content-Length: 0\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"]
    {
        let mut client = shop.server.connect().await;
        client.send(raw_pay(&[b"\"k\""], rest)).await;
        assert_eq!(text(&client.answer().await.into_response()), "run 1 of k");
    }
    let full = pay("\"k\"", "1");
    assert_refused(&shop.server.send(full).await, 422, "mismatch");
    assert_eq!(shop.runs.count(), 1);
}
