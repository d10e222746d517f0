//! What is said between a process and Redis is lost, late or cut off: the outcome is the right one,
//! and no key is refused as unknown though nothing was run.

use std::time::{Duration, Instant};

use serde_json::json;
use tokio::{task::JoinSet, time::sleep};
use tower_idempotency_test_support::{Proxy, RedisServer};

use crate::site::{
    Address, Answer, CLAIM_WITHIN, SLACK, Server, Site, assert_records_are_of, records, times,
};

/// A server behind a proxy, and one with a good connection that tells what is so.
struct Wire {
    redis: RedisServer,
    site: Site,
    proxy: Proxy,
    server: Server,
    other: Server,
}

impl Wire {
    async fn new(site: Site) -> Self {
        let redis = RedisServer::start().await;
        let proxy = Proxy::to(redis.address()).await;
        let server = site.server(&proxy.redis_url());
        let other = site.server(&redis.url());
        let wire = Self { redis, site, proxy, server, other };
        // From here on Redis knows the scripts of all three: a command is one request.
        assert!(wire.server.address.deliver("first").await.is_final());
        let failed = wire.server.address.send(&json!({ "id": "failed", "answers": 500 })).await;
        assert_eq!(failed.status, 500);
        assert!(wire.server.address.deliver("failed").await.is_final());
        wire
    }

    /// Starts a held run; its answer can be awaited.
    fn start_held(&self, run: serde_json::Value) -> tokio::task::JoinHandle<Answer> {
        let address = self.server.address;
        let id = run["id"].as_str().unwrap().to_owned();
        let answer = tokio::spawn(async move { address.send(&run).await });
        self.server.wait_for_start(&id);
        answer
    }

    /// Waits until Redis has granted the key, whoever knows of it.
    async fn wait_until_granted(&self, id: &str) {
        let label = format!("run {id}");
        let until = Instant::now() + SLACK;
        while !records(&self.redis).await.iter().any(|record| record.label == label) {
            assert!(Instant::now() < until, "{id} was not granted");
            sleep(Duration::from_millis(10)).await;
        }
    }

    /// Long before the lease could be over, the key is run or replayed for anybody who comes.
    async fn assert_free_or_done(&self, id: &str) -> Answer {
        let answer = self.other.address.deliver_until_final(&json!({ "id": id }), SLACK).await;
        let runs = self.site.runs();
        assert_eq!(answer.body, runs.only(id).text);
        answer
    }

