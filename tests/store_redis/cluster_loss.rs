//! Primaries of a cluster that lose what was acknowledged: noticed at each of them, and told apart from
//! slots that move.

use std::time::{Duration, Instant};

use tokio::time::sleep;
use tower_idempotency::{
    RedisStore, Store,
    store::{Claimed, OnDataLoss},
};
use tower_idempotency_test_support::{Log, RedisCluster, RedisServer};

use crate::{
    cluster::{is_on, key_on, store},
    loss::{HELD_FOR, LEASE, claim, is_held, renewing, until, until_answered},
    support::{Value, claim_until_granted, completed, granted, kept, new_key},
};

/// The canaries of this node.
async fn canaries(server: &RedisServer) -> Vec<String> {
    let Value::Array(names) = server.command(&["KEYS", "idempotency:canary*"]).await else {
        panic!("no names")
    };
    let name = |name| match name {
        Value::BulkString(name) => String::from_utf8(name).unwrap(),
        other => panic!("{other:?}"),
    };
    names.into_iter().map(name).collect()
}

/// Two processes with one cluster, that have used one of its nodes, and have seen the canaries of all.
async fn two(cluster: &RedisCluster) -> [RedisStore; 2] {
    let stores = [store(cluster), store(cluster)];
    for store in &stores {
        granted(store.claim(claim(key_on(cluster, 0).await)).await);
    }
    for node in &cluster.nodes[..3] {
        until(async || canaries(node).await.len() == 1).await;
    }
    // The other of both has connected to all of them at the same time.
    sleep(Duration::from_millis(500)).await;
    stores
}

#[tokio::test]
async fn a_flush_of_one_primary_is_noticed_and_owners_write_theirs_again_before_anybody_is_granted()
{
    let cluster = RedisCluster::start(false).await;
    let [owner, other] = two(&cluster).await;
    let key = key_on(&cluster, 2).await;
    let grant = granted(owner.claim(claim(key)).await);
    let done = granted(owner.claim(claim(key_on(&cluster, 2).await)).await);
    owner.complete(&done, kept("done")).await.unwrap();
    let renewals = renewing(&owner, &grant);
    let (log, _guard) = Log::listen();
    cluster.nodes[2].command(&["FLUSHALL"]).await;
    until(async || log.of("records lost").len() == 2).await;
    // What one of them has lost is refused at all: its slots may be another's soon.
    for nth in 0..3 {
        is_held(other.claim(claim(key_on(&cluster, nth).await)).await);
    }
    until(async || is_on(&cluster.nodes[2], key).await).await;
    until(async || is_on(&cluster.nodes[2], done.key).await).await;
    assert!(matches!(other.claim(claim(key)).await, Ok(Claimed::InProgress(_))));
    assert_eq!(completed(other.claim(claim(done.key)).await), b"done");
    let (fresh, _) = until_answered(&other, &claim(key_on(&cluster, 2).await)).await;
    assert!(matches!(fresh, Claimed::Granted(_)), "{fresh:?}");
    // It was one loss, and it is over.
    until(async || canaries(&cluster.nodes[2]).await.len() == 1).await;
    sleep(Duration::from_secs(6)).await;
    assert!((2..=3).contains(&log.of("records lost").len()), "{:?}", log.all());
    granted(owner.claim(claim(key_on(&cluster, 2).await)).await);
    renewals.abort();
}

#[tokio::test]
async fn a_loss_of_a_node_that_a_process_never_used_is_refused_everywhere_until_it_is_accepted() {
    let cluster = RedisCluster::start(false).await;
    let stores = two(&cluster).await.map(|store| store.on_data_loss(OnDataLoss::Refuse));
    let [one, other] = &stores;
    let done = granted(one.claim(claim(key_on(&cluster, 0).await)).await);
    one.complete(&done, kept("done")).await.unwrap();
    // And then the one that has the canary by which acceptance is told.
    for lost in [1, 2, 0] {
        let (log, _guard) = Log::listen();
        cluster.nodes[lost].command(&["FLUSHALL"]).await;
        until(async || log.of("records lost").len() == 2).await;
        sleep(HELD_FOR + Duration::from_millis(200)).await;
        for store in &stores {
            for nth in 0..3 {
                let error = store.claim(claim(key_on(&cluster, nth).await)).await.unwrap_err();
                let says = error.to_string().contains("accept_data_loss");
                assert!(error.is_suspended() && says, "{error}");
            }
            assert_eq!(completed(store.claim(claim(done.key)).await), b"done");
        }
        one.accept_data_loss().await.unwrap();
        granted(one.claim(claim(key_on(&cluster, lost).await)).await);
        until(async || other.claim(claim(new_key())).await.is_ok()).await;
        // Each has a new one, which both know before the next loss.
        until(async || canaries(&cluster.nodes[lost]).await.len() == 1).await;
        sleep(Duration::from_secs(6)).await;
        for nth in 0..3 {
            granted(one.claim(claim(key_on(&cluster, nth).await)).await);
            granted(other.claim(claim(key_on(&cluster, nth).await)).await);
        }
        assert_eq!(log.of("records lost").len(), 2, "{:?}", log.all());
    }
}

