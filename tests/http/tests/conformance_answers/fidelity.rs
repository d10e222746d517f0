//! Cases 50 to 61: a replay is the first answer again, and nothing of its connection or its caller.

use std::io;

use axum::{
    body::Body,
    extract::Request as AxumRequest,
    middleware::{Next, from_fn},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use http::{Request, StatusCode};
use http_body::Frame;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tower_idempotency::{MemoryStore, Policy, json};
use tower_idempotency_test_support::{RawAnswer, Runs, Server};

use crate::{BOTH, Case, Channel, Protocol, REPLAYED, api, app, post, raw_post, streamed, text};

/// What came as lines with this name, in their order.
fn lines<'a>(answer: &'a RawAnswer, name: &str) -> Vec<&'a [u8]> {
    answer.headers.get_all(name).iter().map(http::HeaderValue::as_bytes).collect()
}

/// A delivery over a connection of its own.
async fn raw_delivery(case: &Case) -> RawAnswer {
    let mut client = case.server.connect().await;
    client.send(raw_post("k", &[], "x")).await;
    client.answer().await
}

/// The first delivery and the second over one connection, to the byte.
async fn raw_first_and_replay(case: &Case) -> (RawAnswer, RawAnswer) {
    let mut client = case.server.connect().await;
    client.send(raw_post("k", &[], "x")).await;
    let first = client.answer().await;
    client.send(raw_post("k", &[], "x")).await;
    let second = client.answer().await;
    assert!(!first.headers.contains_key(REPLAYED));
    assert_eq!(lines(&second, REPLAYED), [b"true"]);
    assert_eq!(case.runs.count(), 1);
    (first, second)
}

#[tokio::test]
async fn case_50_status_and_headers_are_replayed() {
    let case = Case::answering(api(), |_| {
        let headers =
            [("location", "/payments/7"), ("etag", "\"7\""), ("content-type", "text/csv")];
        (StatusCode::CREATED, headers, "id\n7\n").into_response()
    })
    .await;
    let (first, second) = case.first_and_replay("k").await;
    for heard in [&first, &second] {
        assert_eq!(heard.status, StatusCode::CREATED);
        assert_eq!(heard.headers["location"], "/payments/7");
        assert_eq!(heard.headers["etag"], "\"7\"");
        assert_eq!(heard.headers["content-type"], "text/csv");
        assert_eq!(heard.body, "id\n7\n");
    }
}

fn with_cookies(_: usize) -> Response {
    let mut response = text("in");
    response.headers_mut().append("set-cookie", "a=1; Path=/".parse().unwrap());
    response.headers_mut().append("set-cookie", "b=2, 3".parse().unwrap());
    response
}

#[tokio::test]
async fn case_51_cookies_are_not_replayed() {
    let case = Case::answering(api(), with_cookies).await;
    let (first, second) = raw_first_and_replay(&case).await;
    assert_eq!(lines(&first, "set-cookie"), [&b"a=1; Path=/"[..], b"b=2, 3"]);
    assert!(lines(&second, "set-cookie").is_empty());
}

#[tokio::test]
async fn case_51_cookies_that_are_kept_stay_lines_of_their_own() {
    let case = Case::answering(api().keep_cookies(), with_cookies).await;
    let (first, second) = raw_first_and_replay(&case).await;
    assert_eq!(lines(&first, "set-cookie"), lines(&second, "set-cookie"));
    assert_eq!(lines(&second, "set-cookie"), [&b"a=1; Path=/"[..], b"b=2, 3"]);
}

#[tokio::test]
async fn case_52_a_replay_has_a_date_of_its_own() {
    let long_ago = "Thu, 01 Jan 1970 00:00:00 GMT";
    let case = Case::answering(api(), move |_| {
        ([("date", long_ago), ("last-modified", long_ago)], "x").into_response()
    })
    .await;
    let (first, second) = raw_first_and_replay(&case).await;
    assert_eq!(lines(&first, "date"), [long_ago.as_bytes()]);
    assert_eq!(lines(&second, "date").len(), 1, "the server gives one");
    assert_ne!(lines(&second, "date"), [long_ago.as_bytes()]);
    assert_eq!(lines(&second, "last-modified"), [long_ago.as_bytes()], "other dates are kept");
}

