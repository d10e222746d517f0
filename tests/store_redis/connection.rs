//! Connections that break, stall, come late or never: calls end in time, and the store comes back.

use std::{
    net::TcpListener as StdListener,
    time::{Duration, Instant},
};

use tokio::net::TcpListener;
use tower_idempotency::{
    RedisStore, Store, StoreError,
    store::{Cursor, StoreErrorKind, Written},
};
use tower_idempotency_test_support::{Proxy, RedisServer};

use crate::support::{
    Value, claim, claim_until_granted, completed, granted, kept, new_key, server_and_store,
    short_claim,
};

/// Longer than a call may take by itself, on a machine with other work.
const SLACK: Duration = Duration::from_millis(400);

fn is_unanswered(error: &StoreError) -> bool {
    error.is_timeout() || error.is_unreachable()
}

#[tokio::test]
async fn a_killed_connection_is_replaced_between_transitions() {
    let (server, store) = server_and_store().await;
    let asked = claim(new_key());
    let grant = granted(store.claim(asked.clone()).await);
    server.command(&["CLIENT", "KILL", "TYPE", "normal"]).await;
    // One call may find the connection broken; none after it.
    let _ = store.renew(&grant).await;
    assert_eq!(store.complete(&grant, kept("done")).await.unwrap(), Written::Stored);
    server.command(&["CLIENT", "KILL", "TYPE", "normal"]).await;
    let _ = store.renew(&grant).await;
    assert_eq!(completed(store.claim(claim(asked.key)).await), b"done");
}

#[tokio::test]
async fn many_callers_of_a_broken_connection_share_one_new_one() {
    let server = RedisServer::start().await;
    let proxy = Proxy::to(server.address()).await;
    let store = RedisStore::connect(&proxy.redis_url()).await.unwrap();
    assert_eq!(proxy.counts().connections, 1);
    proxy.cut().await;
    let callers: Vec<_> = (0..50)
        .map(|_| {
            let store = store.clone();
            tokio::spawn(async move { claim_until_granted(&store, &claim(new_key())).await })
        })
        .collect();
    for caller in callers {
        caller.await.unwrap();
    }
    assert_eq!(proxy.counts().connections, 2);
}

#[tokio::test]
async fn a_server_that_restarts_is_found_again_with_what_it_kept() {
    let mut server = RedisServer::builder().append_only().start().await;
    let store = RedisStore::connect(&server.url()).await.unwrap();
    let grant = granted(store.claim(claim(new_key())).await);
    server.kill();
    let refused = store.renew(&grant).await.unwrap_err();
    assert!(is_unanswered(&refused), "{refused}");
    server.restart().await;
    claim_until_granted(&store, &short_claim(new_key())).await;
    assert_eq!(store.complete(&grant, kept("kept")).await.unwrap(), Written::Stored);
}

