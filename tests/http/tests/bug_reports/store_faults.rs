//! Section I of the reports, where it shows over HTTP: a Redis that is down, slow, full of others'
//! troubles, or answers something else than it was asked.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::StatusCode;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinSet,
};
use tower_idempotency::{MemoryStore, RedisStore};
use tower_idempotency_test_support::{Proxy, redis::Value};

use crate::support::{
    RedisServer, Runs, Server, Shop, api, around, assert_fresh, assert_refused, assert_replay,
    is_replay, keyed, keys, layer, notify, pay, refusal, retry_after, send_until, serve, start,
    store_on, webhook,
};

/// A claim's whole time is 1.5 s by default; the rest is a busy machine's.
const REFUSED_WITHIN: Duration = Duration::from_secs(4);

/// Sends until the store is there again.
async fn recovered(server: &Server, key: &str) -> http::Response<Bytes> {
    let unavailable = |answer: &_| refusal(answer).as_deref() == Some("store-unavailable");
    send_until(server, || pay(key), |answer| !unavailable(answer), |_| {}).await
}

/// A store behind this proxy.
async fn behind(proxy: &Proxy) -> RedisStore {
    RedisStore::connect(&proxy.redis_url()).await.expect("the proxy forwards")
}

#[tokio::test]
async fn b104_while_the_store_is_down_nothing_runs_unless_the_policy_wants_it() {
    let mut redis = RedisServer::start().await;
    let shop = Shop::open();
    let careful = serve(store_on(&redis).await, api(), shop.handler()).await;
    let reckless = api().run_unprotected();
    let reckless = serve(store_on(&redis).await, reckless, shop.handler()).await;
    redis.kill();
    for _ in 0..2 {
        let answer = careful.send(pay("k")).await;
        assert_refused(&answer, 503, "store-unavailable");
        assert!(retry_after(&answer) >= 1);
    }
    assert_eq!(shop.runs(), 0);
    assert_fresh(&reckless.send(pay("k")).await, "run 1");
    redis.restart().await;
    assert_eq!(recovered(&careful, "k2").await.status(), StatusCode::OK);
}

#[tokio::test]
async fn b105_a_store_that_is_slow_is_never_taken_for_one_that_knows_nothing() {
    let redis = RedisServer::start().await;
    let proxy = Proxy::to(redis.address()).await;
    let runs: Arc<Mutex<HashMap<Bytes, usize>>> = Arc::default();
    let handler = {
        let runs = runs.clone();
        move |body: Bytes| async move {
            *runs.lock().unwrap().entry(body.clone()).or_default() += 1;
            body
        }
    };
    let policy =
        api().call_within(Duration::from_millis(60)).claim_within(Duration::from_millis(250));
    let server = serve(behind(&proxy).await, policy, handler).await;
    let mut sending = JoinSet::new();
    for i in 0..200 {
        let server = server.clone();
        let key = format!("k-{}", i % 20);
        sending.spawn(async move {
            tokio::time::sleep(Duration::from_millis(i * 5)).await;
            server.send(keyed("/pay", &key, key.clone())).await
        });
    }
    let mut seen = HashMap::<u16, usize>::new();
    let mut slow = false;
    let mut turn = tokio::time::interval(Duration::from_millis(100));
    loop {
        tokio::select! {
            answer = sending.join_next() => match answer {
                Some(answer) => *seen.entry(answer.unwrap().status().as_u16()).or_default() += 1,
                None => break,
            },
            _ = turn.tick() => {
                slow = !slow;
                // Twice what a call may take; or at once, for those that got stuck.
                proxy.delay_replies(Duration::from_millis(if slow { 120 } else { 0 }));
            }
        }
    }
    proxy.heal();
    assert!(seen.keys().all(|status| [200, 409, 503].contains(status)), "{seen:?}");
    assert!(seen.contains_key(&200), "{seen:?}");
    for i in 0..20 {
        let key = format!("k-{i}");
        let settled = |answer: &http::Response<Bytes>| answer.status() == 200;
        let answer =
            send_until(&server, || keyed("/pay", &key, key.clone()), settled, |_| {}).await;
        assert_eq!(answer.body(), &key);
        assert_eq!(runs.lock().unwrap()[key.as_bytes()], 1, "{key}");
    }
}

#[tokio::test]
async fn b110_whatever_the_store_does_a_request_is_answered_in_its_time() {
    let mut redis = RedisServer::start().await;
    let proxy = Proxy::to(redis.address()).await;
    let shop = Shop::open();
    let server = serve(behind(&proxy).await, api(), shop.handler()).await;
    let in_time = async || {
        let started = Instant::now();
        let answer = server.send(pay("k")).await;
        let took = started.elapsed();
        assert_refused(&answer, 503, "store-unavailable");
        assert!(took < REFUSED_WITHIN, "{took:?}");
    };
    proxy.black_hole();
    in_time().await;
    proxy.heal();
    proxy.delay_replies(Duration::from_secs(10));
    in_time().await;
    proxy.cut().await;
    proxy.refuse();
    in_time().await;
    proxy.heal();
    redis.stop_signal();
    in_time().await;
    redis.cont_signal();
    redis.kill();
    in_time().await;
    assert_eq!(shop.runs(), 0);
    redis.restart().await;
    assert_eq!(recovered(&server, "k2").await.status(), 200);
}

