//! A process that stands still past its lease (SIGSTOP) and comes back.

use std::time::{Duration, Instant};

use serde_json::json;
use tokio::{task::JoinHandle, time::sleep};
use tower_idempotency::State;
use tower_idempotency_test_support::{RedisServer, Signal};

use crate::site::{Answer, SLACK, Server, Site, assert_records_are_of, records};

const LEASE: Duration = Duration::from_millis(1000);

/// A held run of `key` in a server that is stopped then, and its client's answer to come.
async fn stall(site: &Site, redis: &RedisServer) -> (Server, JoinHandle<Answer>) {
    let mut server = site.server(&redis.url());
    let address = server.address;
    let answer =
        tokio::spawn(async move { address.send(&json!({ "id": "key", "held": true })).await });
    server.wait_for_start("key");
    server.signal(Signal::SIGSTOP);
    (server, answer)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stalled_owner_that_was_overtaken_is_fenced_off_and_its_client_gets_the_winners_answer() {
    let redis = RedisServer::start().await;
    let site = Site::new().lease(LEASE).rerun();
    let (mut stalled, answer) = stall(&site, &redis).await;
    let other = site.server(&redis.url());
    let won = other.address.deliver_until_final(&json!({ "id": "key" }), LEASE + SLACK).await;

    stalled.signal(Signal::SIGCONT);
    stalled.address.go("key").await;
    let answer = answer.await.unwrap();
    assert_eq!((answer.replayed, &answer.body), (true, &won.body));
    let line = stalled.wait_for_line("storing the answer");
    assert!(line.starts_with("ERROR fenced off"), "{line}");

    let runs = site.runs();
    let [first, second] = runs.of("key") else { panic!("{:?}", runs.of("key")) };
    assert_eq!((first.process, second.process), (stalled.id(), other.id()));
    assert!(second.fence > first.fence && second.previous == "AbandonedUnknown");
    assert!(runs.has_ended(first) && won.body == second.text);
    assert_records_are_of(&runs, &redis).await;
    stalled.stop();
    other.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stalled_owner_that_ends_before_the_one_that_overtook_it_gives_its_own_answer() {
    let redis = RedisServer::start().await;
    let site = Site::new().lease(LEASE).rerun();
    let (mut stalled, answer) = stall(&site, &redis).await;
    let other = site.server(&redis.url());
    let address = other.address;
    let second = tokio::spawn(async move {
        let run = json!({ "id": "key", "held": true });
        address.deliver_until_final(&run, LEASE + SLACK).await
    });
    other.wait_for_start("key");

    stalled.signal(Signal::SIGCONT);
    stalled.address.go("key").await;
    let first = answer.await.unwrap();
    assert!(first.is_final() && !first.replayed, "nothing else is known yet: {first:?}");
    stalled.wait_for_line("ERROR fenced off");
    other.address.go("key").await;
    let second = second.await.unwrap();
    assert_ne!(first.body, second.body);

    // Whoever owns the record has the last word, though the other goes on offering its answer.
    assert_eq!(stalled.address.deliver("key").await.body, second.body);
    stalled.stop();
    assert_eq!(other.address.deliver("key").await.body, second.body);
    assert_records_are_of(&site.runs(), &redis).await;
    other.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stalled_owner_has_the_last_word_when_the_one_that_overtook_it_dies() {
    let redis = RedisServer::start().await;
    let site = Site::new().lease(LEASE).rerun();
    let (mut stalled, answer) = stall(&site, &redis).await;
    let mut other = site.server(&redis.url());
    let address = other.address;
    tokio::spawn(async move {
        let run = json!({ "id": "key", "held": true });
        while address.try_send("/run", &run).await.is_some() {
            sleep(Duration::from_millis(25)).await;
        }
    });
    other.wait_for_start("key");
    stalled.signal(Signal::SIGCONT);
    stalled.address.go("key").await;
    let answer = answer.await.unwrap();
    stalled.wait_for_line("storing the answer");
    other.kill();

    // Its answer is offered until the record is completed. Nobody delivers meanwhile, since that
    // would run it once more.
    let until = Instant::now() + LEASE + Duration::from_secs(5) + SLACK;
    while records(&redis).await[0].state != State::Completed {
        assert!(Instant::now() < until, "it is known what came of it, and not stored");
        sleep(Duration::from_millis(50)).await;
    }
    let replay = stalled.address.deliver("key").await;
    assert_eq!((replay.replayed, replay.body), (true, answer.body));
    assert_eq!(site.runs().of("key").len(), 2);
    stalled.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stalled_owner_that_nobody_may_overtake_completes_after_all() {
    let redis = RedisServer::start().await;
    let site = Site::new().lease(LEASE);
    let (mut stalled, answer) = stall(&site, &redis).await;
    let other = site.server(&redis.url());
    other.address.deliver_until_refused("key", "outcome_unknown", LEASE + SLACK).await;

    stalled.signal(Signal::SIGCONT);
    stalled.address.go("key").await;
    let answer = answer.await.unwrap();
    assert!(answer.is_final() && !answer.replayed, "{answer:?}");
    let replay = other.address.deliver("key").await;
    assert_eq!((replay.replayed, replay.body), (true, answer.body));
    site.runs().assert_each_once();
    assert_records_are_of(&site.runs(), &redis).await;
    stalled.stop();
    other.stop();
}