#[tokio::test]
async fn a_primary_that_restarts_empty_is_told_of_the_living_owner_before_anybody_is_granted() {
    let mut cluster = RedisCluster::start(false).await;
    let [owner, other] = two(&cluster).await;
    let key = key_on(&cluster, 1).await;
    let grant = granted(owner.claim(claim(key)).await);
    granted(other.claim(claim(key_on(&cluster, 1).await)).await);
    let renewals = renewing(&owner, &grant);
    let (log, _guard) = Log::listen();
    cluster.nodes[1].restart().await;
    let restarted = Instant::now();
    loop {
        match other.claim(claim(key)).await {
            Ok(Claimed::InProgress(_)) => break,
            Ok(wrong) => panic!("{wrong:?}"),
            Err(_) => assert!(restarted.elapsed() < Duration::from_secs(15), "{:?}", log.all()),
        }
        sleep(Duration::from_millis(5)).await;
    }
    until(async || log.of("records lost").len() == 2).await;
    renewals.abort();
}

#[tokio::test]
async fn a_replica_that_is_promoted_without_what_its_primary_had_is_noticed() {
    let mut cluster = RedisCluster::start(true).await;
    let [owner, other] = two(&cluster).await;
    let key = key_on(&cluster, 0).await;
    let grant = granted(owner.claim(claim(key)).await);
    let renewals = renewing(&owner, &grant);
    let (log, _guard) = Log::listen();
    // It comes back with nothing, when there is nobody left to get it from.
    cluster.nodes[3].kill();
    cluster.nodes[0].kill();
    cluster.nodes[3].restart().await;
    until(async || {
        cluster.nodes[3].command(&["CLUSTER", "FAILOVER", "TAKEOVER"]).await == Value::Okay
    })
    .await;
    let promoted = Instant::now();
    loop {
        match other.claim(claim(key)).await {
            Ok(Claimed::InProgress(_)) => break,
            Ok(wrong) => panic!("{wrong:?}"),
            Err(_) => assert!(promoted.elapsed() < Duration::from_secs(20), "{:?}", log.all()),
        }
        // At once: whoever connects to it must not be quicker than the look at its canary.
        tokio::task::yield_now().await;
    }
    until(async || log.of("records lost").len() == 2).await;
    renewals.abort();
}

#[tokio::test]
async fn canaries_that_move_with_their_slots_are_no_loss_and_each_node_has_one_after_it() {
    let cluster = RedisCluster::start(false).await;
    let (log, _guard) = Log::listen();
    let stores = two(&cluster).await;
    let name = canaries(&cluster.nodes[0]).await.remove(0);
    let slot = cluster.slot(&name).await;
    for (from, to) in [(0, 1), (1, 2), (2, 0)] {
        cluster.begin_move(slot, from, to).await;
        let port = cluster.nodes[to].address().port().to_string();
        let migrate = ["MIGRATE", "127.0.0.1", &port, &name, "0", "1000"];
        cluster.nodes[from].command(&migrate).await;
        // Looked at while it is in neither place for sure, and after that.
        sleep(Duration::from_millis(5_500)).await;
        cluster.end_move(slot, from, to).await;
        sleep(Duration::from_millis(1_500)).await;
        for store in &stores {
            granted(store.claim(claim(new_key())).await);
        }
    }
    assert!(log.of("records lost").is_empty(), "{:?}", log.all());
    // The node that it is moved away from makes one more, and a loss there is noticed by that.
    cluster.begin_move(slot, 0, 1).await;
    cluster.end_move(slot, 0, 1).await;
    until(async || !canaries(&cluster.nodes[0]).await.is_empty()).await;
    sleep(Duration::from_millis(6_500)).await;
    cluster.nodes[0].command(&["FLUSHALL"]).await;
    until(async || log.of("records lost").len() == 2).await;
}

#[tokio::test]
async fn what_a_successor_may_lack_is_not_granted_where_its_slots_are_moved_to() {
    let mut cluster = RedisCluster::start(true).await;
    let store = store(&cluster);
    let known = key_on(&cluster, 0).await;
    let mut asked = claim(known);
    // Longer than a failover takes on a busy machine.
    asked.lease = 20 * LEASE;
    granted(store.claim(asked).await);
    granted(store.claim(claim(key_on(&cluster, 1).await)).await);
    // Its replica has all of it, the canary too: nothing is lost.
    until(async || cluster.nodes[3].names().await.len() == 1).await;
    until(async || canaries(&cluster.nodes[3]).await.len() == 1).await;
    let (log, _guard) = Log::listen();
    cluster.nodes[0].kill();
    until(async || {
        // Until its successor is known, and holds what is new.
        let met = store.claim(claim(known)).await;
        matches!(met, Ok(Claimed::InProgress(_) | Claimed::Abandoned(_)))
    })
    .await;
    assert!(log.of("records lost").is_empty(), "{:?}", log.all());
    let changed = Instant::now();
    let held = || async {
        let mut asked = claim(key_on(&cluster, 0).await);
        // For ten seconds and one.
        asked.lease = 10 * LEASE;
        asked
    };
    let [open, moved] = [held().await, held().await];
    is_held(store.claim(open.clone()).await);
    // The other nodes grant as before, once they have heard that the cluster is whole again.
    for nth in [1, 2] {
        claim_until_granted(&store, &claim(key_on(&cluster, nth).await)).await;
    }
    let slot = async |claim: &tower_idempotency::store::Claim| {
        cluster.slot(&crate::support::name(claim.key)).await
    };
    cluster.begin_move(slot(&open).await, 3, 1).await;
    is_held(store.claim(open).await);
    cluster.begin_move(slot(&moved).await, 3, 2).await;
    cluster.end_move(slot(&moved).await, 3, 2).await;
    is_held(store.claim(moved.clone()).await);
    let (granted, _) = until_answered(&store, &claim(moved.key)).await;
    assert!(matches!(granted, Claimed::Granted(_)), "{granted:?}");
    assert!(changed.elapsed() < Duration::from_secs(20));
}
