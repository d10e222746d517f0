//! Each layer of tower-http and tower around the layer, and between it and the handler.

use std::{io::Write, time::Duration};

use bytes::Bytes;
use http::{HeaderName, Request, StatusCode};
use http_body::Body;
use http_body_util::BodyExt;
use tower::{
    ServiceBuilder, buffer::BufferLayer, limit::ConcurrencyLimitLayer, load_shed::LoadShedLayer,
};
use tower_http::{
    catch_panic::CatchPanicLayer,
    compression::CompressionLayer,
    cors::CorsLayer,
    decompression::RequestDecompressionLayer,
    limit::RequestBodyLimitLayer,
    map_request_body::MapRequestBodyLayer,
    request_id::{MakeRequestUuid, PropagateRequestIdLayer, SetRequestIdLayer},
    timeout::TimeoutLayer,
    trace::TraceLayer,
};
use tower_idempotency_stack_tests::{BOTH, Protocol, Serving, serve};
use tower_idempotency_test_support::{RawClient, Runs};

use crate::{BoxError, Handler, is_replay, layer, post, problem};

const LONG: Duration = Duration::from_secs(60);

/// The first delivery runs, the second is its replay, over both protocols.
async fn runs_once(server: &Serving, runs: &Runs) {
    for protocol in BOTH {
        let before = runs.count();
        let key = format!("{protocol:?}");
        let first = server.send(protocol, post(&key)).await;
        assert_eq!(first.status, StatusCode::OK);
        assert_eq!(first.body, format!("run {}: a payment", before + 1));
        let second = server.send(protocol, post(&key)).await;
        assert!(is_replay(&second) && !is_replay(&first));
        assert_eq!((second.status, second.body), (first.status, first.body));
        // Two at once: neither takes what the other needs to end.
        let key = format!("{protocol:?}-at-once");
        let both =
            tokio::join!(server.send(protocol, post(&key)), server.send(protocol, post(&key)),);
        for answer in [both.0, both.1] {
            assert!([200, 409].contains(&answer.status.as_u16()), "{answer:?}");
        }
        assert_eq!(runs.count(), before + 2);
    }
}

/// A test that puts the layers around ours, and one that puts them inside of it.
macro_rules! around_and_inside {
    ($($name:ident: $layers:expr;)*) => {$(
        mod $name {
            use super::*;

            #[tokio::test]
            async fn around_the_layer() {
                let handler = Handler::default();
                let runs = handler.runs.clone();
                let service = ServiceBuilder::new().layer($layers).layer(layer()).service(handler);
                runs_once(&serve(service).await, &runs).await;
            }

            #[tokio::test]
            async fn inside_of_the_layer() {
                let handler = Handler::default();
                let runs = handler.runs.clone();
                let service = ServiceBuilder::new().layer(layer()).layer($layers).service(handler);
                runs_once(&serve(service).await, &runs).await;
            }
        }
    )*};
}

around_and_inside! {
    trace: TraceLayer::new_for_http();
    catch_panic: CatchPanicLayer::new();
    cors: CorsLayer::permissive();
    compression: CompressionLayer::new();
    timeout: TimeoutLayer::with_status_code(StatusCode::GATEWAY_TIMEOUT, LONG);
    request_decompression: RequestDecompressionLayer::new();
    request_body_limit: RequestBodyLimitLayer::new(1024);
    set_request_id: SetRequestIdLayer::x_request_id(MakeRequestUuid);
    propagate_request_id: PropagateRequestIdLayer::x_request_id();
    map_request_body: MapRequestBodyLayer::new(boxed);
    concurrency_limit: ConcurrencyLimitLayer::new(1);
    buffer: BufferLayer::new(16);
    load_shed: LoadShedLayer::new();
    tower_timeout: tower::timeout::TimeoutLayer::new(LONG);
    limit_behind_a_buffer: ServiceBuilder::new().buffer(16).concurrency_limit(1).into_inner();
}

