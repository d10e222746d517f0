//! What is counted of a server that stays away or loses what it had, with a recorder of the test's own.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, Key, KeyName, Metadata, Recorder, SharedString,
    Unit, set_default_local_recorder,
};
use tokio::time::sleep;
use tower_idempotency::{RedisStore, Store};
use tower_idempotency_test_support::{Proxy, RedisServer};

use crate::{
    loss::until,
    support::{Value, claim, granted, new_key, short_claim},
};

const SUSPENDED: &str = "idempotency_store_suspended";
const RECORDS_LOST: &str = "idempotency_records_lost_total";

/// The values of all counters and gauges, by their names.
#[derive(Clone, Debug, Default)]
struct Seen(Arc<Mutex<BTreeMap<String, Arc<Sum>>>>);

#[derive(Debug, Default)]
struct Sum(Mutex<f64>);

impl Seen {
    fn of(&self, key: &Key) -> Arc<Sum> {
        self.0.lock().unwrap().entry(key.name().to_owned()).or_default().clone()
    }

    /// Nothing has been said of it yet, or what it is.
    fn value(&self, name: &str) -> f64 {
        self.0.lock().unwrap().get(name).map_or(0.0, |sum| *sum.0.lock().unwrap())
    }
}

impl CounterFn for Sum {
    fn increment(&self, by: u64) {
        *self.0.lock().unwrap() += by as f64;
    }
    fn absolute(&self, _: u64) {
        panic!("only increments are expected");
    }
}

impl GaugeFn for Sum {
    fn increment(&self, by: f64) {
        *self.0.lock().unwrap() += by;
    }
    fn decrement(&self, by: f64) {
        *self.0.lock().unwrap() -= by;
    }
    fn set(&self, _: f64) {
        panic!("several stores share a gauge");
    }
}

impl Recorder for Seen {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.of(key))
    }
    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.of(key))
    }
    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

/// Calls until this is so: a store that nobody calls has few failures.
async fn calling_until(store: &RedisStore, is_so: impl Fn() -> bool) {
    until(async || {
        let _ = store.claim(claim(new_key())).await;
        is_so()
    })
    .await;
}

#[tokio::test]
async fn a_server_that_is_asked_no_more_is_counted_until_it_is_back_or_its_store_is_gone() {
    let seen = Seen::default();
    let _guard = set_default_local_recorder(&seen);
    let server = RedisServer::start().await;
    let proxy = Proxy::to(server.address()).await;
    let stores = [(); 2].map(|()| {
        let store = RedisStore::lazy(&proxy.redis_url()).unwrap();
        store.call_within(Duration::from_millis(300))
    });
    for store in &stores {
        granted(store.claim(claim(new_key())).await);
    }
    assert_eq!(seen.value(SUSPENDED), 0.0);
    proxy.refuse();
    proxy.cut().await;
    calling_until(&stores[0], || seen.value(SUSPENDED) == 1.0).await;
    calling_until(&stores[1], || seen.value(SUSPENDED) == 2.0).await;
    let [one, other] = stores;
    drop(other);
    until(async || seen.value(SUSPENDED) == 1.0).await;
    proxy.heal();
    calling_until(&one, || seen.value(SUSPENDED) == 0.0).await;
    granted(one.claim(claim(new_key())).await);
    assert_eq!(seen.value(SUSPENDED), 0.0);
}

#[tokio::test]
async fn records_that_are_lost_are_counted_once_and_seen_within_seconds() {
    let seen = Seen::default();
    let _guard = set_default_local_recorder(&seen);
    let server = RedisServer::start().await;
    let store = RedisStore::lazy(&server.url()).unwrap();
    granted(store.claim(short_claim(new_key())).await);
    let has_canary =
        async || server.command(&["EXISTS", "idempotency:canary"]).await == Value::Int(1);
    until(has_canary).await;
    sleep(Duration::from_millis(200)).await;
    assert_eq!(seen.value(RECORDS_LOST), 0.0);
    server.command(&["FLUSHALL"]).await;
    let flushed = std::time::Instant::now();
    until(async || seen.value(RECORDS_LOST) > 0.0).await;
    // Within 5 s, and what busy cores add.
    assert!(flushed.elapsed() < Duration::from_millis(7500), "{:?}", flushed.elapsed());
    // It is looked at again, and is the same loss.
    until(has_canary).await;
    sleep(Duration::from_secs(6)).await;
    assert_eq!(seen.value(RECORDS_LOST), 1.0);
}
