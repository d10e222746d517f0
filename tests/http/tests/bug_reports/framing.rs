//! Section F of the reports: bodies, their framing and limits, streams, and the order of layers.

use std::{
    convert::Infallible,
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    body::Body,
    extract::Request,
    http::{HeaderMap, StatusCode},
    middleware::{Next, from_fn},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use http::HeaderValue;
use http_body::Frame;
use tokio::task::JoinSet;
use tower::{Layer, Service, ServiceBuilder, ServiceExt};
use tower_idempotency::{
    MemoryStore, Rule,
    test_util::{FaultyStore, Transition},
};
use tower_idempotency_test_support::Log;

use crate::support::{
    RedisServer, Runs, Shop, all_at_once, api, around, assert_fresh, assert_refused, assert_replay,
    keyed, layer, notify, pay, pieces, post, refusal, send_aside, serve, start, store_on, webhook,
};

/// A head of POST `/pay`, with these further lines.
fn head(lines: &str) -> String {
    format!("POST /pay HTTP/1.1\r\nhost: shop\r\nidempotency-key: k\r\n{lines}\r\n")
}

#[tokio::test]
async fn b78_a_body_without_an_end_is_refused_at_the_limit_and_claims_nothing() {
    let shop = Shop::open();
    let store = FaultyStore::new(MemoryStore::new());
    let calls = store.faults();
    let policy = api().body_limit(64 * 1024).body_within(Duration::from_millis(300));
    let server = serve(store, policy, shop.handler()).await;
    // In chunks, for as long as it is read: much less is taken than would be sent.
    let mut endless = server.connect().await;
    endless.send(head("transfer-encoding: chunked\r\n")).await;
    let chunk = format!("1000\r\n{}\r\n", "x".repeat(0x1000));
    for _ in 0..17 {
        endless.send(&chunk).await;
    }
    let answer = endless.answer().await;
    assert_eq!(answer.status, 413);
    // By its own word: before any of it was sent.
    let mut vast = server.connect().await;
    vast.send(head("content-length: 10000000000\r\n")).await;
    assert_eq!(vast.answer().await.status, 413);
    // Slow bytes.
    let mut slow = server.connect().await;
    slow.send(head("content-length: 100\r\n")).await;
    slow.send("amount").await;
    assert_eq!(slow.answer().await.status, 408);
    assert_eq!((shop.runs(), calls.calls(Transition::Claim)), (0, 0));
    // Right at the limit it is none too large.
    let largest = "x".repeat(64 * 1024);
    assert_fresh(&server.send(keyed("/pay", "k", largest)).await, "run 1");
}

#[tokio::test]
async fn b79_the_handler_sees_the_bytes_that_were_sent() {
    let echo = |body: Bytes| async move { body };
    let server = serve(MemoryStore::new(), api(), echo).await;
    let bodies: [(&str, &[u8]); 6] = [
        ("application/json", b" {\"b\" : 1.0,\n\t\"a\":\"\\u00e9\" , \"b\":2}\r\n"),
        ("application/x-www-form-urlencoded", b"notify_id=a%20b&sign=x+y&&z"),
        ("text/xml", b"\xef\xbb\xbf<xml><a><![CDATA[ 1 ]]></a></xml>\n"),
        ("text/plain", b"a\r\n\r\nb\0"),
        ("application/octet-stream", b"\x00\xff\xfe"),
        ("application/json", b""),
    ];
    for (i, (kind, body)) in bodies.into_iter().enumerate() {
        let mut request = keyed("/pay", &i.to_string(), body);
        request.headers_mut().insert("content-type", HeaderValue::from_static(kind));
        assert_eq!(server.send(request).await.body(), body);
    }
    // Also where the identity is read out of the body.
    let server = serve(MemoryStore::new(), webhook(), echo).await;
    let body = "{ \"amount\" : 9.60,\r\n  \"notifyId\" : \"n1\" }";
    assert_fresh(&server.send(post("/notify", body)).await, body);
}

#[tokio::test]
async fn b80_an_encoded_body_is_refused_with_the_reason_and_never_runs_unprotected() {
    let shop = Shop::open();
    for policy in [webhook(), webhook().optional()] {
        let server = serve(MemoryStore::new(), policy, shop.handler()).await;
        // The beginning of any gzip file.
        let mut request = post("/notify", &b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03"[..]);
        request.headers_mut().insert("content-encoding", HeaderValue::from_static("gzip"));
        let answer = server.send(request).await;
        assert_refused(&answer, 400, "identity-malformed");
        let detail = String::from_utf8_lossy(answer.body());
        assert!(detail.contains("gzip") && detail.contains("decompress"), "{detail}");
    }
    assert_eq!(shop.runs(), 0);
    // A layer outside that decodes makes it work. (The real one is in the tests of the stack.)
    let decode = |request: Request, next: Next| async move {
        let (mut head, _) = request.into_parts();
        head.headers.remove("content-encoding");
        let body = r#"{"notifyId":"n1"}"#;
        head.headers.insert("content-length", HeaderValue::from(body.len()));
        next.run(Request::from_parts(head, Body::from(body))).await
    };
    let router = around(layer(MemoryStore::new(), webhook()), shop.handler());
    let server = start(router.layer(from_fn(decode))).await;
    let mut request = post("/notify", "encoded");
    request.headers_mut().insert("content-encoding", HeaderValue::from_static("gzip"));
    assert_fresh(&server.send(request).await, "run 1");
    assert_replay(&server.send(post("/notify", "encoded")).await, "run 1");
}

#[tokio::test]
async fn b83_a_streamed_answer_is_replayed_whole() {
    let runs = Runs::new();
    let counted = runs.clone();
    let handler = move || {
        counted.add();
        async {
            let (send, body) = pieces();
            tokio::spawn(async move {
                for chunk in ["one ", "two ", "three ", "four ", "five"] {
                    tokio::time::sleep(Duration::from_millis(30)).await;
                    send.send(Frame::data(chunk.into())).unwrap();
                }
            });
            Response::new(Body::new(body))
        }
    };
    let server = serve(MemoryStore::new(), api(), handler).await;
    assert_fresh(&server.send(pay("k")).await, "one two three four five");
    assert_replay(&server.send(pay("k")).await, "one two three four five");
    assert_eq!(runs.count(), 1);
}

#[tokio::test]
async fn b84_events_reach_their_reader_while_the_stream_goes_on() {
    let runs = Runs::new();
    let (events, next) = tokio::sync::mpsc::unbounded_channel::<&'static str>();
    let next = std::sync::Arc::new(tokio::sync::Mutex::new(next));
    let handler = {
        let runs = runs.clone();
        move || {
            runs.add();
            let next = next.clone();
            async move {
                let (send, body) = pieces();
                tokio::spawn(async move {
                    while let Some(event) = next.lock().await.recv().await {
                        if send.send(Frame::data(event.into())).is_err() {
                            return;
                        }
                    }
                });
                let kind = [("content-type", "text/event-stream; charset=utf-8")];
                (kind, Response::new(Body::new(body))).into_response()
            }
        }
    };
    let server = serve(MemoryStore::new(), api(), handler).await;
    let mut client = server.connect().await;
    client.send(head("content-length: 9\r\n")).await;
    client.send("amount=20").await;
    events.send("data: 1\n\n").unwrap();
    // The stream has no end yet, and neither has the answer.
    let began = client.read_until("data: 1\n\n").await;
    assert!(began.starts_with("HTTP/1.1 200"), "{began}");
    // Its key is done: it is not run again, and its answer was not kept.
    assert_refused(&server.send(pay("k")).await, 409, "answer-not-kept");
    events.send("data: 2\n\n").unwrap();
    client.read_until("data: 2\n\n").await;
    assert_eq!(runs.count(), 1);
}

#[tokio::test]
async fn b85_an_upgrade_passes_untouched_and_claims_nothing() {
    let upgrade = |mut request: Request| async move {
        let upgrading = hyper::upgrade::on(&mut request);
        tokio::spawn(async move {
            let upgraded = upgrading.await.unwrap();
            let mut io = hyper_util::rt::TokioIo::new(upgraded);
            tokio::io::AsyncWriteExt::write_all(&mut io, b"hello").await.unwrap();
        });
        let fields = [("upgrade", "echo"), ("connection", "upgrade")];
        (StatusCode::SWITCHING_PROTOCOLS, fields)
    };
    let store = FaultyStore::new(MemoryStore::new());
    let calls = store.faults();
    // Even where the rule names the method and the key is there.
    let rule = Rule::new("shop", api()).methods([http::Method::GET, http::Method::POST]);
    let layer = tower_idempotency::IdempotencyLayer::new(store, rule);
    let server = start(around(layer, upgrade)).await;
    for _ in 0..2 {
        let mut client = server.connect().await;
        let lines = "idempotency-key: k\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n";
        client.send(format!("GET /pay HTTP/1.1\r\nhost: shop\r\n{lines}")).await;
        let answer = client.any_answer().await;
        assert_eq!(answer.status, 101);
        assert_eq!(client.rest().await, "hello");
    }
    assert_eq!(calls.calls(Transition::Claim), 0);
    // The same GET without an upgrade is protected.
    let mut client = server.connect().await;
    client.send("GET /pay HTTP/1.1\r\nhost: shop\r\nidempotency-key: k\r\n\r\n").await;
    client.any_answer().await;
    assert_eq!(calls.calls(Transition::Claim), 1);
}

#[tokio::test]
async fn b85_a_tunnel_passes_untouched() {
    let store = FaultyStore::new(MemoryStore::new());
    let calls = store.faults();
    let rule = Rule::new("shop", api()).methods([http::Method::CONNECT]);
    let inner = tower::service_fn(|request: http::Request<_>| async move {
        let _: &http::Request<tower_idempotency::RequestBody<Body>> = &request;
        Ok::<_, Infallible>(Response::new(Body::from("tunnel")))
    });
    let service = tower_idempotency::IdempotencyLayer::new(store, rule).layer(inner);
    for _ in 0..2 {
        let request = http::Request::connect("shop:443").header("idempotency-key", "k");
        let answer = service.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        assert!(!answer.headers().contains_key("idempotent-replayed"));
    }
    assert_eq!(calls.calls(Transition::Claim), 0);
}

/// Answers `text` and then a trailer.
async fn with_trailer() -> Response {
    let (send, body) = pieces();
    send.send(Frame::data("text".into())).unwrap();
    let mut trailers = HeaderMap::new();
    trailers.insert("x-status", HeaderValue::from_static("0"));
    send.send(Frame::trailers(trailers)).unwrap();
    ([("trailer", "x-status")], Response::new(Body::new(body))).into_response()
}

#[tokio::test]
async fn b86_trailers_are_answered_and_replayed() {
    let redis = RedisServer::start().await;
    let server = serve(store_on(&redis).await, api(), with_trailer).await;
    let client = tower_idempotency_test_support::Http2Client::connect(server.address()).await;
    for replayed in [false, true] {
        let request = http::Request::post("/pay").header("idempotency-key", "k");
        let answer = client.send(request.body("amount=20").unwrap()).await;
        assert_eq!(answer.headers.contains_key("idempotent-replayed"), replayed);
        assert_eq!(answer.body, "text");
        let trailers = answer.trailers.expect("trailers");
        assert_eq!(trailers["x-status"], "0", "replayed: {replayed}");
    }
    // Over HTTP/1.1 to a client that takes them.
    let mut client = server.connect().await;
    for _ in 0..2 {
        client.send(head("te: trailers\r\ncontent-length: 9\r\n").replace(": k\r", ": k1\r")).await;
        client.send("amount=20").await;
        let answer = client.answer().await;
        assert_eq!(answer.body, "text");
        assert_eq!(answer.trailers["x-status"], "0", "{answer:?}");
    }
    assert_replay(&server.send(keyed("/pay", "k1", "amount=20")).await, "text");
}

#[tokio::test]
async fn b87_what_the_head_decides_is_decided_before_the_client_is_told_to_go_on() {
    let shop = Shop::open();
    let server = serve(MemoryStore::new(), api(), shop.handler()).await;
    let expecting = |key: &str, length: &str| {
        let lines = format!("idempotency-key: {key}\r\ncontent-length: {length}\r\n");
        format!("POST /pay HTTP/1.1\r\nhost: shop\r\nexpect: 100-continue\r\n{lines}\r\n")
    };
    for (key, length, status) in [("\"broken", "9", 400), ("k", "99999999", 413)] {
        let mut client = server.connect().await;
        client.send(expecting(key, length)).await;
        assert_eq!(client.any_answer().await.status, status, "and no 100 before it");
    }
    // Where the body is needed, for a first request and for a replay, it is asked for once.
    for expected in ["run 1", "run 1"] {
        let mut client = server.connect().await;
        client.send(expecting("k", "9")).await;
        assert_eq!(client.any_answer().await.status, 100);
        client.send("amount=20").await;
        let answer = client.any_answer().await;
        assert_eq!((answer.status, answer.body), (StatusCode::OK, expected.into()));
    }
    assert_eq!(shop.runs(), 1);
}

#[tokio::test]
async fn b88_a_preflight_needs_no_key_and_refusals_carry_the_fields_of_a_layer_outside() {
    let shop = Shop::open();
    let cors = |request: Request, next: Next| async move {
        let mut response = next.run(request).await;
        let everyone = HeaderValue::from_static("*");
        response.headers_mut().insert("access-control-allow-origin", everyone);
        response
    };
    let preflight = |request: Request| async move {
        let wanted = request.headers().get("access-control-request-headers").cloned();
        (StatusCode::NO_CONTENT, [("access-control-allow-headers", wanted.unwrap())])
    };
    let server = serve(MemoryStore::new(), api(), preflight).await;
    let mut client = server.connect().await;
    let asks = "access-control-request-headers: idempotency-key\r\norigin: https://shop\r\n";
    client.send(format!("OPTIONS /pay HTTP/1.1\r\nhost: shop\r\n{asks}\r\n")).await;
    let answer = client.answer().await;
    assert_eq!(answer.status, 204);
    assert_eq!(answer.headers["access-control-allow-headers"], "idempotency-key");

    let store = FaultyStore::new(MemoryStore::new());
    let faults = store.faults();
    let policy = api().claim_within(Duration::from_millis(50));
    let router = around(layer(store, policy), shop.handler()).layer(from_fn(cors));
    let server = start(router).await;
    assert_fresh(&server.send(pay("k")).await, "run 1");
    shop.hold();
    let running = send_aside(&server, pay("k2"));
    shop.started.wait_for(2).await;
    let mut refusals = vec![
        server.send(post("/pay", "")).await,
        server.send(pay("k2")).await,
        server.send(keyed("/pay", "k", "other")).await,
    ];
    shop.let_go();
    running.await.unwrap();
    faults.down(tower_idempotency::store::StoreErrorKind::Unreachable);
    refusals.push(server.send(pay("k3")).await);
    let statuses: Vec<_> = refusals.iter().map(|answer| answer.status().as_u16()).collect();
    assert_eq!(statuses, [400, 409, 422, 503]);
    for refused in refusals {
        assert!(refusal(&refused).is_some());
        assert_eq!(refused.headers()["access-control-allow-origin"], "*");
    }
}

/// A service that panics when it is called without having been asked whether it is ready.
#[derive(Debug)]
struct Careful {
    ready: bool,
    shop: Shop,
}

impl Clone for Careful {
    fn clone(&self) -> Self {
        Self { ready: false, shop: self.shop.clone() }
    }
}

impl<B: Send + 'static> Service<http::Request<B>> for Careful {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future =
        std::pin::Pin<Box<dyn Future<Output = Result<http::Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: http::Request<B>) -> Self::Future {
        assert!(std::mem::take(&mut self.ready), "called before it was ready");
        let shop = self.shop.clone();
        Box::pin(async move { Ok(http::Response::new(Body::from(shop.run().await))) })
    }
}

