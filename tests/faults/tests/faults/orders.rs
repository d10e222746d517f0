//! Several processes and one Redis, and a sender that makes new delivery ids for the same order.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use rand::seq::SliceRandom;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tower_idempotency::State;
use tower_idempotency_test_support::RedisServer;

use crate::site::{Answer, SLACK, Server, Site, assert_records_are_of, records};

const ORDERS: usize = 50;
const IDS: usize = 5;
const DELIVERIES: usize = 5;
const WITHIN: Duration = Duration::from_secs(60);

fn delivery(order: usize, id: usize) -> Value {
    json!({ "id": format!("n-{order}-{id}"), "order": format!("o-{order}"), "takes_ms": 5 })
}

/// Every order under every id, so often, in no order.
fn deliveries() -> Vec<(usize, usize)> {
    let ids = (0..ORDERS).flat_map(|order| (0..IDS).map(move |id| (order, id)));
    let mut all: Vec<_> = ids.flat_map(|one| [one; DELIVERIES]).collect();
    assert_eq!(all.len(), 1250);
    all.shuffle(&mut rand::rng());
    all
}

/// Each order was run once, and all its deliveries were told of that run.
async fn assert_each_order_once(
    site: &Site,
    redis: &RedisServer,
    answers: Vec<(usize, Answer)>,
    servers: &[Server],
) {
    let runs = site.runs();
    runs.assert_each_once();
    assert_eq!(runs.started.len(), ORDERS);
    let mut heard: HashMap<usize, usize> = HashMap::new();
    for (order, answer) in &answers {
        assert_eq!(answer.body, runs.only(&format!("o-{order}")).text);
        *heard.entry(*order).or_default() += 1;
    }
    assert_eq!(heard.len(), ORDERS);
    assert!(heard.values().all(|heard| *heard == IDS * DELIVERIES));
    assert_eq!(answers.iter().filter(|(_, answer)| !answer.replayed).count(), ORDERS);
    // Both took part, or it was no test of two.
    let ran: HashSet<_> = runs.started.values().map(|runs| runs[0].process).collect();
    assert_eq!(ran, servers.iter().map(Server::id).collect());
    assert_records_are_of(&runs, redis).await;
    let records = records(redis).await;
    let aliases = records.iter().filter(|record| record.state == State::Alias).count();
    assert_eq!(aliases, ORDERS * IDS);
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_orders_under_five_ids_delivered_at_once_to_two_processes_are_fifty_runs() {
    let redis = RedisServer::start().await;
    let site = Site::new().orders();
    let servers = [site.server(&redis.url()), site.server(&redis.url())];
    let mut all = deliveries().into_iter().enumerate();
    let mut under_way = JoinSet::new();
    let mut answers = Vec::new();
    loop {
        // More at once would measure the machine.
        while under_way.len() < 100
            && let Some((number, (order, id))) = all.next()
        {
            let address = servers[number % 2].address;
            under_way.spawn(async move {
                (order, address.deliver_until_final(&delivery(order, id), WITHIN).await)
            });
        }
        match under_way.join_next().await {
            Some(answer) => answers.push(answer.unwrap()),
            None => break,
        }
    }
    assert_each_order_once(&site, &redis, answers, &servers).await;
    servers.into_iter().for_each(Server::stop);
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_orders_under_five_ids_delivered_in_sequence_are_fifty_runs() {
    let redis = RedisServer::start().await;
    let site = Site::new().orders();
    let servers = [site.server(&redis.url()), site.server(&redis.url())];
    let mut answers = Vec::new();
    for (number, (order, id)) in deliveries().into_iter().enumerate() {
        let answer = servers[number % 2].address.send(&delivery(order, id)).await;
        assert!(answer.is_final(), "nothing else is under way: {answer:?}");
        answers.push((order, answer));
    }
    assert_each_order_once(&site, &redis, answers, &servers).await;
    servers.into_iter().for_each(Server::stop);
}

/// Its process is killed in the middle of it.
#[tokio::test(flavor = "multi_thread")]
async fn an_order_whose_process_died_is_refused_under_every_id_or_run_once_more() {
    for rerun in [false, true] {
        let redis = RedisServer::start().await;
        let lease = Duration::from_millis(1500);
        let mut site = Site::new().orders().lease(lease);
        if rerun {
            site = site.rerun();
        }
        let (mut dies, lives) = (site.server(&redis.url()), site.server(&redis.url()));
        let mut held = delivery(0, 0);
        held["held"] = json!(true);
        let address = dies.address;
        tokio::spawn(async move { address.try_send("/run", &held).await });
        dies.wait_for_start("n-0-0");
        dies.kill();

        let mut under_way = JoinSet::new();
        for id in 0..IDS {
            let address = lives.address;
            under_way.spawn(async move {
                let (run, within) = (delivery(0, id), lease + SLACK);
                if rerun {
                    return Some(address.deliver_until_final(&run, within).await);
                }
                address.send_until_refused(&run, "outcome_unknown", within).await;
                None
            });
        }
        let answers = under_way.join_all().await;
        let runs = site.runs();
        match (rerun, runs.of("o-0")) {
            (false, [killed]) => assert!(!runs.has_ended(killed)),
            (true, [_, again]) => {
                assert_eq!((again.attempt, again.previous.as_str()), (2, "AbandonedUnknown"));
                for answer in answers.iter().flatten() {
                    assert_eq!(answer.body, again.text);
                }
                assert_eq!(answers.iter().flatten().count(), IDS);
            }
            (_, ran) => panic!("{ran:?}"),
        }
        lives.stop();
    }
}
