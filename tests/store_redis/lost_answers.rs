//! Answers that are lost or late, and claims that arrive after their time.

use std::time::Duration;

use tower_idempotency::{
    RedisStore, Store,
    store::{Claimed, Reason, Release, Written},
};
use tower_idempotency_test_support::{Proxy, RedisServer};

use crate::support::{Value, claim, claim_until_granted, completed, granted, kept, name, new_key};

async fn behind_a_proxy() -> (RedisServer, Proxy, RedisStore) {
    let server = RedisServer::start().await;
    let proxy = Proxy::to(server.address()).await;
    let store = RedisStore::connect(&proxy.redis_url()).await.expect("the proxy forwards");
    // Everything known to the server, so that one call is one request.
    let grant = granted(store.claim(claim(new_key())).await);
    store.complete(&grant, kept("warm")).await.expect("stored");
    (server, proxy, store)
}

/// The fence of the record in the server.
async fn fence(server: &RedisServer, key: tower_idempotency::RecordKey) -> u64 {
    match server.command(&["GETRANGE", &name(key), "35", "50"]).await {
        Value::BulkString(digits) => String::from_utf8_lossy(&digits).parse().expect("a fence"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_claim_whose_answer_was_lost_is_granted_again_to_the_same_token_alone() {
    let (server, proxy, store) = behind_a_proxy().await;
    let asked = claim(new_key());
    proxy.cut_at_reply();
    let lost = store.claim(asked.clone()).await.unwrap_err();
    assert!(lost.is_unreachable(), "{lost:?}");
    let fence = fence(&server, asked.key).await;

    let other = store.claim(claim(asked.key)).await;
    assert!(matches!(other, Ok(Claimed::InProgress(_))), "{other:?}");
    let grant = granted(store.claim(asked).await);
    assert_eq!(grant.fence.get(), fence);
    assert_eq!(grant.attempt, 1);
}

#[tokio::test]
async fn a_claim_whose_answer_was_swallowed_times_out_and_is_granted_again() {
    let (server, proxy, store) = behind_a_proxy().await;
    let asked = claim(new_key());
    proxy.swallow_replies(1);
    let quick = store.clone().call_within(Duration::from_millis(200));
    assert!(quick.claim(asked.clone()).await.unwrap_err().is_timeout());
    let fence = fence(&server, asked.key).await;
    // The multiplexed answers of this connection are one short now, so it must not be trusted.
    let grant = claim_until_granted(&quick, &asked).await;
    assert_eq!(grant.fence.get(), fence);
}

#[tokio::test]
async fn commands_that_arrive_twice_grant_once_and_give_nobody_anothers_answer() {
    let (server, proxy, store) = behind_a_proxy().await;
    for round in 0..10 {
        let asked = claim(new_key());
        proxy.send_twice(1);
        let grant = claim_until_granted(&store, &asked).await;
        assert_eq!((grant.key, grant.attempt), (asked.key, 1));
        assert_eq!(fence(&server, asked.key).await, grant.fence.get(), "one grant, told twice");
        // Replies are one too many now: whoever comes next must not take them for his own.
        let others = claim(new_key());
        let other = claim_until_granted(&store, &others).await;
        assert_eq!((other.key, other.token), (others.key, others.token));
        if round % 2 == 0 {
            proxy.send_twice(1);
        }
        let until = tokio::time::Instant::now() + Duration::from_secs(5);
        while store.complete(&grant, kept("done")).await.is_err() {
            assert!(tokio::time::Instant::now() < until);
        }
        loop {
            match store.claim(claim(asked.key)).await {
                Ok(Claimed::Completed(found)) => break assert_eq!(&found.payload[..], b"done"),
                Ok(wrong) => panic!("{wrong:?}"),
                Err(error) => assert!(tokio::time::Instant::now() < until, "{error}"),
            }
        }
    }
}

#[tokio::test]
async fn a_completion_whose_answer_was_lost_is_stored_once() {
    let (_server, proxy, store) = behind_a_proxy().await;
    let grant = granted(store.claim(claim(new_key())).await);
    proxy.cut_at_reply();
    store.complete(&grant, kept("first")).await.unwrap_err();
    assert_eq!(store.complete(&grant, kept("second")).await.unwrap(), Written::Stored);
    assert_eq!(completed(store.claim(claim(grant.key)).await), b"first");
}

#[tokio::test]
async fn a_claim_that_arrives_after_its_time_is_not_granted_and_writes_nothing() {
    let (server, proxy, store) = behind_a_proxy().await;
    let mut asked = claim(new_key());
    asked.within = Duration::from_millis(100);
    proxy.hold_requests();
    let waiting = tokio::spawn({
        let (store, asked) = (store.clone().call_within(Duration::from_secs(5)), asked.clone());
        async move { store.claim(asked).await }
    });
    let before = proxy.counts().requests;
    proxy.wait_until(|counts| counts.requests > before).await;
    tokio::time::sleep(asked.within + Duration::from_millis(20)).await;
    proxy.heal();
    let late = waiting.await.unwrap();
    assert!(matches!(late, Ok(Claimed::Free)), "{late:?}");
    assert_eq!(server.command(&["EXISTS", &name(asked.key)]).await, Value::Int(0));
    // In time, the same is granted.
    granted(store.claim(asked).await);
}

#[tokio::test]
async fn a_late_claim_that_was_called_off_stays_called_off() {
    let (_server, proxy, store) = behind_a_proxy().await;
    let asked = claim(new_key());
    proxy.hold_requests();
    let quick = store.clone().call_within(Duration::from_millis(100));
    quick.claim(asked.clone()).await.unwrap_err();
    proxy.cut().await;
    proxy.heal();
    let off = Release::called_off(asked.key, asked.token, asked.hold);
    let _ = store.release(off.clone()).await;
    assert!(store.release(off).await.unwrap().is_stored());
    assert!(matches!(store.claim(asked.clone()).await, Ok(Claimed::Dead)));
    assert_eq!(granted(store.claim(claim(asked.key)).await).attempt, 1);
}

#[tokio::test]
async fn slow_answers_never_let_a_claim_outlive_its_time() {
    let (_server, proxy, store) = behind_a_proxy().await;
    // The clock is heard 150 ms late over and over: the estimate may only fall behind.
    proxy.delay_replies(Duration::from_millis(150));
    let grant = granted(store.claim(claim(new_key())).await);
    for _ in 0..3 {
        assert_eq!(store.renew(&grant).await.unwrap(), Written::Stored);
    }
    let mut asked = claim(new_key());
    asked.within = Duration::from_millis(100);
    let answer = store.claim(asked).await;
    assert!(matches!(answer, Ok(Claimed::Free)), "{answer:?}");
    assert!(store.release(Release::of(&grant, Reason::Failed)).await.unwrap().is_stored());
}
