//! Connections that die in silence, and a server that stays away: found out without anybody asking,
//! refused at once, and back by itself.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use tokio::time::{sleep, timeout};
use tower_idempotency::{
    RedisStore, Store, StoreError,
    store::{
        Claimed, RedisCommand, RedisConnection, RedisTrouble, RedisValue, StoreErrorKind, Written,
    },
};
use tower_idempotency_test_support::{Log, Proxy, RedisServer};

use crate::support::{
    claim, claim_until_granted, granted, kept, new_key, server_and_store, short_claim,
};

const MS: Duration = Duration::from_millis(1);
/// By itself it is replaced within 5 s; some more for a machine that is busy.
const REPLACED_WITHIN: Duration = Duration::from_secs(7);

async fn behind_a_proxy() -> (RedisServer, Proxy, RedisStore) {
    let server = RedisServer::start().await;
    let proxy = Proxy::to(server.address()).await;
    let store = RedisStore::connect(&proxy.redis_url()).await.expect("the proxy forwards");
    granted(store.claim(claim(new_key())).await);
    (server, proxy, store)
}

#[tokio::test]
async fn callers_with_a_shorter_patience_than_the_store_find_a_dead_connection_too() {
    let (_server, proxy, store) = behind_a_proxy().await;
    let store = store.call_within(700 * MS);
    let started = Instant::now();
    proxy.swallow_replies(usize::MAX);
    // Like the layer: its own limit ends just before the store's, and drops the call.
    for _ in 0..3 {
        let call = timeout(450 * MS, store.claim(claim(new_key()))).await;
        assert!(call.is_err(), "{call:?}");
    }
    // Before the silence of the connection could have been noticed, which takes three seconds and a half.
    proxy.wait_until(|counts| counts.connections == 2).await;
    assert!(started.elapsed() < Duration::from_millis(3000), "{:?}", started.elapsed());
    proxy.heal();
    claim_until_granted(&store, &claim(new_key())).await;
}

#[tokio::test]
async fn callers_who_leave_at_once_say_nothing_about_a_connection() {
    let (_server, proxy, store) = behind_a_proxy().await;
    proxy.hold_replies();
    for _ in 0..10 {
        assert!(timeout(20 * MS, store.claim(claim(new_key()))).await.is_err());
    }
    proxy.heal();
    granted(store.claim(claim(new_key())).await);
    assert_eq!(proxy.counts().connections, 1);
}

#[tokio::test]
async fn a_dead_connection_that_nobody_uses_is_replaced_before_somebody_needs_it() {
    let (_server, proxy, store) = behind_a_proxy().await;
    let started = Instant::now();
    proxy.swallow_replies(usize::MAX);
    proxy.wait_until(|counts| counts.connections >= 2).await;
    assert!(started.elapsed() < REPLACED_WITHIN, "{:?}", started.elapsed());
    proxy.heal();
    claim_until_granted(&store, &claim(new_key())).await;
}

#[tokio::test]
async fn a_broken_connection_that_nobody_uses_is_made_again() {
    let (_server, proxy, store) = behind_a_proxy().await;
    proxy.cut().await;
    proxy.wait_until(|counts| counts.connections == 2).await;
    // Its first user has no error.
    sleep(100 * MS).await;
    granted(store.claim(claim(new_key())).await);
}

#[tokio::test]
async fn a_quiet_connection_that_lives_is_left_alone() {
    let (_server, proxy, store) = behind_a_proxy().await;
    let before = proxy.counts().replies;
    proxy.wait_until(|counts| counts.replies > before + 1).await;
    granted(store.claim(claim(new_key())).await);
    assert_eq!(proxy.counts().connections, 1);
}

#[tokio::test]
async fn when_the_address_leads_to_a_new_primary_its_demoted_node_is_left_within_seconds() {
    let (old, proxy, store) = behind_a_proxy().await;
    let new = RedisServer::start().await;
    // What a managed service does: the old one stays up, as a replica, and its connections with it.
    proxy.lead_to(new.address());
    old.command(&["REPLICAOF", "127.0.0.1", &new.address().port().to_string()]).await;
    let started = Instant::now();
    claim_until_granted(&store, &short_claim(new_key())).await;
    assert!(started.elapsed() < REPLACED_WITHIN);
}

