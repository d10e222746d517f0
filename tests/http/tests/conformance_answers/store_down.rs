//! Cases 73 to 75: a store that is down or holds something else runs nothing, and forgets nothing.

use std::time::{Duration, Instant};

use axum::{Router, body::Body, response::Response, routing::post as routed};
use http::StatusCode;
use tower_idempotency::{
    MemoryStore, Policy, RedisStore,
    store::StoreErrorKind,
    test_util::{Fault, Faults, FaultyStore, Transition},
};
use tower_idempotency_test_support::{RedisServer, Runs, Server, redis};

use crate::{Case, Heard, Protocol, api, around, text};

const HTTP1: Protocol = Protocol::Http1;
/// The promise is 1.5 s for a claim, 0.5 s for a call; the rest is for a busy machine.
const IN_TIME: Duration = Duration::from_secs(5);

async fn faulty(policy: Policy) -> (Case, Faults) {
    let store = FaultyStore::new(MemoryStore::new());
    let faults = store.faults();
    (Case::over(store, policy, |_| text("paid")).await, faults)
}

async fn over_redis(redis: &RedisServer) -> Case {
    let store = RedisStore::connect(&redis.url()).await.expect("it runs");
    Case::over(store, api(), |_| text("paid")).await
}

#[track_caller]
fn assert_unavailable(heard: &Heard) {
    assert_eq!(heard.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(heard.problem(), "store-unavailable");
    assert_eq!(heard.headers["retry-after"], "1");
}

/// Sends it until the answer is no refusal for the moment.
async fn until_settled(case: &Case) -> Heard {
    let started = Instant::now();
    loop {
        let heard = case.post(HTTP1, "k").await;
        if heard.status != StatusCode::SERVICE_UNAVAILABLE && heard.status != StatusCode::CONFLICT {
            return heard;
        }
        assert!(started.elapsed() < Duration::from_secs(20), "still {heard:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn case_73_without_a_store_nothing_runs() {
    for kind in [StoreErrorKind::Unreachable, StoreErrorKind::Timeout, StoreErrorKind::Refused] {
        let (case, faults) = faulty(api()).await;
        faults.down(kind);
        let started = Instant::now();
        assert_unavailable(&case.post(HTTP1, "k").await);
        assert!(started.elapsed() < IN_TIME);
        assert_eq!(case.runs.count(), 0);

        faults.heal();
        let heard = until_settled(&case).await;
        assert_eq!((&heard.body[..], heard.is_replay()), (&b"paid"[..], false), "the key is free");
        assert_eq!(case.runs.count(), 1);
    }
}

#[tokio::test]
async fn case_73_only_a_policy_that_says_so_runs_without_a_store() {
    let (case, faults) = faulty(api().run_unprotected()).await;
    faults.down(StoreErrorKind::Unreachable);
    for run in 1..=2 {
        let heard = case.post(HTTP1, "k").await;
        assert_eq!((&heard.body[..], heard.is_replay()), (&b"paid"[..], false));
        assert_eq!(case.runs.count(), run);
    }
}

#[tokio::test]
async fn case_73_with_a_redis_that_is_killed_nothing_runs() {
    let mut redis = RedisServer::start().await;
    let case = over_redis(&redis).await;
    case.post(HTTP1, "before").await;
    redis.kill();
    let started = Instant::now();
    assert_unavailable(&case.post(HTTP1, "k").await);
    assert!(started.elapsed() < IN_TIME);
    assert_eq!(case.runs.count(), 1);

    redis.restart().await;
    assert_eq!(until_settled(&case).await.body, "paid");
    assert_eq!(case.runs.count(), 2);
}

#[tokio::test]
async fn case_73_with_a_redis_that_hangs_nothing_runs_now_or_later() {
    let mut redis = RedisServer::start().await;
    let case = over_redis(&redis).await;
    case.post(HTTP1, "before").await;
    redis.stop_signal();
    let started = Instant::now();
    assert_unavailable(&case.post(HTTP1, "k").await);
    assert!(started.elapsed() < IN_TIME);
    assert_eq!(case.runs.count(), 1);

    // The claims that waited in its socket are read now; they are too late, or are called off.
    redis.cont_signal();
    let heard = until_settled(&case).await;
    assert_eq!((&heard.body[..], heard.is_replay()), (&b"paid"[..], false));
    assert_eq!(case.runs.count(), 2);
}

#[tokio::test]
async fn case_74_an_answer_that_cannot_be_stored_is_sent_and_not_run_again() {
    let (case, faults) = faulty(api()).await;
    for transition in [Transition::Complete, Transition::Renew] {
        faults.always(transition, Fault::Fail(StoreErrorKind::Unreachable));
    }
    let first = case.post(HTTP1, "k").await;
    assert_eq!((first.status, &first.body[..]), (StatusCode::OK, &b"paid"[..]));
    let second = case.post(HTTP1, "k").await;
    assert_eq!((second.status, &second.problem()[..]), (StatusCode::CONFLICT, "in-progress"));

    faults.heal();
    let third = until_settled(&case).await;
    assert!(third.is_replay(), "it was stored once it could be: {third:?}");
    assert_eq!(third.body, "paid");
    assert_eq!(case.runs.count(), 1);
}

#[tokio::test]
async fn case_74_an_answer_whose_storing_was_not_confirmed_is_replayed() {
    let (case, faults) = faulty(api()).await;
    faults.next(Transition::Complete, Fault::LoseAnswer(StoreErrorKind::Timeout));
    let (first, second) = case.first_and_replay("k").await;
    assert_eq!((&first.body[..], &second.body[..]), (&b"paid"[..], &b"paid"[..]));
    assert_eq!(case.runs.count(), 1);
}

/// A handler that waits for a word from the test.
async fn held(redis: &RedisServer) -> (Case, std::sync::Arc<tokio::sync::Semaphore>) {
    let store = RedisStore::connect(&redis.url()).await.expect("it runs");
    let go = std::sync::Arc::new(tokio::sync::Semaphore::new(0));
    let (runs, waits) = (Runs::new(), go.clone());
    let counted = runs.clone();
    let handler = move || async move {
        counted.add();
        waits.acquire().await.expect("it is never closed").forget();
        Response::new(Body::from("paid"))
    };
    let router = around(store, api(), Router::new().route("/pay", routed(handler)));
    (Case { server: Server::start(router).await, runs }, go)
}

#[tokio::test]
async fn case_74_with_a_redis_that_hangs_the_answer_is_sent_and_stored_later() {
    let mut redis = RedisServer::start().await;
    let (case, go) = held(&redis).await;
    let between = async {
        case.runs.wait_for(1).await;
        redis.stop_signal();
        go.add_permits(1);
        Instant::now()
    };
    let (first, since) = tokio::join!(case.post(HTTP1, "k"), between);
    assert!(since.elapsed() < IN_TIME);
    assert_eq!((first.status, &first.body[..]), (StatusCode::OK, &b"paid"[..]));
    assert_unavailable(&case.post(HTTP1, "k").await);

    redis.cont_signal();
    let third = until_settled(&case).await;
    assert_eq!((&third.body[..], third.is_replay()), (&b"paid"[..], true));
    assert_eq!(case.runs.count(), 1);
}

#[tokio::test]
async fn case_74_with_a_redis_that_is_killed_the_claim_stays() {
    let mut redis = RedisServer::builder().append_only().start().await;
    let (case, go) = held(&redis).await;
    let between = async {
        case.runs.wait_for(1).await;
        redis.kill();
        go.add_permits(1);
    };
    let (first, ()) = tokio::join!(case.post(HTTP1, "k"), between);
    assert_eq!((first.status, &first.body[..]), (StatusCode::OK, &b"paid"[..]));
    assert_unavailable(&case.post(HTTP1, "k").await);

    redis.restart().await;
    let third = until_settled(&case).await;
    assert_eq!((&third.body[..], third.is_replay()), (&b"paid"[..], true));
    assert_eq!(case.runs.count(), 1);
}

/// The key of the one record there is.
async fn only_key(redis: &RedisServer) -> String {
    let keys = redis.names().await;
    let [key] = &keys[..] else { panic!("one record, but: {keys:?}") };
    key.clone()
}

#[tokio::test]
async fn case_75_a_record_that_cannot_be_read_runs_nothing_and_is_not_overwritten() {
    let redis = RedisServer::start().await;
    let case = over_redis(&redis).await;
    let mut connection = redis.connection().await;
    case.post(HTTP1, "k").await;
    let key = only_key(&redis).await;
    let good: Vec<u8> = redis::cmd("GET").arg(&key).query_async(&mut connection).await.unwrap();
    let newer_version = [b"I2", &good[2..]].concat();
    let unknown_state = [b"I1Q", &good[3..]].concat();
    // The stored answer: 32 bytes of its key, then its version, its flags, its status.
    let other_key = [&good[..90], &[!good[90]][..], &good[91..]].concat();
    let newer_answer = [&good[..122], &[9][..], &good[123..]].concat();
    let no_status = [&good[..124], &[0, 7][..], &good[126..]].concat();
    let cut_short = good[..127].to_vec();
    let not_ours = b"hello".to_vec();
    for bad in
        [newer_version, unknown_state, other_key, newer_answer, no_status, cut_short, not_ours]
    {
        let set = redis::cmd("SET").arg(&key).arg(&bad).arg("EX").arg(60).to_owned();
        let () = set.query_async(&mut connection).await.unwrap();
        let heard = case.post(HTTP1, "k").await;
        assert_eq!(heard.status, StatusCode::SERVICE_UNAVAILABLE, "{bad:?}");
        assert_eq!(heard.problem(), "record-unreadable");
        assert!(heard.headers.contains_key("retry-after"));
        let kept: Vec<u8> = redis::cmd("GET").arg(&key).query_async(&mut connection).await.unwrap();
        assert_eq!(kept, bad);
    }
    let set = redis::cmd("SET").arg(&key).arg(&good).arg("EX").arg(60).to_owned();
    let () = set.query_async(&mut connection).await.unwrap();
    assert!(case.post(HTTP1, "k").await.is_replay(), "as it was, it is read");
    assert_eq!(case.runs.count(), 1);
}

#[tokio::test]
async fn case_75_a_value_of_another_type_runs_nothing() {
    let redis = RedisServer::start().await;
    let case = over_redis(&redis).await;
    let mut connection = redis.connection().await;
    case.post(HTTP1, "k").await;
    let key = only_key(&redis).await;
    let () = redis::cmd("DEL").arg(&key).query_async(&mut connection).await.unwrap();
    let () = redis::cmd("RPUSH").arg(&key).arg("x").query_async(&mut connection).await.unwrap();
    let heard = case.post(HTTP1, "k").await;
    assert_eq!(
        (heard.status, &heard.problem()[..]),
        (StatusCode::SERVICE_UNAVAILABLE, "record-unreadable")
    );
    assert_eq!(case.runs.count(), 1);
}
