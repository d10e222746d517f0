//! Section H of the reports: leases, retention and time.

use std::{fs, path::Path, thread, time::Duration};

use tower_idempotency::{MemoryStore, Operation, Policy, Store};
use tower_idempotency_test_support::redis::Value;

use crate::support::{
    Instance, RedisServer, Runs, Shop, api, around, ask, assert_fresh, assert_refused,
    assert_replay, layer, notify, only_key, pay, refusal, send_aside, send_until, serve, store_on,
    two_instances, webhook,
};

#[test]
fn b94_times_of_nothing_and_times_that_overflow_are_refused_where_the_policy_is_built() {
    let wrong = [
        Duration::ZERO,
        Duration::from_nanos(999_999),
        Duration::MAX,
        Duration::from_millis(u64::MAX),
    ];
    type Setter = fn(Policy, Duration) -> Policy;
    let setters: [(&str, Setter); 5] = [
        ("lease", Policy::lease),
        ("retention", Policy::retention),
        ("hold", Policy::hold),
        ("call_within", Policy::call_within),
        ("claim_within", Policy::claim_within),
    ];
    for (name, set) in setters {
        for time in wrong {
            let error = set(api(), time).check().unwrap_err().to_string();
            assert!(error.contains(name), "{name} {time:?}: {error}");
        }
    }
    for lease in [1, 500, 1500] {
        api().lease(Duration::from_millis(lease)).check().unwrap();
    }
}

#[test]
fn b95_no_deadline_is_taken_from_the_clock_of_a_process() {
    // Here the test differs from the report: it cannot turn one process's clock. It shows what makes
    // that harmless: a lease is judged inside the store (b12, and the walk of the contract suite),
    // and this crate asks the wall clock for nothing that is compared with a record. Who adds such a
    // call has to say here what for.
    let allowed = [
        // The store of one process: its own clock, read once.
        "store/memory.rs",
        // What a server's `Retry-After` means that is a date, where it does not tell its own clock.
        "client/retry_after.rs",
        // When an abandoned run began, for people.
        "operation/recovery.rs",
        "ledger/mod.rs",
        // How far a server's clock is from this machine's, for people.
        "store/redis/preflight/inspect.rs",
    ];
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../src");
    let mut directories = vec![source.clone()];
    let mut seen = 0;
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
                continue;
            }
            seen += 1;
            let text = fs::read_to_string(&path).unwrap();
            let name = path.strip_prefix(&source).unwrap().to_str().unwrap().to_owned();
            let asks = text.contains("SystemTime");
            assert!(!asks || allowed.contains(&name.as_str()), "{name} asks the wall clock");
        }
    }
    assert!(seen > 40, "the sources are there");
}

