//! Claims that count only when replicas have them.

use std::time::{Duration, Instant};

use tokio::time::sleep;
use tower_idempotency::{
    RedisStore, Store,
    store::{Alias, Claimed, Level, RedisCommand, RedisConnection, RedisValue, Release, Written},
};
use tower_idempotency_test_support::{Proxy, RedisServer, redis::Pipeline};

use crate::support::{HOLD, Value, claim, completed, granted, kept, name, new_key, short_claim};

const MS: Duration = Duration::from_millis(1);

/// A primary behind a proxy, and a replica that is up to date.
async fn pair() -> (RedisServer, RedisServer, Proxy) {
    let primary = RedisServer::builder().argument("--repl-diskless-sync-delay", "0").start().await;
    let replica = RedisServer::builder().replica_of(&primary).start().await;
    // It is up to date once it has had a write.
    let (mut connection, started) = (primary.connection().await, Instant::now());
    loop {
        let mut commands = Pipeline::new();
        commands.cmd("SET").arg("first").arg("x").arg("PX").arg(1);
        commands.cmd("WAIT").arg(1).arg(1000);
        let answers = connection.send_packed_commands(&commands, 0, 2).await.unwrap();
        if answers[1] == Value::Int(1) {
            break;
        }
        assert!(started.elapsed() < Duration::from_secs(20), "the replica does not come up");
    }
    let proxy = Proxy::to(primary.address()).await;
    (primary, replica, proxy)
}

/// A store whose claims wait for one replica.
async fn waiting(proxy: &Proxy) -> RedisStore {
    let store = RedisStore::connect(&proxy.redis_url()).await.unwrap();
    store.call_within(6000 * MS).wait_for_replicas(1, 1500 * MS)
}

#[tokio::test]
async fn a_claim_that_is_granted_is_on_the_replica_already() {
    let (_primary, replica, proxy) = pair().await;
    let store = waiting(&proxy).await;
    for nth in 0..30 {
        let mut asked = claim(new_key());
        if nth % 3 == 0 {
            asked.alias = Some(Alias::new(new_key(), HOLD));
        }
        let grant = granted(store.claim(asked.clone()).await);
        let found = replica.command(&["EXISTS", &name(grant.key)]).await;
        assert_eq!(found, Value::Int(1), "{nth}");
        if let Some(alias) = asked.alias {
            assert_eq!(replica.command(&["EXISTS", &name(alias.key)]).await, Value::Int(1));
        }
        assert_eq!(store.complete(&grant, kept("done")).await.unwrap(), Written::Stored);
        assert_eq!(completed(store.claim(claim(grant.key)).await), b"done");
    }
    // One after the other they need one connection beside the shared one.
    assert!(proxy.counts().connections <= 2, "{:?}", proxy.counts());
}

#[tokio::test]
async fn a_claim_that_no_replica_has_is_no_grant_and_its_token_gets_it_later() {
    let (primary, mut replica, proxy) = pair().await;
    let store = waiting(&proxy).await;
    let held = granted(store.claim(claim(new_key())).await);
    replica.stop_signal();
    let asked = claim(new_key());
    let claiming = tokio::spawn({
        let (store, asked) = (store.clone(), asked.clone());
        async move { store.claim(asked).await }
    });
    // It is waited for on a connection of its own: nobody else is held up.
    sleep(50 * MS).await;
    let started = Instant::now();
    assert_eq!(store.renew(&held).await.unwrap(), Written::Stored);
    assert!(started.elapsed() < 250 * MS, "{:?}", started.elapsed());
    let error = claiming.await.unwrap().unwrap_err();
    assert!(error.is_refused(), "{error:?}");
    assert!(error.to_string().contains("0 of 1 replicas"), "{error}");
    // Somebody who does not wait would have had it, and with the primary it would be lost.
    let careless = RedisStore::connect(&primary.url()).await.unwrap();
    granted(careless.claim(claim(new_key())).await);

    replica.cont_signal();
    let started = Instant::now();
    let grant = loop {
        match store.claim(asked.clone()).await {
            Ok(Claimed::Granted(grant)) => break grant,
            other => assert!(started.elapsed() < Duration::from_secs(10), "{other:?}"),
        }
    };
    assert_eq!(grant.attempt, 1, "it is the same grant");
    // What was called off is free.
    replica.stop_signal();
    let given_up = claim(new_key());
    store.claim(given_up.clone()).await.unwrap_err();
    replica.cont_signal();
    let off = Release::called_off(given_up.key, given_up.token, given_up.hold);
    assert!(store.release(off).await.unwrap().is_stored());
    assert_eq!(granted(store.claim(claim(given_up.key)).await).attempt, 1);
}

#[tokio::test]
async fn what_was_granted_survives_a_primary_that_dies_at_once() {
    let (mut primary, replica, proxy) = pair().await;
    let store = waiting(&proxy).await;
    let grant = granted(store.claim(claim(new_key())).await);
    primary.kill();
    replica.command(&["REPLICAOF", "NO", "ONE"]).await;
    let other = RedisStore::connect(&replica.url()).await.unwrap();
    let busy = other.claim(claim(grant.key)).await;
    assert!(matches!(busy, Ok(Claimed::InProgress(_))), "{busy:?}");
    granted(other.claim(claim(new_key())).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_claims_at_once_share_sixteen_connections_and_all_are_granted() {
    let (_primary, _replica, proxy) = pair().await;
    let store = RedisStore::connect(&proxy.redis_url()).await.unwrap();
    let store = store.wait_for_replicas(1, 2000 * MS).call_within(5000 * MS);
    let claims: Vec<_> = (0..200)
        .map(|_| {
            let store = store.clone();
            tokio::spawn(async move { granted(store.claim(claim(new_key())).await) })
        })
        .collect();
    for claim in claims {
        claim.await.unwrap();
    }
    let connections = proxy.counts().connections;
    assert!((3..=17).contains(&connections), "{connections}");
}

#[tokio::test]
async fn without_enough_replicas_preflight_fails_and_every_claim_is_refused() {
    let server = RedisServer::start().await;
    let store = RedisStore::connect(&server.url()).await.unwrap().wait_for_replicas(1, 50 * MS);
    let error = store.claim(claim(new_key())).await.unwrap_err();
    assert!(error.to_string().contains("0 of 1"), "{error}");
    let report = store.preflight().await;
    let found = report.findings().iter().find(|found| found.what == "replicas").unwrap();
    assert_eq!(found.level, Level::Error, "{report}");
    assert!(found.detail.contains("wait_for_replicas(1)"), "{report}");
    // A look waits for nobody.
    let mut look = short_claim(new_key());
    look.within = Duration::ZERO;
    assert!(matches!(store.claim(look).await, Ok(Claimed::Free)));
}

#[test]
#[should_panic(expected = "leave wait_for_replicas out")]
fn to_wait_for_nobody_is_refused_where_it_is_said() {
    let _ = RedisStore::lazy("redis://127.0.0.1").unwrap().wait_for_replicas(0, MS);
}

struct Never;

impl RedisConnection for Never {
    async fn send(
        &self,
        _: Vec<RedisCommand>,
    ) -> Result<Vec<RedisValue>, tower_idempotency::StoreError> {
        std::future::pending().await
    }
}

#[test]
#[should_panic(expected = "connections of its own")]
fn a_connection_of_the_programs_own_is_not_held_up() {
    let _ = RedisStore::over(Never).wait_for_replicas(1, MS);
}
