//! A process is killed at each point of a run: what the next delivery gets, and that nothing is run
//! twice.

use std::time::Duration;

use serde_json::json;
use tokio::task::JoinSet;
use tower_idempotency_test_support::{Proxy, RedisServer};

use crate::site::{Address, SLACK, Server, Site, assert_records_are_of, records};

const LEASE: Duration = Duration::from_millis(1500);

/// Sends it and does not wait for what comes back.
fn send_off(server: Address, id: &str, more: serde_json::Value) {
    let mut run = json!({ "id": id });
    for (name, value) in more.as_object().expect("what is more is an object") {
        run[name] = value.clone();
    }
    tokio::spawn(async move { server.try_send("/run", &run).await });
}

/// Starts held runs in the first process, and kills it.
async fn killed_in_mid_handler(site: &Site, redis: &RedisServer) -> (Vec<String>, Server) {
    let mut dies = site.server(&redis.url());
    let lives = site.server(&redis.url());
    let ids: Vec<_> = (0..20).map(|key| format!("key-{key}")).collect();
    for id in &ids {
        send_off(dies.address, id, json!({ "held": true }));
        dies.wait_for_start(id);
    }
    dies.kill();
    (ids, lives)
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_of_a_killed_process_are_abandoned_and_refused_and_none_is_run_twice() {
    let redis = RedisServer::start().await;
    let site = Site::new().lease(LEASE);
    let (ids, lives) = killed_in_mid_handler(&site, &redis).await;
    for id in &ids {
        lives.address.deliver_until_refused(id, "outcome_unknown", LEASE + SLACK).await;
        // And it stays so.
        lives.address.deliver(id).await.assert_refusal("outcome_unknown");
    }
    let runs = site.runs();
    runs.assert_each_once();
    assert_eq!(runs.started.len(), ids.len());
    assert!(ids.iter().all(|id| !runs.has_ended(&runs.only(id))));
    let records = records(&redis).await;
    assert_eq!(records.len(), ids.len());
    assert!(records.iter().all(|record| record.is_abandoned() && record.attempt == 1));
    // Another key is no worse off, and whoever meets an abandoned one is told in the log.
    assert!(lives.address.deliver("another").await.is_final());
    lives.wait_for_line("WARN abandoned");
    lives.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn under_rerun_abandoned_each_key_of_a_killed_process_is_run_exactly_once_more() {
    let redis = RedisServer::start().await;
    let site = Site::new().lease(LEASE).rerun();
    let (ids, lives) = killed_in_mid_handler(&site, &redis).await;
    let third = site.server(&redis.url());
    let mut deliveries = JoinSet::new();
    for (id, delivery) in ids.iter().flat_map(|id| (0..4).map(move |delivery| (id, delivery))) {
        let server = if delivery % 2 == 0 { &lives } else { &third }.address;
        let run = json!({ "id": id, "takes_ms": 50 });
        let within = LEASE + SLACK;
        deliveries.spawn(async move {
            let answer = server.deliver_until_final(&run, within).await;
            (run, answer)
        });
    }
    let answers = deliveries.join_all().await;

    let runs = site.runs();
    for id in &ids {
        let [killed, again] = runs.of(id) else { panic!("{id}: {:?}", runs.of(id)) };
        assert_eq!((killed.attempt, killed.previous.as_str()), (1, "Nothing"));
        assert_eq!((again.attempt, again.previous.as_str()), (2, "AbandonedUnknown"));
        assert!(again.fence > killed.fence);
        assert!(!runs.has_ended(killed) && runs.has_ended(again));
    }
    for (run, answer) in &answers {
        let again = &runs.of(run["id"].as_str().unwrap())[1];
        assert_eq!(answer.body, again.text);
    }
    assert_records_are_of(&runs, &redis).await;
    lives.stop();
    third.stop();
}

/// A server behind a proxy, which is to die, and one that is not.
struct Pair {
    redis: RedisServer,
    site: Site,
    proxy: Proxy,
    dies: Server,
    lives: Server,
}

impl Pair {
    async fn new() -> Self {
        let redis = RedisServer::start().await;
        let site = Site::new().lease(LEASE);
        let proxy = Proxy::to(redis.address()).await;
        let dies = site.server(&proxy.redis_url());
        let lives = site.server(&redis.url());
        // From here on Redis knows the scripts of claim and complete: a command is one request.
        assert!(dies.address.deliver("first").await.is_final());
        Self { redis, site, proxy, dies, lives }
    }

    /// Sends the key to the server that dies, and waits until a request has gone to Redis.
    async fn send_and_wait_for_request(&self) {
        let before = self.proxy.counts().requests;
        send_off(self.dies.address, "key", json!({}));
        self.proxy.wait_until(|counts| counts.requests > before).await;
    }

    /// Starts a held run in the server that dies.
    fn start_held(&self) {
        send_off(self.dies.address, "key", json!({ "held": true }));
        self.dies.wait_for_start("key");
    }
}

/// How many transitions Redis has carried out.
async fn scripts_run(redis: &RedisServer) -> String {
    let said = format!("{:?}", redis.command(&["INFO", "commandstats"]).await);
    let (_, said) = said.split_once("cmdstat_evalsha:calls=").expect("there were some before");
    said.split_once(',').expect(said).0.to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_before_its_claim_arrives_the_key_is_free() {
    let mut pair = Pair::new().await;
    pair.proxy.hold_requests();
    pair.send_and_wait_for_request().await;
    pair.dies.kill();
    pair.proxy.cut().await;
    let answer = pair.lives.address.deliver("key").await;
    assert!(answer.is_final() && !answer.replayed, "{answer:?}");
    pair.site.runs().assert_each_once();
    assert_records_are_of(&pair.site.runs(), &pair.redis).await;
}

/// The one case in which a key is refused as unknown though nothing was run: nobody is left to know
/// it. It lasts as long as a process dies within one round trip.
#[tokio::test(flavor = "multi_thread")]
async fn killed_between_its_claim_and_its_handler_the_key_is_refused_as_unknown() {
    let mut pair = Pair::new().await;
    let before = pair.proxy.counts().replies;
    pair.proxy.hold_replies();
    send_off(pair.dies.address, "key", json!({}));
    pair.proxy.wait_until(|counts| counts.replies > before).await;
    pair.dies.kill();
    pair.lives.address.deliver_until_refused("key", "outcome_unknown", LEASE + SLACK).await;
    assert!(pair.site.runs().of("key").is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_arrives_after_its_owner_died_and_its_time_is_over_leaves_nothing() {
    let mut pair = Pair::new().await;
    pair.proxy.hold_requests();
    pair.send_and_wait_for_request().await;
    pair.dies.kill();
    tokio::time::sleep(Duration::from_millis(1700)).await;
    let before = scripts_run(&pair.redis).await;
    pair.proxy.heal();
    while scripts_run(&pair.redis).await == before {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let answer = pair.lives.address.deliver("key").await;
    assert!(answer.is_final() && !answer.replayed, "{answer:?}");
    pair.site.runs().assert_each_once();
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_between_its_handler_and_its_completion_the_key_is_refused_and_not_run_again() {
    let mut pair = Pair::new().await;
    pair.start_held();
    pair.proxy.hold_requests();
    let before = pair.proxy.counts().requests;
    pair.dies.address.go("key").await;
    pair.dies.wait_for_line("ended key");
    pair.proxy.wait_until(|counts| counts.requests > before).await;
    pair.dies.kill();
    pair.proxy.cut().await;
    pair.lives.address.deliver_until_refused("key", "outcome_unknown", LEASE + SLACK).await;
    let runs = pair.site.runs();
    runs.assert_each_once();
    assert!(runs.has_ended(&runs.only("key")), "it did happen, and nobody but its journal knows");
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_between_its_completion_and_its_response_the_answer_is_replayed() {
    let mut pair = Pair::new().await;
    pair.start_held();
    pair.proxy.hold_replies();
    pair.dies.address.go("key").await;
    pair.dies.wait_for_line("ended key");
    // A renewal may have gone before it: the record tells when the completion was carried out.
    pair.lives.address.deliver_until_final(&json!({ "id": "key" }), SLACK).await;
    pair.dies.kill();
    let answer = pair.lives.address.deliver("key").await;
    let runs = pair.site.runs();
    runs.assert_each_once();
    assert_eq!((answer.replayed, answer.body), (true, runs.only("key").text));
    assert_records_are_of(&runs, &pair.redis).await;
}