#[tokio::test]
async fn b111_an_outage_under_load_queues_nothing_and_runs_nothing_later() {
    let mut redis = RedisServer::start().await;
    let shop = Shop::open();
    let server = serve(store_on(&redis).await, webhook(), shop.handler()).await;
    redis.kill();
    let started = Instant::now();
    let mut sending = JoinSet::new();
    for i in 0..300 {
        let server = server.clone();
        sending.spawn(async move { server.send(notify(&format!("n{i}"))).await });
    }
    while let Some(answer) = sending.join_next().await {
        assert_refused(&answer.unwrap(), 503, "store-unavailable");
    }
    assert!(started.elapsed() < 3 * REFUSED_WITHIN, "{:?}", started.elapsed());
    redis.restart().await;
    let unavailable = |answer: &_| refusal(answer).as_deref() == Some("store-unavailable");
    let back = || notify("n-back");
    assert_fresh(&send_until(&server, back, |answer| !unavailable(answer), |_| {}).await, "run 1");
    // None of those 300 was claimed or run meanwhile; each can be delivered again.
    for i in 0..300 {
        assert!(!is_replay(&server.send(notify(&format!("n{i}"))).await));
    }
    assert_eq!(shop.runs(), 301);
}

#[tokio::test]
async fn b112_a_redis_that_refuses_writes_still_replays_and_recovers_by_itself() {
    let redis = RedisServer::builder().argument("--dbfilename", "snapshot").start().await;
    let shop = Shop::open();
    let server = serve(store_on(&redis).await, api(), shop.handler()).await;
    assert_fresh(&server.send(pay("done")).await, "run 1");
    // No replica is there: NOREPLICAS.
    redis.command(&["CONFIG", "SET", "min-replicas-to-write", "1"]).await;
    assert_refused(&server.send(pay("new")).await, 503, "store-unavailable");
    assert_replay(&server.send(pay("done")).await, "run 1");
    redis.command(&["CONFIG", "SET", "min-replicas-to-write", "0"]).await;
    assert_fresh(&server.send(pay("new")).await, "run 2");
    // A snapshot that failed: MISCONF.
    redis.command(&["CONFIG", "SET", "save", "3600 1"]).await;
    let Value::Array(directory) = redis.command(&["CONFIG", "GET", "dir"]).await else {
        panic!("it has a directory")
    };
    let Value::BulkString(directory) = &directory[1] else { panic!("{directory:?}") };
    let in_the_way = format!("{}/snapshot", String::from_utf8_lossy(directory));
    std::fs::create_dir(&in_the_way).unwrap();
    redis.command(&["BGSAVE"]).await;
    until(async || info(&redis, "persistence").await.contains("rdb_last_bgsave_status:err")).await;
    assert_refused(&server.send(pay("newer")).await, 503, "store-unavailable");
    assert_replay(&server.send(pay("done")).await, "run 1");
    assert_eq!(shop.runs(), 2);
    std::fs::remove_dir(&in_the_way).unwrap();
    redis.command(&["BGSAVE"]).await;
    until(async || info(&redis, "persistence").await.contains("rdb_last_bgsave_status:ok")).await;
    assert_fresh(&server.send(pay("newer")).await, "run 3");
}

async fn info(redis: &RedisServer, section: &str) -> String {
    match redis.command(&["INFO", section]).await {
        Value::BulkString(text) => String::from_utf8_lossy(&text).into_owned(),
        Value::VerbatimString { text, .. } => text,
        other => panic!("{other:?}"),
    }
}

