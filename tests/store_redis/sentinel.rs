//! A primary that sentinels name: found, followed through failovers, and only if it is one.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    time::sleep,
};
use tower_idempotency::{
    RedisStore, Store,
    store::{Claimed, RedisServers, Written},
};
use tower_idempotency_test_support::{RedisServer, Sentinels};

use crate::support::{
    HOLD, Value, claim, claim_until_granted, completed, granted, kept, name, new_key, short_claim,
    until_done,
};

/// A primary, a replica of it, and sentinels over both.
pub(crate) struct Site {
    servers: [RedisServer; 2],
    pub(crate) sentinels: Sentinels,
}

impl Site {
    pub(crate) async fn new() -> Self {
        let quick = |builder: tower_idempotency_test_support::RedisBuilder| {
            builder
                .argument("--repl-diskless-sync-delay", "0")
                .argument("--min-replicas-max-lag", "2")
        };
        let primary = quick(RedisServer::builder()).start().await;
        let replica = quick(RedisServer::builder()).replica_of(&primary).start().await;
        let sentinels = Sentinels::of(&primary).await;
        Self { servers: [primary, replica], sentinels }
    }

    pub(crate) fn store(&self) -> RedisStore {
        let urls = self.sentinels.urls();
        let primary = format!("redis://{}", Sentinels::NAME);
        let servers = RedisServers::sentinel(urls.iter().map(String::as_str), &primary).unwrap();
        RedisStore::of(servers).unwrap()
    }

    fn at(&self, address: SocketAddr) -> &RedisServer {
        self.servers.iter().find(|server| server.address() == address).expect("one of the two")
    }
}

