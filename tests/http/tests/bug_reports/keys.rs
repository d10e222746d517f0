//! Section D of the reports: what makes two requests one operation.

use std::time::Duration;

use axum::{
    Router,
    extract::Request,
    http::StatusCode,
    middleware::{Next, from_fn},
    response::IntoResponse,
    routing::post as on_post,
};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use http::header::HeaderName;
use serde_json::Value;
use tower_idempotency::{
    IdempotencyLayer, Identity, Input, MemoryStore, Operation, Policy, Refusal, Rule, Rules, Scope,
    json,
    test_util::{FaultyStore, Transition},
};

use crate::support::{
    RawClient, RedisServer, Sent, Shop, api, around, assert_fresh, assert_refused, assert_replay,
    keyed, keys, layer, notify, only_key, pay, post, send_aside, serve, start, store_on,
    two_instances, webhook,
};

fn with(mut request: Sent, name: &'static str, value: &str) -> Sent {
    request.headers_mut().insert(HeaderName::from_static(name), value.parse().unwrap());
    request
}

#[tokio::test]
async fn b42_a_key_of_one_route_is_never_answered_by_another() {
    let (orders, cancels) = (Shop::open(), Shop::open());
    let routes = || {
        Router::new()
            .route("/orders", on_post(orders.handler()))
            .route("/orders/{id}/cancel", on_post(cancels.handler()))
    };
    // One rule around both: the key names one request.
    let server = start(routes().route_layer(layer(MemoryStore::new(), api()))).await;
    assert_fresh(&server.send(keyed("/orders", "a", "")).await, "run 1");
    assert_refused(&server.send(keyed("/orders/1/cancel", "a", "")).await, 422, "mismatch");
    assert_eq!(cancels.runs(), 0);
    // Also where nothing is compared: rules are never one another's.
    let no_print = api().no_fingerprint();
    let rules = Rules::new()
        .add(Rule::new("order", no_print.clone()).path("/orders"))
        .add(Rule::new("cancel", no_print).path("/orders/{id}/cancel"));
    let server =
        start(routes().route_layer(IdempotencyLayer::new(MemoryStore::new(), rules))).await;
    assert_fresh(&server.send(keyed("/orders", "a", "")).await, "run 2");
    assert_fresh(&server.send(keyed("/orders/1/cancel", "a", "")).await, "run 1");
    assert_replay(&server.send(keyed("/orders", "a", "")).await, "run 2");
}

#[tokio::test]
async fn b43_the_key_of_one_tenant_is_not_the_key_of_another() {
    let shop = Shop::open();
    let policy = Policy::api(Scope::header("x-tenant"));
    let server = serve(MemoryStore::new(), policy, shop.handler()).await;
    let of = |tenant| with(pay("k"), "x-tenant", tenant);
    assert_fresh(&server.send(of("a")).await, "run 1");
    assert_fresh(&server.send(of("b")).await, "run 2");
    assert_replay(&server.send(of("a")).await, "run 1");
    assert_replay(&server.send(of("b")).await, "run 2");
    // Everyone is a scope that has to be written down, and is one.
    let server = serve(MemoryStore::new(), api(), shop.handler()).await;
    assert_fresh(&server.send(of("a")).await, "run 3");
    assert_replay(&server.send(of("b")).await, "run 3");
}