/// Calls until it is refused at once.
async fn until_suspended(store: &RedisStore) -> StoreError {
    let started = Instant::now();
    loop {
        match store.claim(claim(new_key())).await {
            Err(error) if error.is_suspended() => return error,
            other => assert!(started.elapsed() < Duration::from_secs(20), "still: {other:?}"),
        }
        sleep(20 * MS).await;
    }
}

async fn a_server_that_is_away_is_waited_for_by_nobody(fault: impl FnOnce(&Proxy)) {
    let (log, _guard) = Log::listen();
    let (_server, proxy, store) = behind_a_proxy().await;
    let store = store.call_within(300 * MS);
    fault(&proxy);
    proxy.cut().await;
    let started = Instant::now();
    let error = until_suspended(&store).await;
    assert!(started.elapsed() >= Duration::from_secs(2), "a blip refuses nobody at once");
    assert!(error.to_string().contains("127.0.0.1"), "{error}");
    assert!(error.retry_after().is_some());
    assert_eq!(log.of("store suspended").len(), 1, "{:?}", log.all());

    // A thousand requests a second, and none waits for the server or makes it more attempts.
    let attempts = || proxy.counts().connections + proxy.counts().refused;
    let (before, started, mut slowest) = (attempts(), Instant::now(), Duration::ZERO);
    for _ in 0..1000 {
        let asked = Instant::now();
        let error = store.claim(claim(new_key())).await.unwrap_err();
        slowest = slowest.max(asked.elapsed());
        assert!(error.is_suspended(), "{error}");
        sleep(MS).await;
    }
    assert!(slowest < 150 * MS, "{slowest:?}");
    let most = 2 + (started.elapsed().as_millis() / 500) as usize;
    assert!(attempts() - before <= most, "{} attempts", attempts() - before);

    // Back by itself, with nobody calling.
    proxy.heal();
    let before = proxy.counts().replies;
    proxy.wait_until(|counts| counts.replies > before).await;
    sleep(200 * MS).await;
    granted(store.claim(claim(new_key())).await);
    assert_eq!(log.of("store back").len(), 1, "{:?}", log.all());
    granted(store.claim(claim(new_key())).await);
}

#[tokio::test]
async fn a_server_that_refuses_connections_is_waited_for_by_nobody() {
    a_server_that_is_away_is_waited_for_by_nobody(Proxy::refuse).await;
}

