//! Servers that lose what was acknowledged: noticed, told again, and granted only when it is safe.

use std::time::{Duration, Instant};

use tokio::time::sleep;
use tower_idempotency::{
    ClaimToken, Grant, RecordKey, RedisStore, Store, StoreError,
    store::{Claim, Claimed, IfForgotten, Kept, OnDataLoss, Reason, Release, Takeover, Written},
};
use tower_idempotency_test_support::{Log, Proxy, RedisServer};

use crate::{
    commands::calls,
    support::{HOLD, Value, WITHIN, completed, granted, kept, name, new_key},
};

/// A third of it and a second are how long nothing is granted: two seconds.
pub(crate) const LEASE: Duration = Duration::from_secs(3);
pub(crate) const HELD_FOR: Duration = Duration::from_secs(2);
const SLACK: Duration = Duration::from_secs(5);

pub(crate) fn claim(key: RecordKey) -> Claim {
    Claim::new(key, ClaimToken::random(), None, LEASE, HOLD, WITHIN)
}

/// Two processes with one server.
async fn two(server: &RedisServer) -> [RedisStore; 2] {
    let stores = [(); 2].map(|()| RedisStore::lazy(&server.url()).unwrap());
    for store in &stores {
        // Both have seen the canary when they have been connected for a moment.
        granted(store.claim(claim(new_key())).await);
    }
    until(async || server.command(&["EXISTS", "idempotency:canary"]).await == Value::Int(1)).await;
    sleep(Duration::from_millis(200)).await;
    stores
}

pub(crate) async fn until(is_so: impl AsyncFn() -> bool) {
    let started = Instant::now();
    while !is_so().await {
        assert!(started.elapsed() < Duration::from_secs(60), "what is waited for does not come");
        sleep(Duration::from_millis(20)).await;
    }
}

async fn is_there(server: &RedisServer, key: RecordKey) -> bool {
    server.command(&["EXISTS", &name(key)]).await == Value::Int(1)
}

/// Claims until it is answered, while nothing is granted for a while; how long that was.
pub(crate) async fn until_answered(store: &RedisStore, claim: &Claim) -> (Claimed, Duration) {
    let started = Instant::now();
    loop {
        match store.claim(claim.clone()).await {
            Ok(claimed) => return (claimed, started.elapsed()),
            Err(error) => assert!(started.elapsed() < HELD_FOR + SLACK, "still: {error}"),
        }
        sleep(Duration::from_millis(20)).await;
    }
}

#[track_caller]
pub(crate) fn is_held(answer: Result<Claimed, StoreError>) -> Duration {
    let error = answer.expect_err("nothing is granted");
    assert!(error.is_suspended(), "{error}");
    error.retry_after().expect("it says when")
}

/// A handler that renews while this goes on.
pub(crate) fn renewing(store: &RedisStore, grant: &Grant) -> tokio::task::JoinHandle<()> {
    let (store, grant) = (store.clone(), grant.clone());
    tokio::spawn(async move {
        loop {
            sleep(LEASE / 3).await;
            let _ = store.renew(&grant).await;
        }
    })
}

#[tokio::test]
async fn f7_a_server_that_restarts_empty_is_told_of_the_living_owner_before_anybody_is_granted() {
    let mut server = RedisServer::start().await;
    let [owner, other] = two(&server).await;
    let key = new_key();
    let grant = granted(owner.claim(claim(key)).await);
    let done = granted(owner.claim(claim(new_key())).await);
    owner.complete(&done, kept("done")).await.unwrap();
    let renewals = renewing(&owner, &grant);

    let (log, _guard) = Log::listen();
    server.restart().await;
    let restarted = Instant::now();
    // Whoever comes first must not be granted what the server has forgotten.
    let asked = claim(key);
    loop {
        let answer = other.claim(asked.clone()).await;
        match answer {
            Ok(Claimed::InProgress(_)) => break,
            Ok(wrong) => panic!("{wrong:?}"),
            Err(error) if error.is_suspended() => {
                assert!(error.retry_after().unwrap() <= HELD_FOR);
            }
            Err(_) => {}
        }
        assert!(restarted.elapsed() < SLACK, "the owner is alive and must have written it again");
        sleep(Duration::from_millis(5)).await;
    }
    // So is what was completed within the last minute, which nobody has to ask for.
    until(async || is_there(&server, done.key).await).await;
    assert_eq!(completed(other.claim(claim(done.key)).await), b"done");
    assert!(!log.of("server changed").is_empty(), "{:?}", log.all());
    assert!(log.of("data lost").len() >= 2, "{:?}", log.all());

    // What nobody has is granted when the time is over, and not before.
    let (fresh, _) = until_answered(&other, &claim(new_key())).await;
    assert!(matches!(fresh, Claimed::Granted(_)), "{fresh:?}");
    assert!(restarted.elapsed() > HELD_FOR - Duration::from_millis(300));
    renewals.abort();
    assert_eq!(owner.complete(&grant, kept("late")).await.unwrap(), Written::Stored);
    assert_eq!(completed(other.claim(claim(key)).await), b"late");
}

