//! Cases 37 to 40: processes that die, workers that stall, handlers that fail.

use std::time::Duration;

use axum::{
    Router,
    extract::Request as AnyRequest,
    middleware::{Next, from_fn},
    response::{IntoResponse, Response as AnyResponse},
};
use bytes::Bytes;
use http::{Response, StatusCode};
use tokio::{runtime::Runtime, task::JoinSet};
use tower_idempotency::{
    MemoryStore, Policy, RedisStore, Rule, Store,
    store::StoreErrorKind,
    test_util::{Fault, Transition},
};
use tower_idempotency_test_support::{RawClient, RedisServer, Server};

use crate::shop::{
    Shop, api, assert_ran, assert_refused, assert_replayed, attempt, pay, raw_pay, turn_the_clock,
};

/// The default lease.
const LEASE: Duration = Duration::from_secs(30);
/// For a server whose clock cannot be turned.
const SHORT_LEASE: Duration = Duration::from_secs(1);
/// Longer than any test takes.
const LONG: Duration = Duration::from_secs(60);

fn rule(policy: Policy) -> Rule {
    Rule::new("pay", policy)
}

/// A store call may take long on a busy machine, and that is not what these tests are about.
fn patient(policy: Policy) -> Policy {
    policy.call_within(LONG).claim_within(LONG)
}

async fn redis_store(redis: &RedisServer) -> RedisStore {
    RedisStore::connect(&redis.url()).await.unwrap().call_within(LONG)
}

/// Sends a request and waits until its handler runs, the `run`-th of all. It is held there.
async fn start<S: Store + Clone>(shop: &Shop<S>, run: usize) -> RawClient {
    shop.hold();
    let mut client = shop.server.connect().await;
    client.send(raw_pay(&[b"\"k\""], "Content-Length: 2\r\n\r\n10")).await;
    shop.runs.wait_for(run).await;
    client
}

async fn answer(client: &mut RawClient) -> Response<Bytes> {
    client.answer().await.into_response()
}

/// A process that can be killed: it has a runtime of its own, with which all it does ends at once,
/// and nothing of it is told to anybody.
struct Victim<S> {
    runtime: Runtime,
    shop: Shop<S>,
}

impl<S: Store + Clone> Victim<S> {
    async fn start(store: impl Future<Output = S> + Send + 'static, policy: Policy) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let shop = runtime.spawn(async { Shop::over(store.await, rule(policy)).await });
        Self { shop: shop.await.unwrap(), runtime }
    }

    /// Killed while it runs the handler of the key `k`.
    async fn dies_in_its_handler(self) {
        let mut client = start(&self.shop, 1).await;
        self.runtime.shutdown_background();
        assert_eq!(client.rest().await, "", "nobody is left to answer");
    }
}

/// After a lease exactly one of many deliveries takes over, and the others wait for it to end.
async fn exactly_one_takes_over<S: Store + Clone>(survivor: &Shop<S>) {
    survivor.hold();
    let mut sent = JoinSet::new();
    for _ in 0..20 {
        sent.spawn(Server::exchange(survivor.server.address(), pay("\"k\"", "10")));
    }
    for _ in 1..20 {
        let other = sent.join_next().await.unwrap().unwrap();
        assert_refused(&other, 409, "in-progress");
    }
    survivor.let_go();
    let one = sent.join_next().await.unwrap().unwrap();
    assert_ran(&one, "run 1 of k");
    assert_eq!(attempt(&one), 2, "the run that died is remembered");
    assert_replayed(&survivor.pay("\"k\"", "10").await, "run 1 of k");
    assert_eq!(survivor.runs.count(), 1);
}

#[tokio::test]
async fn case_37_after_the_lease_of_a_process_that_died_one_delivery_takes_over() {
    let store = MemoryStore::new();
    let policy = || api().rerun_abandoned();
    let given = store.clone();
    Victim::start(async { given }, policy()).await.dies_in_its_handler().await;

    let survivor = Shop::over(store, rule(policy())).await;
    assert_refused(&survivor.pay("\"k\"", "10").await, 409, "in-progress");
    turn_the_clock(LEASE + Duration::from_secs(1)).await;
    // What must be equal is remembered as well.
    assert_refused(&survivor.pay("\"k\"", "20").await, 422, "mismatch");
    exactly_one_takes_over(&survivor).await;
}

#[tokio::test]
async fn case_37_after_the_lease_of_a_process_that_died_one_delivery_takes_over_on_redis() {
    let redis = RedisServer::start().await;
    let policy = || patient(api()).lease(SHORT_LEASE).rerun_abandoned();
    let url = redis.url();
    let store = async move { RedisStore::connect(&url).await.unwrap() };
    Victim::start(store, policy()).await.dies_in_its_handler().await;

    let survivor = Shop::over(redis_store(&redis).await, rule(policy())).await;
    survivor.wait_until_abandoned().await;
    exactly_one_takes_over(&survivor).await;
}

