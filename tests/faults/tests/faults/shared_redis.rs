//! Several processes and one Redis: whoever gets a delivery, each key is run once.

use std::{collections::HashSet, sync::Arc, time::Duration};

use serde_json::json;
use tokio::{sync::Semaphore, task::JoinSet};
use tower_idempotency_test_support::RedisServer;

use crate::site::{Address, Answer, Site, assert_records_are_of, times};

/// Delivers each key five times at once, spread over the servers; the answers by key.
async fn deliver_all(keys: u32, servers: [Address; 2]) -> Vec<(String, Vec<Answer>)> {
    // What is open at once; 1,000 connections would measure the machine.
    let at_once = Arc::new(Semaphore::new(60));
    let mut deliveries = JoinSet::new();
    for key in 0..keys {
        let permit = at_once.clone().acquire_owned().await.unwrap();
        deliveries.spawn(async move {
            let id = format!("key-{key}");
            let mut answers = JoinSet::new();
            for delivery in 0..5 {
                let server = servers[(key as usize + delivery) % 2];
                let run = json!({ "id": id, "takes_ms": 20 });
                let within = Duration::from_secs(30);
                answers.spawn(async move { server.deliver_until_final(&run, within).await });
            }
            let answers = answers.join_all().await;
            drop(permit);
            (id, answers)
        });
    }
    deliveries.join_all().await
}

#[tokio::test(flavor = "multi_thread")]
async fn five_deliveries_at_once_over_two_processes_run_once_and_all_get_the_same_answer() {
    let redis = RedisServer::start().await;
    let site = Site::new();
    let servers = [site.server(&redis.url()), site.server(&redis.url())];
    let keys = 200 * times();
    let answers = deliver_all(keys, [servers[0].address, servers[1].address]).await;

    let runs = site.runs();
    assert_eq!(runs.started.len(), keys as usize);
    runs.assert_each_once();
    for (id, answers) in &answers {
        let run = runs.only(id);
        assert!(runs.has_ended(&run));
        assert_eq!(answers.len(), 5);
        assert!(answers.iter().all(|answer| answer.body == run.text), "{run:?}: {answers:?}");
        assert_eq!(answers.iter().filter(|answer| !answer.replayed).count(), 1, "{answers:?}");
    }
    // Both took part, or it was no test of two.
    let ran: HashSet<_> = runs.started.values().map(|runs| runs[0].process).collect();
    assert_eq!(ran, HashSet::from([servers[0].id(), servers[1].id()]));
    assert_records_are_of(&runs, &redis).await;
    servers.into_iter().for_each(crate::site::Server::stop);
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_with_different_prefixes_share_nothing_and_each_runs_a_key() {
    let redis = RedisServer::start().await;
    let site = Site::new();
    let one = site.server_with_prefix(&redis.url(), "one");
    let other = site.server_with_prefix(&redis.url(), "other");
    let answers = deliver_all(10, [one.address, other.address]).await;
    let runs = site.runs();
    for (id, answers) in &answers {
        assert_eq!(runs.of(id).len(), 2, "two runs are seen as two");
        let bodies: HashSet<_> = answers.iter().map(|answer| &answer.body).collect();
        assert_eq!(bodies.len(), 2);
    }
}