/// Claims until one is granted; the whole of a failover and what the store waits for after it.
async fn until_granted(store: &RedisStore) -> (tower_idempotency::Grant, Duration) {
    let started = Instant::now();
    loop {
        match store.claim(short_claim(new_key())).await {
            Ok(Claimed::Granted(grant)) => return (grant, started.elapsed()),
            other => assert!(started.elapsed() < Duration::from_secs(20), "still: {other:?}"),
        }
        sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_dies_is_followed_to_its_successor_with_what_was_stored() {
    let mut site = Site::new().await;
    let store = site.store();
    let grant = granted(store.claim(claim(new_key())).await);
    store.complete(&grant, kept("done")).await.unwrap();
    let held = granted(store.claim(claim(new_key())).await);
    let replicated = site.servers[0].command(&["WAIT", "1", "1000"]).await;
    assert_eq!(replicated, Value::Int(1));
    let before = site.sentinels.primary().await;
    site.servers[0].kill();
    site.sentinels.wait_for_another_than(before).await;
    let (_, took) = until_granted(&store).await;
    // The failover is over; what is left is to connect, and a second in which owners come back.
    assert!(took < Duration::from_secs(7), "{took:?}");
    assert_eq!(completed(store.claim(claim(grant.key)).await), b"done");
    assert_eq!(store.complete(&held, kept("late")).await.unwrap(), Written::Stored);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_is_replaced_while_it_lives_is_left_before_it_has_to_refuse() {
    let site = Site::new().await;
    let store = site.store();
    granted(store.claim(claim(new_key())).await);
    let old = site.sentinels.primary().await;
    site.sentinels.fail_over().await;
    let named = Instant::now();
    let new = site.sentinels.primary().await;
    assert_ne!(old, new);
    // The old one may take writes for ten seconds. From when on is none of ours among them?
    loop {
        let asked = short_claim(new_key());
        if let Ok(Claimed::Granted(grant)) = store.claim(asked).await {
            let found = site.at(new).command(&["EXISTS", &name(grant.key)]).await;
            if found == Value::Int(1) {
                break;
            }
        }
        assert!(named.elapsed() < Duration::from_secs(6), "it still grants at the old one");
        sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failovers_under_load_run_each_key_once() {
    let site = Site::new().await;
    let stores = [site.store(), site.store()];
    for store in &stores {
        granted(store.claim(claim(new_key())).await);
    }
    let over = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..8)
        .map(|_| {
            let (stores, over) = (stores.clone(), over.clone());
            tokio::spawn(async move {
                let mut keys = 0;
                while !over.load(SeqCst) {
                    let key = new_key();
                    let [one, other] = stores.clone();
                    let runs = tokio::join!(
                        tokio::spawn(until_done(one, key)),
                        tokio::spawn(until_done(other, key))
                    );
                    assert_eq!(runs.0.unwrap() + runs.1.unwrap(), 1, "{key:?}");
                    keys += 1;
                    sleep(Duration::from_millis(5)).await;
                }
                keys
            })
        })
        .collect();
    sleep(Duration::from_millis(500)).await;
    site.sentinels.fail_over().await;
    // The old one lives and is demoted only some seconds later.
    sleep(Duration::from_secs(4)).await;
    over.store(true, SeqCst);
    let mut keys = 0;
    for client in clients {
        keys += client.await.unwrap();
    }
    assert!(keys > 50, "{keys}");
}

#[tokio::test]
async fn a_name_that_no_sentinel_knows_and_sentinels_that_are_gone_are_errors_that_say_so() {
    let site = Site::new().await;
    let urls = site.sentinels.urls();
    let of = |urls: Vec<&str>, name: &str| {
        RedisStore::of(RedisServers::sentinel(urls, name).unwrap()).unwrap()
    };
    let unknown = of(urls.iter().map(String::as_str).collect(), "redis://other");
    let error = unknown.claim(claim(new_key())).await.unwrap_err();
    assert!(error.is_unreachable(), "{error:?}");
    assert!(
        error.to_string().contains("other") && error.to_string().contains("knows none"),
        "{error}"
    );
    let gone = of(vec!["redis://127.0.0.1:1"], "redis://main");
    let error = gone.claim(claim(new_key())).await.unwrap_err();
    assert!(error.to_string().contains("127.0.0.1:1"), "{error}");
    // One that is gone among others costs nothing.
    let mut some: Vec<&str> = urls.iter().map(String::as_str).collect();
    some.insert(0, "redis://127.0.0.1:1");
    granted(of(some, "redis://main").claim(claim(new_key())).await);
    assert!(RedisServers::sentinel([], "redis://main").is_err());
}

/// Says that this server is the primary of this epoch, whatever it is asked.
async fn saying(primary: SocketAddr, epoch: u64) -> (String, tokio::task::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    let words = [
        "ip",
        "127.0.0.1",
        "port",
        &primary.port().to_string(),
        "config-epoch",
        &epoch.to_string(),
    ];
    let mut answer = format!("*{}\r\n", words.len());
    for word in words {
        answer += &format!("${}\r\n{word}\r\n", word.len());
    }
    let serving = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let answer = answer.clone();
            tokio::spawn(async move {
                let mut unread = [0; 1024];
                while let Ok(1..) = stream.read(&mut unread).await {
                    if stream.write_all(answer.as_bytes()).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    (url, serving)
}

#[tokio::test]
async fn a_server_that_is_named_and_is_a_replica_still_is_not_used() {
    let primary = RedisServer::start().await;
    let replica = RedisServer::builder().replica_of(&primary).start().await;
    let (url, _serving) = saying(replica.address(), 7).await;
    let store = RedisStore::of(RedisServers::sentinel([&*url], "redis://main").unwrap()).unwrap();
    let error = store.claim(claim(new_key())).await.unwrap_err();
    assert!(error.to_string().contains("replica still"), "{error}");
    // It is promoted at last.
    replica.command(&["REPLICAOF", "NO", "ONE"]).await;
    claim_until_granted(&store, &claim(new_key())).await;
}

#[tokio::test]
async fn a_sentinel_that_is_behind_the_others_is_not_believed() {
    let [old, new] = [RedisServer::start().await, RedisServer::start().await];
    let (behind, _one) = saying(old.address(), 3).await;
    let (newest, _two) = saying(new.address(), 4).await;
    for urls in [[&*behind, &*newest], [&*newest, &*behind]] {
        let store = RedisStore::of(RedisServers::sentinel(urls, "redis://main").unwrap()).unwrap();
        let grant = granted(store.claim(claim(new_key())).await);
        // It is asked each second, and stays.
        sleep(Duration::from_millis(2500)).await;
        assert_eq!(store.complete(&grant, kept("done")).await.unwrap(), Written::Stored);
        assert_eq!(new.command(&["EXISTS", &name(grant.key)]).await, Value::Int(1));
        assert_eq!(old.command(&["EXISTS", &name(grant.key)]).await, Value::Int(0));
    }
    assert!(HOLD > Duration::from_secs(5));
}