#[tokio::test(start_paused = true)]
async fn b96_a_lease_is_renewed_for_as_long_as_the_run_lasts() {
    let shop = Shop::held();
    let policy = api().lease(Duration::from_secs(1)).max_run(Duration::from_secs(3600));
    let store = MemoryStore::new();
    let layer = layer(store.clone(), policy);
    let router = around(layer.clone(), shop.handler());
    let first = tokio::spawn({
        let router = router.clone();
        async move { ask(&router, pay("k")).await }
    });
    shop.started.wait_for(1).await;
    for _ in 0..600 {
        assert_refused(&ask(&router, pay("k")).await, 409, "in-progress");
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    shop.let_go();
    assert_fresh(&first.await.unwrap(), "run 1");
    assert_eq!(shop.runs(), 1);
    // Renewal has ended with the run: the record is not brought back when its time is over.
    tokio::time::sleep(Duration::from_secs(25 * 60 * 60)).await;
    assert_fresh(&ask(&router, pay("k")).await, "run 2");
    assert!(layer.drain(Duration::from_secs(1)).await.is_clean());
}

#[tokio::test]
async fn b96_a_run_of_several_leases_stays_one_on_two_instances() {
    let shop = Shop::held();
    let policy = api().lease(Duration::from_secs(1)).rerun_abandoned();
    let (redis, [one, two]) = two_instances(policy, &shop).await;
    let first = send_aside(&one, pay("k"));
    shop.started.wait_for(1).await;
    for _ in 0..10 {
        tokio::time::sleep(Duration::from_millis(300)).await;
        for server in [&one, &two] {
            assert_refused(&server.send(pay("k")).await, 409, "in-progress");
        }
    }
    shop.let_go();
    assert_fresh(&first.await.unwrap(), "run 1");
    assert_replay(&two.send(pay("k")).await, "run 1");
    assert_eq!(shop.runs(), 1);
    // No renewal changes it any more.
    let name = format!("idempotency:{}", only_key(&store_on(&redis).await).await);
    let stored = redis.command(&["GET", &name]).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(redis.command(&["GET", &name]).await, stored);
}

#[tokio::test]
async fn b97_who_blocked_its_thread_past_its_lease_is_noticed_and_stores_nothing_over_another() {
    let redis = RedisServer::start().await;
    let policy = api().lease(Duration::from_millis(600));
    let (started, go) = (Runs::new(), Runs::new());
    let blocks = {
        let (started, go) = (started.clone(), go.clone());
        move || async move {
            started.add();
            // The one thread of its runtime.
            while go.count() == 0 {
                thread::sleep(Duration::from_millis(5));
            }
            "blocked"
        }
    };
    let blocked = Instance::start(around(layer(store_on(&redis).await, policy.clone()), blocks));
    let blocked = blocked.await;
    let mut client = blocked.server.connect().await;
    client.send("POST /pay HTTP/1.1\r\nhost: shop\r\nidempotency-key: k\r\n").await;
    client.send("content-length: 9\r\n\r\namount=20").await;
    started.wait_for(1).await;
    let shop = Shop::open();
    let other = serve(store_on(&redis).await, policy.clone(), shop.handler()).await;
    let unknown = |answer: &_| refusal(answer).as_deref() == Some("outcome-unknown");
    send_until(&other, || pay("k"), unknown, |_| {}).await;
    assert_eq!(shop.runs(), 0);
    // Somebody who may run it again does.
    let reruns = serve(store_on(&redis).await, policy.rerun_abandoned(), shop.handler()).await;
    assert_fresh(&reruns.send(pay("k")).await, "run 1");
    go.add();
    // The late one is told what is true for everybody.
    let answer = client.answer().await;
    assert_eq!(answer.body, "run 1");
    assert_eq!(answer.headers["idempotent-replayed"], "true");
    assert_replay(&other.send(pay("k")).await, "run 1");
}

#[tokio::test]
async fn b98_a_claim_that_the_store_lost_is_written_again_and_its_answer_stored() {
    let shop = Shop::held();
    let policy = api().lease(Duration::from_millis(900));
    let (redis, [one, two]) = two_instances(policy, &shop).await;
    let first = send_aside(&one, pay("k"));
    shop.started.wait_for(1).await;
    redis.command(&["FLUSHALL"]).await;
    // Until the next renewal the store knows nothing, which is the documented limit; then it does.
    while redis.names().await.is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    for server in [&one, &two] {
        assert_refused(&server.send(pay("k")).await, 409, "in-progress");
    }
    // Lost again, right before it is stored.
    redis.command(&["FLUSHALL"]).await;
    shop.let_go();
    assert_fresh(&first.await.unwrap(), "run 1");
    for server in [&one, &two] {
        assert_replay(&server.send(pay("k")).await, "run 1");
    }
    assert_eq!(shop.runs(), 1);
}

#[tokio::test]
async fn b99_a_record_that_was_evicted_while_its_owner_runs_is_written_again() {
    let noticed = Runs::new();
    let shop = Shop::held();
    let handler = {
        let (shop, noticed) = (shop.clone(), noticed.clone());
        move |operation: Operation| {
            let (shop, noticed) = (shop.clone(), noticed.clone());
            async move {
                tokio::select! {
                    answer = shop.run() => answer,
                    () = operation.lease_lost() => { noticed.add(); "lost".to_owned() }
                }
            }
        }
    };
    let redis = RedisServer::start().await;
    let policy = api().lease(Duration::from_millis(900));
    let server = serve(store_on(&redis).await, policy, handler).await;
    let first = send_aside(&server, pay("k"));
    shop.started.wait_for(1).await;
    let name = format!("idempotency:{}", only_key(&store_on(&redis).await).await);
    redis.command(&["DEL", &name]).await;
    while redis.command(&["EXISTS", &name]).await == Value::Int(0) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let Value::Int(left) = redis.command(&["PTTL", &name]).await else { panic!("no time") };
    assert!(left > 0, "it expires like any other");
    shop.let_go();
    assert_fresh(&first.await.unwrap(), "run 1");
    assert_replay(&server.send(pay("k")).await, "run 1");
    assert_eq!(noticed.count(), 0, "nobody else had it");
}

#[tokio::test(start_paused = true)]
async fn b101_a_process_remembers_nothing_of_keys_that_are_done() {
    let store = MemoryStore::new();
    let idempotency = layer(store.clone(), api().retention(Duration::from_secs(60)));
    let router = around(idempotency.clone(), || async { "ok" });
    let mut most = 0;
    for i in 0..5_000 {
        ask(&router, pay(&format!("k-{i}"))).await;
        tokio::time::advance(Duration::from_millis(240)).await;
        most = most.max(store.len());
    }
    // A minute's worth, and a few that were not cleared away yet.
    assert!(most < 500, "{most}");
    let left = idempotency.drain(Duration::from_secs(1)).await;
    assert!(left.is_clean(), "{left:?}");
}

#[tokio::test]
async fn b102_a_notification_is_remembered_for_longer_than_its_sender_tries() {
    let shop = Shop::open();
    let redis = RedisServer::start().await;
    let store = store_on(&redis).await;
    let of = |policy, store: tower_idempotency::RedisStore| serve(store, policy, shop.handler());
    of(webhook(), store.clone()).await.send(notify("n1")).await;
    let kept = time_left(&redis, &store).await;
    assert!(kept > Duration::from_secs(72 * 60 * 60), "{kept:?}");
    redis.command(&["FLUSHALL"]).await;
    of(api(), store.clone()).await.send(pay("k")).await;
    let kept = time_left(&redis, &store).await;
    let day = Duration::from_secs(24 * 60 * 60);
    assert!((day - Duration::from_secs(60)..=day).contains(&kept), "{kept:?}");
}

/// How long the only record is kept still.
async fn time_left(redis: &RedisServer, store: &impl Store) -> Duration {
    let name = format!("idempotency:{}", only_key(store).await);
    match redis.command(&["PTTL", &name]).await {
        Value::Int(ms) => Duration::from_millis(ms.try_into().expect("it expires")),
        other => panic!("{other:?}"),
    }
}