#[derive(Clone)]
struct UserId(&'static str);

impl AsRef<str> for UserId {
    fn as_ref(&self) -> &str {
        self.0
    }
}

#[tokio::test]
async fn b44_who_is_nobody_shares_nothing() {
    let shop = Shop::open();
    let policy = Policy::api(Scope::header("x-tenant"));
    let server = serve(MemoryStore::new(), policy, shop.handler()).await;
    assert_refused(&server.send(pay("k")).await, 400, "scope-missing");
    assert_refused(&server.send(with(pay("k"), "x-tenant", "")).await, 400, "scope-missing");
    let policy = Policy::api(Scope::extension::<UserId>());
    let store = FaultyStore::new(MemoryStore::new());
    let calls = store.faults();
    let server = serve(store, policy.clone(), shop.handler()).await;
    let answer = server.send(pay("k")).await;
    assert_refused(&answer, 500, "scope-missing");
    assert!(String::from_utf8_lossy(answer.body()).contains("UserId"));
    assert_eq!((shop.runs(), calls.calls(Transition::Claim)), (0, 0));
    // With the layer that says who it is, it works.
    let authenticated = around(layer(MemoryStore::new(), policy), shop.handler())
        .layer(axum::Extension(UserId("ada")));
    assert_fresh(&start(authenticated).await.send(pay("k")).await, "run 1");
}

#[tokio::test]
async fn b45_a_replay_passes_no_check_of_permissions_that_stands_outside() {
    let shop = Shop::open();
    let allowed = |request: Request, next: Next| async move {
        match request.headers().get("authorization") {
            Some(token) if token == "good" => next.run(request).await,
            Some(_) => StatusCode::FORBIDDEN.into_response(),
            None => StatusCode::UNAUTHORIZED.into_response(),
        }
    };
    let router = around(layer(MemoryStore::new(), api()), shop.handler());
    let server = start(router.layer(from_fn(allowed))).await;
    let by = |token| with(pay("k"), "authorization", token);
    // Before there is anything: and it is not stored.
    assert_eq!(server.send(by("bad")).await.status(), 403);
    assert_eq!(server.send(pay("k")).await.status(), 401);
    assert_fresh(&server.send(by("good")).await, "run 1");
    for answer in [server.send(by("bad")).await, server.send(pay("k")).await] {
        assert!(matches!(answer.status().as_u16(), 401 | 403));
        assert!(answer.body().is_empty());
    }
    assert_replay(&server.send(by("good")).await, "run 1");
}

#[tokio::test]
async fn b46_no_way_of_cutting_the_same_text_reaches_another_record() {
    let redis = RedisServer::start().await;
    let shop = Shop::open();
    let store = store_on(&redis).await;
    let policy = Policy::webhook(json("/notifyId")).scope(Scope::header("x-tenant"));
    let server = serve(store.clone(), policy, shop.handler()).await;
    let of = |scope: &str, key: &str| {
        let body = serde_json::json!({ "notifyId": key }).to_string();
        with(post("/notify", body), "x-tenant", scope)
    };
    let pairs = [
        ("u:1", "2"),
        ("u", "1:2"),
        ("u:1:2", ":"),
        ("u", "%3A"),
        ("u", ":"),
        ("u", "/"),
        ("u", "{a}"),
        ("u", "a"),
        ("u", " a"),
        ("u", "a\r\n"),
        ("u", "a\0"),
        ("u", "a\0b"),
        ("u;", "a"),
        ("u", "\u{1f389}"),
        ("u", "caf\u{e9}"),
        ("u", "cafe\u{301}"),
        ("u", "../../etc"),
        ("u", "*"),
    ];
    for (i, (scope, key)) in pairs.iter().enumerate() {
        assert_fresh(&server.send(of(scope, key)).await, &format!("run {}", i + 1));
    }
    for (i, (scope, key)) in pairs.iter().enumerate() {
        assert_replay(&server.send(of(scope, key)).await, &format!("run {}", i + 1));
    }
    assert_eq!(keys(&store).await.len(), pairs.len());
    for key in keys(&store).await {
        let name = key.to_string();
        assert_eq!(name.len(), 43);
        assert!(name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b)), "{name}");
    }
}

