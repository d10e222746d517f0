//! A server that is told to end (SIGTERM) finishes what it has begun, whether or not its client is
//! still there.

use std::time::Duration;

use serde_json::json;
use tokio::{io::AsyncWriteExt, net::TcpStream, task::JoinSet};
use tower_idempotency_test_support::{Proxy, RedisServer, Signal};

use crate::site::{Address, SLACK, Site, assert_records_are_of, records};

/// Sends a run on a connection that is to be dropped.
pub(crate) async fn send_raw(server: Address, run: &serde_json::Value) -> TcpStream {
    let body = run.to_string();
    let request = format!(
        "POST /run HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut stream = TcpStream::connect(server.0).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

/// B92.
#[tokio::test(flavor = "multi_thread")]
async fn b92_every_run_of_a_server_that_is_told_to_end_is_finished_and_has_its_record() {
    let redis = RedisServer::start().await;
    let site = Site::new();
    let mut ends = site.server(&redis.url());
    let other = site.server(&redis.url());
    let mut stay = JoinSet::new();
    for key in 0..10 {
        let run = json!({ "id": format!("stays-{key}"), "takes_ms": 1500 });
        let address = ends.address;
        stay.spawn(async move { address.send(&run).await });
    }
    for key in 0..10 {
        let id = format!("leaves-{key}");
        let client = send_raw(ends.address, &json!({ "id": id, "takes_ms": 1500 })).await;
        ends.wait_for_start(&id);
        drop(client);
    }
    while site.runs().started.len() < 20 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    ends.signal(Signal::SIGTERM);
    ends.wait_for_line("stopping");
    assert_eq!(ends.wait_for_line("stopped; "), "stopped; 0 running, 0 unsent");
    assert!(ends.process.wait());

    for answer in stay.join_all().await {
        assert!(answer.is_final() && !answer.replayed, "{answer:?}");
    }
    let runs = site.runs();
    runs.assert_each_once();
    assert_eq!(runs.started.len(), 20);
    for id in runs.started.keys() {
        let answer = other.address.deliver(id).await;
        assert_eq!((answer.replayed, answer.body), (true, runs.only(id).text));
    }
    assert_records_are_of(&runs, &redis).await;
    other.stop();
}

/// The twin: without a word the same runs are lost to whoever comes next.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_killed_in_place_of_being_told_leaves_its_runs_without_an_end() {
    let redis = RedisServer::start().await;
    let site = Site::new();
    let mut ends = site.server(&redis.url());
    let client = send_raw(ends.address, &json!({ "id": "key", "takes_ms": 60_000 })).await;
    ends.wait_for_start("key");
    drop(client);
    ends.kill();
    let runs = site.runs();
    assert!(!runs.has_ended(&runs.only("key")));
    // By its lease, not by its retention.
    let left = records(&redis).await[0].leased.expect("it is held until its lease is over");
    assert!(left <= site.lease);
}

#[tokio::test(flavor = "multi_thread")]
async fn claims_on_their_way_when_a_server_is_told_to_end_are_run_or_called_off() {
    claims_on_their_way(Site::new(), true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_waits_for_claims_on_their_way_though_nobody_waits_for_their_connections() {
    claims_on_their_way(Site::new().abrupt(), false).await;
}

/// A server is told to end while claims are on their way, and their clients leave or do not.
async fn claims_on_their_way(site: Site, clients_leave: bool) {
    let redis = RedisServer::start().await;
    let proxy = Proxy::to(redis.address()).await;
    let mut ends = site.server(&proxy.redis_url());
    let other = site.server(&redis.url());
    assert!(ends.address.deliver("first").await.is_final());
    proxy.delay_replies(Duration::from_millis(150));
    let ids: Vec<_> = (0..20).map(|key| format!("key-{key}")).collect();
    let before = proxy.counts().requests;
    let mut clients = Vec::new();
    for id in &ids {
        clients.push(send_raw(ends.address, &json!({ "id": id })).await);
    }
    proxy.wait_until(|counts| counts.requests > before).await;
    ends.signal(Signal::SIGTERM);
    if clients_leave {
        clients.clear();
    }
    assert_eq!(ends.wait_for_line("stopped; "), "stopped; 0 running, 0 unsent");
    assert!(ends.process.wait());
    let busy: Vec<_> = records(&redis).await.into_iter().filter(|r| r.leased.is_some()).collect();
    assert!(busy.is_empty(), "held by a process that has ended: {busy:?}");
    for id in &ids {
        let answer = other.address.deliver_until_final(&json!({ "id": id }), SLACK).await;
        assert_eq!(answer.body, site.runs().only(id).text);
    }
    site.runs().assert_each_once();
    other.stop();
}