/// Ten requests with a key each, one with the first key again, and one that passes.
async fn twelve<S>(service: S)
where
    S: Service<http::Request<Body>> + Clone + Send + 'static,
    S::Error: std::fmt::Debug + Send,
    S::Response: Send,
    S::Future: Send,
{
    let mut sending = JoinSet::new();
    for i in 0..12 {
        let request = match i {
            11 => http::Request::get("/pay"),
            i => http::Request::post("/pay").header("idempotency-key", format!("k-{}", i % 10)),
        };
        let request = request.body(Body::from("amount=20")).unwrap();
        sending.spawn(service.clone().oneshot(request));
    }
    while let Some(answer) = sending.join_next().await {
        answer.unwrap().unwrap();
    }
}

#[tokio::test]
async fn b89_the_service_that_is_called_is_the_one_that_was_ready() {
    let idempotency = || layer(MemoryStore::new(), api());
    let careful = |shop: &Shop| Careful { ready: false, shop: shop.clone() };
    for _ in 0..3 {
        let shop = Shop::open();
        twelve(idempotency().layer(careful(&shop))).await;
        // Ten keys and the GET.
        assert_eq!(shop.runs(), 11);
        let shop = Shop::open();
        let limited = ServiceBuilder::new().layer(idempotency()).concurrency_limit(1);
        twelve(limited.service(careful(&shop))).await;
        assert_eq!(shop.runs(), 11);
        let shop = Shop::open();
        let buffered = ServiceBuilder::new().layer(idempotency()).buffer(2).concurrency_limit(1);
        twelve(buffered.service(careful(&shop))).await;
        assert_eq!(shop.runs(), 11);
    }
}

