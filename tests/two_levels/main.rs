//! Two levels of identity: a delivery id, and the business key that stays when the sender makes a new
//! id for the same event.

mod nested;
mod own_record;
mod tenants;
mod unprotected;
mod unreadable;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{Extension, Router, body::Body, routing::post};
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use tower::ServiceExt;
use tower_idempotency::{
    IdempotencyLayer, MemoryStore, Mismatch, Operation, Outcome, Policy, Previous, RedisStore,
    Rule, Store, json,
};
use tower_idempotency_test_support::RedisServer;

/// Key, delivery id and the key for whoever does a step downstream, as a handler saw them.
type Seen = (String, Option<String>, String);

/// What the shop did, counted outside of the layer.
#[derive(Clone, Default)]
struct Shop {
    runs: Arc<Mutex<HashMap<String, u32>>>,
    seen: Arc<Mutex<Vec<Seen>>>,
    /// What each run found.
    found: Arc<Mutex<Vec<Previous>>>,
    mismatches: Arc<Mutex<Vec<Mismatch>>>,
    /// What the next run says of itself.
    next: Arc<Mutex<Option<Outcome>>>,
}

impl Shop {
    fn runs(&self, order: &str) -> u32 {
        self.runs.lock().unwrap().get(order).copied().unwrap_or_default()
    }

    fn found(&self) -> Vec<Previous> {
        self.found.lock().unwrap().clone()
    }

    fn policy(&self) -> Policy {
        let mismatches = self.mismatches.clone();
        Policy::webhook(json("/notifyId"))
            .business_key(json("/orderId"))
            .compare([json("/amount")])
            .on_mismatch(move |mismatch| mismatches.lock().unwrap().push(mismatch.clone()))
    }

    fn app(&self, store: impl Store, policy: Policy) -> Router {
        let shop = self.clone();
        let handler = move |operation: Operation| {
            let shop = shop.clone();
            async move {
                let order = operation.key().to_owned();
                let delivery = operation.delivery_id().map(str::to_owned);
                *shop.runs.lock().unwrap().entry(order.clone()).or_default() += 1;
                let charge = operation.downstream_key("charge");
                shop.found.lock().unwrap().push(operation.previous());
                shop.seen.lock().unwrap().push((order.clone(), delivery, charge));
                tokio::time::sleep(Duration::from_millis(3)).await;
                let outcome = shop.next.lock().unwrap().take().unwrap_or(Outcome::Keep);
                (Extension(outcome), format!("{order} by {:?}", operation.delivery_id()))
            }
        };
        Router::new()
            .route("/fulfil", post(handler))
            .route_layer(IdempotencyLayer::new(store, Rule::new("fulfil", policy)))
    }
}

struct Answer {
    status: StatusCode,
    replayed: bool,
    body: String,
}

async fn deliver(app: &Router, body: String) -> Answer {
    let request = Request::post("/fulfil").body(Body::from(body)).unwrap();
    let response = app.clone().oneshot(request).await.unwrap();
    let (head, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    Answer {
        status: head.status,
        replayed: head.headers.contains_key("idempotent-replayed"),
        body: String::from_utf8(body.to_vec()).unwrap(),
    }
}

fn assert_refused(answer: &Answer, kind: &str) {
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE, "{}", answer.body);
    assert!(answer.body.contains(&format!("/problems/{kind}/")), "{}", answer.body);
}

