//! Preflight on real servers: what each of them is told to be, and what they do not say.

use std::{
    net::TcpListener,
    time::{Duration, Instant},
};

use tokio::time::sleep;
use tower_idempotency::{
    RedisStore,
    store::{Level, Preflight},
};
use tower_idempotency_test_support::{Log, RedisServer};

use crate::support::{Value, claim, claim_until_granted, new_key};

async fn report(server: &RedisServer) -> Preflight {
    RedisStore::lazy(&server.url()).unwrap().preflight().await
}

/// The levels at which something was found.
fn levels(report: &Preflight, what: &str) -> Vec<Level> {
    report.findings().iter().filter(|found| found.what == what).map(|found| found.level).collect()
}

fn good() -> tower_idempotency_test_support::RedisBuilder {
    RedisServer::builder().append_only()
}

async fn until_info(server: &RedisServer, field: &str) {
    let started = Instant::now();
    loop {
        let Value::BulkString(info) = server.command(&["INFO"]).await else { panic!("no INFO") };
        if String::from_utf8_lossy(&info).lines().any(|line| line == field) {
            return;
        }
        assert!(started.elapsed() < Duration::from_secs(20), "never {field}");
        sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_server_as_it_should_be_passes_and_the_report_says_what_was_looked_at() {
    let server = good().start().await;
    let report = report(&server).await;
    assert_eq!(report.worst(), Level::Fine, "{report}");
    let text = report.to_string();
    assert!(text.starts_with(&format!("Redis at {}:\n", server.address())), "{text}");
    for what in [
        "connection",
        "version",
        "role",
        "eviction",
        "memory",
        "persistence",
        "replicas",
        "identity",
        "scripts",
        "clock",
    ] {
        assert!(!levels(&report, what).is_empty(), "{what} is missing: {text}");
        assert!(text.contains(what), "{text}");
    }
    assert!(text.contains("appendfsync always"), "{text}");
    assert!(report.passed().is_ok());
    // What was tried leaves nothing for good.
    let keys = server.names().await;
    assert_eq!(keys.len(), 1);
    for key in keys {
        let left = server.command(&["PTTL", &key]).await;
        assert!(matches!(left, Value::Int(-2..=10_000) if left != Value::Int(-1)), "{left:?}");
    }
}

#[tokio::test]
async fn a_server_that_evicts_fails_unless_its_policy_is_accepted_by_name() {
    let server = good().argument("--maxmemory-policy", "volatile-lru").start().await;
    let failed = report(&server).await;
    assert_eq!(levels(&failed, "eviction"), [Level::Error]);
    assert!(failed.to_string().contains("accept_eviction(\"volatile-lru\")"), "{failed}");
    let error = failed.passed().unwrap_err();
    assert!(!error.is_passed());
    let store = RedisStore::lazy(&server.url()).unwrap();
    let accepted = store.clone().accept_eviction("volatile-lru").preflight().await;
    assert_eq!(levels(&accepted, "eviction"), [Level::Warning]);
    assert!(accepted.is_passed());
    let other = store.accept_eviction("allkeys-lru").preflight().await;
    assert_eq!(levels(&other, "eviction"), [Level::Error], "another one was accepted");
}

#[tokio::test]
async fn a_server_without_appendonly_is_warned_of() {
    let server = RedisServer::start().await;
    let report = report(&server).await;
    assert_eq!(levels(&report, "persistence"), [Level::Warning]);
    assert!(report.is_passed());
}

#[tokio::test]
async fn replicas_without_min_replicas_to_write_fail_and_with_it_pass() {
    let server = good().argument("--repl-diskless-sync-delay", "0").start().await;
    let _replica = RedisServer::builder().replica_of(&server).start().await;
    until_info(&server, "connected_slaves:1").await;
    assert_eq!(levels(&report(&server).await, "replicas"), [Level::Error]);
    let store = RedisStore::lazy(&server.url()).unwrap();
    let accepted = store.accept_unguarded_failover().preflight().await;
    assert_eq!(levels(&accepted, "replicas"), [Level::Warning]);

    server.command(&["CONFIG", "SET", "min-replicas-to-write", "1"]).await;
    until_info(&server, "min_slaves_good_slaves:1").await;
    let guarded = report(&server).await;
    assert_eq!(levels(&guarded, "replicas"), [Level::Fine], "{guarded}");

    let replica = report(&_replica).await;
    assert_eq!(levels(&replica, "role"), [Level::Error], "{replica}");
    assert_eq!(levels(&replica, "scripts"), [Level::Error], "{replica}");
}

#[tokio::test]
async fn too_few_good_replicas_and_a_node_of_a_cluster_fail() {
    let server = good().argument("--min-replicas-to-write", "1").start().await;
    let lonely = report(&server).await;
    assert_eq!(levels(&lonely, "replicas"), [Level::Error], "{lonely}");
    assert_eq!(levels(&lonely, "scripts"), [Level::Error]);
    assert!(lonely.to_string().contains("NOREPLICAS"), "{lonely}");

    let node = good().cluster_node().start().await;
    assert!(levels(&report(&node).await, "role").contains(&Level::Error));
}

/// The store of a user with these rights, over a server as it should be.
async fn of_user(rights: &[&str]) -> (RedisServer, RedisStore) {
    let server = good().start().await;
    let mut words = vec!["ACL", "SETUSER", "shop", "on", ">secret", "~idempotency:*", "-@all"];
    words.extend(rights);
    assert_eq!(server.command(&words).await, Value::Okay);
    let url = format!("redis://shop:secret@{}", server.address());
    let store = RedisStore::lazy(&url).unwrap();
    (server, store)
}

#[tokio::test]
async fn what_is_forbidden_to_ask_is_said_to_be_hidden() {
    let least = ["+eval", "+evalsha", "+getrange", "+set", "+time", "+pttl", "+exists"];
    let (_server, store) = of_user(&least).await;
    let report = store.preflight().await;
    assert_eq!(levels(&report, "identity"), [Level::Hidden], "{report}");
    for unknown in ["version", "eviction", "persistence", "replicas", "role"] {
        assert!(levels(&report, unknown).is_empty(), "{unknown} is guessed: {report}");
    }
    assert_eq!(levels(&report, "scripts"), [Level::Fine]);
    assert!(report.is_passed());

    let (_server, store) = of_user(&[&least[..], &["+info"]].concat()).await;
    let report = store.preflight().await;
    assert_eq!(levels(&report, "eviction"), [Level::Fine], "{report}");
    assert_eq!(levels(&report, "persistence"), [Level::Fine, Level::Hidden], "CONFIG is not told");
}

#[tokio::test]
async fn scripts_that_are_forbidden_fail_with_what_to_grant() {
    let (_server, store) = of_user(&["+getrange", "+set", "+time", "+info"]).await;
    let report = store.preflight().await;
    assert_eq!(levels(&report, "scripts"), [Level::Error]);
    assert!(report.to_string().contains("+evalsha"), "{report}");
}

#[tokio::test]
async fn a_server_that_is_not_there_is_one_finding_in_time() {
    let unused = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let store = RedisStore::lazy(&format!("redis://{unused}")).unwrap();
    let started = Instant::now();
    let report = store.preflight().await;
    assert!(started.elapsed() < Duration::from_secs(3));
    assert_eq!(report.findings().len(), 1);
    assert_eq!(levels(&report, "connection"), [Level::Error]);
    assert!(!report.to_string().contains("secret"));
}

#[tokio::test]
async fn after_a_reconnect_what_has_become_wrong_is_told_once() {
    let server = good().start().await;
    let (log, _guard) = Log::listen();
    let store = RedisStore::connect(&server.url()).await.unwrap();
    let reconnected = async || {
        server.command(&["CLIENT", "KILL", "TYPE", "normal"]).await;
        claim_until_granted(&store, &claim(new_key())).await;
        // Told a second after the connection was made.
        sleep(Duration::from_millis(1600)).await;
    };
    reconnected().await;
    assert!(log.of("preflight failed").is_empty(), "{:?}", log.all());
    server.command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]).await;
    reconnected().await;
    let told = log.of("preflight failed");
    assert_eq!(told.len(), 1, "{:?}", log.all());
    assert!(told[0].starts_with("ERROR ") && told[0].contains("allkeys-lru"), "{told:?}");
    reconnected().await;
    assert_eq!(log.of("preflight failed").len(), 1);
}