#[tokio::test]
async fn case_37_by_default_what_a_dead_process_began_is_not_run_again() {
    let store = MemoryStore::new();
    let given = store.clone();
    Victim::start(async { given }, api()).await.dies_in_its_handler().await;

    let survivor = Shop::over(store, rule(api())).await;
    assert_refused(&survivor.pay("\"k\"", "10").await, 409, "in-progress");
    turn_the_clock(LEASE + Duration::from_secs(1)).await;
    for _ in 0..3 {
        assert_refused(&survivor.pay("\"k\"", "10").await, 409, "outcome-unknown");
    }
    assert_eq!(survivor.runs.count(), 0);
    // Nor does anybody else suffer.
    assert_ran(&survivor.pay("\"k-2\"", "10").await, "run 1 of k-2");
}

/// The first worker stalls past its lease: its renewals do not get through. `lapse` waits for that.
async fn stalls<S: Store + Clone>(worker: &Shop<S>, lapse: impl AsyncFnOnce()) -> RawClient {
    worker.faults.always(Transition::Renew, Fault::Fail(StoreErrorKind::Unreachable));
    let client = start(worker, 1).await;
    lapse().await;
    client
}

/// Another has taken over and is done: the first one's answer is refused, and its client gets the
/// one that counts.
async fn the_one_that_took_over_counts<S: Store + Clone>(
    slow: &Shop<S>,
    mut client: RawClient,
    other: &Shop<S>,
) {
    let taken_over = other.pay("\"k\"", "10").await;
    assert_ran(&taken_over, "run 2 of k");
    assert_eq!(attempt(&taken_over), 2);

    slow.let_go();
    let late = answer(&mut client).await;
    assert_replayed(&late, "run 2 of k");
    assert_eq!(slow.finished.count(), 1, "it did resume");
    for shop in [slow, other] {
        assert_replayed(&shop.pay("\"k\"", "10").await, "run 2 of k");
    }
    assert_eq!(slow.runs.count(), 2);
}

/// Another has taken over and is still running: the first one's answer is refused too.
async fn the_one_that_is_taking_over_counts<S: Store + Clone>(
    slow: &Shop<S>,
    mut client: RawClient,
    other: &Shop<S>,
) {
    let mut taking_over = start(other, 2).await;
    slow.let_go();
    // Its client gets the answer there is.
    assert_ran(&answer(&mut client).await, "run 1 of k");
    assert_refused(&slow.pay("\"k\"", "10").await, 409, "in-progress");
    other.let_go();
    assert_ran(&answer(&mut taking_over).await, "run 2 of k");
    for shop in [slow, other] {
        assert_replayed(&shop.pay("\"k\"", "10").await, "run 2 of k");
    }
}

#[tokio::test]
async fn case_38_a_worker_that_resumes_after_a_takeover_changes_nothing() {
    for done in [true, false] {
        let store = MemoryStore::new();
        let slow = Shop::over(store.clone(), rule(api().rerun_abandoned())).await;
        let other = slow.beside(store, rule(api().rerun_abandoned())).await;
        let lapse = async || turn_the_clock(LEASE + Duration::from_secs(1)).await;
        let client = stalls(&slow, lapse).await;
        if done {
            the_one_that_took_over_counts(&slow, client, &other).await;
        } else {
            the_one_that_is_taking_over_counts(&slow, client, &other).await;
        }
    }
}

#[tokio::test]
async fn case_38_a_worker_that_resumes_after_a_takeover_changes_nothing_on_redis() {
    for done in [true, false] {
        let redis = RedisServer::start().await;
        let policy = || patient(api()).lease(SHORT_LEASE).rerun_abandoned();
        let slow = Shop::over(redis_store(&redis).await, rule(policy())).await;
        let other = slow.beside(redis_store(&redis).await, rule(policy())).await;
        let lapse = async || slow.wait_until_abandoned().await;
        let client = stalls(&slow, lapse).await;
        if done {
            the_one_that_took_over_counts(&slow, client, &other).await;
        } else {
            the_one_that_is_taking_over_counts(&slow, client, &other).await;
        }
    }
}

#[tokio::test]
async fn case_38_a_worker_that_resumes_before_anybody_took_over_has_its_answer_stored() {
    let shop = Shop::open(api()).await;
    let lapse = async || turn_the_clock(LEASE + Duration::from_secs(1)).await;
    let mut client = stalls(&shop, lapse).await;
    assert_refused(&shop.pay("\"k\"", "10").await, 409, "outcome-unknown");
    shop.let_go();
    assert_ran(&answer(&mut client).await, "run 1 of k");
    assert_replayed(&shop.pay("\"k\"", "10").await, "run 1 of k");
    assert_eq!(shop.runs.count(), 1);
}

