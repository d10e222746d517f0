//! The same layer twice around a handler, where a delivery id is another name of the operation.

use axum::{Router, body::Body, routing::post};
use http::{Request, StatusCode};
use tower::ServiceExt;
use tower_idempotency::{IdempotencyLayer, MemoryStore, Operation, Outcome, Policy, Rule, json};

use super::{Shop, deliver, notification};

/// H5: the same layer around the router and around the route.
#[tokio::test]
async fn a_layer_further_in_knows_the_operation_that_another_name_led_to() {
    let shop = Shop::default();
    let store = MemoryStore::new();
    *shop.next.lock().unwrap() = Some(Outcome::Release);
    deliver(&shop.app(store.clone(), shop.policy()), notification("n-1", "o-1", "960")).await;

    // The business key is switched off again: the delivery id leads to the order, and may run it.
    let rule = Rule::new("fulfil", Policy::webhook(json("/notifyId")));
    let layer = IdempotencyLayer::new(store, rule);
    let app = Router::new()
        .route("/fulfil", post(async |operation: Operation| operation.key().to_owned()))
        .route_layer(layer.clone())
        .route_layer(layer);
    for replayed in [false, true] {
        let request = Request::post("/fulfil").body(Body::from(r#"{"notifyId":"n-1"}"#)).unwrap();
        let response = app.clone().oneshot(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers().contains_key("idempotent-replayed"), replayed);
    }
}
