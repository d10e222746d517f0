//! Cases 41 to 49: when a key is the same and the request is not, and the other way round.

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    extract::Request as AnyRequest,
    middleware::{Next, from_fn},
};
use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::Full;
use tower_idempotency::{
    ClaimToken, Fingerprint, MemoryStore, Policy, RecordKey, Rule, Rules, Scope, Store,
    store::{Claim, Claimed, Kept, Written},
};

use crate::shop::{
    Shop, api, assert_ran, assert_refused, assert_replayed, request, text, turn_the_clock,
};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

async fn send(shop: &Shop, method: Method, path: &str) -> Response<Bytes> {
    shop.server.send(request(method, path, "\"k\"", "10")).await
}

#[tokio::test]
async fn case_41_another_body_under_the_same_key_is_refused_with_a_link() {
    let shop = Shop::open(api()).await;
    assert_ran(&shop.pay("\"k\"", "10").await, "run 1 of k");
    for other in ["100", "1", "", "10 "] {
        let detail = assert_refused(&shop.pay("\"k\"", other).await, 422, "mismatch");
        assert!(detail.contains("needs a new identity"), "{detail}");
        assert!(!detail.contains("10"), "a refusal says nothing of the other request");
    }
    assert_eq!(shop.runs.count(), 1);
    assert_replayed(&shop.pay("\"k\"", "10").await, "run 1 of k");
    assert_ran(&shop.pay("\"k-2\"", "100").await, "run 2 of k-2");
}

#[tokio::test]
async fn case_42_another_query_is_another_request() {
    let shop = Shop::open(api()).await;
    assert_ran(&send(&shop, Method::POST, "/pay?to=a").await, "run 1 of k");
    for other in ["/pay?to=b", "/pay", "/pay?", "/pay?to=a&to=a", "/pay?to=A"] {
        assert_refused(&send(&shop, Method::POST, other).await, 422, "mismatch");
    }
    assert_replayed(&send(&shop, Method::POST, "/pay?to=a").await, "run 1 of k");
    assert_eq!(shop.runs.count(), 1);
}

#[tokio::test]
async fn case_43_two_rules_keep_two_records_for_one_key() {
    let rules = Rules::new()
        .add(Rule::new("pay", api()).path("/pay"))
        .add(Rule::new("refund", api()).path("/refund"))
        .add(Rule::new("amend", api()).path("/amend").methods([Method::POST]))
        .add(Rule::new("cancel", api()).path("/amend").methods([Method::DELETE]));
    let shop = Shop::with(rules).await;
    let routes = [
        (Method::POST, "/pay"),
        (Method::POST, "/refund"),
        (Method::POST, "/amend"),
        (Method::DELETE, "/amend"),
    ];
    for (run, (method, path)) in routes.iter().enumerate() {
        let expected = format!("run {} of k", run + 1);
        assert_ran(&send(&shop, method.clone(), path).await, &expected);
    }
    for (run, (method, path)) in routes.iter().enumerate() {
        let expected = format!("run {} of k", run + 1);
        assert_replayed(&send(&shop, method.clone(), path).await, &expected);
    }
}

#[tokio::test]
async fn case_43_one_rule_over_several_routes_has_one_record_and_never_answers_for_another() {
    let shop = Shop::open(api()).await;
    assert_ran(&send(&shop, Method::POST, "/pay").await, "run 1 of k");
    for (method, path) in [
        (Method::POST, "/refund"),
        (Method::POST, "/pay/"),
        (Method::POST, "/PAY"),
        (Method::PATCH, "/pay"),
    ] {
        assert_refused(&send(&shop, method, path).await, 422, "mismatch");
    }
    assert_replayed(&send(&shop, Method::POST, "/pay").await, "run 1 of k");
    assert_eq!((shop.runs.count(), shop.store.len()), (1, 1));
}

#[derive(Clone)]
struct Tenant(Arc<str>);