/// How many attempts to connect calls one after the other make in two seconds.
async fn attempts_in_two_seconds(fault: impl FnOnce(&Proxy)) -> usize {
    let server = RedisServer::start().await;
    let proxy = Proxy::to(server.address()).await;
    let store = RedisStore::connect(&proxy.redis_url()).await.unwrap();
    fault(&proxy);
    proxy.cut().await;
    let store = store.call_within(Duration::from_millis(100));
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(2) {
        store.claim(claim(new_key())).await.unwrap_err();
        // A caller that is refused at once must not keep the runtime for itself.
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    proxy.counts().connections - 1 + proxy.counts().refused
}

#[tokio::test]
async fn attempts_to_reach_a_mute_server_are_paced() {
    let attempts = attempts_in_two_seconds(Proxy::black_hole).await;
    assert!((1..=5).contains(&attempts), "{attempts}");
}

#[tokio::test]
async fn attempts_to_reach_a_server_that_refuses_are_paced() {
    let attempts = attempts_in_two_seconds(Proxy::refuse).await;
    // At most 0, 25, 75, 175, 375, 775, 1275 and 1775 ms from the first.
    assert!((3..=9).contains(&attempts), "{attempts}");
}

#[tokio::test]
async fn a_stopped_server_costs_each_call_its_time_and_no_more() {
    let (mut server, store) = server_and_store().await;
    let within = Duration::from_millis(150);
    let store = store.call_within(within);
    let asked = claim(new_key());
    let grant = granted(store.claim(asked.clone()).await);
    server.stop_signal();
    for _ in 0..6 {
        let started = Instant::now();
        let error = store.renew(&grant).await.unwrap_err();
        assert!(is_unanswered(&error), "{error}");
        assert!(started.elapsed() < within + SLACK, "{:?}", started.elapsed());
    }
    server.cont_signal();
    assert_eq!(claim_until_granted(&store, &asked).await.fence, grant.fence);
}

#[tokio::test]
async fn a_half_open_connection_is_replaced_after_three_time_outs() {
    let server = RedisServer::start().await;
    let proxy = Proxy::to(server.address()).await;
    let store = RedisStore::connect(&proxy.redis_url()).await.unwrap();
    let store = store.call_within(Duration::from_millis(60));
    let grant = granted(store.claim(claim(new_key())).await);
    proxy.swallow_replies(usize::MAX);
    for _ in 0..2 {
        assert!(store.renew(&grant).await.unwrap_err().is_timeout());
    }
    assert_eq!(proxy.counts().connections, 1, "two time-outs replace nothing");
    assert!(store.renew(&grant).await.unwrap_err().is_timeout());
    // At once, and before anything is answered: an answer out of its turn would end the connection too.
    let third = Instant::now();
    proxy.wait_until(|counts| counts.connections == 2).await;
    assert!(third.elapsed() < Duration::from_millis(1500), "{:?}", third.elapsed());
    proxy.heal();
    claim_until_granted(&store, &claim(new_key())).await;
}

#[tokio::test]
async fn time_outs_that_answers_come_between_replace_nothing() {
    let server = RedisServer::start().await;
    let proxy = Proxy::to(server.address()).await;
    let store = RedisStore::connect(&proxy.redis_url()).await.unwrap();
    let store = store.call_within(Duration::from_millis(60));
    let grant = granted(store.claim(claim(new_key())).await);
    for _ in 0..4 {
        proxy.hold_replies();
        assert!(store.renew(&grant).await.unwrap_err().is_timeout());
        proxy.heal();
        let renewed = store.clone().call_within(Duration::from_secs(2)).renew(&grant).await;
        assert_eq!(renewed.unwrap(), Written::Stored);
    }
    assert_eq!(proxy.counts().connections, 1);
}

#[tokio::test]
async fn a_demoted_server_refuses_with_its_code_and_its_connection_is_replaced() {
    let server = RedisServer::start().await;
    let proxy = Proxy::to(server.address()).await;
    let store = RedisStore::connect(&proxy.redis_url()).await.unwrap();
    granted(store.claim(claim(new_key())).await);
    server.command(&["REPLICAOF", "127.0.0.1", "1"]).await;
    let error = store.claim(claim(new_key())).await.unwrap_err();
    assert!(error.is_refused(), "{error:?}");
    assert!(error.to_string().contains("READONLY"), "{error}");
    server.command(&["REPLICAOF", "NO", "ONE"]).await;
    claim_until_granted(&store, &short_claim(new_key())).await;
    assert!(proxy.counts().connections >= 2);
}

#[tokio::test]
async fn a_server_without_room_refuses_with_its_code_and_keeps_its_connection() {
    let server = RedisServer::start().await;
    let proxy = Proxy::to(server.address()).await;
    let store = RedisStore::connect(&proxy.redis_url()).await.unwrap();
    let grant = granted(store.claim(claim(new_key())).await);
    store.complete(&grant, kept("done")).await.unwrap();
    server.command(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let error = store.claim(claim(new_key())).await.unwrap_err();
    assert!(error.is_refused(), "{error:?}");
    assert!(error.to_string().contains("OOM"), "{error}");
    server.command(&["CONFIG", "SET", "maxmemory", "0"]).await;
    granted(store.claim(claim(new_key())).await);
    assert_eq!(proxy.counts().connections, 1);
}

#[tokio::test]
async fn a_lazy_store_refuses_in_time_and_works_once_the_server_is_there() {
    let unused = StdListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let store = RedisStore::lazy(&format!("redis://{unused}")).unwrap();
    let within = Duration::from_millis(200);
    let store = store.call_within(within);
    for _ in 0..5 {
        let started = Instant::now();
        let error = store.claim(claim(new_key())).await.unwrap_err();
        assert!(is_unanswered(&error), "{error:?}");
        assert!(started.elapsed() < within + SLACK, "{:?}", started.elapsed());
    }
    let _server = RedisServer::builder().port(unused.port()).start().await;
    claim_until_granted(&store, &claim(new_key())).await;
}

#[tokio::test]
async fn connecting_to_a_closed_port_is_refused_at_once() {
    let unused = StdListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let started = Instant::now();
    let error = RedisStore::connect(&format!("redis://{unused}")).await.unwrap_err();
    assert!(error.is_unreachable(), "{error:?}");
    assert!(error.to_string().contains(&unused.to_string()), "{error}");
    // Not that there was an error, but which.
    assert!(error.to_string().contains("refused"), "{error}");
    assert!(started.elapsed() < Duration::from_secs(1));
}

#[tokio::test]
async fn connecting_to_somebody_who_never_answers_ends_after_a_second() {
    // Accepted by the kernel, answered by nobody.
    let tarpit = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}", tarpit.local_addr().unwrap());
    let started = Instant::now();
    let error = RedisStore::connect(&url).await.unwrap_err();
    assert!(is_unanswered(&error), "{error:?}");
    let took = started.elapsed();
    // A second, and some more for a machine that is busy.
    assert!((Duration::from_millis(900)..Duration::from_millis(2500)).contains(&took), "{took:?}");
}

#[test]
fn the_store_outlives_the_runtime_that_connected_it() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let first = runtime();
    let (server, store) = first.block_on(server_and_store());
    let grant = first.block_on(async { granted(store.claim(claim(new_key())).await) });
    drop(first);
    // The very first call on the second runtime, with no error in between.
    let second = runtime();
    let written = second.block_on(store.complete(&grant, kept("done")));
    assert_eq!(written.unwrap(), Written::Stored);
    let read = second.block_on(store.claim(claim(grant.key)));
    assert_eq!(completed(read), b"done");
    drop(server);
}