fn notification(id: &str, order: &str, amount: &str) -> String {
    format!(r#"{{"notifyId":"{id}","orderId":"{order}","amount":{amount}}}"#)
}

#[tokio::test]
async fn the_same_order_under_a_new_notify_id_is_answered_from_the_first() {
    let shop = Shop::default();
    let app = shop.app(MemoryStore::new(), shop.policy());
    let first = deliver(&app, notification("n-1", "o-1", "960")).await;
    assert_eq!((first.status, first.replayed), (StatusCode::OK, false));
    for id in ["n-2", "n-1", "n-3", "n-2"] {
        let again = deliver(&app, notification(id, "o-1", "960")).await;
        assert_eq!((again.status, again.replayed), (StatusCode::OK, true), "{id}");
        assert_eq!(again.body, first.body);
    }
    assert_eq!(shop.runs("o-1"), 1);
    let seen = shop.seen.lock().unwrap()[0].clone();
    assert_eq!((seen.0.as_str(), seen.1.as_deref()), ("o-1", Some("n-1")));

    deliver(&app, notification("n-4", "o-2", "960")).await;
    assert_eq!(shop.runs("o-2"), 1, "another order is another operation");
}

#[tokio::test]
async fn the_same_delivery_id_with_another_business_key_is_a_mismatch_and_never_a_run() {
    let shop = Shop::default();
    let app = shop.app(MemoryStore::new(), shop.policy());
    deliver(&app, notification("n-1", "o-1", "960")).await;
    let other = deliver(&app, notification("n-1", "o-2", "960")).await;
    assert_eq!(other.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(other.body.contains("its business key must be the same"), "{}", other.body);
    assert_eq!(shop.runs("o-2"), 0);
    let told = shop.mismatches.lock().unwrap()[0].clone();
    assert_eq!(told.fields, Some(vec!["JSON field /orderId".to_owned()]));
    assert_eq!((told.key.as_str(), told.delivery_id.as_deref()), ("o-2", Some("n-1")));

    // The claim on the other order was called off: its own notification runs.
    let own = deliver(&app, notification("n-2", "o-2", "960")).await;
    assert_eq!((own.status, own.replayed), (StatusCode::OK, false));
}

#[tokio::test]
async fn a_delivery_that_names_no_business_key_finds_the_operation_by_its_id() {
    let shop = Shop::default();
    let app = shop.app(MemoryStore::new(), shop.policy().no_fingerprint());
    let first = deliver(&app, notification("n-1", "o-1", "960")).await;
    let alone = deliver(&app, r#"{"notifyId":"n-1"}"#.to_owned()).await;
    assert_eq!((alone.status, alone.replayed, alone.body), (StatusCode::OK, true, first.body));
    assert_eq!(shop.runs.lock().unwrap().len(), 1);

    let unknown = deliver(&app, r#"{"notifyId":"n-9"}"#.to_owned()).await;
    assert_eq!(unknown.status, StatusCode::OK);
    assert_eq!(shop.runs("n-9"), 1, "an id that is no alias is an operation of its own");
}

#[tokio::test]
async fn a_released_operation_runs_again_only_under_its_business_key() {
    let shop = Shop::default();
    let app = shop.app(MemoryStore::new(), shop.policy().no_fingerprint());
    *shop.next.lock().unwrap() = Some(Outcome::Release);
    deliver(&app, notification("n-1", "o-1", "960")).await;
    let alone = deliver(&app, r#"{"notifyId":"n-1"}"#.to_owned()).await;
    assert_eq!(alone.status, StatusCode::BAD_REQUEST);
    assert!(alone.body.contains("business-key-missing") || alone.body.contains("business_key"));
    assert_eq!(shop.runs("o-1"), 1);

    let named = deliver(&app, notification("n-2", "o-1", "960")).await;
    assert_eq!((named.status, named.replayed), (StatusCode::OK, false));
    assert_eq!(shop.runs("o-1"), 2);
    let seen = shop.seen.lock().unwrap();
    assert_eq!(seen[0].2, seen[1].2, "the charge has the same key on both attempts");
}

#[tokio::test]
async fn a_tampered_amount_is_refused_and_told_by_name() {
    let shop = Shop::default();
    let app = shop.app(MemoryStore::new(), shop.policy());
    deliver(&app, notification("n-1", "o-1", "960")).await;
    let tampered = deliver(&app, notification("n-2", "o-1", "9600")).await;
    assert_eq!(tampered.status, StatusCode::UNPROCESSABLE_ENTITY);
    let absent = deliver(&app, r#"{"notifyId":"n-3","orderId":"o-1"}"#.to_owned()).await;
    assert_eq!(absent.status, StatusCode::UNPROCESSABLE_ENTITY, "an absent field is a difference");
    assert_eq!(shop.runs("o-1"), 1);
    for told in shop.mismatches.lock().unwrap().iter() {
        assert_eq!(told.fields, Some(vec!["JSON field /amount".to_owned()]));
    }
    assert_eq!(shop.mismatches.lock().unwrap().len(), 2);
}

#[tokio::test]
async fn f17_an_operation_completed_before_the_business_key_answers_its_redelivery() {
    let shop = Shop::default();
    let store = MemoryStore::new();
    let before = shop.app(store.clone(), Policy::webhook(json("/notifyId")));
    let after = shop.app(store, shop.policy());
    let first = deliver(&before, notification("n-1", "o-1", "960")).await;
    let again = deliver(&after, notification("n-1", "o-1", "960")).await;
    assert_eq!((again.status, again.replayed, again.body), (StatusCode::OK, true, first.body));
    assert_eq!(shop.runs("o-1"), 0, "nothing ran under the business key");

    // What switching it on later cannot cover, as the setter's documentation says.
    let new_id = deliver(&after, notification("n-2", "o-1", "960")).await;
    assert_eq!((new_id.status, new_id.replayed), (StatusCode::OK, false));
}

/// Redelivers until there is an answer, as a sender does.
async fn deliver_until_answered(app: &Router, body: &str) -> Answer {
    for _ in 0..400 {
        let answer = deliver(app, body.to_owned()).await;
        match answer.status {
            StatusCode::OK => return answer,
            StatusCode::SERVICE_UNAVAILABLE => tokio::time::sleep(Duration::from_millis(10)).await,
            other => panic!("{other}: {}", answer.body),
        }
    }
    panic!("never answered: {body}")
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_orders_under_five_ids_each_delivered_five_times_are_fifty_runs() {
    let redis = RedisServer::start().await;
    for at_once in [true, false] {
        let shop = Shop::default();
        let mut apps = Vec::new();
        for _ in 0..2 {
            let store = RedisStore::connect(&redis.url()).await.unwrap();
            apps.push(shop.app(store.prefix(&format!("two-{at_once}")), shop.policy()));
        }
        let mut deliveries = Vec::new();
        for round in 0..5 {
            for order in 0..50 {
                for id in 0..5 {
                    let body = notification(&format!("n-{order}-{id}"), &format!("o-{order}"), "1");
                    let app = apps[(round + order + id) % 2].clone();
                    let answer =
                        async move { (order, deliver_until_answered(&app, &body).await.body) };
                    if at_once {
                        deliveries.push(tokio::spawn(answer));
                    } else {
                        let answer = answer.await;
                        deliveries.push(tokio::spawn(async move { answer }));
                    }
                }
            }
        }
        let mut answers = HashMap::new();
        for delivery in deliveries {
            let (order, body) = delivery.await.unwrap();
            assert_eq!(answers.entry(order).or_insert_with(|| body.clone()), &body);
        }
        assert_eq!(answers.len(), 50);
        for order in 0..50 {
            assert_eq!(shop.runs(&format!("o-{order}")), 1, "o-{order}, at once: {at_once}");
        }
    }
}