#[tokio::test]
async fn what_was_given_back_is_not_written_again() {
    let mut server = RedisServer::start().await;
    let [owner, _] = two(&server).await;
    let [held, given_back] = [(); 2].map(|()| claim(new_key()));
    let (held, given_back) =
        (granted(owner.claim(held).await), granted(owner.claim(given_back).await));
    let release = Release::of(&given_back, Reason::DidNotHappen);
    assert!(owner.release(release).await.unwrap().is_stored());
    server.restart().await;
    until(async || {
        // Whatever it asks, it is connected again.
        drop(owner.claim(claim(new_key())).await);
        is_there(&server, held.key).await
    })
    .await;
    sleep(Duration::from_millis(100)).await;
    assert!(!is_there(&server, given_back.key).await, "nobody runs it");
}

#[tokio::test]
async fn who_was_granted_what_was_too_long_to_be_told_and_is_gone_is_a_living_owner_too() {
    let mut server = RedisServer::start().await;
    let proxy = Proxy::to(server.address()).await;
    let [_, other] = two(&server).await;
    let owner = RedisStore::lazy(&proxy.redis_url()).unwrap();
    let done = granted(owner.claim(claim(new_key())).await);
    assert!(
        owner
            .complete(&done, Kept::new("long".repeat(8 * 1024).into(), HOLD))
            .await
            .unwrap()
            .is_stored()
    );
    // As in `two`.
    sleep(Duration::from_millis(200)).await;

    // It is told that there is an answer, and comes for it when it is over.
    let run = calls(&server).await["evalsha"];
    proxy.hold_replies();
    let asking = tokio::spawn({
        let owner = owner.clone();
        async move { owner.claim(claim(done.key)).await }
    });
    until(async || calls(&server).await["evalsha"] > run).await;
    assert_eq!(server.command(&["DEL", &name(done.key)]).await, Value::Int(1));
    proxy.heal();
    granted(asking.await.unwrap());

    server.restart().await;
    let restarted = Instant::now();
    let asked = claim(done.key);
    loop {
        // Whatever else it asks, it is connected again.
        drop(owner.claim(claim(new_key())).await);
        match other.claim(asked.clone()).await {
            Ok(Claimed::InProgress(_)) => break,
            Ok(wrong) => panic!("{wrong:?}"),
            Err(_) => {}
        }
        assert!(restarted.elapsed() < SLACK, "the owner is alive and must have written it again");
        sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_server_that_restarts_and_takes_no_writes_yet_grants_nothing_before_owners_could_write() {
    let mut server = RedisServer::builder().argument("--min-replicas-to-write", "1").start().await;
    server.command(&["CONFIG", "SET", "min-replicas-to-write", "0"]).await;
    let [owner, other] = two(&server).await;
    let key = new_key();
    let grant = granted(owner.claim(claim(key)).await);
    let renewals = renewing(&owner, &grant);
    server.restart().await;
    // For longer than a change is waited for it refuses every write, those of owners too.
    let (restarted, mut said_why) = (Instant::now(), false);
    while restarted.elapsed() < 2 * HELD_FOR {
        let refused = other.claim(claim(key)).await.unwrap_err().to_string();
        said_why |= refused.contains("NOREPLICAS");
        sleep(Duration::from_millis(50)).await;
    }
    assert!(said_why, "the error says why it is so for that long");
    server.command(&["CONFIG", "SET", "min-replicas-to-write", "0"]).await;
    let writable = Instant::now();
    loop {
        match other.claim(claim(key)).await {
            Ok(Claimed::InProgress(_)) => break,
            Ok(wrong) => panic!("{wrong:?}"),
            Err(_) => assert!(writable.elapsed() < SLACK),
        }
        sleep(Duration::from_millis(1)).await;
    }
    let (fresh, _) = until_answered(&other, &claim(new_key())).await;
    assert!(matches!(fresh, Claimed::Granted(_)), "{fresh:?}");
    assert!(writable.elapsed() > HELD_FOR - Duration::from_millis(300));
    renewals.abort();
}

#[tokio::test]
async fn after_a_change_nothing_abandoned_is_taken_over_for_one_lease() {
    let mut server = RedisServer::builder().append_only().start().await;
    let [dead, other] = two(&server).await;
    let key = new_key();
    let asked =
        Claim::new(key, ClaimToken::random(), None, Duration::from_millis(50), HOLD, WITHIN);
    granted(dead.claim(asked).await);
    sleep(Duration::from_millis(80)).await;
    drop(dead);
    let mut taking = claim(key);
    taking.takeover = Takeover::Any;
    server.restart().await;
    let restarted = Instant::now();
    let (answer, _) = until_answered(&other, &taking).await;
    assert!(matches!(answer, Claimed::Granted(_)), "{answer:?}");
    assert!(restarted.elapsed() > LEASE - Duration::from_millis(500), "{:?}", restarted.elapsed());
    // Without a change it is taken over at once.
    let key = new_key();
    let asked =
        Claim::new(key, ClaimToken::random(), None, Duration::from_millis(50), HOLD, WITHIN);
    granted(other.claim(asked).await);
    sleep(Duration::from_millis(80)).await;
    let mut taking = claim(key);
    taking.takeover = Takeover::Any;
    granted(other.claim(taking).await);
}

#[tokio::test]
async fn a_flush_is_noticed_by_the_canary_and_the_living_owners_record_is_back() {
    let server = RedisServer::start().await;
    let [owner, other] = two(&server).await;
    let key = new_key();
    let grant = granted(owner.claim(claim(key)).await);
    let renewals = renewing(&owner, &grant);
    let (log, _guard) = Log::listen();
    server.command(&["FLUSHALL"]).await;
    until(async || log.of("records lost").len() == 2).await;
    // Both wait now, and the owner's is there when they grant again.
    is_held(other.claim(claim(new_key())).await);
    until(async || is_there(&server, key).await).await;
    assert!(matches!(other.claim(claim(key)).await, Ok(Claimed::InProgress(_))));
    let (fresh, _) = until_answered(&other, &claim(new_key())).await;
    assert!(matches!(fresh, Claimed::Granted(_)), "{fresh:?}");
    // It is one loss, and it is over: the new canary is known to both.
    until(async || server.command(&["EXISTS", "idempotency:canary"]).await == Value::Int(1)).await;
    sleep(Duration::from_secs(7)).await;
    let told = log.of("records lost").len();
    assert!((2..=3).contains(&told), "{:?}", log.all());
    granted(other.claim(claim(new_key())).await);
    renewals.abort();
}

#[tokio::test]
async fn a_server_that_loses_nothing_is_left_alone() {
    let server = RedisServer::start().await;
    let (log, _guard) = Log::listen();
    let [one, other] = two(&server).await;
    let killed = Instant::now();
    while killed.elapsed() < Duration::from_secs(6) {
        server.command(&["CLIENT", "KILL", "TYPE", "normal"]).await;
        let _ = one.claim(claim(new_key())).await;
        let _ = other.claim(claim(new_key())).await;
        sleep(Duration::from_millis(300)).await;
    }
    sleep(Duration::from_millis(300)).await;
    granted(one.claim(claim(new_key())).await);
    for event in ["records lost", "server changed", "data lost"] {
        assert!(log.of(event).is_empty(), "{:?}", log.all());
    }
}

#[tokio::test]
async fn a_loss_that_is_not_to_be_gone_over_refuses_what_is_new_until_somebody_accepts_it() {
    let server = RedisServer::start().await;
    let stores = two(&server).await.map(|store| store.on_data_loss(OnDataLoss::Refuse));
    let [one, other] = &stores;
    let done = granted(one.claim(claim(new_key())).await);
    one.complete(&done, kept("done")).await.unwrap();
    let (log, _guard) = Log::listen();
    server.command(&["FLUSHALL"]).await;
    until(async || log.of("records lost").len() == 2).await;
    sleep(HELD_FOR + Duration::from_millis(200)).await;
    for store in &stores {
        let error = store.claim(claim(new_key())).await.unwrap_err();
        assert!(error.is_suspended() && error.to_string().contains("accept_data_loss"), "{error}");
        // What is stored is answered, and who has asked elsewhere is granted.
        assert_eq!(completed(store.claim(claim(done.key)).await), b"done");
        let mut knowing = claim(new_key());
        knowing.if_forgotten = IfForgotten::Tell;
        let told = store.claim(knowing.clone()).await;
        assert!(matches!(told, Ok(Claimed::Forgotten)), "{told:?}");
        assert!(!is_there(&server, knowing.key).await);
        knowing.if_forgotten = IfForgotten::Grant;
        granted(store.claim(knowing).await);
    }
    one.accept_data_loss().await.unwrap();
    granted(one.claim(claim(new_key())).await);
    // Said in one process it is said to all.
    until(async || other.claim(claim(new_key())).await.is_ok()).await;
    sleep(Duration::from_secs(6)).await;
    granted(one.claim(claim(new_key())).await);
    granted(other.claim(claim(new_key())).await);
}

#[tokio::test]
async fn where_a_proxy_stands_between_each_claim_asks_and_a_stranger_grants_nothing() {
    let server = RedisServer::start().await;
    let plain = RedisStore::connect(&server.url()).await.unwrap();
    let asking = RedisStore::connect(&server.url()).await.unwrap().behind_proxy();
    granted(asking.claim(claim(new_key())).await);
    granted(plain.claim(claim(new_key())).await);
    // Another history of data, on the connection that was there before.
    server.command(&["REPLICAOF", "127.0.0.1", "1"]).await;
    server.command(&["REPLICAOF", "NO", "ONE"]).await;
    let asked = claim(new_key());
    assert!(is_held(asking.claim(asked.clone()).await) <= HELD_FOR);
    assert!(!is_there(&server, asked.key).await, "nothing is written");
    is_held(asking.claim(claim(new_key())).await);
    // Whoever does not ask does not notice: that is what the choice is for.
    granted(plain.claim(claim(new_key())).await);
    let (answer, _) = until_answered(&asking, &asked).await;
    assert!(matches!(answer, Claimed::Granted(_)), "{answer:?}");
}

#[tokio::test]
async fn a_failover_behind_one_address_loses_no_living_owner() {
    let old = RedisServer::start().await;
    let proxy = Proxy::to(old.address()).await;
    let owner = RedisStore::connect(&proxy.redis_url()).await.unwrap();
    let other = RedisStore::connect(&proxy.redis_url()).await.unwrap();
    granted(other.claim(claim(new_key())).await);
    let key = new_key();
    let grant = granted(owner.claim(claim(key)).await);
    let renewals = renewing(&owner, &grant);
    // The new primary never had the claim.
    let new = RedisServer::start().await;
    proxy.lead_to(new.address());
    old.command(&["REPLICAOF", "127.0.0.1", &new.address().port().to_string()]).await;
    let failed_over = Instant::now();
    loop {
        match other.claim(claim(key)).await {
            Ok(Claimed::InProgress(_)) if is_there(&new, key).await => break,
            Ok(Claimed::InProgress(_)) | Err(_) => {}
            wrong => panic!("{wrong:?}"),
        }
        assert!(failed_over.elapsed() < Duration::from_secs(10));
        sleep(Duration::from_millis(10)).await;
    }
    renewals.abort();
    let written = owner.complete(&grant, Kept::new("done".into(), HOLD)).await.unwrap();
    assert_eq!(written, Written::Stored);
}
