//! Cases 30 to 36: several deliveries at once, and clients that leave.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tokio::task::JoinSet;
use tower_idempotency::{
    Policy, RedisStore, Rule, State, Store,
    test_util::{Fault, Gate, Transition},
};
use tower_idempotency_test_support::{Log, RawClient, RedisServer, Server};

use crate::shop::{
    Shop, api, assert_ran, assert_refused, assert_replayed, is_replay, pay, raw_pay, retry_after,
    text,
};

/// Longer than any test takes.
const LONG: Duration = Duration::from_secs(60);
const DELIVERIES: usize = 100;

/// A policy that is not refused because a busy machine is slow: that is another test's promise.
fn patient(policy: Policy) -> Policy {
    policy.call_within(LONG).claim_within(LONG).lease(2 * LONG)
}

fn with_answer(answer: &str) -> Request<Full<Bytes>> {
    let mut request = pay("\"k\"", "10");
    request.headers_mut().insert("x-answer", answer.parse().unwrap());
    request
}

/// Sends the same request this often at once, to these servers in turn.
fn deliver<S: Store + Clone>(shops: &[Shop<S>], deliveries: usize) -> JoinSet<Response<Bytes>> {
    let mut sent = JoinSet::new();
    for delivery in 0..deliveries {
        let address = shops[delivery % shops.len()].server.address();
        sent.spawn(Server::exchange(address, pay("\"k\"", "10")));
    }
    sent
}

/// While one runs all others are refused, whichever process they come to; then they are answered.
async fn one_of_many_runs<S: Store + Clone>(shops: &[Shop<S>]) {
    for shop in shops {
        shop.hold();
    }
    let mut sent = deliver(shops, DELIVERIES);
    for _ in 1..DELIVERIES {
        let answer = sent.join_next().await.unwrap().unwrap();
        assert_refused(&answer, 409, "in-progress");
        assert!(retry_after(&answer) >= 1);
    }
    assert_eq!(shops[0].runs.count(), 1);
    for shop in shops {
        shop.let_go();
    }
    assert_ran(&sent.join_next().await.unwrap().unwrap(), "run 1 of k");

    let mut again = deliver(shops, 10);
    while let Some(answer) = again.join_next().await {
        assert_replayed(&answer.unwrap(), "run 1 of k");
    }
    assert_eq!(shops[0].runs.count(), 1);
}

/// While one runs all others wait, and get its answer.
async fn many_wait_for_one<S: Store + Clone>(shops: &[Shop<S>]) {
    for shop in shops {
        shop.hold();
    }
    let mut sent = deliver(shops, DELIVERIES);
    // Each has claimed.
    for shop in shops {
        shop.faults.called(Transition::Claim, DELIVERIES / shops.len()).await;
    }
    for shop in shops {
        shop.let_go();
    }
    let mut replayed = 0;
    while let Some(answer) = sent.join_next().await {
        let answer = answer.unwrap();
        assert_eq!(text(&answer), "run 1 of k", "{answer:?}");
        replayed += usize::from(is_replay(&answer));
    }
    assert_eq!((replayed, shops[0].runs.count()), (DELIVERIES - 1, 1));
}

#[tokio::test]
async fn case_30_of_a_hundred_deliveries_at_once_one_runs_and_the_others_are_told_to_come_again() {
    one_of_many_runs(&[Shop::open(patient(api())).await]).await;
}

#[tokio::test]
async fn case_30_of_a_hundred_deliveries_at_once_one_runs_and_the_others_wait_for_it() {
    many_wait_for_one(&[Shop::open(patient(api()).wait(LONG)).await]).await;
}

/// Two processes with a connection each.
async fn two_over(redis: &RedisServer, policy: Policy) -> [Shop<RedisStore>; 2] {
    let store =
        async || RedisStore::connect(&redis.url()).await.unwrap().prefix("shop").call_within(LONG);
    let one = Shop::over(store().await, Rule::new("pay", policy.clone())).await;
    let other = one.beside(store().await, Rule::new("pay", policy)).await;
    [one, other]
}

#[tokio::test]
async fn case_30_two_processes_over_one_redis_run_it_once() {
    let redis = RedisServer::start().await;
    one_of_many_runs(&two_over(&redis, patient(api())).await).await;
}

#[tokio::test]
async fn case_30_deliveries_wait_for_a_run_in_another_process() {
    let redis = RedisServer::start().await;
    many_wait_for_one(&two_over(&redis, patient(api()).wait(LONG)).await).await;
}

#[tokio::test]
async fn case_30_other_keys_do_not_wait() {
    let shop = Shop::open(patient(api())).await;
    shop.hold();
    let mut sent = JoinSet::new();
    for key in 0..10 {
        let address = shop.server.address();
        sent.spawn(Server::exchange(address, pay(&format!("k-{key}"), "10")));
    }
    shop.runs.wait_for(10).await;
    shop.let_go();
    while let Some(answer) = sent.join_next().await {
        assert_eq!(answer.unwrap().status(), 201);
    }
}

