//! Delivery ids and business keys of several tenants and rules in one store.

use axum::{Router, body::Body, routing::post};
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use tower::ServiceExt;
use tower_idempotency::{
    IdempotencyLayer, MemoryStore, Operation, Policy, Rule, Rules, Scope, json,
};

use super::notification;

/// Every route says which run it is.
fn app(store: MemoryStore) -> Router {
    let policy = || {
        Policy::webhook(json("/notifyId"))
            .business_key(json("/orderId"))
            .scope(Scope::header("x-tenant"))
    };
    let rules = Rules::new()
        .add(Rule::new("fulfil", policy()).path("/fulfil"))
        .add(Rule::new("refund", policy()).path("/refund"));
    let run = async |operation: Operation| {
        format!("{} {} {}", operation.rule(), operation.scope(), operation.key())
    };
    Router::new()
        .route("/fulfil", post(run))
        .route("/refund", post(run))
        .route_layer(IdempotencyLayer::new(store, rules))
}

async fn deliver(app: &Router, path: &str, tenant: &str, body: &str) -> (StatusCode, bool, String) {
    let request = Request::post(path).header("x-tenant", tenant);
    let request = request.body(Body::from(body.to_owned())).unwrap();
    let response = app.clone().oneshot(request).await.unwrap();
    let (head, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let replayed = head.headers.contains_key("idempotent-replayed");
    (head.status, replayed, String::from_utf8(body.to_vec()).unwrap())
}

#[tokio::test]
async fn no_tenant_and_no_rule_meets_the_ids_and_orders_of_another() {
    let app = app(MemoryStore::new());
    for id in ["n-1", "n-2", "n-1"] {
        for (path, rule) in [("/fulfil", "fulfil"), ("/refund", "refund")] {
            for tenant in ["one", "other"] {
                let heard = deliver(&app, path, tenant, &notification(id, "o-1", "1")).await;
                assert_eq!(heard.2, format!("{rule} {tenant} o-1"), "{id}");
            }
        }
    }
    // An id that leads to an order leads nobody else there.
    let alone = r#"{"notifyId":"n-2"}"#;
    let (_, replayed, own) = deliver(&app, "/fulfil", "one", alone).await;
    assert_eq!((replayed, own.as_str()), (true, "fulfil one o-1"));
    let (_, replayed, other) = deliver(&app, "/fulfil", "third", alone).await;
    assert_eq!((replayed, other.as_str()), (false, "fulfil third n-2"));
    // Nor is the order of one the mismatch of another.
    let moved = notification("n-1", "o-2", "1");
    let (status, ..) = deliver(&app, "/fulfil", "one", &moved).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    let (status, replayed, _) = deliver(&app, "/fulfil", "third", &moved).await;
    assert_eq!((status, replayed), (StatusCode::OK, false));
}

/// A delivery id may be spelled like an order.
#[tokio::test]
async fn an_id_is_never_taken_for_an_order_that_is_spelled_like_it() {
    let app = app(MemoryStore::new());
    let (_, _, first) = deliver(&app, "/fulfil", "one", &notification("7", "8", "1")).await;
    assert_eq!(first, "fulfil one 8");
    let (status, replayed, second) =
        deliver(&app, "/fulfil", "one", &notification("8", "7", "1")).await;
    assert_eq!((status, replayed, second.as_str()), (StatusCode::OK, false, "fulfil one 7"));
    let (_, replayed, same) = deliver(&app, "/fulfil", "one", &notification("9", "9", "1")).await;
    assert_eq!((replayed, same.as_str()), (false, "fulfil one 9"));
    assert!(deliver(&app, "/fulfil", "one", &notification("9", "9", "1")).await.1);
}
