//! Cases 1 to 17: what is a key, and which keys are the same.

use axum::{Router, routing::post};
use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::Full;
use tower_idempotency::{IdempotencyLayer, MemoryStore, Policy, Rule, Scope};
use tower_idempotency_test_support::{Runs, Server};

#[tokio::test]
async fn case_01_the_draft_s_own_key() {
    let runs = Runs::new();
    let counted = runs.clone();
    let app = Router::new()
        .route(
            "/pay",
            post(move || async move {
                counted.add();
                "paid"
            }),
        )
        .route_layer(IdempotencyLayer::new(
            MemoryStore::new(),
            Rule::new("pay", Policy::api(Scope::everyone())),
        ));
    let server = Server::start(app).await;
    for _ in 0..2 {
        let request = Request::post("/pay")
            .header("idempotency-key", "\"8e03978e-40d5-43e8-bc93-6894a57f9324\"")
            .body(Full::new(Bytes::from("x")))
            .unwrap();
        let answer = server.send(request).await;
        assert_eq!(answer.status(), StatusCode::OK);
        assert_eq!(answer.body(), "paid");
    }
    let mut raw = server.connect().await;
    raw.send(
        "POST /pay HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\n\
         idempotency-key: \"8e03978e-40d5-43e8-bc93-6894a57f9324\"\r\n\r\nx",
    )
    .await;
    let answer = raw.answer().await;
    assert_eq!((answer.status, &answer.body[..]), (StatusCode::OK, &b"paid"[..]));
    assert_eq!(runs.count(), 1);
}