    /// Nothing is left behind, in the process or in Redis.
    async fn end(self) {
        self.server.stop();
        let mut runs = self.site.runs();
        assert_eq!(runs.started.remove("failed").map(|runs| runs.len()), Some(2));
        runs.assert_each_once();
        assert_records_are_of(&self.site.runs(), &self.redis).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_whose_answer_is_late_is_asked_again_and_is_the_same_grant() {
    let wire = Wire::new(Site::new()).await;
    let before = wire.proxy.counts().requests;
    wire.proxy.hold_replies();
    let address = wire.server.address;
    let answer = tokio::spawn(async move { address.deliver("key").await });
    wire.proxy.wait_until(|counts| counts.requests >= before + 2).await;
    wire.proxy.heal();
    let answer = answer.await.unwrap();
    assert_eq!(answer.body, wire.site.runs().only("key").text);
    wire.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_is_never_answered_is_refused_in_time_and_called_off() {
    let wire = Wire::new(Site::new()).await;
    wire.proxy.hold_replies();
    let address = wire.server.address;
    let refused = tokio::spawn(async move { address.deliver("key").await });
    wire.wait_until_granted("key").await;
    // It was granted, and nobody knows that here: the key is busy until it is called off.
    wire.other.address.deliver("key").await.assert_refusal("in_progress");
    let refused = refused.await.unwrap();
    refused.assert_refusal("store_unavailable");
    assert!(refused.took < CLAIM_WITHIN + SLACK, "{refused:?}");
    assert!(wire.site.runs().of("key").is_empty());
    // What was held back is lost.
    wire.proxy.cut().await;
    wire.proxy.heal();
    assert!(!wire.assert_free_or_done("key").await.replayed);
    wire.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn claims_that_are_answered_too_late_each_time_are_called_off() {
    let wire = Wire::new(Site::new()).await;
    wire.proxy.delay_replies(Duration::from_millis(700));
    let refused = wire.server.address.deliver("key").await;
    refused.assert_refusal("store_unavailable");
    wire.proxy.heal();
    assert!(!wire.assert_free_or_done("key").await.replayed);
    wire.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn claims_that_arrive_about_their_deadline_are_run_once_or_leave_nothing() {
    for round in 0..2 * times() {
        let wire = Wire::new(Site::new()).await;
        wire.proxy.hold_requests();
        let mut deliveries = JoinSet::new();
        for key in 0..30 {
            let address: Address = wire.server.address;
            // So that their deadlines are spread about the moment at which the claims arrive.
            deliveries.spawn(async move {
                sleep(Duration::from_millis(key * 10)).await;
                let answer = address.deliver(&format!("key-{key}")).await;
                assert!(answer.is_final() || answer.is_refusal("store_unavailable"), "{answer:?}");
                answer.is_final()
            });
        }
        sleep(Duration::from_millis(1500 + u64::from(round) * 150)).await;
        wire.proxy.heal();
        let ran = deliveries.join_all().await;
        let runs = wire.site.runs();
        assert_eq!(runs.started.len() - 2, ran.iter().filter(|ran| **ran).count());
        for key in 0..30 {
            wire.assert_free_or_done(&format!("key-{key}")).await;
        }
        wire.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_cut_in_place_of_the_claims_answer_is_made_anew_and_the_key_is_run() {
    let wire = Wire::new(Site::new()).await;
    let before = wire.proxy.counts().connections;
    wire.proxy.cut_at_reply();
    let answer = wire.server.address.deliver("key").await;
    assert_eq!(answer.body, wire.site.runs().only("key").text);
    assert!(wire.proxy.counts().connections > before);
    wire.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_cut_between_claim_and_completion_costs_nothing() {
    let wire = Wire::new(Site::new()).await;
    let answer = wire.start_held(json!({ "id": "key", "held": true }));
    wire.proxy.cut().await;
    wire.server.address.go("key").await;
    let answer = answer.await.unwrap();
    let replay = wire.assert_free_or_done("key").await;
    assert_eq!((replay.replayed, replay.body), (true, answer.body));
    wire.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_completion_whose_answer_is_lost_is_stored_and_the_client_gets_the_real_answer() {
    let wire = Wire::new(Site::new()).await;
    let answer = wire.start_held(json!({ "id": "key", "held": true }));
    wire.proxy.hold_replies();
    wire.server.address.go("key").await;
    let answer = answer.await.unwrap();
    assert!(answer.is_final() && !answer.replayed, "{answer:?}");
    wire.server.wait_for_line("WARN answer not stored yet");
    wire.proxy.cut().await;
    wire.proxy.heal();
    let replay = wire.assert_free_or_done("key").await;
    assert_eq!((replay.replayed, replay.body), (true, answer.body));
    wire.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_completion_that_cannot_be_sent_keeps_the_key_claimed_until_it_is_stored() {
    let wire = Wire::new(Site::new()).await;
    let answer = wire.start_held(json!({ "id": "key", "held": true }));
    wire.proxy.refuse();
    wire.proxy.cut().await;
    wire.server.address.go("key").await;
    let answer = answer.await.unwrap();
    assert!(answer.is_final() && answer.took < SLACK, "{answer:?}");
    // The client has its answer; nobody else is told that nothing happened.
    wire.other.address.deliver("key").await.assert_refusal("in_progress");
    wire.proxy.heal();
    let within = Duration::from_secs(10);
    let replay = wire.other.address.deliver_until_final(&json!({ "id": "key" }), within).await;
    assert_eq!((replay.replayed, replay.body), (true, answer.body));
    wire.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waited_long_for_the_store_is_told_soon_after_it_is_back() {
    let lease = Duration::from_millis(1500);
    let wire = Wire::new(Site::new().lease(lease)).await;
    // Several, since pauses are drawn: none may be late.
    let done: Vec<_> = (0..12).map(|key| format!("done-{key}")).collect();
    let mut answers = Vec::new();
    for id in &done {
        answers.push((id, wire.start_held(json!({ "id": id, "held": true }))));
    }
    wire.proxy.hold_replies();
    let address = wire.server.address;
    let lost = tokio::spawn(async move { address.deliver("lost").await });
    // Granted, and nobody here knows it: cut off before it can be called off.
    wire.wait_until_granted("lost").await;
    wire.proxy.refuse();
    wire.proxy.cut().await;
    lost.await.unwrap().assert_refusal("store_unavailable");
    for id in &done {
        wire.server.address.go(id).await;
    }
    // So long that whoever only doubles his pauses would come much later.
    sleep(Duration::from_secs(8)).await;
    for id in [&done[0], "lost"] {
        wire.other.address.deliver(id).await.assert_refusal("outcome_unknown");
    }
    wire.proxy.heal();
    // One second is the store's: it pauses as long between two attempts to connect.
    let until = Instant::now() + Duration::from_secs(1) + lease;
    for (id, answer) in answers {
        let answer = answer.await.unwrap();
        assert!(answer.is_final(), "{answer:?}");
        let within = until.saturating_duration_since(Instant::now());
        let replay = wire.other.address.deliver_until_final(&json!({ "id": id }), within).await;
        assert_eq!((replay.replayed, replay.body), (true, answer.body));
    }
    let within = until.saturating_duration_since(Instant::now());
    let run = wire.other.address.deliver_until_final(&json!({ "id": "lost" }), within).await;
    assert!(!run.replayed);
    wire.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_whose_answer_is_lost_lets_the_key_run_again_without_an_alarm() {
    let mut wire = Wire::new(Site::new()).await;
    let run = json!({ "id": "key", "held": true, "answers": 500 });
    let answer = wire.start_held(run);
    wire.proxy.hold_replies();
    wire.server.address.go("key").await;
    let again = json!({ "id": "key" });
    let again = wire.other.address.deliver_until_final(&again, SLACK).await;
    assert!(!again.replayed);
    assert_eq!(answer.await.unwrap().status, 500);
    // The answer is lost, and the release is sent again.
    let before = wire.proxy.counts().replies;
    wire.proxy.cut().await;
    wire.proxy.heal();
    // The time, which each connection asks for first, and the release.
    wire.proxy.wait_until(|counts| counts.replies >= before + 2).await;
    let runs = wire.site.runs();
    let [failed, ran] = runs.of("key") else { panic!("{:?}", runs.of("key")) };
    assert_eq!((failed.attempt, failed.previous.as_str()), (1, "Nothing"));
    assert_eq!((ran.attempt, ran.previous.as_str()), (2, "Failed"));
    // It met the second run. That one was there by the first one's own word: an alarm about two
    // executions would be a false one.
    wire.server.signal(tower_idempotency_test_support::Signal::SIGTERM);
    let mut said = Vec::new();
    loop {
        let line = wire.server.wait_for_line("");
        if line.starts_with("stopped; ") {
            assert_eq!(line, "stopped; 0 running, 0 unsent");
            break;
        }
        said.push(line);
    }
    assert!(!said.iter().any(|line| line.starts_with("ERROR")), "{said:#?}");
    assert_records_are_of(&runs, &wire.redis).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_whose_answer_is_lost_is_sent_again_and_the_lease_holds() {
    let lease = Duration::from_millis(3000);
    let wire = Wire::new(Site::new().lease(lease)).await;
    let answer = wire.start_held(json!({ "id": "key", "held": true }));
    let before = wire.proxy.counts();
    wire.proxy.hold_replies();
    wire.proxy.wait_until(|counts| counts.requests >= before.requests + 2).await;
    wire.proxy.cut().await;
    wire.proxy.heal();
    wire.proxy.wait_until(|counts| counts.connections > before.connections).await;
    sleep(lease / 2).await;
    // More than a lease after the claim.
    wire.other.address.deliver("key").await.assert_refusal("in_progress");
    wire.server.address.go("key").await;
    let answer = answer.await.unwrap();
    let replay = wire.assert_free_or_done("key").await;
    assert_eq!((replay.replayed, replay.body), (true, answer.body));
    wire.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_cannot_be_renewed_lapses_and_its_completion_lands_all_the_same() {
    let lease = Duration::from_millis(1000);
    let wire = Wire::new(Site::new().lease(lease)).await;
    let answer = wire.start_held(json!({ "id": "key", "held": true }));
    wire.proxy.black_hole();
    wire.other.address.deliver_until_refused("key", "outcome_unknown", lease + SLACK).await;
    wire.server.wait_for_line("WARN lease lapsed");
    wire.proxy.heal();
    wire.server.address.go("key").await;
    let answer = answer.await.unwrap();
    assert!(answer.is_final(), "{answer:?}");
    let replay = wire.assert_free_or_done("key").await;
    assert_eq!((replay.replayed, replay.body), (true, answer.body));
    wire.end().await;
}