/// Sends a request and waits until its handler runs. It is held there.
async fn start(shop: &Shop) -> RawClient {
    shop.hold();
    let mut client = shop.server.connect().await;
    client.send(raw_pay(&[b"\"k\""], "Content-Length: 2\r\n\r\n10")).await;
    shop.runs.wait_for(1).await;
    client
}

#[tokio::test]
async fn case_31_not_yet_is_never_stored() {
    let shop = Shop::open(api()).await;
    let mut first = start(&shop).await;
    for _ in 0..3 {
        assert_refused(&shop.pay("\"k\"", "10").await, 409, "in-progress");
    }
    assert_eq!(shop.record().await.state, State::InProgress);
    shop.let_go();
    assert_ran(&first.answer().await.into_response(), "run 1 of k");
    assert_replayed(&shop.pay("\"k\"", "10").await, "run 1 of k");
    assert_eq!(shop.runs.count(), 1);
}

#[tokio::test]
async fn case_32_another_body_is_a_mismatch_also_while_the_first_is_in_flight() {
    for policy in [api(), api().wait(LONG)] {
        let shop = Shop::open(policy).await;
        let mut first = start(&shop).await;
        // At once, also by who would wait: the answer to another request is of no use to it.
        let answer = shop.pay("\"k\"", "20").await;
        assert_refused(&answer, 422, "mismatch");
        shop.let_go();
        assert_ran(&first.answer().await.into_response(), "run 1 of k");
        assert_eq!(shop.runs.count(), 1);
    }
    // The same body is none.
    let shop = Shop::open(api()).await;
    let _first = start(&shop).await;
    assert_refused(&shop.pay("\"k\"", "10").await, 409, "in-progress");
}

/// A second delivery is told that the first is running; what it does is decided once `meanwhile` is
/// over.
async fn lose_the_race(shop: &Shop, meanwhile: impl AsyncFnOnce()) -> Response<Bytes> {
    let told = Gate::new();
    shop.faults.next(Transition::Claim, Fault::HoldAnswer(told.clone()));
    let loser = tokio::spawn(Server::exchange(shop.server.address(), pay("\"k\"", "10")));
    told.arrived(1).await;
    meanwhile().await;
    told.open();
    loser.await.unwrap()
}

#[tokio::test]
async fn case_33_who_lost_the_race_to_one_that_has_ended_gets_its_answer() {
    let shop = Shop::open(patient(api())).await;
    let mut first = start(&shop).await;
    let loser = lose_the_race(&shop, async || {
        shop.let_go();
        assert_ran(&first.answer().await.into_response(), "run 1 of k");
    });
    assert_replayed(&loser.await, "run 1 of k");
    assert_eq!(shop.runs.count(), 1);

    // To one that has not, it is told so.
    let shop = Shop::open(patient(api())).await;
    let _first = start(&shop).await;
    assert_refused(&lose_the_race(&shop, async || {}).await, 409, "in-progress");
}

/// How a client may leave.
const LEAVE: [fn(RawClient); 2] = [drop, RawClient::reset];

#[tokio::test]
async fn case_34_a_run_whose_client_has_left_goes_on_and_its_answer_is_stored() {
    for leave in LEAVE {
        let shop = Shop::open(api()).await;
        let client = start(&shop).await;
        leave(client);
        shop.gone.wait_for(1).await;
        assert_refused(&shop.pay("\"k\"", "10").await, 409, "in-progress");
        shop.let_go();
        shop.faults.called(Transition::Complete, 1).await;
        assert_replayed(&shop.pay("\"k\"", "10").await, "run 1 of k");
        assert_eq!(shop.runs.count(), 1);
    }
}

#[tokio::test]
async fn case_34_without_a_key_a_run_ends_with_its_client() {
    // So that it is the layer which keeps a run going, and not the server.
    let shop = Shop::open(api().optional()).await;
    shop.hold();
    let mut client = shop.server.connect().await;
    client.send(raw_pay(&[], "Content-Length: 2\r\n\r\n10")).await;
    shop.runs.wait_for(1).await;
    drop(client);
    shop.gone.wait_for(1).await;
    assert_eq!(shop.finished.count(), 0);
    shop.let_go();
    assert_ran(&shop.pay("\"k\"", "10").await, "run 2 of k");
    assert_eq!(shop.finished.count(), 1);
}

