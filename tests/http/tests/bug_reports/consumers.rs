//! Section J of the reports: consumers of messages, which are redelivered.

use std::time::Duration;

use tower_idempotency::{
    MemoryStore,
    test_util::{FaultyStore, Transition},
};

use crate::support::{
    Instance, RedisServer, Shop, around, assert_fresh, assert_refused, assert_replay, layer,
    notify, refusal, send_aside, send_until, serve, store_on, two_instances, webhook,
};

#[tokio::test]
async fn b124_a_message_on_another_worker_is_in_conflict_and_then_replayed() {
    let shop = Shop::held();
    let (_redis, [one, two]) = two_instances(webhook(), &shop).await;
    let first = send_aside(&one, notify("m1"));
    shop.started.wait_for(1).await;
    assert_refused(&two.send(notify("m1")).await, 503, "in-progress");
    shop.let_go();
    assert_fresh(&first.await.unwrap(), "run 1");
    drop(one);
    assert_replay(&two.send(notify("m1")).await, "run 1");
}

#[tokio::test]
async fn b124_a_message_whose_worker_died_is_taken_over_after_its_lease_and_by_one() {
    let redis = RedisServer::start().await;
    let policy = webhook().lease(Duration::from_millis(600)).rerun_abandoned();
    let dying = Shop::held();
    let router = around(layer(store_on(&redis).await, policy.clone()), dying.handler());
    let mut worker = Instance::start(router).await;
    let mut client = worker.server.connect().await;
    client.send("POST /notify HTTP/1.1\r\nhost: shop\r\ncontent-length: 17\r\n\r\n").await;
    client.send(r#"{"notifyId":"m1"}"#).await;
    dying.started.wait_for(1).await;
    let shop = Shop::open();
    let one = serve(store_on(&redis).await, policy.clone(), shop.handler()).await;
    let two = serve(store_on(&redis).await, policy, shop.handler()).await;
    assert_refused(&one.send(notify("m1")).await, 503, "in-progress");
    worker.kill();
    let taken = |answer: &_| refusal(answer).is_none();
    let (at_one, at_two) = tokio::join!(
        send_until(&one, || notify("m1"), taken, |_| {}),
        send_until(&two, || notify("m1"), taken, |_| {}),
    );
    assert_eq!((at_one.body(), at_two.body()), (&"run 1".into(), &"run 1".into()));
    assert_eq!((dying.runs(), shop.runs()), (1, 1));
}

#[tokio::test]
async fn b125_an_invoice_that_is_delivered_twice_is_credited_once() {
    let shop = Shop::open();
    let server = serve(MemoryStore::new(), webhook(), shop.handler()).await;
    // The first acknowledgement does not reach the sender.
    let mut client = server.connect().await;
    client.send("POST /notify HTTP/1.1\r\nhost: shop\r\ncontent-length: 17\r\n\r\n").await;
    client.send(r#"{"notifyId":"n1"}"#).await;
    shop.finished.wait_for(1).await;
    client.reset();
    let again = send_until(&server, || notify("n1"), |answer| refusal(answer).is_none(), |_| {});
    assert_replay(&again.await, "run 1");
    assert_fresh(&server.send(notify("n2")).await, "run 2");
}

#[tokio::test]
async fn b126_each_further_copy_costs_one_trip_to_the_store_and_no_run() {
    let shop = Shop::open();
    let store = FaultyStore::new(MemoryStore::new());
    let calls = store.faults();
    let server = serve(store, webhook(), shop.handler()).await;
    assert_fresh(&server.send(notify("n1")).await, "run 1");
    for wait_ms in [15, 15, 30, 60, 30, 15, 5, 5, 5, 5, 5, 5] {
        tokio::time::sleep(Duration::from_millis(wait_ms)).await;
        assert_replay(&server.send(notify("n1")).await, "run 1");
    }
    assert_eq!(shop.runs(), 1);
    assert_eq!(calls.calls(Transition::Claim), 13);
    for writes in [Transition::Complete, Transition::Release, Transition::Renew] {
        assert!(calls.calls(writes) <= 1, "{writes:?}");
    }
}
