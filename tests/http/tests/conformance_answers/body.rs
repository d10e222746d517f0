//! Cases 68 to 72: the body of a request is read whole, within its limit, and reaches the handler as
//! it was sent.

use std::sync::{Arc, Mutex};

use axum::{Router, body::Body, routing::post as routed};
use bytes::Bytes;
use h2::Reason;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt, Collected};
use tower_idempotency::{MemoryStore, Policy};
use tower_idempotency_test_support::{Http2Client, Runs, Server, h2};

use crate::{BOTH, Case, Protocol, api, around, post, raw_post, text};

const LIMIT: usize = 64;

async fn limited() -> Case {
    Case::answering(api().body_limit(LIMIT), |_| text("paid")).await
}

/// The handlers so far, and that the key is as free as if nothing had been sent.
async fn assert_key_is_unused(case: &Case) {
    assert_eq!(case.runs.count(), 0, "nothing was run");
    let heard = case.send(Protocol::Http1, post("k", "a smaller payment")).await;
    assert_eq!((heard.status, heard.is_replay()), (StatusCode::OK, false), "{heard:?}");
    assert_eq!(case.runs.count(), 1);
}

#[tokio::test]
async fn case_68_a_body_over_the_limit_is_refused_and_its_key_stays_free() {
    const OVER: &str = "65 bytes: 6789012345678901234567890123456789012345678901234567890";
    assert_eq!(OVER.len(), LIMIT + 1);
    for protocol in BOTH {
        let case = limited().await;
        let heard = case.send(protocol, post("k", OVER)).await;
        assert_eq!(heard.status, StatusCode::PAYLOAD_TOO_LARGE);
        assert_eq!(heard.problem(), "body-too-large");
        assert_key_is_unused(&case).await;

        let case = limited().await;
        let heard = case.send(protocol, post("k", &OVER[1..])).await;
        assert_eq!(heard.status, StatusCode::OK, "as large as the limit");
    }
}

#[tokio::test]
async fn case_69_the_limit_is_for_the_bytes_that_come() {
    let case = limited().await;
    let mut client = case.server.connect().await;
    let chunk = format!("20\r\n{}\r\n", "x".repeat(32));
    client.send(raw_post("k", &["transfer-encoding: chunked"], &chunk.repeat(2))).await;
    // As much as is allowed, and no answer yet; one byte more, and the body need not end.
    client.send("1\r\nx\r\n").await;
    let answer = client.answer().await;
    assert_eq!(answer.status, StatusCode::PAYLOAD_TOO_LARGE);
    assert_key_is_unused(&case).await;

    let case = limited().await;
    let client = Http2Client::connect(case.server.address()).await;
    let mut stream = client.open(post("k", "").map(drop)).await;
    stream.send("x".repeat(64), false);
    stream.send("x", false);
    assert_eq!(stream.answer().await.status, StatusCode::PAYLOAD_TOO_LARGE);
    assert_key_is_unused(&case).await;
}

#[tokio::test]
async fn case_69_a_length_over_the_limit_is_refused_before_the_body() {
    let case = limited().await;
    let mut client = case.server.connect().await;
    client.send(raw_post("k", &["content-length: 65"], "")).await;
    assert_eq!(client.answer().await.status, StatusCode::PAYLOAD_TOO_LARGE);
    assert_key_is_unused(&case).await;

    let case = limited().await;
    let client = Http2Client::connect(case.server.address()).await;
    let mut head = post("k", "").map(drop);
    head.headers_mut().insert("content-length", "65".parse().unwrap());
    let stream = client.open(head).await;
    assert_eq!(stream.answer().await.status, StatusCode::PAYLOAD_TOO_LARGE);
    assert_key_is_unused(&case).await;
}

#[tokio::test]
async fn case_69_a_body_shorter_than_its_length_runs_nothing() {
    let case = limited().await;
    let mut client = case.server.connect().await;
    client.send(raw_post("k", &["content-length: 10"], "short")).await;
    client.finish_sending().await;
    let rest = client.rest().await;
    assert!(!rest.starts_with(b"HTTP/1.1 200"), "{rest:?}");
    assert_key_is_unused(&case).await;

    let case = limited().await;
    let client = Http2Client::connect(case.server.address()).await;
    let mut head = post("k", "").map(drop);
    head.headers_mut().insert("content-length", "10".parse().unwrap());
    let mut stream = client.open(head).await;
    stream.send("short", true);
    let error = stream.try_answer().await.expect_err("its length lies");
    assert_eq!(error.reason(), Some(Reason::PROTOCOL_ERROR));
    assert_key_is_unused(&case).await;
}