fn boxed<B>(body: B) -> http_body_util::combinators::UnsyncBoxBody<Bytes, BoxError>
where
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    body.map_err(Into::into).boxed_unsync()
}

#[tokio::test]
async fn the_layer_twice_over_one_store_runs_once() {
    let handler = Handler::default();
    let runs = handler.runs.clone();
    let layer = layer();
    let service = ServiceBuilder::new().layer(layer.clone()).layer(layer).service(handler);
    runs_once(&serve(service).await, &runs).await;
}

#[tokio::test]
async fn the_layer_twice_over_two_stores_runs_once() {
    let handler = Handler::default();
    let runs = handler.runs.clone();
    let service = ServiceBuilder::new().layer(layer()).layer(layer()).service(handler);
    runs_once(&serve(service).await, &runs).await;
}

fn with(key: &str, name: &'static str, value: &str) -> Request<&'static str> {
    let mut request = post(key);
    request.headers_mut().insert(HeaderName::from_static(name), value.parse().unwrap());
    request
}

fn gzip(text: &str) -> Bytes {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap().into()
}

fn gunzip(bytes: &[u8]) -> String {
    std::io::read_to_string(flate2::read::GzDecoder::new(bytes)).unwrap()
}

#[tokio::test]
async fn compression_around_it_codes_a_replay_for_its_own_caller() {
    use tower_http::compression::predicate::SizeAbove;
    for protocol in BOTH {
        let compression = CompressionLayer::new().compress_when(SizeAbove::new(1));
        let service =
            ServiceBuilder::new().layer(compression).layer(layer()).service(Handler::default());
        let server = serve(service).await;
        let first = server.send(protocol, with("k", "accept-encoding", "gzip")).await;
        assert_eq!(first.headers["content-encoding"], "gzip");
        assert_eq!(gunzip(&first.body), "run 1: a payment");
        let second = server.send(protocol, post("k")).await;
        assert!(is_replay(&second) && !second.headers.contains_key("content-encoding"));
        assert_eq!(second.body, "run 1: a payment");
        let third = server.send(protocol, with("k", "accept-encoding", "gzip")).await;
        assert!(is_replay(&third));
        assert_eq!(gunzip(&third.body), "run 1: a payment");
    }
}

#[tokio::test]
async fn decompression_around_it_makes_a_coded_retry_the_same_request() {
    for protocol in BOTH {
        let handler = Handler::default();
        let runs = handler.runs.clone();
        let service = ServiceBuilder::new()
            .layer(RequestDecompressionLayer::new())
            .layer(layer())
            .service(handler);
        let server = serve(service).await;
        let coded = with("k", "content-encoding", "gzip").map(gzip);
        let first = server.send(protocol, coded).await;
        assert_eq!(first.body, "run 1: a payment");
        assert!(is_replay(&server.send(protocol, post("k")).await));
        let other = with("k", "content-encoding", "gzip").map(|_| gzip("another"));
        assert_eq!(server.send(protocol, other).await.status, StatusCode::UNPROCESSABLE_ENTITY);
        assert_eq!(runs.count(), 1);
    }
}

#[tokio::test]
async fn decompression_inside_of_it_reads_what_the_layer_kept() {
    for protocol in BOTH {
        let service = ServiceBuilder::new()
            .layer(layer())
            .layer(RequestDecompressionLayer::new())
            .service(Handler::default());
        let server = serve(service).await;
        for delivery in 0..2 {
            let coded = with("k", "content-encoding", "gzip").map(gzip);
            let answer = server.send(protocol, coded).await;
            assert_eq!(answer.body, "run 1: a payment");
            assert_eq!(is_replay(&answer), delivery > 0);
        }
    }
}

#[tokio::test]
async fn a_replay_has_the_request_id_and_the_origin_of_its_own_caller() {
    let service = ServiceBuilder::new()
        .layer(SetRequestIdLayer::x_request_id(MakeRequestUuid))
        .layer(PropagateRequestIdLayer::x_request_id())
        .layer(CorsLayer::very_permissive())
        .layer(layer())
        .layer(CorsLayer::very_permissive())
        .service(Handler::default());
    let server = serve(service).await;
    let first = server.send(Protocol::Http1, with("k", "origin", "https://a.example")).await;
    let second = server.send(Protocol::Http1, with("k", "origin", "https://b.example")).await;
    assert!(is_replay(&second));
    assert_ne!(first.headers["x-request-id"], second.headers["x-request-id"]);
    assert_eq!(second.headers["access-control-allow-origin"], "https://b.example");
}

#[tokio::test]
async fn a_limit_around_it_is_told_as_too_large_and_claims_nothing() {
    let handler = Handler::default();
    let runs = handler.runs.clone();
    let service =
        ServiceBuilder::new().layer(RequestBodyLimitLayer::new(12)).layer(layer()).service(handler);
    let server = serve(service).await;
    let mut client = RawClient::connect(server.address()).await;
    client.send("POST /pay HTTP/1.1\r\nhost: x\r\nidempotency-key: k\r\n").await;
    client.send("transfer-encoding: chunked\r\n\r\nd\r\nover 12 bytes\r\n0\r\n\r\n").await;
    let answer = client.answer().await;
    assert_eq!(answer.status, StatusCode::PAYLOAD_TOO_LARGE);
    assert!(answer.headers["content-type"] == "application/problem+json");
    assert_eq!(runs.count(), 0);
    let next = server.send(Protocol::Http1, post("k")).await;
    assert_eq!((next.status, is_replay(&next), runs.count()), (StatusCode::OK, false, 1));
}

#[tokio::test]
async fn a_panic_is_caught_around_it_and_leaves_the_key_abandoned() {
    for protocol in BOTH {
        let handler = Handler::default();
        let runs = handler.runs.clone();
        let service =
            ServiceBuilder::new().layer(CatchPanicLayer::new()).layer(layer()).service(handler);
        let server = serve(service).await;
        let first = server.send(protocol, with("k", "x-panic", "1")).await;
        assert_eq!(first.status, StatusCode::INTERNAL_SERVER_ERROR);
        let second = server.send(protocol, post("k")).await;
        assert_eq!(
            (second.status, &problem(&second)[..]),
            (StatusCode::CONFLICT, "outcome-unknown")
        );
        assert_eq!(runs.count(), 1);
    }
}

#[tokio::test]
async fn a_time_out_around_it_leaves_the_run_going() {
    let handler = Handler::default();
    let runs = handler.runs.clone();
    let timeout = Duration::from_millis(100);
    let service = ServiceBuilder::new()
        .layer(TimeoutLayer::with_status_code(StatusCode::GATEWAY_TIMEOUT, timeout))
        .layer(layer())
        .service(handler);
    let server = serve(service).await;
    let first = server.send(Protocol::Http1, with("k", "x-hang", "1")).await;
    assert_eq!(first.status, StatusCode::GATEWAY_TIMEOUT);
    let second = server.send(Protocol::Http1, with("k", "x-hang", "1")).await;
    assert_eq!((second.status, &problem(&second)[..]), (StatusCode::CONFLICT, "in-progress"));
    assert_eq!(runs.count(), 1);
}

#[tokio::test]
async fn a_time_out_inside_of_it_that_says_504_is_not_run_again() {
    let handler = Handler::default();
    let runs = handler.runs.clone();
    let timeout = Duration::from_millis(100);
    let service = ServiceBuilder::new()
        .layer(layer())
        .layer(TimeoutLayer::with_status_code(StatusCode::GATEWAY_TIMEOUT, timeout))
        .service(handler);
    let server = serve(service).await;
    let first = server.send(Protocol::Http1, with("k", "x-hang", "1")).await;
    assert_eq!(first.status, StatusCode::GATEWAY_TIMEOUT);
    let second = server.send(Protocol::Http1, with("k", "x-hang", "1")).await;
    assert_eq!((second.status, &problem(&second)[..]), (StatusCode::CONFLICT, "outcome-unknown"));
    assert_eq!(runs.count(), 1);
}