#[tokio::test]
async fn case_53_what_belongs_to_a_connection_is_not_replayed() {
    let of_the_connection = [
        ("connection", "x-hop, X-Other-Hop"),
        ("keep-alive", "timeout=5"),
        ("te", "trailers"),
        ("trailer", "x-sum"),
        ("upgrade", "h2c"),
        ("proxy-authenticate", "Basic"),
        ("proxy-authorization", "Basic x"),
        ("proxy-connection", "keep-alive"),
        ("x-hop", "1"),
        ("x-other-hop", "2"),
    ];
    let case = Case::answering(api(), move |_| {
        let mut response = Response::new(streamed([Bytes::from("x")]));
        for (name, value) in of_the_connection {
            response.headers_mut().append(name, value.parse().unwrap());
        }
        response.headers_mut().insert("transfer-encoding", "chunked".parse().unwrap());
        response.headers_mut().insert("x-end-to-end", "3".parse().unwrap());
        response
    })
    .await;
    let (first, second) = (raw_delivery(&case).await, raw_delivery(&case).await);
    assert_eq!(lines(&first, "x-hop"), [b"1"], "the first caller gets what the handler said");
    assert_eq!((lines(&second, REPLAYED), case.runs.count()), (vec![&b"true"[..]], 1));
    for (name, _) in of_the_connection {
        assert!(!second.headers.contains_key(name), "{name} in {second:?}");
    }
    assert!(!second.headers.contains_key("transfer-encoding"));
    assert_eq!(lines(&second, "x-end-to-end"), [b"3"]);
    // Over HTTP/2 such fields would make the answer malformed.
    let over_http2 = case.send(Protocol::Http2, post("k", "x")).await;
    assert!(over_http2.is_replay());
    assert_eq!(over_http2.body, "x");
}

#[tokio::test]
async fn case_54_no_content_has_no_body_and_no_framing() {
    let case = Case::answering(api(), |_| StatusCode::NO_CONTENT.into_response()).await;
    let (first, second) = raw_first_and_replay(&case).await;
    for answer in [first, second] {
        assert_eq!(answer.status, StatusCode::NO_CONTENT);
        assert!(!answer.headers.contains_key("content-length"), "{answer:?}");
        assert!(!answer.headers.contains_key("transfer-encoding"), "{answer:?}");
        assert!(answer.bytes.ends_with(b"\r\n\r\n"));
    }
}

#[tokio::test]
async fn case_55_not_modified_has_no_content() {
    let case = Case::answering(api(), |_| {
        (StatusCode::NOT_MODIFIED, [("etag", "\"7\"")], "no body belongs here").into_response()
    })
    .await;
    // `raw_first_and_replay` sends both over one connection: a body would be taken for the head of
    // the second answer.
    let (first, second) = raw_first_and_replay(&case).await;
    for answer in [first, second] {
        assert_eq!(answer.status, StatusCode::NOT_MODIFIED);
        assert_eq!(lines(&answer, "etag"), [b"\"7\""]);
        assert!(!answer.headers.contains_key("transfer-encoding"), "{answer:?}");
        assert!(answer.bytes.ends_with(b"\r\n\r\n"));
    }
}

#[tokio::test]
async fn case_55_head_is_never_stored() {
    let case = Case::answering(api(), |_| text("x")).await;
    for run in 1..=2 {
        let mut client = case.server.connect().await;
        client.send("HEAD /pay HTTP/1.1\r\nhost: x\r\nidempotency-key: k\r\n\r\n").await;
        let answer = client.answer_to_head().await;
        assert!(!answer.headers.contains_key(REPLAYED));
        assert_eq!(case.runs.count(), run);
    }
    assert!(!case.post(Protocol::Http1, "k").await.is_replay(), "the key is free for a POST");
}

#[tokio::test]
async fn case_56_an_answer_in_pieces_is_replayed_whole() {
    for protocol in BOTH {
        let case = Case::answering(api(), |_| {
            let pieces = (0_u8..=99).map(|piece| Bytes::from(vec![piece; usize::from(piece) * 10]));
            Response::new(streamed(pieces))
        })
        .await;
        let whole: Vec<u8> =
            (0_u8..=99).flat_map(|piece| vec![piece; usize::from(piece) * 10]).collect();
        for delivery in 0..2 {
            let heard = case.post(protocol, "k").await;
            assert_eq!(heard.is_replay(), delivery > 0);
            assert_eq!(heard.headers["content-length"], whole.len().to_string());
            assert_eq!(heard.body, whole, "{protocol:?}");
        }
        assert_eq!(case.runs.count(), 1);
    }
}