#[tokio::test]
async fn case_69_what_comes_after_the_length_is_no_part_of_the_body() {
    let echo = Echo::start(api()).await;
    let mut client = echo.server.connect().await;
    client.send(raw_post("k", &["content-length: 5"], "hello, world")).await;
    assert_eq!(client.answer().await.status, StatusCode::OK);
    let rest = client.rest().await;
    assert!(rest.starts_with(b"HTTP/1.1 400"), "the rest is no request: {rest:?}");
    assert_eq!(echo.seen(), [("hello".into(), None)]);

    let echo = Echo::start(api()).await;
    let client = Http2Client::connect(echo.server.address()).await;
    let mut head = post("k", "").map(drop);
    head.headers_mut().insert("content-length", "5".parse().unwrap());
    let mut stream = client.open(head).await;
    stream.send("hello, world", true);
    let error = stream.try_answer().await.expect_err("its length lies");
    assert_eq!(error.reason(), Some(Reason::PROTOCOL_ERROR));
    assert_eq!(echo.seen(), []);
}

/// With `expect: 100-continue`, a length of 4, and no body yet.
fn expecting(key_line: &str, length: usize) -> String {
    format!(
        "POST /pay HTTP/1.1\r\nhost: x\r\n{key_line}content-length: {length}\r\n\
         expect: 100-continue\r\n\r\n"
    )
}

#[tokio::test]
async fn case_70_what_the_head_decides_asks_for_no_body() {
    let case = limited().await;
    for (key_line, length, status) in [
        ("", 4, StatusCode::BAD_REQUEST),
        ("idempotency-key: \"\r\n", 4, StatusCode::BAD_REQUEST),
        ("idempotency-key: k\r\n", 65, StatusCode::PAYLOAD_TOO_LARGE),
    ] {
        let mut client = case.server.connect().await;
        client.send(expecting(key_line, length)).await;
        assert_eq!(client.any_answer().await.status, status, "and no 100 before it");
    }
    assert_key_is_unused(&case).await;
}

/// The whole request is compared, so a duplicate cannot be answered before its body is there.
#[tokio::test]
async fn case_70_a_duplicate_is_replayed_after_its_body() {
    let case = limited().await;
    for (body, status) in [("1000", 200), ("1000", 200), ("2000", 422)] {
        let mut client = case.server.connect().await;
        client.send(expecting("idempotency-key: k\r\n", 4)).await;
        assert_eq!(client.any_answer().await.status, StatusCode::CONTINUE);
        client.send(body).await;
        assert_eq!(client.any_answer().await.status, status);
    }
    assert_eq!(case.runs.count(), 1);
}

#[tokio::test]
async fn case_70_over_http2_the_head_decides_before_the_body_too() {
    let case = limited().await;
    let client = Http2Client::connect(case.server.address()).await;
    let stream = client.open(Request::post("/pay").body(()).unwrap()).await;
    assert_eq!(stream.answer().await.status, StatusCode::BAD_REQUEST);
    for (delivery, (body, status)) in
        [("1000", 200), ("1000", 200), ("2000", 422)].into_iter().enumerate()
    {
        let mut stream = client.open(post("k", "").map(drop)).await;
        stream.send(body, true);
        let answer = stream.answer().await;
        assert_eq!(answer.status, status);
        assert_eq!(answer.headers.contains_key("idempotent-replayed"), delivery == 1);
    }
    assert_eq!(case.runs.count(), 1);
}

type Seen = (Bytes, Option<HeaderMap>);

