//! Section E of the reports: a replay is the answer again, and leaks nothing.

use std::time::Duration;

use axum::{
    Extension,
    body::Body,
    extract::Request,
    http::{HeaderMap, StatusCode},
    middleware::{Next, from_fn},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use http::HeaderValue;
use tower_idempotency::{
    Handled, MemoryStore,
    test_util::{FaultyStore, Transition},
};

use tower_idempotency_test_support::{Http2Client, Log};

use crate::support::{
    RawClient, RedisServer, Runs, Sent, Shop, api, around, assert_fresh, assert_refused,
    assert_replay, bare, is_replay, keyed, layer, map_answers, notify, pay, send_aside, serve,
    start, store_on, streamed, webhook,
};

/// POST `/pay` as bytes, with this key and these further lines of the head.
fn raw_pay(key: &str, lines: &str) -> String {
    let head = format!("POST /pay HTTP/1.1\r\nhost: shop\r\nidempotency-key: {key}\r\n{lines}");
    format!("{head}content-length: 9\r\n\r\namount=20")
}

#[tokio::test]
async fn b61_a_replay_has_the_status_of_the_answer() {
    let handler = |body: String| async move {
        let status = StatusCode::from_bytes(body.as_bytes()).unwrap();
        let text = if status == 204 { "" } else { "text" };
        (status, text)
    };
    let server = serve(MemoryStore::new(), api(), handler).await;
    for status in ["201", "202", "204", "303", "406", "299"] {
        let request = || keyed("/pay", status, status);
        let first = server.send(request()).await;
        let again = server.send(request()).await;
        assert_eq!(again.status().as_str(), status);
        assert_eq!(again.body(), first.body());
        assert!(is_replay(&again) && !is_replay(&first));
        if status == "204" {
            let length = again.headers().get("content-length");
            assert!(length.is_none_or(|length| length == "0"), "{length:?}");
        }
    }
}

#[tokio::test]
async fn b62_over_a_real_store_what_is_replayed_are_the_bytes_of_the_first_answer() {
    let shop = Shop::open();
    let redis = RedisServer::start().await;
    let handled: Runs = Runs::new();
    let seen = handled.clone();
    let handler = {
        let shop = shop.clone();
        move || {
            let shop = shop.clone();
            async move {
                let location = [("location", "/orders/7"), ("etag", "\"v1\"")];
                (StatusCode::CREATED, location, shop.run().await)
            }
        }
    };
    let router = around(layer(store_on(&redis).await, api()), handler);
    // A layer outside can count replays, so that a system that never replays is seen.
    let server = start(map_answers(router, move |response| {
        if response.extensions().get::<Handled>() == Some(&Handled::Replayed) {
            seen.add();
        }
        response
    }))
    .await;
    let first = server.send(pay("k")).await;
    let again = server.send(pay("k")).await;
    assert_eq!((shop.runs(), handled.count()), (1, 1));
    assert_eq!((again.status(), again.body()), (first.status(), first.body()));
    for name in ["location", "etag", "content-type", "content-length"] {
        assert_eq!(again.headers()[name], first.headers()[name]);
    }
}

#[tokio::test]
async fn b63_all_fields_of_the_answer_are_replayed() {
    let fields = [
        ("location", "/orders/7"),
        ("etag", "\"v1\""),
        ("link", "</next>; rel=next"),
        ("last-modified", "Mon, 02 Nov 2026 08:00:00 GMT"),
        ("retry-after", "5"),
        ("vary", "accept"),
        ("cache-control", "private"),
        ("content-language", "zh"),
        ("x-order", "7"),
    ];
    let handler = move || async move {
        let mut response = (StatusCode::CREATED, fields).into_response();
        for value in ["a", "b"] {
            response.headers_mut().append("x-twice", HeaderValue::from_static(value));
        }
        let latin = HeaderValue::from_bytes(b"caf\xe9").unwrap();
        response.headers_mut().insert("x-latin", latin);
        response
    };
    let server = serve(MemoryStore::new(), api(), handler).await;
    server.send(pay("k")).await;
    let again = server.send(pay("k")).await;
    assert!(is_replay(&again));
    for (name, value) in fields {
        assert_eq!(again.headers()[name], value);
    }
    let twice: Vec<_> = again.headers().get_all("x-twice").iter().collect();
    assert_eq!(twice, ["a", "b"]);
    assert_eq!(again.headers()["x-latin"].as_bytes(), b"caf\xe9");
}

#[tokio::test]
async fn b65_every_byte_of_a_body_is_replayed() {
    let all: Bytes = (0..=255).collect::<Vec<u8>>().into();
    let bodies = [all.clone(), Bytes::new(), Bytes::from_static(b"\xff"), all.repeat(500).into()];
    let redis = RedisServer::start().await;
    for (i, body) in bodies.into_iter().enumerate() {
        let sent = body.clone();
        let handler = move || async move { sent };
        let server = serve(store_on(&redis).await, api(), handler).await;
        let key = i.to_string();
        assert_eq!(server.send(pay(&key)).await.body(), &body);
        let again = server.send(pay(&key)).await;
        assert!(is_replay(&again));
        assert_eq!(again.body(), &body);
    }
}

#[tokio::test]
async fn b66_a_body_is_never_cut_and_a_run_never_reported_as_a_fault_of_the_store() {
    let text = "\u{8ba2}\u{5355}".repeat(20);
    let runs = Runs::new();
    let handler = {
        let (text, runs) = (text.clone(), runs.clone());
        move || {
            runs.add();
            async move { text }
        }
    };
    // The limit falls inside of a character; and right at the end.
    for (i, limit) in [61, text.len() - 1, text.len()].into_iter().enumerate() {
        let server = serve(MemoryStore::new(), api().answer_limit(limit), handler.clone()).await;
        assert_fresh(&server.send(pay("k")).await, &text);
        let again = server.send(pay("k")).await;
        match limit < text.len() {
            true => assert_refused(&again, 409, "answer-not-kept"),
            false => assert_replay(&again, &text),
        }
        assert_eq!(runs.count(), i + 1);
    }
    // A sender only wants to know that it worked.
    let server = serve(MemoryStore::new(), webhook().answer_limit(61), handler).await;
    assert_fresh(&server.send(notify("n1")).await, &text);
    let again = server.send(notify("n1")).await;
    assert_eq!(again.status(), 200);
    assert_replay(&again, "");
    assert_eq!(runs.count(), 4);
}

#[tokio::test]
async fn b67_the_type_of_a_body_is_what_it_was_and_none_stays_none() {
    let handler = |headers: HeaderMap| async move {
        let mut response = Response::new(Body::from("a;b"));
        if let Some(kind) = headers.get("x-kind") {
            response.headers_mut().insert("content-type", kind.clone());
        }
        response
    };
    let server = serve(MemoryStore::new(), api(), handler).await;
    for kind in [Some("text/csv; header=absent"), Some("text/plain"), None] {
        let request = || {
            let mut request = pay(kind.map_or("none", |kind| &kind[5..8]));
            if let Some(kind) = kind {
                request.headers_mut().insert("x-kind", HeaderValue::from_static(kind));
            }
            request
        };
        for replayed in [false, true] {
            let answer = server.send(request()).await;
            assert_eq!(is_replay(&answer), replayed);
            let found = answer.headers().get("content-type");
            assert_eq!(found.map(|kind| kind.to_str().unwrap()), kind);
        }
    }
}

#[tokio::test]
async fn b68_an_acknowledgement_is_replayed_to_the_letter() {
    let xml = "<xml><return_code><![CDATA[SUCCESS]]></return_code></xml>";
    for acknowledgement in ["success", xml, "{\"code\": \"SUCCESS\"}", "\u{feff}ok\r\n"] {
        let handler = move || async move { acknowledgement };
        let server = serve(MemoryStore::new(), webhook(), handler).await;
        let mut client = server.connect().await;
        let mut answers = Vec::new();
        for _ in 0..3 {
            let body = r#"{"notifyId":"n1"}"#;
            let head = "POST /notify HTTP/1.1\r\nhost: shop\r\naccept-encoding: gzip, br\r\n";
            client.send(format!("{head}content-length: {}\r\n\r\n{body}", body.len())).await;
            answers.push(client.answer().await);
        }
        for answer in &answers {
            assert_eq!(answer.body, acknowledgement);
            assert_eq!(answer.headers["content-type"], answers[0].headers["content-type"]);
            assert_eq!(answer.headers["content-length"], acknowledgement.len().to_string());
            assert!(!answer.headers.contains_key("content-encoding"));
        }
        assert!(answers[2].headers.contains_key("idempotent-replayed"));
    }
}

#[tokio::test]
async fn b69_a_replay_has_framing_of_its_own_and_the_next_request_is_read() {
    let handler = || async {
        let mut response = streamed(["one ", "two ", "three"]);
        let headers = response.headers_mut();
        headers.insert("connection", HeaderValue::from_static("x-hop"));
        headers.insert("x-hop", HeaderValue::from_static("1"));
        headers.insert("keep-alive", HeaderValue::from_static("timeout=5"));
        headers.insert("proxy-status", HeaderValue::from_static("us"));
        headers.insert("te", HeaderValue::from_static("trailers"));
        response
    };
    let server = serve(MemoryStore::new(), api(), handler).await;
    let mut client = server.connect().await;
    // Pipelined on one connection: what one leaves over, the next would stumble upon.
    for _ in 0..3 {
        client.send(raw_pay("k", "")).await;
    }
    client.send(raw_pay("other", "")).await;
    let first = client.answer().await;
    assert_eq!(first.body, "one two three");
    for _ in 0..2 {
        let again = client.answer().await;
        assert_eq!(again.body, "one two three");
        assert_eq!(again.headers["content-length"], "13");
        assert_eq!(again.headers["idempotent-replayed"], "true");
        for name in ["transfer-encoding", "x-hop", "keep-alive", "proxy-status", "te", "connection"]
        {
            assert!(!again.headers.contains_key(name), "{name}");
        }
    }
    assert_eq!(client.answer().await.status, 200);
    // Over HTTP/2, which has none of that.
    let newer = Http2Client::connect(server.address()).await;
    for key in ["k", "k", "newer", "newer"] {
        let request = http::Request::post("/pay").header("idempotency-key", key);
        let answer = newer.send(request.body("amount=20").unwrap()).await;
        assert_eq!((answer.status, &answer.body[..]), (StatusCode::OK, &b"one two three"[..]));
        assert!(!answer.headers.contains_key("transfer-encoding"));
    }
    // To an old client, which knows no chunks.
    let mut old = server.connect().await;
    old.send(raw_pay("k", "").replace("HTTP/1.1", "HTTP/1.0")).await;
    let answer = String::from_utf8(old.rest().await.to_vec()).unwrap();
    assert!(answer.starts_with("HTTP/1.0 200"), "{answer}");
    assert!(answer.contains("content-length: 13") && !answer.contains("transfer-encoding"));
    assert!(answer.ends_with("\r\n\r\none two three"));
}

/// A layer of the shape of a compressing one: where the client takes it, the body becomes longer.
async fn encode(request: Request, next: Next) -> Response {
    let takes = request.headers().get("accept-encoding").is_some_and(|v| v == "x-shout");
    let response = next.run(request).await;
    if !takes || response.headers().contains_key("content-encoding") {
        return response;
    }
    let (mut head, body) = response.into_parts();
    let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
    let shouted = format!("{}!!", String::from_utf8_lossy(&body).to_uppercase());
    head.headers.remove("content-length");
    head.headers.insert("content-encoding", HeaderValue::from_static("x-shout"));
    head.headers.append("vary", HeaderValue::from_static("accept-encoding"));
    Response::from_parts(head, shouted.into())
}

fn accepting(key: &str, takes: bool) -> Sent {
    let mut request = pay(key);
    if takes {
        request.headers_mut().insert("accept-encoding", HeaderValue::from_static("x-shout"));
    }
    request
}

#[tokio::test]
async fn b70_body_and_length_agree_whoever_changes_the_body_on_whichever_side() {
    // The handler says the length itself.
    let handler = || async { ([("content-length", "3")], "abc") };
    let store = MemoryStore::new();
    let outside = around(layer(store, api()), handler).layer(from_fn(encode));
    let inside =
        bare(handler).route_layer(from_fn(encode)).route_layer(layer(MemoryStore::new(), api()));
    let (outside, inside) = (start(outside).await, start(inside).await);
    for (key, first, again) in
        [("1", true, true), ("2", true, false), ("3", false, true), ("4", false, false)]
    {
        for (i, takes) in [first, again].into_iter().enumerate() {
            let answer = outside.send(accepting(key, takes)).await;
            let expected = if takes { "ABC!!" } else { "abc" };
            assert_eq!((answer.body(), is_replay(&answer)), (&Bytes::from(expected), i == 1));
            assert_eq!(answer.headers()["content-length"], expected.len().to_string());
            let answer = inside.send(accepting(key, takes)).await;
            // Inside, the first client's form is the answer.
            let expected = if first { "ABC!!" } else { "abc" };
            assert_eq!((answer.body(), is_replay(&answer)), (&Bytes::from(expected), i == 1));
            assert_eq!(answer.headers()["content-length"], expected.len().to_string());
            assert_eq!(answer.headers().contains_key("content-encoding"), first);
        }
    }
}

#[tokio::test]
async fn b71_an_encoded_answer_is_replayed_as_it_is_and_says_so_and_is_not_encoded_twice() {
    let handler = || async { "abc" };
    let inside =
        bare(handler).route_layer(from_fn(encode)).route_layer(layer(MemoryStore::new(), api()));
    let server = start(inside.layer(from_fn(encode))).await;
    assert_fresh(&server.send(accepting("k", true)).await, "ABC!!");
    for takes in [true, false] {
        let again = server.send(accepting("k", takes)).await;
        assert_replay(&again, "ABC!!");
        assert_eq!(again.headers()["content-encoding"], "x-shout");
        assert_eq!(again.headers()["vary"], "accept-encoding");
    }
}

#[tokio::test]
async fn b72_safe_methods_pass_untouched_with_or_without_a_key() {
    let handler = || async { ([("x-own", "1")], "twelve bytes") };
    let store = FaultyStore::new(MemoryStore::new());
    let calls = store.faults();
    let with = serve(store, api(), handler).await;
    let without = start(bare(handler)).await;
    for method in ["GET", "HEAD", "OPTIONS", "TRACE"] {
        for key in ["", "idempotency-key: k\r\n", "idempotency-key: \"broken\r\n"] {
            let mut answers = Vec::new();
            for server in [&with, &without, &with] {
                let mut client: RawClient = server.connect().await;
                client.send(format!("{method} /pay HTTP/1.1\r\nhost: shop\r\n{key}\r\n")).await;
                let mut answer = match method {
                    "HEAD" => client.answer_to_head().await,
                    _ => client.answer().await,
                };
                answer.headers.remove("date");
                answers.push((answer.status, answer.headers, answer.body));
            }
            assert_eq!(answers[0], answers[1], "{method}");
            assert_eq!(answers[2], answers[1], "{method}");
            assert_eq!(answers[0].1["content-length"], "12", "{method}");
        }
    }
    assert_eq!(calls.calls(Transition::Claim), 0);
}

#[tokio::test]
async fn b73_a_replay_has_the_date_of_today_and_nothing_of_the_first_moment() {
    let of_a_moment = [
        ("age", "7"),
        ("x-ratelimit-remaining", "1"),
        ("ratelimit", "\"default\";r=1"),
        ("x-request-id", "first"),
        ("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
        ("traceresponse", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
        ("uber-trace-id", "4bf92f3577b34da6:00f067aa0ba902b7:0:1"),
        ("server-timing", "db;dur=53"),
    ];
    let handler = move || async move {
        let old = [("date", "Mon, 02 Nov 2020 08:00:00 GMT")];
        (old, of_a_moment, "ok")
    };
    let server = serve(MemoryStore::new(), api(), handler).await;
    let first = server.send(pay("k")).await;
    assert_eq!(first.headers()["x-request-id"], "first");
    let again = server.send(pay("k")).await;
    assert_replay(&again, "ok");
    let dates: Vec<_> = again.headers().get_all("date").iter().collect();
    assert_eq!(dates.len(), 1);
    assert_ne!(dates[0], "Mon, 02 Nov 2020 08:00:00 GMT");
    for (name, _) in of_a_moment {
        assert!(first.headers().contains_key(name), "{name}");
        assert!(!again.headers().contains_key(name), "{name}");
    }
}

#[tokio::test]
async fn b74_only_a_replay_is_marked_and_no_handler_can_fake_it() {
    let handler = || async { ([("idempotent-replayed", "true")], "ok") };
    let server = serve(MemoryStore::new(), api(), handler).await;
    assert_fresh(&server.send(pay("k")).await, "ok");
    let again = server.send(pay("k")).await;
    assert_replay(&again, "ok");
    let marks: Vec<_> = again.headers().get_all("idempotent-replayed").iter().collect();
    assert_eq!(marks, ["true"]);
    // Nor is a refusal one.
    assert!(!is_replay(&server.send(keyed("/pay", "k", "other")).await));
}

#[tokio::test]
async fn b75_what_belongs_to_one_caller_is_not_replayed_to_the_next() {
    let secrets = [
        ("set-cookie", "session=1"),
        ("www-authenticate", "Bearer"),
        ("proxy-authenticate", "Basic"),
        ("authentication-info", "nextnonce=\"1\""),
    ];
    let handler = move || async move { (secrets, "welcome") };
    let server = serve(MemoryStore::new(), api(), handler).await;
    let first = server.send(pay("k")).await;
    let again = server.send(pay("k")).await;
    assert_replay(&again, "welcome");
    for (name, value) in secrets {
        assert_eq!(first.headers()[name], value, "the one who asked gets it");
        assert!(!again.headers().contains_key(name), "{name}");
    }
    // Only on demand, and cookies alone.
    let server = serve(MemoryStore::new(), api().keep_cookies(), handler).await;
    server.send(pay("k")).await;
    let again = server.send(pay("k")).await;
    assert_eq!(again.headers()["set-cookie"], "session=1");
    assert!(!again.headers().contains_key("www-authenticate"));
}

#[tokio::test]
async fn b76_who_waits_for_another_s_run_gets_the_stored_form_of_its_answer() {
    let shop = Shop::held();
    let handler = {
        let shop = shop.clone();
        move || {
            let shop = shop.clone();
            async move { ([("set-cookie", "session=1")], shop.run().await) }
        }
    };
    let policy = api().wait(Duration::from_secs(15));
    let server = serve(MemoryStore::new(), policy, handler).await;
    let first = send_aside(&server, pay("k"));
    shop.started.wait_for(1).await;
    let (log, _guard) = Log::listen();
    let waiting = send_aside(&server, pay("k"));
    log.said("waiting", 1).await;
    assert!(!waiting.is_finished());
    shop.let_go();
    assert_eq!(first.await.unwrap().headers()["set-cookie"], "session=1");
    let waited = waiting.await.unwrap();
    assert_replay(&waited, "run 1");
    assert!(!waited.headers().contains_key("set-cookie"));
}

#[derive(Clone, Debug, PartialEq)]
struct Mark(&'static str);

#[tokio::test]
async fn b77_extensions_go_through_and_a_replay_says_that_it_is_one() {
    let inner =
        |Extension(mark): Extension<Mark>| async move { (Extension(Mark("inner")), mark.0) };
    let router = around(layer(MemoryStore::new(), api()), inner).layer(Extension(Mark("outer")));
    let server = start(map_answers(router, |response| {
        let mark = response.extensions().get::<Mark>().map_or("none", |mark| mark.0);
        let handled = match response.extensions().get::<Handled>() {
            Some(Handled::Executed { attempt: 1 }) => "executed",
            Some(Handled::Replayed) => "replayed",
            _ => "otherwise",
        };
        ([("x-mark", mark), ("x-handled", handled)], response).into_response()
    }))
    .await;
    for (handled, mark) in [("executed", "inner"), ("replayed", "none")] {
        let answer = server.send(pay("k")).await;
        // What the outer layer put into the request has reached the handler.
        assert_eq!(answer.body(), "outer");
        assert_eq!(answer.headers()["x-handled"], handled);
        assert_eq!(answer.headers()["x-mark"], mark);
    }
    let refused = server.send(keyed("/pay", "k", "other")).await;
    assert_eq!(refused.headers()["x-handled"], "otherwise");
}
