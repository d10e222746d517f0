//! TLS where there are many servers: sentinels and what they name, and the nodes of a cluster, each with an
//! authority of one's own and certificates of clients.

use std::time::{Duration, Instant};

use tower_idempotency::{
    RedisStore, Store, StoreError,
    store::{Claimed, RedisServers, RedisTls},
};
use tower_idempotency_test_support::{Certificates, RedisCluster, RedisServer, Sentinels};

use crate::{
    cluster::{is_on, key_on},
    support::{Value, claim, completed, granted, kept, name, new_key, short_claim},
};

/// Who the program is, and whom it trusts.
struct Papers(Certificates);

impl Papers {
    fn authority(&self) -> RedisTls {
        RedisTls::authority(&self.0.read("ca.pem")).unwrap()
    }

    fn whole(&self) -> RedisTls {
        self.authority().client(&self.0.read("client.pem"), &self.0.read("client.key")).unwrap()
    }
}

/// Claims until it is granted.
async fn until_granted(store: &RedisStore, key: tower_idempotency::RecordKey) {
    let started = Instant::now();
    loop {
        match store.claim(short_claim(key)).await {
            Ok(Claimed::Granted(_)) => return,
            other => assert!(started.elapsed() < Duration::from_secs(20), "still: {other:?}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Whoever trusts another authority, or has no certificate or a stranger's, gets nowhere, and hears why.
async fn gets_nowhere(papers: &Papers, store: impl Fn(RedisTls) -> RedisStore) {
    let other = Papers(Certificates::new());
    let [theirs, stranger] = [
        other.whole(),
        papers
            .authority()
            .client(&other.0.read("client.pem"), &other.0.read("client.key"))
            .unwrap(),
    ];
    let ask = async |tls| -> StoreError {
        let started = Instant::now();
        let error = store(tls).claim(claim(new_key())).await.unwrap_err();
        assert!(started.elapsed() < Duration::from_secs(3), "{error}");
        error
    };
    let untrusted = ask(theirs).await;
    assert!(untrusted.to_string().contains("certificate"), "{untrusted}");
    for tls in [papers.authority(), stranger] {
        let refused = ask(tls).await;
        assert!(!refused.is_refused(), "it is no answer of Redis: {refused}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_and_the_primary_they_name_are_reached_by_tls_through_a_failover() {
    let papers = Papers(Certificates::new());
    let server =
        || RedisServer::builder().argument("--repl-diskless-sync-delay", "0").tls(&papers.0, "yes");
    let mut primary = server().start().await;
    let replica = server().replica_of(&primary).start().await;
    let sentinels = Sentinels::by_tls(&primary, &papers.0).await;
    let (urls, named) = (sentinels.tls_urls(), format!("rediss://{}", Sentinels::NAME));
    let of = |tls| {
        let servers = RedisServers::sentinel(urls.iter().map(String::as_str), &named).unwrap();
        RedisStore::of(servers.tls(tls)).unwrap()
    };
    gets_nowhere(&papers, of).await;
    let store = of(papers.whole());
    let grant = granted(store.claim(claim(new_key())).await);
    store.complete(&grant, kept("done")).await.unwrap();
    assert_eq!(primary.command(&["EXISTS", &name(grant.key)]).await, Value::Int(1));
    assert_eq!(primary.command(&["WAIT", "1", "5000"]).await, Value::Int(1));
    let before = sentinels.primary().await;
    assert_eq!(before.port(), primary.tls_port());
    primary.kill();
    sentinels.wait_for_another_than(before).await;
    let key = new_key();
    until_granted(&store, key).await;
    assert_eq!(replica.command(&["EXISTS", &name(key)]).await, Value::Int(1));
    assert_eq!(completed(store.claim(claim(grant.key)).await), b"done");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_nodes_of_a_cluster_are_reached_by_tls_through_moves_and_a_failover() {
    let papers = Papers(Certificates::new());
    let mut cluster = RedisCluster::start_with(true, |node| node.tls(&papers.0, "yes")).await;
    // One of them is enough: the others are found by the ports for TLS that it names.
    let url = format!("rediss://127.0.0.1:{}", cluster.nodes[1].tls_port());
    let of = |tls| RedisStore::of(RedisServers::cluster([&*url]).unwrap().tls(tls)).unwrap();
    gets_nowhere(&papers, of).await;
    let store = of(papers.whole());
    for nth in 0..3 {
        let grant = granted(store.claim(claim(key_on(&cluster, nth).await)).await);
        assert!(is_on(&cluster.nodes[nth], grant.key).await);
    }
    let report = store.preflight().await;
    let addresses: Vec<_> =
        cluster.nodes[..3].iter().map(|node| format!("127.0.0.1:{}", node.tls_port())).collect();
    assert!(addresses.iter().all(|address| report.to_string().contains(address)), "{report}");
    // It is followed where it is moved to, while that goes on and after it.
    let moved = granted(store.claim(claim(key_on(&cluster, 0).await)).await);
    let new = key_on(&cluster, 0).await;
    for key in [moved.key, new] {
        cluster.begin_move(cluster.slot(&name(key)).await, 0, 1).await;
    }
    granted(store.claim(claim(new)).await);
    cluster.end_move(cluster.slot(&name(moved.key)).await, 0, 1).await;
    store.complete(&moved, kept("done")).await.unwrap();
    assert!(is_on(&cluster.nodes[1], moved.key).await);
    cluster.end_move(cluster.slot(&name(new)).await, 0, 1).await;
    assert!(is_on(&cluster.nodes[1], new).await);
    cluster.nodes[2].kill();
    until_granted(&store, key_on(&cluster, 2).await).await;
    assert_eq!(completed(store.claim(claim(moved.key)).await), b"done");
}