impl AsRef<str> for Tenant {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

fn from_tenant(tenant: &str, body: &str) -> Request<Full<Bytes>> {
    let mut request = request(Method::POST, "/pay", "\"k\"", body);
    request.headers_mut().insert("x-tenant", tenant.parse().unwrap());
    request
}

/// What authentication does: it says whose request it is.
fn authenticated(app: Router) -> Router {
    app.layer(from_fn(|mut request: AnyRequest, next: Next| {
        if let Some(tenant) = request.headers().get("x-tenant") {
            let tenant = Tenant(tenant.to_str().unwrap().into());
            request.extensions_mut().insert(tenant);
        }
        next.run(request)
    }))
}

#[tokio::test]
async fn case_44_two_tenants_may_choose_the_same_key_and_never_see_each_other() {
    for scope in [Scope::header("x-tenant"), Scope::extension::<Tenant>()] {
        let rule = Rule::new("pay", Policy::api(scope));
        let shop = Shop::inside(MemoryStore::new(), rule, authenticated).await;
        let send = |tenant, body| shop.server.send(from_tenant(tenant, body));
        assert_ran(&send("a", "10").await, "run 1 of k");
        assert_ran(&send("b", "10").await, "run 2 of k");
        assert_replayed(&send("a", "10").await, "run 1 of k");
        assert_replayed(&send("b", "10").await, "run 2 of k");
        // Not even by a mismatch does one learn what the other sends.
        assert_ran(&send("c", "20").await, "run 3 of k");
        assert_refused(&send("b", "20").await, 422, "mismatch");
        // Whose key it is must be known.
        let nobody = shop.pay("\"k\"", "10").await;
        assert!(matches!(nobody.status().as_u16(), 400 | 500), "{}", text(&nobody));
        assert_eq!((shop.runs.count(), shop.store.len()), (3, 3));
    }
}

#[tokio::test]
async fn case_45_the_body_is_compared_byte_by_byte_and_not_by_what_it_means() {
    let same_meaning = [r#"{"b":2,"a":1}"#, r#"{ "a": 1, "b": 2 }"#, r#"{"a":1.0,"b":2}"#];
    let shop = Shop::open(api()).await;
    assert_ran(&shop.pay("\"k\"", r#"{"a":1,"b":2}"#).await, "run 1 of k");
    for body in same_meaning {
        assert_refused(&shop.pay("\"k\"", body).await, 422, "mismatch");
    }
    // Who cannot promise equal bytes compares nothing.
    let shop = Shop::open(api().no_fingerprint()).await;
    assert_ran(&shop.pay("\"k\"", r#"{"a":1,"b":2}"#).await, "run 1 of k");
    for body in same_meaning {
        assert_replayed(&shop.pay("\"k\"", body).await, "run 1 of k");
    }
}

#[tokio::test]
async fn case_46_a_multipart_retry_with_a_new_boundary_is_another_body() {
    let multipart = |boundary: &str| {
        let body = format!(
            "--{boundary}\r\nContent-Disposition: form-data; name=\"amount\"\r\n\r\n10\r\n\
             --{boundary}--\r\n"
        );
        let mut request = request(Method::POST, "/pay", "\"k\"", &body);
        let content_type = format!("multipart/form-data; boundary={boundary}");
        request.headers_mut().insert("content-type", content_type.parse().unwrap());
        request
    };
    let shop = Shop::open(api()).await;
    assert_ran(&shop.server.send(multipart("one")).await, "run 1 of k");
    assert_refused(&shop.server.send(multipart("two")).await, 422, "mismatch");
    assert_replayed(&shop.server.send(multipart("one")).await, "run 1 of k");

    let shop = Shop::open(api().no_fingerprint()).await;
    assert_ran(&shop.server.send(multipart("one")).await, "run 1 of k");
    assert_replayed(&shop.server.send(multipart("two")).await, "run 1 of k");
}

#[tokio::test]
async fn case_47_an_expired_key_is_new_even_with_another_body() {
    for body in ["10", "20"] {
        let shop = Shop::open(api()).await;
        assert_ran(&shop.pay("\"k\"", "10").await, "run 1 of k");
        turn_the_clock(DAY - Duration::from_secs(60)).await;
        assert_replayed(&shop.pay("\"k\"", "10").await, "run 1 of k");
        assert_refused(&shop.pay("\"k\"", "20").await, 422, "mismatch");

        turn_the_clock(Duration::from_secs(61)).await;
        assert_ran(&shop.pay("\"k\"", body).await, "run 2 of k");
        assert_replayed(&shop.pay("\"k\"", body).await, "run 2 of k");
    }
}

/// The key of the only record of a shop, and what is stored there.
async fn stored(shop: &Shop) -> (RecordKey, Bytes) {
    let key = shop.record().await.key;
    let look = claim(key, None, Duration::ZERO);
    match shop.store.claim(look).await {
        Ok(Claimed::Completed(completed)) => (key, completed.payload),
        other => panic!("{other:?}"),
    }
}

fn claim(key: RecordKey, print: Option<Fingerprint>, within: Duration) -> Claim {
    let lease = Duration::from_secs(30);
    Claim::new(key, ClaimToken::random(), print, lease, 7 * DAY, within)
}

/// A shop in whose store an earlier version of the program has executed the key `k` and bound it to
/// this fingerprint.
async fn after_a_deploy(print: Option<Fingerprint>) -> Shop {
    let before = Shop::open(api()).await;
    before.pay("\"k\"", "10").await;
    let (key, payload) = stored(&before).await;
    let after = Shop::open(api()).await;
    let claimed = after.store.claim(claim(key, print, Duration::from_secs(1))).await;
    let Ok(Claimed::Granted(grant)) = claimed else { panic!("{claimed:?}") };
    let completed = after.store.complete(&grant, Kept::new(payload, DAY)).await.unwrap();
    assert_eq!(completed, Written::Stored);
    after
}

#[tokio::test]
async fn case_48_a_record_with_a_fingerprint_of_another_kind_is_neither_matched_nor_run_again() {
    let shop = after_a_deploy(Some(Fingerprint::from_bytes([7; 32]))).await;
    for body in ["10", "20"] {
        // It cannot be told whether the request is the same, so it is not run and not answered.
        assert_refused(&shop.pay("\"k\"", body).await, 422, "mismatch");
    }
    assert_eq!(shop.runs.count(), 0);
    // What is stored is what it was, for whoever can still compare it.
    let record = shop.record().await;
    assert_eq!(record.state, tower_idempotency::State::Completed);
    stored(&shop).await;
}

#[tokio::test]
async fn case_48_a_record_from_before_there_was_a_fingerprint_is_matched() {
    let shop = after_a_deploy(None).await;
    assert_replayed(&shop.pay("\"k\"", "10").await, "run 1 of k");
    assert_eq!(shop.runs.count(), 0);
}

#[tokio::test]
async fn case_49_the_same_request_under_another_key_is_another_operation() {
    let shop = Shop::open(api()).await;
    for run in 1..=3 {
        let answer = shop.pay(&format!("\"k-{run}\""), "10").await;
        assert_ran(&answer, &format!("run {run} of k-{run}"));
    }
    assert_replayed(&shop.pay("\"k-1\"", "10").await, "run 1 of k-1");
    assert_eq!(shop.runs.count(), 3);
}
