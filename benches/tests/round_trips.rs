//! How often a store is asked: nothing for what passes through, two calls for a first delivery, one
//! for a replay, two at most for a busy one. Counted in front of a store, and by Redis itself.

use axum::{Router, body::Body};
use http::{Request, StatusCode};
use tower::ServiceExt;
use tower_idempotency::{
    IdempotencyLayer, MemoryStore, Policy, RedisStore, Rule, Scope, Store, header,
    test_util::{Fault, Faults, FaultyStore, Gate, Transition},
};
use tower_idempotency_benches::{
    app,
    cell::Variant,
    mux::Mux,
    redis_info::{Counters, RedisInfo},
};
use tower_idempotency_test_support::RedisServer;

const ALL: [Transition; 7] = [
    Transition::Claim,
    Transition::Renew,
    Transition::Complete,
    Transition::Release,
    Transition::Resolve,
    Transition::Issue,
    Transition::Scan,
];

fn policies() -> [Policy; 2] {
    [Policy::webhook(header(app::KEY)), Policy::api(Scope::everyone())]
}

fn app_on(store: impl Store, policy: Policy) -> Router {
    app::router(app::route().layer(IdempotencyLayer::new(store, Rule::new("trips", policy))))
}

async fn send(app: &Router, request: Request<Body>) -> (StatusCode, bool) {
    let response = app.clone().oneshot(request).await.expect("a router never fails");
    (response.status(), response.headers().contains_key("idempotent-replayed"))
}

/// The calls since `before`, which is moved on.
fn calls_since(faults: &Faults, before: &mut [usize; 7]) -> Vec<(Transition, usize)> {
    let mut since = Vec::new();
    for (transition, before) in ALL.into_iter().zip(before) {
        let calls = faults.calls(transition);
        if calls > *before {
            since.push((transition, calls - *before));
        }
        *before = calls;
    }
    since
}

#[tokio::test]
async fn a_first_delivery_takes_two_calls_a_replay_one_and_what_passes_through_none() {
    for policy in policies() {
        let store = FaultyStore::new(MemoryStore::new());
        let (faults, mut before) = (store.faults(), [0; 7]);
        let app = app_on(store, policy);

        assert_eq!(send(&app, app::pass_through()).await, (StatusCode::OK, false));
        assert_eq!(calls_since(&faults, &mut before), []);

        assert_eq!(send(&app, app::delivery("k-1")).await, (StatusCode::CREATED, false));
        let first = [(Transition::Claim, 1), (Transition::Complete, 1)];
        assert_eq!(calls_since(&faults, &mut before), first);

        assert_eq!(send(&app, app::delivery("k-1")).await, (StatusCode::CREATED, true));
        assert_eq!(calls_since(&faults, &mut before), [(Transition::Claim, 1)]);
    }
}

#[tokio::test]
async fn a_replay_of_what_ended_here_takes_no_call_where_answers_are_kept() {
    for policy in policies() {
        let store = FaultyStore::new(MemoryStore::new());
        let (faults, mut before) = (store.faults(), [0; 7]);
        let layer = IdempotencyLayer::new(store, Rule::new("trips", policy)).recent(1024 * 1024);
        let app = app::router(app::route().layer(layer));
        assert_eq!(send(&app, app::delivery("k-1")).await, (StatusCode::CREATED, false));
        let first = [(Transition::Claim, 1), (Transition::Complete, 1)];
        assert_eq!(calls_since(&faults, &mut before), first);
        for _ in 0..3 {
            assert_eq!(send(&app, app::delivery("k-1")).await, (StatusCode::CREATED, true));
            assert_eq!(calls_since(&faults, &mut before), []);
        }
    }
}

#[tokio::test]
async fn a_delivery_that_meets_another_at_work_takes_two_calls_at_most() {
    for policy in policies() {
        let store = FaultyStore::new(MemoryStore::new());
        let (faults, mut before) = (store.faults(), [0; 7]);
        let app = app_on(store, policy);
        // The first delivery has run and cannot store its answer yet, so it is in progress still.
        let gate = Gate::new();
        faults.next(Transition::Complete, Fault::Hold(gate.clone()));
        let first = tokio::spawn({
            let app = app.clone();
            async move { send(&app, app::delivery("k-1")).await }
        });
        gate.arrived(1).await;
        calls_since(&faults, &mut before);

        let (status, replayed) = send(&app, app::delivery("k-1")).await;
        assert!(matches!(status, StatusCode::CONFLICT | StatusCode::SERVICE_UNAVAILABLE));
        assert!(!replayed);
        let busy = calls_since(&faults, &mut before);
        assert!(matches!(busy[..], [(Transition::Claim, 1..=2)]), "{busy:?}");

        gate.open();
        assert_eq!(first.await.expect("it does not panic"), (StatusCode::CREATED, false));
    }
}

/// What Redis has been sent since `before`, which is moved on; scripts alone, or it is a panic.
async fn sent_since(redis: &RedisInfo, before: &mut Counters) -> u64 {
    let now = redis.counters().await;
    let since = now.since(before);
    *before = now;
    // What a script calls is counted too. Of all that is left, nothing may have been sent beside
    // scripts: these are what the scripts of a claim and a completion call.
    let inside = ["time", "getrange", "exists", "set"];
    let scripts = ["evalsha", "eval"];
    for command in since.calls().keys() {
        assert!(inside.contains(&&**command) || scripts.contains(&&**command), "{since:?}");
    }
    let sent = since.sent(Variant::Layer);
    assert!(since.calls().get("time").copied().unwrap_or(0) <= sent, "one TIME a script at most");
    sent
}

async fn stores(url: &str) -> [RedisStore; 2] {
    [RedisStore::connect(url).await.expect("it runs"), RedisStore::over(Mux::connect(url).await)]
}

/// So of `layer-mux` too, or it would not be the session alone that it differs in.
#[tokio::test]
async fn redis_is_sent_two_commands_for_a_first_delivery_one_for_a_replay_and_else_none() {
    let server = RedisServer::start().await;
    let redis = RedisInfo::connect(&server.url()).await;
    for (place, store) in stores(&server.url()).await.into_iter().enumerate() {
        for (policy, name) in policies().into_iter().zip(["webhook", "api"]) {
            let app = app_on(store.clone().prefix(&format!("trips-{place}-{name}")), policy);
            // A server that does not know a script is sent its text once.
            send(&app, app::delivery("k-0")).await;
            let mut before = redis.counters().await;

            assert_eq!(send(&app, app::pass_through()).await, (StatusCode::OK, false));
            assert_eq!(sent_since(&redis, &mut before).await, 0);

            for key in ["k-1", "k-2"] {
                assert_eq!(send(&app, app::delivery(key)).await, (StatusCode::CREATED, false));
                assert_eq!(sent_since(&redis, &mut before).await, 2);
                for _ in 0..3 {
                    assert_eq!(send(&app, app::delivery(key)).await, (StatusCode::CREATED, true));
                    assert_eq!(sent_since(&redis, &mut before).await, 1);
                }
            }
        }
    }
}