/// A handler that notes the bodies it gets.
struct Echo {
    server: Server,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl Echo {
    async fn start(policy: Policy) -> Self {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let noted = seen.clone();
        let handler = move |body: Body| async move {
            let whole: Collected<Bytes> = body.collect().await.expect("a whole body");
            let trailers = whole.trailers().cloned();
            noted.lock().unwrap().push((whole.to_bytes(), trailers));
            "noted"
        };
        let router = Router::new().route("/pay", routed(handler));
        let server = Server::start(around(MemoryStore::new(), policy, router)).await;
        Self { server, seen }
    }

    fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }
}

#[tokio::test]
async fn case_71_the_handler_gets_body_and_trailers_as_they_were_sent() {
    let whole: Bytes = (0..=255).cycle().take(100_000).collect();
    let mut trailers = HeaderMap::new();
    trailers.insert("x-sum", "1".parse().unwrap());
    trailers.append("x-sum", "2".parse().unwrap());

    let echo = Echo::start(api()).await;
    let mut client = echo.server.connect().await;
    client.send(raw_post("k", &["transfer-encoding: chunked", "trailer: x-sum"], "")).await;
    for chunk in whole.chunks(3333) {
        client.send(format!("{:x}\r\n", chunk.len())).await;
        client.send(chunk).await;
        client.send("\r\n").await;
    }
    client.send("0\r\nx-sum: 1\r\nx-sum: 2\r\n\r\n").await;
    assert_eq!(client.answer().await.status, StatusCode::OK);
    assert_eq!(echo.seen(), [(whole.clone(), Some(trailers.clone()))]);

    let echo = Echo::start(api()).await;
    let client = Http2Client::connect(echo.server.address()).await;
    let mut stream = client.open(post("k", "").map(drop)).await;
    for chunk in whole.chunks(3333) {
        stream.send(Bytes::copy_from_slice(chunk), false);
    }
    stream.send_trailers(trailers.clone());
    assert_eq!(stream.answer().await.status, StatusCode::OK);
    assert_eq!(echo.seen(), [(whole, Some(trailers))]);
}

#[tokio::test]
async fn case_71_trailers_without_a_body_reach_the_handler_too() {
    let mut trailers = HeaderMap::new();
    trailers.insert("x-sum", "0".parse().unwrap());
    let echo = Echo::start(api()).await;
    let client = Http2Client::connect(echo.server.address()).await;
    let mut stream = client.open(post("k", "").map(drop)).await;
    stream.send_trailers(trailers.clone());
    assert_eq!(stream.answer().await.status, StatusCode::OK);
    assert_eq!(echo.seen(), [(Bytes::new(), Some(trailers))]);
}

#[tokio::test]
async fn case_72_an_empty_body_is_a_body() {
    let case = Case::answering(api(), |_| text("paid")).await;
    let mut client = case.server.connect().await;
    let mut replays = Vec::new();
    // However it is said that there is no body, it is the same request.
    for empty in [
        raw_post("k", &["content-length: 0"], ""),
        "POST /pay HTTP/1.1\r\nhost: x\r\nidempotency-key: k\r\n\r\n".to_owned(),
        raw_post("k", &["transfer-encoding: chunked"], "0\r\n\r\n"),
    ] {
        client.send(empty).await;
        let answer = client.answer().await;
        assert_eq!(answer.status, StatusCode::OK);
        replays.push(answer.headers.contains_key("idempotent-replayed"));
    }
    replays.push(case.send(Protocol::Http2, post("k", "")).await.is_replay());
    assert_eq!(replays, [false, true, true, true]);

    let other = case.send(Protocol::Http1, post("k", " ")).await;
    assert_eq!(other.problem(), "mismatch");
    assert_eq!(case.runs.count(), 1);
}

#[tokio::test]
async fn case_72_the_handler_sees_that_it_is_empty() {
    let runs = Runs::new();
    let counted = runs.clone();
    let handler = move |body: Body| async move {
        counted.add();
        assert!(http_body::Body::is_end_stream(&body));
        assert_eq!(http_body::Body::size_hint(&body).exact(), Some(0));
    };
    let router = Router::new().route("/pay", routed(handler));
    let server = Server::start(around(MemoryStore::new(), api(), router)).await;
    let case = Case { server, runs };
    for protocol in BOTH {
        let key = format!("{protocol:?}");
        assert_eq!(case.send(protocol, post(&key, "")).await.status, StatusCode::OK);
    }
    assert_eq!(case.runs.count(), 2);
}