#[tokio::test]
async fn a_caller_that_leaves_does_not_take_the_connection_with_it() {
    let server = RedisServer::start().await;
    let proxy = Proxy::to(server.address()).await;
    let store = RedisStore::lazy(&proxy.redis_url()).unwrap();
    proxy.hold_replies();
    let leaving = tokio::spawn({
        let store = store.clone();
        async move { store.claim(claim(new_key())).await }
    });
    proxy.wait_until(|counts| counts.requests == 1).await;
    leaving.abort();
    assert!(leaving.await.unwrap_err().is_cancelled());
    proxy.heal();
    granted(store.claim(claim(new_key())).await);
    assert_eq!(proxy.counts().connections, 1);
}

#[tokio::test]
async fn dropping_the_last_store_ends_its_connection() {
    let (server, store) = server_and_store().await;
    granted(store.claim(claim(new_key())).await);
    let others = async || match server.command(&["CLIENT", "LIST", "TYPE", "normal"]).await {
        Value::BulkString(list) => list.split(|byte| *byte == b'\n').count() - 2,
        other => panic!("{other:?}"),
    };
    assert_eq!(others().await, 1);
    drop(store);
    let started = Instant::now();
    while others().await > 0 {
        assert!(started.elapsed() < Duration::from_secs(5), "the connection is still there");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_password_is_used_and_never_shown() {
    const PASSWORD: &str = "hunter2%21";
    let server = RedisServer::builder().argument("--requirepass", "hunter2!").start().await;
    let address = server.address();
    let right = format!("redis://:{PASSWORD}@{address}");
    let store = RedisStore::connect(&right).await.unwrap();
    granted(store.claim(claim(new_key())).await);

    let mut shown = vec![format!("{store:?}"), format!("{store:#?}")];
    for url in [
        format!("redis://:wrong-{PASSWORD}@{address}"),
        format!("redis://{address}"),
        format!("redis://:{PASSWORD}@127.0.0.1:1"),
        format!("redis://user:{PASSWORD}@{address}"),
        format!("redis://:{PASSWORD}@{address}/999"),
        format!("redis://:{PASSWORD}@no.such.host.invalid"),
        format!("rediss://:{PASSWORD}@{address}"),
    ] {
        let error = RedisStore::connect(&url).await.unwrap_err();
        shown.push(format!("{error} {error:?}"));
        let lazy = RedisStore::lazy(&url).unwrap();
        shown.push(format!("{lazy:?}"));
        let error = lazy.claim(claim(new_key())).await.unwrap_err();
        shown.push(format!("{error} {error:?}"));
    }
    for url in [
        format!("redis://:{PASSWORD}@{address}/not-a-number"),
        format!("redis//:{PASSWORD}@{address}"),
        format!("http://:{PASSWORD}@{address}"),
        format!("rediss://:{PASSWORD}@{address}/#insecure"),
    ] {
        let error = RedisStore::lazy(&url).unwrap_err();
        assert!(error.to_string().contains("://user:password@host:6379"), "{error}");
        shown.push(format!("{error} {error:?}"));
    }
    for text in shown {
        assert!(!text.contains("hunter2"), "{text}");
    }
}

#[tokio::test]
async fn a_wrong_password_is_a_refusal_that_says_so() {
    let server = RedisServer::builder().argument("--requirepass", "right").start().await;
    let url = format!("redis://:wrong@{}", server.address());
    let error = RedisStore::connect(&url).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Refused, "{error}");
    assert!(error.to_string().contains("password"), "{error}");
}

#[tokio::test]
async fn two_prefixes_share_nothing() {
    let (_server, store) = server_and_store().await;
    let key = new_key();
    let (shop, eu) = (store.clone().prefix("shop"), store.clone().prefix("shop:eu"));
    granted(shop.claim(claim(key)).await);
    granted(eu.claim(claim(key)).await);
    granted(store.claim(claim(key)).await);
    for store in [shop, eu, store] {
        let page = store.scan(Cursor::START, 100).await.unwrap();
        assert_eq!(page.records.len(), 1);
        assert_eq!(page.records[0].key, key);
    }
}

#[test]
#[should_panic(expected = "give the name of the application")]
fn an_empty_prefix_is_refused_with_the_mend() {
    let _ = RedisStore::lazy("redis://127.0.0.1").unwrap().prefix("");
}
