//! Five deliveries, one run.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use axum::{Router, body::Body, routing::post};
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt;
use tower::ServiceExt;
use tower_idempotency::{IdempotencyLayer, MemoryStore, Policy, Rule, json};

fn app(runs: &Arc<AtomicU32>) -> Router {
    let layer = IdempotencyLayer::new(
        MemoryStore::new(),
        Rule::new("fulfil", Policy::webhook(json("/notifyId"))),
    );
    let runs = runs.clone();
    Router::new()
        .route(
            "/fulfil",
            post(move || async move {
                runs.fetch_add(1, Ordering::SeqCst);
                "success"
            }),
        )
        .route_layer(layer)
}

async fn deliver(app: &Router, id: &str) -> Response<Body> {
    let request = Request::post("/fulfil").body(Body::from(format!(r#"{{"notifyId":"{id}"}}"#)));
    app.clone().oneshot(request.unwrap()).await.unwrap()
}

#[tokio::test]
async fn a_notification_delivered_five_times_runs_once() {
    let runs = Arc::default();
    let app = app(&runs);
    for delivery in 0..5 {
        let response = deliver(&app, "n-1").await;
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers().contains_key("idempotent-replayed"), delivery > 0);
        let body = response.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(body, "success");
    }
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    deliver(&app, "n-2").await;
    assert_eq!(runs.load(Ordering::SeqCst), 2, "another notification is another operation");
}