#[tokio::test]
async fn b47_what_a_key_is_hashed_to_is_a_key_like_another() {
    let shop = Shop::open();
    let store = MemoryStore::new();
    let server = serve(store.clone(), api(), shop.handler()).await;
    assert_fresh(&server.send(pay("victim")).await, "run 1");
    let record = only_key(&store).await;
    let hexadecimal: String = record.as_bytes().iter().map(|b| format!("{b:02x}")).collect();
    let crafted = [
        record.to_string(),
        format!("idempotency:{record}"),
        hexadecimal,
        record.digest(),
        URL_SAFE_NO_PAD.encode("victim"),
        "shop:victim".to_owned(),
    ];
    for (i, key) in crafted.iter().enumerate() {
        assert_fresh(&server.send(pay(key)).await, &format!("run {}", i + 2));
    }
}

#[tokio::test]
async fn b48_a_key_that_is_too_long_or_none_is_refused_before_the_store_hears_of_it() {
    let shop = Shop::open();
    let store = FaultyStore::new(MemoryStore::new());
    let calls = store.faults();
    let server = serve(store, api(), shop.handler()).await;
    let long = |length| "k".repeat(length);
    for key in ["", "   ", "\"\"", &long(256), &long(64 * 1024)] {
        let answer = server.send(pay(key)).await;
        assert_refused(&answer, 400, "identity-malformed");
        assert!(answer.body().len() < 1000, "it does not repeat the key");
    }
    assert_eq!((shop.runs(), calls.calls(Transition::Claim)), (0, 0));
    assert_fresh(&server.send(pay("k")).await, "run 1");
    assert_fresh(&server.send(pay(&long(255))).await, "run 2");
    // Spaces around a field's value are none of it; within quotes they are.
    let mut client = server.connect().await;
    let spaced = "POST /pay HTTP/1.1\r\nhost: shop\r\nidempotency-key:   k  \r\n";
    client.send(format!("{spaced}content-length: 9\r\n\r\namount=20")).await;
    assert_eq!(client.answer().await.body, "run 1");
    assert_fresh(&server.send(pay("\" k \"")).await, "run 3");
}

/// Sends these lines of a head as they are.
async fn raw(client: &mut RawClient, lines: &[&[u8]]) -> StatusCode {
    client.send("POST /pay HTTP/1.1\r\nhost: shop\r\ncontent-length: 9\r\n").await;
    for line in lines {
        client.send(line).await;
        client.send("\r\n").await;
    }
    client.send("\r\namount=20").await;
    client.answer().await.status
}

#[tokio::test]
async fn b49_a_key_of_other_bytes_or_on_two_lines_is_refused_and_quotes_are_one_key_with_none() {
    let shop = Shop::open();
    let server = serve(MemoryStore::new(), api(), shop.handler()).await;
    let mut client = server.connect().await;
    for lines in [
        &[&b"idempotency-key: pay\xe2\x80\xa6"[..]][..],
        &[b"idempotency-key: \x80"],
        &[b"idempotency-key: \"\xff\""],
        &[b"idempotency-key: a", b"idempotency-key: a"],
        &[b"idempotency-key: a", b"idempotency-key: b"],
        &[b"Idempotency-Key: a", b"x-other: 1", b"IDEMPOTENCY-KEY: \"a\""],
    ] {
        assert_eq!(raw(&mut client, lines).await, 400, "{lines:?}");
    }
    assert_eq!(shop.runs(), 0);
    assert_eq!(raw(&mut client, &[b"idempotency-key: a"]).await, 200);
    assert_replay(&server.send(pay("\"a\"")).await, "run 1");
}