#[tokio::test]
async fn case_34_a_retry_waits_for_a_run_whose_client_has_left() {
    for leave in LEAVE {
        let shop = Shop::open(api().wait(LONG)).await;
        leave(start(&shop).await);
        shop.gone.wait_for(1).await;
        let retry = tokio::spawn(Server::exchange(shop.server.address(), pay("\"k\"", "10")));
        shop.faults.called(Transition::Claim, 2).await;
        shop.let_go();
        assert_replayed(&retry.await.unwrap(), "run 1 of k");
        assert_eq!(shop.runs.count(), 1);
    }
}

/// The beginnings of requests whose bodies never come to their end.
const CUT_SHORT: [&str; 5] = [
    "Content-Length: 2\r\n\r\n",
    "Content-Length: 2\r\n\r\n1",
    "Transfer-Encoding: chunked\r\n\r\n",
    "Transfer-Encoding: chunked\r\n\r\n2\r\n10\r\n",
    "Transfer-Encoding: chunked\r\n\r\n2\r\n10\r\n0\r\n",
];

#[tokio::test]
async fn case_35_a_request_whose_body_is_cut_short_claims_nothing() {
    for leave in LEAVE {
        for rest in CUT_SHORT {
            let shop = Shop::open(api()).await;
            let mut client = shop.server.connect().await;
            client.send(raw_pay(&[b"\"k\""], rest)).await;
            shop.came.wait_for(1).await;
            leave(client);
            shop.gone.wait_for(1).await;
            assert_eq!((shop.runs.count(), shop.store.len()), (0, 0), "{rest:?}");
            assert_eq!(shop.faults.calls(Transition::Claim), 0, "{rest:?}");
            assert_ran(&shop.pay("\"k\"", "10").await, "run 1 of k");
        }
    }
}

#[tokio::test]
async fn case_35_a_client_that_still_listens_is_told_that_its_body_was_cut_short() {
    for rest in CUT_SHORT {
        let shop = Shop::open(api()).await;
        let mut client = shop.server.connect().await;
        client.send(raw_pay(&[b"\"k\""], rest)).await;
        shop.came.wait_for(1).await;
        client.finish_sending().await;
        let answer = client.rest().await;
        let shown = answer.escape_ascii().to_string();
        // hyper closes some of these itself; what it passes on is told.
        assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 400 "), "{rest:?}: {shown}");
        assert_eq!((shop.runs.count(), shop.store.len()), (0, 0), "{rest:?}");
        assert_ran(&shop.pay("\"k\"", "10").await, "run 1 of k");
    }
}

#[tokio::test]
async fn case_36_a_waiter_that_leaves_is_gone() {
    let (log, _guard) = Log::listen();
    let shop = Shop::open(api().wait(LONG)).await;
    shop.hold();
    // The first does not happen, so that whoever waits runs.
    let address = shop.server.address();
    let first = tokio::spawn(Server::exchange(address, with_answer("503")));
    shop.runs.wait_for(1).await;

    let mut leaver = shop.server.connect().await;
    leaver.send(raw_pay(&[b"\"k\""], "Content-Length: 2\r\n\r\n10")).await;
    log.said("waiting", 1).await;
    leaver.reset();
    shop.gone.wait_for(1).await;

    let stays = tokio::spawn(Server::exchange(address, pay("\"k\"", "10")));
    log.said("waiting", 2).await;
    shop.let_go();
    assert_eq!(first.await.unwrap().status(), 503);
    assert_ran(&stays.await.unwrap(), "run 2 of k");
    assert_replayed(&shop.pay("\"k\"", "10").await, "run 2 of k");
    assert_eq!(shop.runs.count(), 2);
}

#[tokio::test]
async fn case_36_waiters_that_left_leave_their_places() {
    // A layer has 1,024 places.
    let (rounds, at_once) = (12, 100);
    let (log, _guard) = Log::listen();
    let shop = Shop::open(patient(api()).wait(LONG)).await;
    let mut first = start(&shop).await;
    for round in 1..=rounds {
        let mut waiters = Vec::new();
        for _ in 0..at_once {
            let mut waiter = shop.server.connect().await;
            waiter.send(raw_pay(&[b"\"k\""], "Content-Length: 2\r\n\r\n10")).await;
            waiters.push(waiter);
        }
        log.said("waiting", round * at_once).await;
        drop(waiters);
        shop.gone.wait_for(round * at_once).await;
    }
    let last = tokio::spawn(Server::exchange(shop.server.address(), pay("\"k\"", "10")));
    log.said("waiting", rounds * at_once + 1).await;
    shop.let_go();
    assert_ran(&first.answer().await.into_response(), "run 1 of k");
    assert_replayed(&last.await.unwrap(), "run 1 of k");
    assert_eq!(shop.runs.count(), 1);
}

#[tokio::test]
async fn case_36_who_would_wait_too_long_is_told_to_come_again() {
    let shop = Shop::open(api().wait(Duration::from_millis(100))).await;
    let _first = start(&shop).await;
    assert_refused(&shop.pay("\"k\"", "10").await, 409, "in-progress");
}