#[tokio::test]
async fn case_39_a_handler_that_outlives_its_lease_keeps_it() {
    let shop = Shop::open(api().rerun_abandoned()).await;
    let mut client = start(&shop, 1).await;
    // Eight leases: two more than the longest run would end the renewals.
    for renewal in 1..=24 {
        turn_the_clock(LEASE / 3 + Duration::from_millis(1)).await;
        shop.faults.called(Transition::Renew, renewal).await;
        assert_refused(&shop.pay("\"k\"", "10").await, 409, "in-progress");
    }
    shop.let_go();
    assert_ran(&answer(&mut client).await, "run 1 of k");
    assert_replayed(&shop.pay("\"k\"", "10").await, "run 1 of k");
    assert_eq!(shop.runs.count(), 1);
}

#[tokio::test]
async fn case_39_a_handler_that_outlives_the_longest_run_is_seen_to_and_its_key_is_not_run_again() {
    let shop = Shop::open(api().max_run(LEASE)).await;
    let mut client = start(&shop, 1).await;
    for _ in 0..8 {
        turn_the_clock(LEASE / 3).await;
        tokio::task::yield_now().await;
    }
    assert_refused(&shop.pay("\"k\"", "10").await, 409, "outcome-unknown");
    assert_eq!(shop.runs.count(), 1);
    // It happened after all, and then that is known.
    shop.let_go();
    assert_ran(&answer(&mut client).await, "run 1 of k");
    assert_replayed(&shop.pay("\"k\"", "10").await, "run 1 of k");
}

/// A layer further out that turns a panic into 500.
fn catching(app: Router) -> Router {
    app.layer(from_fn(|request: AnyRequest, next: Next| async {
        match tokio::spawn(next.run(request)).await {
            Ok(response) => response,
            Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        }
    }))
}

/// `POST /pay` that ends otherwise.
async fn pay_with(shop: &Shop, answer: &str) -> Response<Bytes> {
    let mut request = pay("\"k\"", "10");
    request.headers_mut().insert("x-answer", answer.parse().unwrap());
    shop.server.send(request).await
}

#[tokio::test]
async fn case_40_after_a_panic_nobody_knows_and_the_key_is_refused_at_once() {
    let shop = Shop::inside(MemoryStore::new(), rule(api()), catching).await;
    assert_eq!(pay_with(&shop, "panic").await.status(), 500);
    for _ in 0..2 {
        // Not in progress: nobody has to wait for a lease to learn it.
        assert_refused(&shop.pay("\"k\"", "10").await, 409, "outcome-unknown");
    }
    assert_eq!(shop.runs.count(), 1);
    // The 500 that stands for the panic was not stored; one that a handler answers is.
    assert_ran(&shop.pay("\"k-2\"", "10").await, "run 2 of k-2");
}

#[tokio::test]
async fn case_40_after_a_panic_the_key_runs_again_where_the_policy_says_so() {
    let rule = rule(api().rerun_abandoned());
    let shop = Shop::inside(MemoryStore::new(), rule, catching).await;
    assert_eq!(pay_with(&shop, "panic").await.status(), 500);
    let second = shop.pay("\"k\"", "10").await;
    assert_ran(&second, "run 2 of k");
    assert_eq!(attempt(&second), 2);
    assert_replayed(&shop.pay("\"k\"", "10").await, "run 2 of k");
    assert_eq!(shop.runs.count(), 2);
}

#[tokio::test]
async fn case_40_a_time_out_inside_the_layer_means_that_nobody_knows() {
    for (policy, again) in [
        (api(), false),
        (api().rerun_abandoned(), true),
        (api().release([StatusCode::GATEWAY_TIMEOUT]), true),
    ] {
        let shop = Shop::open(policy).await;
        assert_eq!(pay_with(&shop, "504").await.status(), 504);
        let second = shop.pay("\"k\"", "10").await;
        if again {
            assert_ran(&second, "run 2 of k");
            assert_eq!(attempt(&second), 2);
        } else {
            assert_refused(&second, 409, "outcome-unknown");
        }
        assert_eq!(shop.runs.count(), 1 + usize::from(again));
    }
}

/// A layer further out that gives up.
fn giving_up(app: Router) -> Router {
    app.layer(from_fn(|request: AnyRequest, next: Next| async {
        let answer = tokio::time::timeout(Duration::from_millis(100), next.run(request)).await;
        answer.unwrap_or_else(|_| -> AnyResponse { StatusCode::GATEWAY_TIMEOUT.into_response() })
    }))
}

#[tokio::test]
async fn case_40_a_time_out_outside_of_the_layer_does_not_end_the_run() {
    let shop = Shop::inside(MemoryStore::new(), rule(api()), giving_up).await;
    shop.hold();
    assert_eq!(shop.pay("\"k\"", "10").await.status(), 504);
    assert_eq!(shop.runs.count(), 1);
    shop.let_go();
    shop.faults.called(Transition::Complete, 1).await;
    assert_replayed(&shop.pay("\"k\"", "10").await, "run 1 of k");
    assert_eq!((shop.runs.count(), shop.finished.count()), (1, 1));
}
