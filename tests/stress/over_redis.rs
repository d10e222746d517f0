//! Over one real Redis, with two connections that are cut, held and answered late.

use std::{sync::Arc, time::Duration};

use tokio::{task::JoinHandle, time::sleep};
use tower_idempotency::RedisStore;
use tower_idempotency_test_support::{Proxy, RedisServer};

use crate::{
    chance::{Chance, seeds},
    client::World,
    plan::Plan,
};

/// Breaks what goes through the proxy, in one way after the other.
fn weather(proxy: Arc<Proxy>, chance: Chance, loses_replies: bool) -> JoinHandle<()> {
    tokio::spawn(async move {
        loop {
            proxy.heal();
            sleep(chance.up_to_ms(600)).await;
            match chance.below(7) {
                0 => proxy.hold_requests(),
                1 => proxy.hold_replies(),
                2 => proxy.delay_replies(chance.up_to_ms(400)),
                3 => proxy.cut_at_reply(),
                4 => {
                    proxy.refuse();
                    proxy.cut().await;
                }
                // From here on the replies of this connection are another's.
                5 if loses_replies => proxy.swallow_replies(1),
                _ => {}
            }
            sleep(chance.up_to_ms(800)).await;
        }
    })
}

async fn run(seed: u64, loses_replies: bool) {
    let chance = Chance::new(seed);
    let mut plan = Plan::new(&chance, &[Duration::from_millis(400), Duration::from_secs(1)]);
    // A busy machine is bad weather of its own.
    plan.storm = plan.storm.max(1);
    let server = RedisServer::start().await;
    let mut proxies = Vec::new();
    let mut ways = Vec::new();
    for _ in 0..2 {
        let proxy = Arc::new(Proxy::to(server.address()).await);
        ways.push(RedisStore::lazy(&proxy.redis_url()).expect("a URL"));
        proxies.push(proxy);
    }
    let world = World::new(seed, plan, ways);
    let weathers: Vec<_> =
        proxies.iter().map(|proxy| weather(proxy.clone(), chance.clone(), loses_replies)).collect();
    world.storm(150, Duration::from_secs(5)).await;
    for weather in weathers {
        weather.abort();
        let _ = weather.await;
    }
    for proxy in &proxies {
        proxy.heal();
        if loses_replies {
            proxy.refuse();
            proxy.cut().await;
            proxy.heal();
        }
    }
    sleep(plan.lease * 3 + Duration::from_secs(5)).await;
    assert!(world.journal.count() > 0, "and a lot happened");
    let store = RedisStore::connect(&server.url()).await.expect("it runs");
    world.look_around(&store, Duration::from_secs(20)).await;
    world.assert_nothing_wrong();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_the_network_does_nothing_happens_that_must_not() {
    for seed in seeds(2) {
        run(seed, false).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_that_are_another_calls_tell_nobody_anything() {
    for seed in seeds(2) {
        run(seed, true).await;
    }
}
