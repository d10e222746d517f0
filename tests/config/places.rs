//! Identities where a configuration says they stand, read from real requests.

use axum::{Router, body::Body, routing::post};
use http::{Request, StatusCode};
use tower::ServiceExt;
use tower_idempotency::{IdempotencyLayer, MemoryStore};

use crate::support::{one, rules};

/// Whether the second of two requests is answered from the first.
async fn is_replayed(lines: &str, requests: [Request<String>; 2]) -> bool {
    let layer = IdempotencyLayer::new(MemoryStore::new(), rules(&one(lines)).expect(lines));
    let app = Router::new().fallback(post(async || "done")).layer(layer);
    let mut replayed = false;
    for request in requests {
        let response = app.clone().oneshot(request.map(Body::from)).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK, "{lines}");
        replayed = response.headers().contains_key("idempotent-replayed");
    }
    replayed
}

fn with_body(body: &str) -> Request<String> {
    Request::post("/").body(body.to_owned()).unwrap()
}

fn to(uri: &str) -> Request<String> {
    Request::post(uri).body(String::new()).unwrap()
}

fn with_header(value: &str) -> Request<String> {
    Request::post("/").header("X-Event", value).body(String::new()).unwrap()
}

#[tokio::test]
async fn an_identity_is_read_from_the_place_that_is_named_and_no_other() {
    let batch = |ids: [u8; 2]| {
        with_body(&format!(r#"{{"items": [{{"id": {}}}, {{"id": {}}}]}}"#, ids[0], ids[1]))
    };
    let cases = [
        (
            "identity = { json = \"/id\" }",
            with_body(r#"{"id": 1, "x": 1}"#),
            with_body(r#"{"x": 2, "id": 1}"#),
            with_body(r#"{"id": 2}"#),
        ),
        (
            "identity = { form = \"id\" }",
            with_body("id=1&x=1"),
            with_body("x=2&id=1"),
            with_body("id=2"),
        ),
        (
            "identity = { xml = \"/a/id\" }",
            with_body("<a><id>1</id></a>"),
            with_body("<a><x/><id>1</id></a>"),
            with_body("<a><id>2</id></a>"),
        ),
        (
            "identity = { header = \"X-Event\" }",
            with_header("1"),
            with_header("\"1\""),
            with_header("2"),
        ),
        ("identity = { query = \"id\" }", to("/a?id=1"), to("/b?id=1"), to("/a?id=2")),
        (
            "path = \"/o/{id}/{x}\"\nidentity = { path = \"id\" }",
            to("/o/1/a"),
            to("/o/1/b"),
            to("/o/2/a"),
        ),
        (
            "identity = { each = \"/items\", read = { json = \"/id\" } }",
            batch([1, 2]),
            batch([1, 2]),
            batch([2, 1]),
        ),
        (
            "identity = [{ json = \"/a\" }, { json = \"/b\" }]",
            with_body(r#"{"a": 1, "b": 2}"#),
            with_body(r#"{"b": 2, "a": "1"}"#),
            with_body(r#"{"a": 2, "b": 1}"#),
        ),
        (
            "identity = { sent = { json = \"/id\" } }",
            with_body(r#"{"id": 1}"#),
            with_body(r#"{"id": "1"}"#),
            with_body(r#"{"id": 2}"#),
        ),
    ];
    for (lines, first, same, other) in cases {
        let lines = format!("policy = \"webhook\"\n{lines}");
        assert!(is_replayed(&lines, [first.clone(), same]).await, "{lines}");
        assert!(!is_replayed(&lines, [first, other]).await, "{lines}");
    }
}
