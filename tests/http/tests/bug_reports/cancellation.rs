//! Section G of the reports: clients that leave and servers that stop.

use std::time::Duration;

use http::Request;
use tower_idempotency::MemoryStore;
use tower_idempotency_test_support::{Http2Client, h2::Reason};

use crate::support::{
    Instance, RedisServer, Runs, Shop, api, around, assert_fresh, assert_refused, assert_replay,
    layer, notice_gone, notify, pay, refusal, send_until, serve, start, store_on, webhook,
    when_ended,
};

#[tokio::test]
async fn b91_a_closed_connection_ends_no_run() {
    for reset in [false, true] {
        let (shop, gone) = (Shop::held(), Runs::new());
        let router = around(layer(MemoryStore::new(), api()), shop.handler());
        let server = start(notice_gone(router, &gone)).await;
        let mut client = server.connect().await;
        client.send("POST /pay HTTP/1.1\r\nhost: shop\r\nidempotency-key: k\r\n").await;
        client.send("content-length: 9\r\n\r\namount=20").await;
        shop.started.wait_for(1).await;
        match reset {
            true => client.reset(),
            false => drop(client),
        }
        gone.wait_for(1).await;
        assert_refused(&server.send(pay("k")).await, 409, "in-progress");
        shop.let_go();
        assert_replay(&when_ended(&server, || pay("k")).await, "run 1");
        assert_eq!((shop.runs(), shop.finished.count()), (1, 1));
    }
}

#[tokio::test]
async fn b91_a_stream_that_is_reset_ends_no_run() {
    for reason in [Reason::CANCEL, Reason::NO_ERROR] {
        let (shop, gone) = (Shop::held(), Runs::new());
        let router = around(layer(MemoryStore::new(), api()), shop.handler());
        let server = start(notice_gone(router, &gone)).await;
        let client = Http2Client::connect(server.address()).await;
        let request = Request::post("/pay").header("idempotency-key", "k").body(()).unwrap();
        let mut stream = client.open(request).await;
        stream.send("amount=20", true);
        shop.started.wait_for(1).await;
        stream.reset(reason);
        gone.wait_for(1).await;
        assert_refused(&server.send(pay("k")).await, 409, "in-progress");
        shop.let_go();
        assert_replay(&when_ended(&server, || pay("k")).await, "run 1");
        assert_eq!((shop.runs(), shop.finished.count()), (1, 1));
    }
}

#[tokio::test]
async fn b92_draining_waits_for_runs_whose_client_has_gone() {
    let redis = RedisServer::start().await;
    let (shop, gone) = (Shop::held(), Runs::new());
    let layer = layer(store_on(&redis).await, webhook());
    let router = around(layer.clone(), shop.handler());
    let server = start(notice_gone(router, &gone)).await;
    let mut client = server.connect().await;
    client.send("POST /notify HTTP/1.1\r\nhost: shop\r\ncontent-length: 17\r\n\r\n").await;
    client.send(r#"{"notifyId":"n1"}"#).await;
    shop.started.wait_for(1).await;
    drop(client);
    gone.wait_for(1).await;
    // A drain that is too short says what it left.
    let left = layer.drain(Duration::from_millis(50)).await;
    assert_eq!((left.running, left.is_clean()), (1, false));
    let draining = tokio::spawn(async move { layer.drain(Duration::from_secs(15)).await });
    assert_refused(&server.send(notify("n2")).await, 503, "shutting-down");
    assert!(!draining.is_finished());
    shop.let_go();
    assert!(draining.await.unwrap().is_clean());
    drop(server);
    let next = serve(store_on(&redis).await, webhook(), shop.handler()).await;
    assert_replay(&next.send(notify("n1")).await, "run 1");
    assert_fresh(&next.send(notify("n2")).await, "run 2");
}

#[tokio::test]
async fn b92_what_was_not_finished_is_held_for_a_lease_and_not_for_the_retention() {
    let redis = RedisServer::start().await;
    let policy = webhook().lease(Duration::from_millis(600));
    let shop = Shop::held();
    let router = around(layer(store_on(&redis).await, policy.clone()), shop.handler());
    let mut old = Instance::start(router).await;
    let mut client = old.server.connect().await;
    client.send("POST /notify HTTP/1.1\r\nhost: shop\r\ncontent-length: 17\r\n\r\n").await;
    client.send(r#"{"notifyId":"n1"}"#).await;
    shop.started.wait_for(1).await;
    old.kill();
    shop.let_go();
    let new = serve(store_on(&redis).await, policy.clone(), shop.handler()).await;
    let unknown = |answer: &_| refusal(answer).as_deref() == Some("outcome-unknown");
    send_until(
        &new,
        || notify("n1"),
        unknown,
        |answer| {
            assert_refused(answer, 503, "in-progress");
        },
    )
    .await;
    let reruns = serve(store_on(&redis).await, policy.rerun_abandoned(), shop.handler()).await;
    assert_fresh(&reruns.send(notify("n1")).await, "run 2");
}