fn one_mebibyte() -> Bytes {
    (0..1024 * 1024_usize).map(|at| (at % 251) as u8).collect()
}

fn large(chunked: bool) -> Response {
    let body = one_mebibyte();
    let body =
        if chunked { streamed(body.chunks(7001).map(Bytes::copy_from_slice)) } else { body.into() };
    (StatusCode::ACCEPTED, [("x-part", "head")], body).into_response()
}

#[tokio::test]
async fn case_57_an_answer_too_large_is_sent_in_full_and_not_run_again() {
    for (protocol, chunked) in [
        (Protocol::Http1, false),
        (Protocol::Http1, true),
        (Protocol::Http2, false),
        (Protocol::Http2, true),
    ] {
        let policy = api().answer_limit(1024 * 1024 - 1);
        let case = Case::answering(policy, move |_| large(chunked)).await;
        let first = case.post(protocol, "k").await;
        assert_eq!(first.status, StatusCode::ACCEPTED);
        assert_eq!(first.body, one_mebibyte());
        let second = case.post(protocol, "k").await;
        assert_eq!(second.status, StatusCode::CONFLICT);
        assert_eq!(second.problem(), "answer-not-kept");
        assert_eq!(case.runs.count(), 1);

        // One byte less, and it is an answer like others.
        let policy = api().answer_limit(1024 * 1024);
        let case = Case::answering(policy, move |_| large(chunked)).await;
        case.first_and_replay("k").await;
    }
}