async fn until(is_so: impl AsyncFn() -> bool) {
    let started = Instant::now();
    while !is_so().await {
        assert!(started.elapsed() < Duration::from_secs(15), "it does not come about");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// What the server says to PING, if it can be reached.
async fn ping(redis: std::net::SocketAddr) -> String {
    let said = async {
        let mut stream = TcpStream::connect(redis).await?;
        stream.write_all(b"PING\r\n").await?;
        let mut answer = [0; 64];
        let length = stream.read(&mut answer).await?;
        std::io::Result::Ok(String::from_utf8_lossy(&answer[..length]).into_owned())
    };
    said.await.unwrap_or_default()
}

#[tokio::test]
async fn b113_a_redis_that_is_loading_is_unavailable_and_not_empty() {
    // Each key takes it 10 ms to load.
    let mut redis = RedisServer::builder()
        .append_only()
        .argument("--key-load-delay", "10000")
        .argument("--loading-process-events-interval-bytes", "1024")
        .start()
        .await;
    let shop = Shop::open();
    // Less than it takes to load, so that a request cannot outlast that.
    let policy = api().claim_within(Duration::from_millis(300));
    let server = serve(store_on(&redis).await, policy, shop.handler()).await;
    assert_fresh(&server.send(pay("done")).await, "run 1");
    for i in 0..150 {
        redis.command(&["SET", &format!("other-{i}"), &"x".repeat(1000), "PX", "600000"]).await;
    }
    redis.command(&["BGREWRITEAOF"]).await;
    until(async || info(&redis, "persistence").await.contains("aof_rewrite_in_progress:0")).await;
    let address = redis.address();
    let restarting = tokio::spawn(async move {
        redis.restart().await;
        redis
    });
    let mut loading = 0;
    while !restarting.is_finished() {
        if ping(address).await.starts_with("-LOADING") {
            let answer = server.send(pay("done")).await;
            if is_replay(&answer) {
                // It was done with loading just then.
                continue;
            }
            assert_refused(&answer, 503, "store-unavailable");
            loading += 1;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(loading > 0, "it was seen while it loaded");
    let _redis = restarting.await.unwrap();
    assert_replay(&recovered(&server, "done").await, "run 1");
    assert_eq!(shop.runs(), 1);
}

#[tokio::test]
async fn b117_an_answer_that_belongs_to_another_key_is_refused() {
    let redis = RedisServer::start().await;
    let shop = Shop::open();
    let store = store_on(&redis).await;
    let server = serve(store.clone(), webhook(), shop.handler()).await;
    assert_fresh(&server.send(notify("n1")).await, "run 1");
    let [first] = keys(&store).await[..] else { panic!("one record") };
    assert_fresh(&server.send(notify("n2")).await, "run 2");
    let second = keys(&store).await.into_iter().find(|key| *key != first).unwrap();
    // As if the replies to two reads had been exchanged.
    let name = |key| format!("idempotency:{key}");
    redis.command(&["RENAME", &name(second), &name(first)]).await;
    assert_refused(&server.send(notify("n1")).await, 503, "record-unreadable");
    assert_eq!(shop.runs(), 2);
}

#[tokio::test]
async fn b118_a_reply_that_came_too_late_is_nobody_else_s() {
    let redis = RedisServer::start().await;
    let proxy = Proxy::to(redis.address()).await;
    let runs = Runs::new();
    let handler = {
        let runs = runs.clone();
        move |body: Bytes| {
            runs.add();
            async move { body }
        }
    };
    let policy =
        api().call_within(Duration::from_millis(100)).claim_within(Duration::from_millis(200));
    let server = serve(behind(&proxy).await, policy, handler).await;
    let send = async |key: usize| {
        let key = format!("k-{key}");
        server.send(keyed("/pay", &key, key.clone())).await
    };
    for key in 0..10 {
        assert_fresh(&send(key).await, &format!("k-{key}"));
    }
    for round in 0..5 {
        proxy.delay_replies(Duration::from_millis(350));
        let late = send(round).await;
        assert_refused(&late, 503, "store-unavailable");
        proxy.heal();
        // The late replies arrive among these.
        for key in 0..10 {
            let answer = send(key).await;
            match answer.status().as_u16() {
                200 => assert_replay(&answer, &format!("k-{key}")),
                _ => assert_refused(&answer, 503, "store-unavailable"),
            }
        }
    }
    for key in 0..10 {
        let replayed = |answer: &http::Response<Bytes>| is_replay(answer);
        let name = format!("k-{key}");
        let request = || keyed("/pay", &name, name.clone());
        assert_replay(&send_until(&server, request, replayed, |_| {}).await, &name);
    }
    assert_eq!(runs.count(), 10);
}

#[tokio::test]
async fn b119_the_newer_protocol_makes_no_difference() {
    let redis = RedisServer::start().await;
    let shop = Shop::open();
    let url = format!("{}/?protocol=resp3", redis.url());
    let store = RedisStore::connect(&url).await.unwrap();
    let server = serve(store.clone(), api(), shop.handler()).await;
    for i in 1..=20 {
        let key = format!("k-{i}");
        assert_fresh(&server.send(pay(&key)).await, &format!("run {i}"));
        assert_replay(&server.send(pay(&key)).await, &format!("run {i}"));
    }
    assert_eq!(keys(&store).await.len(), 20);
    let older = serve(store_on(&redis).await, api(), shop.handler()).await;
    assert_replay(&older.send(pay("k-7")).await, "run 7");
}

#[tokio::test]
async fn b05_and_b104_a_refusal_of_the_store_tells_the_client_nothing_of_it() {
    let mut redis = RedisServer::start().await;
    let shop = Shop::open();
    let store = store_on(&redis).await;
    let address = redis.address().to_string();
    let server = start(around(layer(store, api()), shop.handler())).await;
    redis.kill();
    let answer = server.send(pay("k")).await;
    assert_refused(&answer, 503, "store-unavailable");
    let text = String::from_utf8_lossy(answer.body());
    assert!(!text.contains(&address) && !text.to_lowercase().contains("redis"), "{text}");
    // Beside it, a store that works.
    let server = serve(MemoryStore::new(), api(), shop.handler()).await;
    assert_fresh(&server.send(pay("k")).await, "run 1");
}