#[tokio::test]
async fn b89_a_replay_a_conflict_and_a_waiter_take_no_place_of_a_run() {
    let shop = Shop::open();
    let inner = Careful { ready: false, shop: shop.clone() };
    let policy = api().wait(Duration::from_secs(15));
    let service = ServiceBuilder::new()
        .layer(layer(MemoryStore::new(), policy))
        .concurrency_limit(2)
        .service(inner);
    let send = |key: &'static str| {
        let request = http::Request::post("/pay").header("idempotency-key", key);
        tokio::spawn(service.clone().oneshot(request.body(Body::from("amount=20")).unwrap()))
    };
    send("done").await.unwrap().unwrap();
    shop.hold();
    let first = send("k");
    shop.started.wait_for(2).await;
    // Twenty that wait for it hold none of the two places.
    let (log, _guard) = Log::listen();
    let waiting: Vec<_> = (0..20).map(|_| send("k")).collect();
    log.said("waiting", 20).await;
    let replay = send("done").await.unwrap().unwrap();
    assert_eq!(replay.headers()["idempotent-replayed"], "true");
    let other = send("other");
    shop.started.wait_for(3).await;
    shop.let_go();
    for sent in waiting.into_iter().chain([first, other]) {
        assert_eq!(sent.await.unwrap().unwrap().status(), 200);
    }
    assert_eq!(shop.runs(), 3);
    // With all places taken and a layer that sheds, whoever would run is an error, and claims nothing.
    let shop = Shop::held();
    let inner = Careful { ready: false, shop: shop.clone() };
    let shedding = ServiceBuilder::new()
        .layer(layer(MemoryStore::new(), api()))
        .load_shed()
        .concurrency_limit(1)
        .service(inner);
    let send = |key: &'static str| {
        let request = http::Request::post("/pay").header("idempotency-key", key);
        tokio::spawn(shedding.clone().oneshot(request.body(Body::from("amount=20")).unwrap()))
    };
    let first = send("k");
    shop.started.wait_for(1).await;
    assert!(send("other").await.unwrap().is_err());
    shop.let_go();
    first.await.unwrap().unwrap();
    let _ = send("other").await.unwrap();
}

#[tokio::test]
async fn b90_what_is_known_is_in_the_store_and_in_no_layer() {
    let shop = Shop::open();
    // Two layers around two routers of one process, over one store.
    let store = MemoryStore::new();
    let one = serve(store.clone(), api(), shop.handler()).await;
    let two = serve(store, api(), shop.handler()).await;
    assert_fresh(&one.send(pay("k")).await, "run 1");
    assert_replay(&two.send(pay("k")).await, "run 1");
    let (refused, _) = all_at_once(&[one, two], &shop, 10, || pay("k2")).await;
    assert_eq!(refused.len(), 9);
    // After a restart: new layer, new connection.
    let redis = RedisServer::start().await;
    let before = serve(store_on(&redis).await, webhook(), shop.handler()).await;
    assert_fresh(&before.send(notify("n1")).await, "run 3");
    drop(before);
    let after = serve(store_on(&redis).await, webhook(), shop.handler()).await;
    assert_replay(&after.send(notify("n1")).await, "run 3");
}