#[tokio::test]
async fn a_server_that_is_mute_is_waited_for_by_nobody() {
    a_server_that_is_away_is_waited_for_by_nobody(Proxy::black_hole).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contention_on_a_key_is_no_failure() {
    let (_server, store) = server_and_store().await;
    let key = new_key();
    granted(store.claim(claim(key)).await);
    let until = Instant::now() + Duration::from_millis(2500);
    while Instant::now() < until {
        let asked: Vec<_> = (0..20)
            .map(|_| {
                let store = store.clone();
                tokio::spawn(async move { store.claim(claim(key)).await })
            })
            .collect();
        for answer in asked {
            let answer = answer.await.unwrap();
            assert!(matches!(answer, Ok(Claimed::InProgress(_))), "{answer:?}");
        }
    }
}

#[tokio::test]
async fn refusals_of_a_server_that_is_there_suspend_nothing() {
    let (server, store) = server_and_store().await;
    let grant = granted(store.claim(claim(new_key())).await);
    store.complete(&grant, kept("done")).await.unwrap();
    server.command(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let until = Instant::now() + Duration::from_millis(2500);
    while Instant::now() < until {
        let error = store.claim(claim(new_key())).await.unwrap_err();
        assert!(error.is_refused(), "{error}");
        // What is stored is answered all the while.
        assert!(matches!(store.claim(claim(grant.key)).await, Ok(Claimed::Completed(_))));
        sleep(5 * MS).await;
    }
}

#[tokio::test]
async fn a_store_that_is_away_for_long_keeps_nothing_of_the_calls_it_refused() {
    let (_server, proxy, store) = behind_a_proxy().await;
    let store = store.call_within(100 * MS);
    proxy.refuse();
    proxy.cut().await;
    until_suspended(&store).await;
    let resident = || {
        let status = std::fs::read_to_string("/proc/self/statm").unwrap();
        status.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
    };
    let calls = |count| {
        let store = store.clone();
        async move {
            for i in 0..count {
                assert!(store.claim(claim(new_key())).await.is_err());
                if i % 100 == 0 {
                    tokio::task::yield_now().await;
                }
            }
        }
    };
    calls(20_000).await;
    let before = resident();
    calls(100_000).await;
    let grown = resident().saturating_sub(before);
    // Other tests run in this process too; a hundred bytes a call would be 10 MB.
    assert!(grown < 8 << 20, "{grown} bytes");
}

/// A connection of the program's, which says what it was told of it.
struct Own {
    proxy: String,
    connection: tokio::sync::Mutex<Option<crate::support::Connection>>,
    reports: Arc<AtomicUsize>,
    read_only: Arc<AtomicUsize>,
    short: bool,
}

impl RedisConnection for Own {
    async fn send(&self, commands: Vec<RedisCommand>) -> Result<Vec<RedisValue>, StoreError> {
        let broken = |error: tower_idempotency_test_support::redis::RedisError| {
            StoreError::new(StoreErrorKind::Unreachable, error.to_string())
        };
        let mut there = self.connection.lock().await;
        if there.is_none() {
            *there = Some(crate::support::connect(&self.proxy).await.map_err(broken)?);
        }
        let connection = there.clone().expect("just made");
        drop(there);
        let mut answers = crate::support::send_raw(connection, &commands).await.map_err(broken)?;
        if self.short {
            answers.pop();
        }
        Ok(answers)
    }

    fn report(&self, trouble: RedisTrouble) {
        self.reports.fetch_add(1, SeqCst);
        if trouble == RedisTrouble::ReadOnly {
            self.read_only.fetch_add(1, SeqCst);
        }
        *self.connection.try_lock().expect("nobody connects") = None;
    }
}

fn own(proxy: &Proxy, short: bool) -> (RedisStore, Arc<AtomicUsize>, Arc<AtomicUsize>) {
    let (reports, read_only) = (Arc::default(), Arc::default());
    let own = Own {
        proxy: proxy.redis_url(),
        connection: tokio::sync::Mutex::new(None),
        reports: Arc::clone(&reports),
        read_only: Arc::clone(&read_only),
        short,
    };
    (RedisStore::over(own), reports, read_only)
}

#[tokio::test]
async fn a_connection_of_the_programs_own_is_used_and_its_owner_told_when_it_is_no_good() {
    let server = RedisServer::start().await;
    let proxy = Proxy::to(server.address()).await;
    let (store, reports, read_only) = own(&proxy, false);
    let grant = granted(store.claim(claim(new_key())).await);
    assert_eq!(store.complete(&grant, kept("done")).await.unwrap(), Written::Stored);
    assert_eq!(reports.load(SeqCst), 0);

    proxy.cut().await;
    let _ = store.renew(&grant).await;
    claim_until_granted(&store, &claim(new_key())).await;
    assert_eq!(reports.load(SeqCst), 1);

    server.command(&["REPLICAOF", "127.0.0.1", "1"]).await;
    store.claim(claim(new_key())).await.unwrap_err();
    assert_eq!((reports.load(SeqCst), read_only.load(SeqCst)), (2, 1));
    server.command(&["REPLICAOF", "NO", "ONE"]).await;
    claim_until_granted(&store, &short_claim(new_key())).await;
}

#[tokio::test]
async fn an_adapter_that_loses_an_answer_is_an_error_and_no_grant() {
    let server = RedisServer::start().await;
    let proxy = Proxy::to(server.address()).await;
    let (store, ..) = own(&proxy, true);
    let error = store.claim(claim(new_key())).await.unwrap_err();
    assert!(error.is_garbled(), "{error}");
    assert!(error.to_string().contains("adapter"), "{error}");
}
