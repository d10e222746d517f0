//! A cluster is listed whole, whatever moves meanwhile.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use tower_idempotency::{
    RecordKey, RedisStore, Store,
    operations::Operations,
    store::{Cursor, Page, Reason, Release},
};
use tower_idempotency_test_support::RedisCluster;

use crate::{
    cluster::{key_on, store},
    support::{claim, granted, name},
};

/// As many pages as a listing that comes to an end has at most.
const PAGES_AT_MOST: usize = 2_000;

/// A cluster with so many records on each node.
async fn filled(each: usize) -> (RedisCluster, RedisStore, HashSet<RecordKey>) {
    let cluster = RedisCluster::start(false).await;
    // With slots on their way, three servers have more to do than a small machine does at once.
    let store = store(&cluster).call_within(Duration::from_secs(10));
    let mut keys = HashSet::new();
    for nth in 0..3 {
        for _ in 0..each {
            keys.insert(granted(store.claim(claim(key_on(&cluster, nth).await)).await).key);
        }
    }
    (cluster, store, keys)
}

async fn next(
    store: &RedisStore,
    from: Cursor,
    at_most: usize,
    found: &mut HashSet<RecordKey>,
) -> Page {
    let page = store.scan(from, at_most).await.unwrap();
    found.extend(page.records.iter().map(|record| record.key));
    page
}

/// The rest of a listing.
async fn rest(store: &RedisStore, mut from: Option<Cursor>, found: &mut HashSet<RecordKey>) {
    for _ in 0..PAGES_AT_MOST {
        let Some(cursor) = from else { return };
        from = next(store, cursor, 1000, found).await.next;
    }
    panic!("the listing does not end");
}

/// The slots of the keys that are on this node.
async fn slots_on(cluster: &RedisCluster, keys: &HashSet<RecordKey>, nth: u16) -> Vec<u16> {
    let mut slots = Vec::new();
    for key in keys {
        let slot = cluster.slot(&name(*key)).await;
        if (slot / (16_384 / 3)).min(2) == nth && !slots.contains(&slot) {
            slots.push(slot);
        }
    }
    slots
}

#[tokio::test]
async fn records_that_move_to_a_node_that_was_listed_are_listed() {
    // The slots are that node's in the end; or not yet; or not any more.
    for ends in ["moved", "moving", "moved back"] {
        let (cluster, store, keys) = filled(4).await;
        let mut found = HashSet::new();
        let page = next(&store, Cursor::START, 1000, &mut found).await;
        assert_eq!(found.len(), 4, "the first of the nodes is done");
        let slots = slots_on(&cluster, &keys, 2).await;
        for slot in &slots {
            cluster.begin_move(*slot, 2, 0).await;
            cluster.move_keys(*slot, 2, 0).await;
            if ends != "moving" {
                cluster.end_move(*slot, 2, 0).await;
            }
        }
        // The others are listed: what was on the last is not there.
        let page = next(&store, page.next.unwrap(), 1000, &mut found).await;
        let page = next(&store, page.next.unwrap(), 1000, &mut found).await;
        assert_eq!(found.len(), 8, "{ends}");
        if ends == "moved back" {
            for slot in &slots {
                cluster.begin_move(*slot, 0, 2).await;
                cluster.end_move(*slot, 0, 2).await;
            }
        }
        rest(&store, page.next, &mut found).await;
        assert_eq!(found, keys, "{ends}");
    }
}

#[tokio::test]
async fn a_listing_of_a_cluster_at_rest_lists_each_node_once() {
    let (_cluster, store, keys) = filled(5).await;
    let (mut found, mut from, mut listed, mut pages) = (HashSet::new(), Cursor::START, 0, 0);
    loop {
        let page = next(&store, from, 1000, &mut found).await;
        (listed, pages) = (listed + page.records.len(), pages + 1);
        match page.next {
            Some(next) => from = next,
            None => break,
        }
    }
    assert_eq!((found.len(), listed, pages), (keys.len(), keys.len(), 4), "and a look at the end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn listings_while_slots_move_to_and_fro_are_whole_or_say_that_they_may_not_be() {
    let (cluster, store, keys) = filled(30).await;
    let slots: Vec<u16> = slots_on(&cluster, &keys, 2).await.into_iter().take(10).collect();
    let over = Arc::new(AtomicBool::new(false));
    let moving = tokio::spawn({
        let over = over.clone();
        async move {
            let (mut at, mut moves) = (2, 0);
            while !over.load(SeqCst) {
                let to = 2 - at;
                for slot in &slots {
                    cluster.begin_move(*slot, at, to).await;
                    cluster.end_move(*slot, at, to).await;
                    moves += 1;
                }
                at = to;
            }
            (cluster, moves)
        }
    });
    let mut may_not_be = 0;
    for _ in 0..8 {
        let (mut found, mut from) = (HashSet::new(), Some(Cursor::START));
        while let Some(cursor) = from {
            match store.scan(cursor, 7).await {
                Ok(page) => {
                    found.extend(page.records.iter().map(|record| record.key));
                    from = page.next;
                }
                Err(error) => {
                    assert!(error.to_string().contains("list again"), "{error}");
                    may_not_be += 1;
                    found.clone_from(&keys);
                    from = None;
                }
            }
        }
        assert_eq!(found, keys);
    }
    over.store(true, SeqCst);
    let (_cluster, moves) = moving.await.unwrap();
    assert!(moves > 20, "{moves}");
    // Now that they are at rest it is whole.
    let mut found = HashSet::new();
    rest(&store, Some(Cursor::START), &mut found).await;
    assert_eq!(found, keys, "{may_not_be} of the others were not");
}

#[tokio::test]
async fn an_operator_finds_what_was_abandoned_and_has_moved() {
    let (cluster, store, keys) = filled(1).await;
    let key = granted(store.claim(claim(key_on(&cluster, 2).await)).await);
    let gave_up = Release::of(&key, Reason::Unknown);
    assert!(store.release(gave_up).await.unwrap().is_stored());
    let operations = Operations::new(store);
    let page = operations.list(Cursor::START, 1000).await.unwrap();
    let slot = cluster.slot(&name(key.key)).await;
    cluster.begin_move(slot, 2, 0).await;
    cluster.end_move(slot, 2, 0).await;
    let (mut found, mut from) = (page.operations, page.next);
    while let Some(cursor) = from {
        let page = operations.list(cursor, 1000).await.unwrap();
        found.extend(page.operations);
        from = page.next;
    }
    assert_eq!(found.iter().map(|found| found.key).collect::<Vec<_>>(), [key.key]);
    assert!(!keys.contains(&key.key));
}
