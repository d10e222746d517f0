//! Cases 18 to 23: requests without a key, and requests whose key does not count.

use axum::{Router, routing::post};
use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{Empty, Full};
use tower_idempotency::{IdempotencyLayer, MemoryStore, Policy, Rule, json};
use tower_idempotency_test_support::{Runs, Server};

use crate::shop::{
    Shop, api, assert_ran, assert_refused, assert_replayed, pay, raw_pay, request, text,
};

fn without_key(body: &'static str) -> Request<Full<Bytes>> {
    Request::post("/pay").body(Full::new(Bytes::from(body))).unwrap()
}

#[tokio::test]
async fn case_18_a_request_without_its_key_is_refused_with_a_link() {
    let shop = Shop::open(api()).await;
    let answer = shop.server.send(without_key("10")).await;
    let detail = assert_refused(&answer, 400, "identity-missing");
    assert!(detail.contains("Idempotency-Key"), "{detail}");
    assert_eq!((shop.runs.count(), shop.store.len()), (0, 0));
    assert_ran(&shop.pay("\"k\"", "10").await, "run 1 of k");

    let shop = Shop::open(Policy::webhook(json("/notifyId"))).await;
    let answer = shop.server.send(without_key("{}")).await;
    let detail = assert_refused(&answer, 400, "identity-missing");
    assert!(detail.contains("/notifyId"), "{detail}");
    assert_eq!((shop.runs.count(), shop.store.len()), (0, 0));
    let answer = shop.server.send(without_key(r#"{"notifyId":"n-1"}"#)).await;
    assert_ran(&answer, "run 1 of n-1");
}

#[tokio::test]
async fn case_19_where_the_key_is_optional_a_request_without_it_passes_and_leaves_nothing() {
    let shop = Shop::open(api().optional()).await;
    assert_ran(&shop.server.send(without_key("10")).await, "run 1 of -");
    assert_ran(&shop.server.send(without_key("10")).await, "run 2 of -");
    assert!(shop.store.is_empty());
    // One that has it is protected all the same.
    assert_ran(&shop.pay("\"k\"", "10").await, "run 3 of k");
    assert_replayed(&shop.pay("\"k\"", "10").await, "run 3 of k");
}

#[tokio::test]
async fn case_20_a_key_on_a_safe_method_is_ignored_whatever_it_is() {
    let shop = Shop::open(api()).await;
    let methods = [Method::GET, Method::HEAD, Method::OPTIONS, Method::TRACE];
    for method in &methods {
        for key in ["\"k\"", "\"k\"", "\"", ""] {
            let answer = shop.server.send(request(method.clone(), "/pay", key, "")).await;
            assert_eq!(answer.status(), StatusCode::CREATED, "{method} {key}");
            assert!(!answer.headers().contains_key("idempotent-replayed"));
        }
    }
    assert_eq!(shop.runs.count(), methods.len() * 4);
    assert!(shop.store.is_empty());
    // On a POST the same key counts, and the same nonsense is refused.
    assert_ran(&shop.pay("\"k\"", "").await, "run 17 of k");
    assert_refused(&shop.pay("\"", "").await, 400, "identity-malformed");
}

#[tokio::test]
async fn case_21_put_and_delete_are_protected_where_a_rule_names_them() {
    let shop = Shop::open(api()).await;
    for method in [Method::PUT, Method::DELETE] {
        for _ in 0..2 {
            let answer = shop.server.send(request(method.clone(), "/pay", "\"k\"", "")).await;
            assert_eq!(answer.status(), StatusCode::CREATED);
        }
    }
    assert_eq!((shop.runs.count(), shop.store.len()), (4, 0));

    let shop = Shop::with(Rule::new("pay", api()).methods([Method::PUT, Method::DELETE])).await;
    for (run, method) in [Method::PUT, Method::DELETE].into_iter().enumerate() {
        let key = format!("\"{method}\"");
        let expected = format!("run {} of {method}", run + 1);
        let send = || shop.server.send(request(method.clone(), "/pay", &key, ""));
        assert_ran(&send().await, &expected);
        assert_replayed(&send().await, &expected);
    }
    // And what it does not name is not.
    assert_ran(&shop.pay("\"k\"", "").await, "run 3 of -");
}

#[tokio::test]
async fn case_21_patch_is_protected_without_being_named() {
    let shop = Shop::open(api()).await;
    let patch = || shop.server.send(request(Method::PATCH, "/pay", "\"k\"", "10"));
    assert_ran(&patch().await, "run 1 of k");
    assert_replayed(&patch().await, "run 1 of k");
}

#[tokio::test]
async fn case_22_a_key_sent_to_a_route_outside_of_the_layer_is_ignored() {
    let (inside, outside) = (Runs::new(), Runs::new());
    let count = |runs: &Runs| {
        let runs = runs.clone();
        post(move || async move { format!("run {}", runs.add()) })
    };
    let layer = IdempotencyLayer::new(MemoryStore::new(), Rule::new("pay", api()));
    let app = Router::new()
        .route("/pay", count(&inside))
        .route_layer(layer)
        .route("/open", count(&outside));
    let server = Server::start(app).await;
    for key in ["\"k\"", "\"k\"", "\""] {
        let answer = server.send(request(Method::POST, "/open", key, "10")).await;
        assert_eq!(text(&answer), format!("run {}", outside.count()));
        server.send(request(Method::POST, "/pay", key, "10")).await;
    }
    assert_eq!((inside.count(), outside.count()), (1, 3));
    // A rule with a path is for that path alone.
    let shop = Shop::with(Rule::new("pay", api()).path("/pay")).await;
    for _ in 0..2 {
        shop.server.send(request(Method::POST, "/pay/now", "\"k\"", "10")).await;
        shop.pay("\"k\"", "10").await;
    }
    assert_eq!((shop.runs.count(), shop.store.len()), (3, 1));
}

/// A chunked body of `10` with the key in its trailers.
const IN_TRAILERS: &str = "Transfer-Encoding: chunked\r\nTrailer: Idempotency-Key\r\n\r\n\
     2\r\n10\r\n0\r\nIdempotency-Key: \"k\"\r\n\r\n";

#[tokio::test]
async fn case_23_a_key_in_the_trailers_alone_is_absent() {
    let shop = Shop::open(api()).await;
    let mut client = shop.server.connect().await;
    client.send(raw_pay(&[], IN_TRAILERS)).await;
    let answer = client.answer().await.into_response();
    assert_refused(&answer, 400, "identity-missing");
    assert_eq!((shop.runs.count(), shop.store.len()), (0, 0));

    let shop = Shop::open(api().optional()).await;
    for run in 1..=2 {
        let mut client = shop.server.connect().await;
        client.send(raw_pay(&[], IN_TRAILERS)).await;
        assert_ran(&client.answer().await.into_response(), &format!("run {run} of -"));
    }
    assert!(shop.store.is_empty());

    // Nor does it change or double the one in the head.
    let mut client = shop.server.connect().await;
    client.send(raw_pay(&[b"\"head\""], IN_TRAILERS)).await;
    assert_ran(&client.answer().await.into_response(), "run 3 of head");
    assert_replayed(&shop.server.send(pay("\"head\"", "10")).await, "run 3 of head");
}

#[tokio::test]
async fn case_23_a_request_without_a_body_needs_its_key_too() {
    let shop = Shop::open(api()).await;
    let empty = Request::post("/pay").body(Empty::<Bytes>::new()).unwrap();
    assert_refused(&shop.server.send(empty).await, 400, "identity-missing");
}
