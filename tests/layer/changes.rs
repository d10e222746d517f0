//! What a change does to what is stored: each row of the table in `docs/operations.md`.

use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use tower::{ServiceBuilder, ServiceExt, service_fn};
use tower_idempotency::{
    Handled, IdempotencyLayer, MemoryStore, Policy, RefusalKind, Rule, Scope, header, json,
};

use crate::{
    house::{Asked, Body, House, Reply, api, request, text},
    token_house::{asked, free, issue, paying},
};

const DOCUMENT: &str = include_str!("../../docs/operations.md");

fn house(memory: &MemoryStore, rule: Rule) -> House {
    House::of(memory.clone(), rule, |_| async { text(200, "done") })
}

fn webhook() -> Policy {
    Policy::webhook(json("/id"))
}

fn notification() -> Request<Body> {
    request("k", r#"{"id":"n-1","order":"o-1","amount":7}"#)
}

/// What a delivery comes to that was done under one rule and comes again under another.
async fn after(before: Rule, now: Rule) -> Reply {
    let memory = MemoryStore::new();
    house(&memory, before).call(notification()).await.is_executed();
    house(&memory, now).call(notification()).await
}

fn pay(policy: Policy) -> Rule {
    Rule::new("pay", policy)
}

#[tokio::test(start_paused = true)]
async fn a_new_name_identity_or_scope_forgets() {
    for (before, now) in [
        (pay(webhook()), Rule::new("paid", webhook())),
        (pay(webhook()), pay(Policy::webhook(json("/order")))),
        (pay(webhook()), pay(webhook().scope(Scope::header("Idempotency-Key")))),
    ] {
        after(before, now).await.is_executed();
    }
    // The same from another place is the same identity, in the same scope.
    after(pay(webhook()), pay(webhook())).await.is_replayed();
    let moved = Policy::webhook(header("Idempotency-Key"));
    let memory = MemoryStore::new();
    house(&memory, pay(moved)).call(request("n-1", "{}")).await.is_executed();
    house(&memory, pay(webhook())).call(notification()).await.is_replayed();
}

#[tokio::test(start_paused = true)]
async fn a_secret_that_is_set_changed_or_removed_forgets() {
    let secrets: [Option<&[u8; 32]>; 3] = [None, Some(&[1; 32]), Some(&[2; 32])];
    for before in secrets {
        for now in secrets {
            let memory = MemoryStore::new();
            let deliver = async |secret: Option<&[u8; 32]>| {
                let layer = IdempotencyLayer::new(memory.clone(), pay(webhook()));
                let layer = match secret {
                    Some(secret) => layer.secret(secret),
                    None => layer,
                };
                let handler = service_fn(async |_: Asked| text(200, "done"));
                let service = ServiceBuilder::new().layer(layer).service(handler);
                Reply::of(service.oneshot(notification()).await).await.handled
            };
            assert_eq!(deliver(before).await, Some(Handled::Executed { attempt: 1 }));
            let again = deliver(now).await;
            assert_eq!(again == Some(Handled::Replayed), before == now, "{before:?} {now:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_compared_may_be_begun_or_ended_and_not_be_changed() {
    let amount = || webhook().compare([json("/amount")]);
    // Stored with nothing, it is replayed to whatever comes; compared with nothing, too.
    after(pay(webhook()), pay(amount())).await.is_replayed();
    after(pay(amount()), pay(webhook())).await.is_replayed();
    // Other fields, or the whole request: it is another fingerprint, and a retry is refused.
    let order = webhook().compare([json("/order")]);
    after(pay(amount()), pay(order)).await.is_refused(RefusalKind::Mismatch);
    let both = webhook().compare([json("/amount"), json("/order")]);
    after(pay(amount()), pay(both)).await.is_refused(RefusalKind::Mismatch);
    let keyed = || api().no_fingerprint().compare([json("/amount")]);
    after(pay(api()), pay(keyed())).await.is_refused(RefusalKind::Mismatch);
}

#[tokio::test(start_paused = true)]
async fn another_path_is_another_request_where_requests_are_compared() {
    let memory = MemoryStore::new();
    let at = |path: &str| {
        let body = Full::new(Bytes::from("body")).map_err(std::io::Error::other).boxed_unsync();
        Request::post(path).header("idempotency-key", "k").body(body).unwrap()
    };
    let house = house(&memory, pay(api()));
    house.call(at("/v1/pay")).await.is_executed();
    house.call(at("/pay")).await.is_refused(RefusalKind::Mismatch);
    house.call(at("/v1/pay")).await.is_replayed();
}

#[tokio::test(start_paused = true)]
async fn a_business_key_that_is_added_answers_the_deliveries_it_knows_and_no_other() {
    let memory = MemoryStore::new();
    house(&memory, pay(webhook())).call(notification()).await.is_executed();
    let later = house(&memory, pay(webhook().business_key(json("/order"))));
    later.call(notification()).await.is_replayed();
    later.call(request("k", r#"{"id":"n-2","order":"o-1"}"#)).await.is_executed();
    // And one that is removed: an id that came with it is another name of its record still.
    let removed = house(&memory, pay(webhook()));
    removed.call(request("k", r#"{"id":"n-2","order":"o-1"}"#)).await.is_replayed();
}

#[tokio::test(start_paused = true)]
async fn times_statuses_limits_and_observing_leave_what_is_stored() {
    for now in [
        webhook().lease(Duration::from_secs(5)).retention(Duration::from_secs(600)),
        webhook().release([http::StatusCode::OK]),
        webhook().keep_if(|_| false),
        webhook().answer_limit(0),
        webhook().private_label(),
    ] {
        after(pay(webhook()), pay(now)).await.is_replayed();
    }
    after(pay(webhook().observe()), pay(webhook())).await.is_replayed();
    let again = after(pay(webhook()), pay(webhook().observe())).await;
    let would = tower_idempotency::Would::Replay;
    assert_eq!(again.handled, Some(Handled::Observed { would }));
}

#[tokio::test(start_paused = true)]
async fn a_token_from_before_its_caller_was_asked_for_or_after_is_unknown() {
    let bound = || free().token_bound_to(Scope::header("x-user"));
    let by_ann = |token: &tower_idempotency::OneTimeToken| {
        let mut request = paying(token, "o-1", 5);
        request.headers_mut().insert("x-user", http::HeaderValue::from_static("ann"));
        request
    };
    for (before, now, issued) in
        [(free(), bound(), asked()), (bound(), free(), asked().bound_to("ann"))]
    {
        let memory = MemoryStore::new();
        let earlier = house(&memory, pay(before));
        let token = issue(&earlier, issued).await;
        let later = house(&memory, pay(now));
        later.call(by_ann(&token)).await.is_refused(RefusalKind::TokenUnknown);
        earlier.call(by_ann(&token)).await.is_executed();
    }
}

/// A row that is added needs a test here, or a word about where it is.
#[test]
fn each_row_of_the_table_is_known_here() {
    let section = DOCUMENT.split("## What a change does").nth(1).unwrap();
    let section = section.split("\n## ").next().unwrap();
    let rows: Vec<_> = section
        .lines()
        .filter(|line| line.starts_with("| "))
        .map(|row| row.split(" | ").next().unwrap().trim_start_matches("| "))
        .collect();
    assert_eq!(
        rows,
        [
            "change",
            "rename a rule",
            "change what `Policy::identity` or `Policy::scope` reads",
            "set, change or remove `IdempotencyLayer::secret`",
            // Of the prefix in store_redis::stored.
            "change `RedisStore::prefix`, the database or the server",
            "begin to compare, or cease to (`Policy::no_fingerprint`)",
            "compare something else",
            // In other_requests, as all that is said of a ledger's rows.
            "`Policy::token_bound_to`, on or off",
            "add or remove `Policy::business_key`",
            "move the layer into or out of a nested router",
            "lease, retention, hold",
            "statuses, `keep_if`, limits, `private_label`",
            "`Policy::observe`, on or off",
            // The contract suite has records of other versions.
            "a newer version of this crate beside an older one",
        ]
    );
}
