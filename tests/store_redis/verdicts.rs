//! Verdicts about what is abandoned, after a change of the server: its owner may be alive, and what it
//! wrote last be lost.

use std::{
    future::ready,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use http::{Request, Response, StatusCode, header::RETRY_AFTER};
use tokio::time::sleep;
use tower::{ServiceBuilder, ServiceExt};
use tower_idempotency::{
    ClaimToken, IdempotencyLayer, Mark, Policy, RecordKey, RedisStore, RequestBody, Resolution,
    Rule, Store, json,
    store::{Claim, Claimed, Resolve, Resolved, Verdict},
};
use tower_idempotency_test_support::RedisServer;

use crate::{
    loss::until_answered,
    support::{HOLD, WITHIN, claim, granted, kept, new_key},
};

/// Its third and a second are four seconds, for which nothing is granted.
const LEASE: Duration = Duration::from_secs(9);
const SLACK: Duration = Duration::from_millis(700);

/// One delivery; its handler answers with this status.
async fn deliver(store: &RedisStore, policy: Policy, status: StatusCode) -> Response<String> {
    let layer = IdempotencyLayer::new(store.clone(), Rule::new("pay", policy));
    let handler = move |_: Request<RequestBody<String>>| {
        ready(Response::builder().status(status).body(String::new()))
    };
    let request = Request::post("/").body(r#"{"id":"N-1","order":"O-1"}"#.to_owned()).unwrap();
    let answer = ServiceBuilder::new().layer(layer).service_fn(handler).oneshot(request).await;
    answer.unwrap().map(|_| String::new())
}

fn webhook() -> Policy {
    Policy::webhook(json("/id")).lease(LEASE)
}

/// An operation that was abandoned under its delivery id alone, when its policy had no business key yet.
async fn abandoned() -> (RedisServer, RedisStore) {
    let server = RedisServer::builder().append_only().start().await;
    let store = RedisStore::connect(&server.url()).await.unwrap();
    deliver(&store, webhook(), StatusCode::GATEWAY_TIMEOUT).await;
    (server, store)
}

/// Delivers it under its business key until it runs; when it did.
async fn until_it_ran(store: &RedisStore, policy: impl Fn() -> Policy) -> Instant {
    let started = Instant::now();
    loop {
        let answer = deliver(store, policy(), StatusCode::CREATED).await;
        if answer.status() == StatusCode::CREATED {
            return Instant::now();
        }
        assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
        let after = answer.headers().get(RETRY_AFTER).unwrap().to_str().unwrap();
        assert!(after.parse::<u64>().unwrap() <= LEASE.as_secs(), "{after}");
        assert!(started.elapsed() < 2 * LEASE, "it does not run at all");
        sleep(Duration::from_millis(50)).await;
    }
}

fn not_done(asked: &Arc<AtomicUsize>) -> impl Fn() -> Policy {
    let asked = asked.clone();
    move || {
        let asked = asked.clone();
        webhook().business_key(json("/order")).resolve_abandoned(move |_| {
            asked.fetch_add(1, SeqCst);
            async { Resolution::NotDone }
        })
    }
}

fn rerun() -> Policy {
    webhook().business_key(json("/order")).rerun_abandoned()
}

#[tokio::test]
async fn what_was_not_done_under_a_delivery_id_runs_under_its_business_key_one_lease_after_a_change()
 {
    let (mut server, store) = abandoned().await;
    server.restart().await;
    let restarted = Instant::now();
    let asked = Arc::default();
    let ran = until_it_ran(&store, not_done(&asked)).await;
    assert!(asked.load(SeqCst) > 0, "the resolver was asked");
    assert!(ran - restarted > LEASE - SLACK, "{:?}", ran - restarted);
    // Without a change nothing is waited for.
    let (_server, store) = abandoned().await;
    let started = Instant::now();
    assert!(until_it_ran(&store, not_done(&asked)).await - started < LEASE / 3);
}

#[tokio::test]
async fn what_runs_again_blindly_under_its_business_key_does_so_one_lease_after_a_change() {
    let (mut server, store) = abandoned().await;
    server.restart().await;
    let restarted = Instant::now();
    let ran = until_it_ran(&store, rerun).await;
    assert!(ran - restarted > LEASE - SLACK, "{:?}", ran - restarted);
    let (_server, store) = abandoned().await;
    let started = Instant::now();
    assert!(until_it_ran(&store, rerun).await - started < LEASE / 3);
}

/// An abandoned record, and how it is seen.
async fn seen(store: &RedisStore) -> (RecordKey, Mark) {
    let key = new_key();
    let lease = Duration::from_millis(50);
    granted(store.claim(Claim::new(key, ClaimToken::random(), None, lease, HOLD, WITHIN)).await);
    sleep(2 * lease).await;
    match store.claim(claim(key)).await {
        Ok(Claimed::Abandoned(record)) => (key, record.mark),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_verdict_of_not_done_is_held_back_for_one_lease_after_a_change_and_done_is_not() {
    let mut server = RedisServer::builder().append_only().start().await;
    let store = RedisStore::connect(&server.url()).await.unwrap();
    let [held, done, forced] = [seen(&store).await, seen(&store).await, seen(&store).await];
    let verdict = |(key, mark): (RecordKey, Mark), verdict| {
        Resolve::new(key, mark, verdict, ClaimToken::random())
    };
    let not_done = || Verdict::NotDone { hold: HOLD };
    let lease = Duration::from_secs(3);
    server.restart().await;
    let restarted = Instant::now();
    // Until it is connected to again.
    let mut look = claim(new_key());
    look.within = Duration::ZERO;
    until_answered(&store, &look).await;
    let refused = store.resolve(verdict(held, not_done()).lease(lease)).await.unwrap_err();
    assert!(refused.is_suspended() && refused.retry_after().unwrap() <= lease, "{refused}");
    let done = verdict(done, Verdict::Done(kept("done"))).lease(lease);
    assert_eq!(store.resolve(done).await.unwrap(), Resolved::Settled);
    let forced = verdict(forced, not_done()).lease(lease).forced();
    assert_eq!(store.resolve(forced).await.unwrap(), Resolved::Settled);
    while let Err(error) = store.resolve(verdict(held, not_done()).lease(lease)).await {
        assert!(error.is_suspended() && restarted.elapsed() < 3 * lease, "{error}");
        sleep(Duration::from_millis(50)).await;
    }
    assert!(restarted.elapsed() > lease - SLACK, "{:?}", restarted.elapsed());
    // Without a change it is taken at once.
    let other = RedisStore::connect(&server.url()).await.unwrap();
    let seen = seen(&other).await;
    let settled = other.resolve(verdict(seen, not_done()).lease(lease)).await.unwrap();
    assert_eq!(settled, Resolved::Settled);
}
