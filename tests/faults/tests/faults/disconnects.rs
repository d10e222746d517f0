//! Clients that leave at any moment.

use std::time::{Duration, Instant};

use rand::RngExt;
use serde_json::json;
use tokio::{task::JoinSet, time::sleep};
use tower_idempotency::State;
use tower_idempotency_test_support::{Proxy, RedisServer};

use crate::{
    shutdown::send_raw,
    site::{CLAIM_WITHIN, SLACK, Site, assert_records_are_of, records, times},
};

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_leave_at_any_moment_leave_no_key_that_is_neither_done_nor_free() {
    let redis = RedisServer::start().await;
    let site = Site::new();
    let proxy = Proxy::to(redis.address()).await;
    let server = site.server(&proxy.redis_url());
    let other = site.server(&redis.url());
    assert!(server.address.deliver("first").await.is_final());
    // So that a claim's round trip is about as long as a run, and clients leave in both.
    proxy.delay_replies(Duration::from_millis(30));
    let mut ids = Vec::new();
    for round in 0..10 * times() {
        let mut clients = JoinSet::new();
        for key in 0..30 {
            let id = format!("key-{round}-{key}");
            ids.push(id.clone());
            let address = server.address;
            clients.spawn(async move {
                let leaves_after = Duration::from_millis(rand::rng().random_range(0..120));
                let client = send_raw(address, &json!({ "id": id, "takes_ms": 30 })).await;
                sleep(leaves_after).await;
                drop(client);
            });
        }
        clients.join_all().await;
    }
    proxy.heal();

    // Whatever is running ends, and what was claimed for nobody is called off.
    let until = Instant::now() + CLAIM_WITHIN + SLACK;
    let left = loop {
        let records = records(&redis).await;
        if records.iter().all(|record| record.state != State::InProgress) {
            break records;
        }
        assert!(Instant::now() < until, "held or abandoned: {records:?}");
        sleep(Duration::from_millis(50)).await;
    };
    let runs = site.runs();
    let called_off = left.iter().filter(|record| record.state == State::Released).count();
    assert!(called_off > 0 && runs.started.len() > 1, "clients left before and after the grant");
    assert_records_are_of(&runs, &redis).await;
    server.stop();

    for id in &ids {
        let ran = !runs.of(id).is_empty();
        let answer = other.address.deliver(id).await;
        assert_eq!((answer.status.as_u16(), answer.replayed), (200, ran), "{answer:?}");
    }
    let runs = site.runs();
    runs.assert_each_once();
    assert_eq!(runs.started.len(), ids.len() + 1);
    assert_records_are_of(&runs, &redis).await;
    other.stop();
}