#[tokio::test]
async fn case_57_a_sender_hears_the_status_of_an_answer_too_large() {
    let policy = Policy::webhook(json("/id"))
        .answer_limit(10)
        .keep_if(|answer| answer.body().expect("asked only about answers it can see") == "success");
    let case = Case::answering(policy, |_| large(true)).await;
    let delivery = || Request::post("/pay").body(r#"{"id":1}"#).unwrap();
    let first = case.send(Protocol::Http1, delivery()).await;
    assert_eq!(first.body, one_mebibyte());
    let second = case.send(Protocol::Http1, delivery()).await;
    assert_eq!((second.status, second.is_replay()), (StatusCode::ACCEPTED, true));
    assert_eq!(second.headers["x-part"], "head");
    assert!(second.body.is_empty());
    assert_eq!(case.runs.count(), 1);
}

#[tokio::test]
async fn case_57_an_event_stream_is_sent_as_it_comes_and_not_run_again() {
    for protocol in BOTH {
        let (sender, mut senders) = unbounded_channel();
        let case = Case::answering(api(), move |_| {
            let (events, receiver) = unbounded_channel::<Result<Frame<Bytes>, io::Error>>();
            sender.send(events).unwrap();
            let body = Body::new(Channel(receiver));
            ([("content-type", "text/event-stream")], body).into_response()
        })
        .await;
        let first = case.post(protocol, "k");
        let between = async {
            let events: UnboundedSender<_> = senders.recv().await.unwrap();
            events.send(Ok(Frame::data("data: 1\n\n".into()))).unwrap();
            // It is still running, and yet done for everybody else.
            let second = loop {
                let second = case.post(protocol, "k").await;
                if second.problem() != "in-progress" {
                    break second;
                }
            };
            assert_eq!(second.problem(), "answer-not-kept");
            events.send(Ok(Frame::data("data: 2\n\n".into()))).unwrap();
        };
        let (first, ()) = tokio::join!(first, between);
        assert_eq!(first.body, "data: 1\n\ndata: 2\n\n");
        assert_eq!(case.runs.count(), 1);
    }
}

/// Stands for a compressing layer: whoever accepts it gets the body coded.
async fn coding(request: AxumRequest, next: Next) -> Response {
    let accepts = request.headers().get("accept-encoding").is_some_and(|codings| codings == "gzip");
    let mut response = next.run(request).await;
    if accepts {
        *response.body_mut() = Body::from("\u{1f}coded");
        response.headers_mut().insert("content-encoding", "gzip".parse().unwrap());
        response.headers_mut().remove("content-length");
    }
    response
}

#[tokio::test]
async fn case_58_a_coded_answer_is_for_the_caller_who_accepts_it() {
    let runs = Runs::new();
    let app = app(MemoryStore::new(), api(), &runs, |_| text("plain")).layer(from_fn(coding));
    let case = Case { server: Server::start(app).await, runs };
    let accepting = || {
        let mut request = post("k", "x");
        request.headers_mut().insert("accept-encoding", "gzip".parse().unwrap());
        request
    };
    let first = case.send(Protocol::Http1, accepting()).await;
    assert_eq!(first.headers["content-encoding"], "gzip");
    let second = case.send(Protocol::Http1, post("k", "x")).await;
    assert!(second.is_replay() && !second.headers.contains_key("content-encoding"));
    assert_eq!(second.body, "plain");
    let third = case.send(Protocol::Http1, accepting()).await;
    assert!(third.is_replay());
    assert_eq!(third.headers["content-encoding"], "gzip");
    assert_eq!(case.runs.count(), 1);
}

#[tokio::test]
async fn case_59_bytes_that_are_no_text_are_replayed_as_they_are() {
    let bytes: Vec<u8> = (0..=255).collect();
    let value: Vec<u8> =
        [&b"\t\" caf\xe9 "[..], &(0x80..=0xff).collect::<Vec<u8>>(), b"."].concat();
    let expected = value.trim_ascii().to_vec();
    let case = Case::answering(api(), move |_| {
        let mut response = Response::new(Body::from(bytes.clone()));
        let value = http::HeaderValue::from_bytes(&value).unwrap();
        response.headers_mut().insert("x-name", value);
        response
    })
    .await;
    let (first, second) = raw_first_and_replay(&case).await;
    for answer in [first, second] {
        assert_eq!(answer.body, (0..=255).collect::<Vec<u8>>());
        assert_eq!(lines(&answer, "x-name"), [&expected[..]]);
    }
}

#[tokio::test]
async fn case_60_an_answer_that_broke_off_is_not_stored_as_complete() {
    for protocol in BOTH {
        let case = Case::answering(api(), |_| {
            let (frames, receiver) = unbounded_channel();
            frames.send(Ok(Frame::data(Bytes::from("half")))).unwrap();
            frames.send(Err(io::Error::other("the other half is lost"))).unwrap();
            Response::new(Body::new(Channel(receiver)))
        })
        .await;
        match protocol {
            Protocol::Http1 => {
                let mut client = case.server.connect().await;
                client.send(raw_post("k", &[], "a payment")).await;
                let all = client.rest().await;
                assert!(!all.ends_with(b"0\r\n\r\n"), "its end is no clean one: {all:?}");
                assert!(!all.windows(14).any(|part| part == b"content-length"), "{all:?}");
            }
            Protocol::Http2 => {
                let client = crate::Http2Client::connect(case.server.address()).await;
                let mut stream = client.open(post("k", "").map(drop)).await;
                stream.send("a payment", true);
                stream.try_answer().await.expect_err("the answer breaks off");
            }
        }
        let second = case.post(protocol, "k").await;
        assert_eq!(second.status, StatusCode::CONFLICT);
        assert_eq!(second.problem(), "outcome-unknown");
        assert_eq!(case.runs.count(), 1);
    }
}

#[tokio::test]
async fn case_61_refusals_are_not_cached() {
    let case =
        Case::answering(api().body_limit(10), |_| StatusCode::GATEWAY_TIMEOUT.into_response());
    let case = case.await;
    let http1 = Protocol::Http1;
    let no_key = Request::post("/pay").body("x").unwrap();
    let refusals = [
        (case.send(http1, no_key).await, 400, "identity-missing"),
        (case.send(http1, post("\"", "x")).await, 400, "identity-malformed"),
        (case.send(http1, post("k", "eleven byte")).await, 413, "body-too-large"),
        {
            case.send(http1, post("k", "x")).await;
            (case.send(http1, post("k", "x")).await, 409, "outcome-unknown")
        },
        (case.send(http1, post("k", "y")).await, 422, "mismatch"),
    ];
    for (refusal, status, kind) in refusals {
        assert_eq!(refusal.status, status, "{kind}");
        assert_eq!(refusal.problem(), kind);
        assert_eq!(refusal.headers["cache-control"], "no-store", "{kind}");
        assert!(!refusal.is_replay());
    }
    assert_eq!(case.runs.count(), 1);
}