#[tokio::test]
async fn b50_a_body_without_an_identity_shares_none() {
    let shop = Shop::open();
    let server = serve(MemoryStore::new(), webhook(), shop.handler()).await;
    for body in ["{}", r#"{"other":1}"#] {
        assert_refused(&server.send(post("/notify", body)).await, 400, "identity-missing");
    }
    let malformed = [
        r#"{"notifyId":null}"#,
        r#"{"notifyId":""}"#,
        r#"{"notifyId":{"a":1}}"#,
        r#"{"notifyId":["a"]}"#,
        r#"{"notifyId":true}"#,
        r#"{"notifyId":1.5}"#,
        "notifyId=n1",
        "[]",
        "",
    ];
    for body in malformed {
        assert_refused(&server.send(post("/notify", body)).await, 400, "identity-malformed");
    }
    assert_eq!(shop.runs(), 0);
    assert_fresh(&server.send(post("/notify", r#"{"notifyId":7}"#)).await, "run 1");
    // Where the policy lets what has none pass, each runs for itself; what is malformed never does.
    let shop = Shop::open();
    let store = FaultyStore::new(MemoryStore::new());
    let calls = store.faults();
    let server = serve(store, webhook().optional(), shop.handler()).await;
    assert_fresh(&server.send(post("/notify", "{}")).await, "run 1");
    assert_fresh(&server.send(post("/notify", "{}")).await, "run 2");
    for body in malformed {
        assert_refused(&server.send(post("/notify", body)).await, 400, "identity-malformed");
    }
    assert_eq!((shop.runs(), calls.calls(Transition::Claim)), (2, 0));
}

#[tokio::test]
async fn b51_integers_are_compared_by_their_digits_whatever_their_size() {
    let shop = Shop::open();
    let server = serve(MemoryStore::new(), webhook(), shop.handler()).await;
    let number = |number: &str| post("/notify", format!(r#"{{"notifyId":{number}}}"#));
    let big = ["9007199254740992", "9007199254740993", "18446744073709551616", "5"];
    for (i, digits) in big.into_iter().enumerate() {
        assert_fresh(&server.send(number(digits)).await, &format!("run {}", i + 1));
    }
    for (i, digits) in big.into_iter().enumerate() {
        assert_replay(&server.send(notify(digits)).await, &format!("run {}", i + 1));
    }
    for other in ["1e3", "1000.0", "5.0"] {
        assert_refused(&server.send(number(other)).await, 400, "identity-malformed");
    }
}

#[tokio::test]
async fn b52_a_member_that_is_there_twice_is_refused_and_escapes_hide_nothing() {
    let shop = Shop::open();
    let server = serve(MemoryStore::new(), webhook(), shop.handler()).await;
    assert_fresh(&server.send(notify("old")).await, "run 1");
    for body in [
        r#"{"notifyId":"old","notifyId":"new"}"#,
        r#"{"notifyId":"new","notifyId":"old"}"#,
        r#"{"notifyId":"old","notif\u0079Id":"new"}"#,
        r#"{"notifyId":"old","notifyId":"old"}"#,
    ] {
        assert_refused(&server.send(post("/notify", body)).await, 400, "identity-malformed");
    }
    let escaped = r#"{"notif\u0079Id":"\u006fld"}"#;
    assert_replay(&server.send(post("/notify", escaped)).await, "run 1");
    assert_eq!(shop.runs(), 1);
}

/// The member `name` of a JSON body, or what follows `name=` in the query.
fn payment(from: &Input<'_>) -> Result<Option<Identity>, Refusal> {
    if let Some(id) = from.head().uri.query().and_then(|query| query.strip_prefix("payment=")) {
        return Ok(Some(Identity::new(id.to_owned())));
    }
    let body: Value = serde_json::from_slice(from.body())
        .map_err(|_| Refusal::identity_malformed("the body is no JSON"))?;
    Ok(body["payment"].as_str().map(|id| Identity::new(id.to_owned())))
}

#[tokio::test]
async fn b53_two_routes_that_finish_one_payment_share_a_rule_and_finish_it_once() {
    let shop = Shop::held();
    let (_redis, [one, two]) = two_instances(Policy::webhook(payment), &shop).await;
    let confirm = || post("/pay?payment=p1", "");
    let notified = || post("/notify", r#"{"payment":"p1"}"#);
    let first = send_aside(&one, confirm());
    shop.started.wait_for(1).await;
    assert_refused(&two.send(notified()).await, 503, "in-progress");
    shop.let_go();
    assert_fresh(&first.await.unwrap(), "run 1");
    assert_replay(&two.send(notified()).await, "run 1");
    assert_replay(&one.send(confirm()).await, "run 1");
    assert_fresh(&one.send(post("/pay?payment=p2", "")).await, "run 2");
}

/// Two members of a JSON body as one identity, each with its length in front.
fn both(one: &'static str, two: &'static str) -> impl tower_idempotency::Source {
    move |from: &Input<'_>| -> Result<Option<Identity>, Refusal> {
        let body: Value = serde_json::from_slice(from.body())
            .map_err(|_| Refusal::identity_malformed("the body is no JSON"))?;
        let (Some(one), Some(two)) = (body[one].as_str(), body[two].as_str()) else {
            return Ok(None);
        };
        Ok(Some(Identity::new(format!("{}:{one}{two}", one.len()))))
    }
}

#[tokio::test]
async fn b54_where_the_delivery_id_changes_a_source_may_combine_what_does_not() {
    let shop = Shop::open();
    let policy = Policy::webhook(both("order", "status"));
    let server = serve(MemoryStore::new(), policy, shop.handler()).await;
    let of = |notify_id: &str, order: &str, status: &str| {
        let body = serde_json::json!({"notifyId": notify_id, "order": order, "status": status});
        post("/notify", body.to_string())
    };
    assert_fresh(&server.send(of("n1", "o1", "paid")).await, "run 1");
    assert_replay(&server.send(of("n2", "o1", "paid")).await, "run 1");
    assert_fresh(&server.send(of("n3", "o1", "refunded")).await, "run 2");
    assert_fresh(&server.send(of("n1", "o1p", "aid")).await, "run 3");
    assert_refused(&server.send(notify("n1")).await, 400, "identity-missing");
}

#[tokio::test]
async fn b55_equal_references_of_two_accounts_are_two_operations() {
    let body = |account| format!(r#"{{"account":"{account}","reference":"r1"}}"#);
    let composite = Policy::webhook(both("account", "reference"));
    let scoped = Policy::webhook(json("/reference")).scope(Scope::header("x-account"));
    for policy in [composite, scoped] {
        let shop = Shop::open();
        let server = serve(MemoryStore::new(), policy, shop.handler()).await;
        let of = |account| with(post("/notify", body(account)), "x-account", account);
        assert_fresh(&server.send(of("a")).await, "run 1");
        assert_fresh(&server.send(of("b")).await, "run 2");
        assert_replay(&server.send(of("a")).await, "run 1");
    }
}

#[tokio::test]
async fn b56_an_event_for_two_hooks_reaches_both() {
    let (a, b) = (Shop::open(), Shop::open());
    let rules = Rules::new()
        .add(Rule::new("a", webhook()).path("/hook/a"))
        .add(Rule::new("b", webhook()).path("/hook/b"));
    let router = Router::new()
        .route("/hook/a", on_post(a.handler()))
        .route("/hook/b", on_post(b.handler()))
        .route_layer(IdempotencyLayer::new(MemoryStore::new(), rules));
    let server = start(router).await;
    for path in ["/hook/a", "/hook/b"] {
        assert_fresh(&server.send(post(path, r#"{"notifyId":"e1"}"#)).await, "run 1");
        assert_replay(&server.send(post(path, r#"{"notifyId":"e1"}"#)).await, "run 1");
    }
}

#[tokio::test]
async fn b57_a_body_is_compared_by_its_bytes_and_a_reordered_one_is_never_run_again() {
    let shop = Shop::open();
    let server = serve(MemoryStore::new(), api(), shop.handler()).await;
    let first = r#"{"a":1,"b":2}"#;
    assert_fresh(&server.send(keyed("/pay", "k", first)).await, "run 1");
    for other in [r#"{"b":2,"a":1}"#, r#"{"a":1, "b":2}"#, r#"{"a":1.0,"b":2}"#] {
        assert_refused(&server.send(keyed("/pay", "k", other)).await, 422, "mismatch");
    }
    assert_replay(&server.send(keyed("/pay", "k", first)).await, "run 1");
}

#[tokio::test]
async fn b58_another_amount_is_a_mismatch_on_every_way_to_an_answer() {
    let redis = RedisServer::start().await;
    let shop = Shop::held();
    let wait = api().wait(Duration::from_secs(15));
    let one = serve(store_on(&redis).await, api(), shop.handler()).await;
    let two = serve(store_on(&redis).await, wait, shop.handler()).await;
    let amount = |amount| keyed("/pay", "k", format!("amount={amount}"));
    let first = send_aside(&one, amount(10));
    shop.started.wait_for(1).await;
    // In flight: refused at once, also by an instance that would wait, and before it is said busy.
    assert_refused(&one.send(amount(20)).await, 422, "mismatch");
    assert_refused(&two.send(amount(20)).await, 422, "mismatch");
    shop.let_go();
    assert_fresh(&first.await.unwrap(), "run 1");
    for server in [&one, &two] {
        assert_refused(&server.send(amount(20)).await, 422, "mismatch");
        assert_replay(&server.send(amount(10)).await, "run 1");
    }
    // Abandoned, and after a takeover.
    let handler = |operation: Operation| async move {
        let status = [504, 200][operation.attempt() as usize - 1];
        StatusCode::from_u16(status).unwrap()
    };
    let server = serve(store_on(&redis).await, api().rerun_abandoned(), handler).await;
    let amount = |amount| keyed("/pay", "k2", format!("amount={amount}"));
    assert_eq!(server.send(amount(10)).await.status(), 504);
    assert_refused(&server.send(amount(20)).await, 422, "mismatch");
    assert_eq!(server.send(amount(10)).await.status(), 200);
    assert_refused(&server.send(amount(20)).await, 422, "mismatch");
}

#[tokio::test]
async fn b59_the_query_is_part_of_the_request() {
    let shop = Shop::open();
    let server = serve(MemoryStore::new(), api(), shop.handler()).await;
    assert_fresh(&server.send(pay("k")).await, "run 1");
    for path in ["/pay?dry=1", "/pay?"] {
        assert_refused(&server.send(keyed(path, "k", "amount=20")).await, 422, "mismatch");
    }
    assert_fresh(&server.send(keyed("/pay?dry=1", "k2", "amount=20")).await, "run 2");
    assert_refused(&server.send(pay("k2")).await, 422, "mismatch");
}

#[tokio::test]
async fn b60_a_body_that_the_sender_wrote_anew_is_no_mismatch_where_nothing_is_compared() {
    let shop = Shop::open();
    let server = serve(MemoryStore::new(), webhook(), shop.handler()).await;
    let signed = |at: u32| {
        let body = serde_json::json!({"notifyId": "n1", "sentAt": at, "sign": format!("s{at}")});
        post("/notify", body.to_string())
    };
    assert_fresh(&server.send(signed(1)).await, "run 1");
    assert_replay(&server.send(signed(2)).await, "run 1");
    let multipart = |boundary: &str| {
        let part = "content-disposition: form-data; name=\"a\"\r\n\r\n1";
        let body = format!("--{boundary}\r\n{part}\r\n--{boundary}--\r\n");
        let kind = format!("multipart/form-data; boundary={boundary}");
        with(keyed("/pay", "k", body), "content-type", &kind)
    };
    let server = serve(MemoryStore::new(), api().no_fingerprint(), shop.handler()).await;
    assert_fresh(&server.send(multipart("x")).await, "run 2");
    assert_replay(&server.send(multipart("y")).await, "run 2");
    let server = serve(MemoryStore::new(), api(), shop.handler()).await;
    assert_fresh(&server.send(multipart("x")).await, "run 3");
    assert_refused(&server.send(multipart("y")).await, 422, "mismatch");
}
