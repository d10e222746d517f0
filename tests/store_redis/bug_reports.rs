//! Faults that others reported of their own stores, shown absent in this one. Named by their number.

use std::time::Duration;

use tokio::net::TcpListener;
use tower_idempotency::{
    ClaimToken, RecordKey, RedisStore, Store,
    store::{Claim, Claimed, Cursor, Kept, Written},
};
use tower_idempotency_test_support::{Proxy, RedisServer};

use crate::support::{
    HOLD, LEASE, Value, WITHIN, claim, claim_until_granted, completed, granted, kept, name,
    new_key, server_and_store,
};

async fn ms_left(server: &RedisServer, key: RecordKey) -> i64 {
    match server.command(&["PTTL", &name(key)]).await {
        Value::Int(ms) => ms,
        other => panic!("{other:?}"),
    }
}

/// A claim with this lease and hold.
fn lasting(key: RecordKey, lease: Duration, hold: Duration) -> Claim {
    Claim::new(key, ClaimToken::random(), None, lease, hold, WITHIN)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b03_of_many_claims_over_two_connections_exactly_one_is_granted() {
    let (server, one) = server_and_store().await;
    let two = RedisStore::connect(&server.url()).await.unwrap();
    for _ in 0..20 {
        let key = new_key();
        let claims: Vec<_> = (0..10)
            .map(|i| {
                let store = if i % 2 == 0 { one.clone() } else { two.clone() };
                tokio::spawn(async move { store.claim(claim(key)).await.unwrap() })
            })
            .collect();
        let (mut granted, mut busy) = (0, 0);
        for answer in claims {
            match answer.await.unwrap() {
                Claimed::Granted(_) => granted += 1,
                Claimed::InProgress(_) => busy += 1,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!((granted, busy), (1, 9));
    }
}

#[tokio::test]
async fn b04_a_record_that_expires_under_duplicates_is_granted_once() {
    let (_server, store) = server_and_store().await;
    for _ in 0..10 {
        let key = new_key();
        let hold = Duration::from_millis(30);
        granted(store.claim(lasting(key, Duration::from_millis(10), hold)).await);
        // Duplicates that come one after the other all through the end of the record.
        let mut grants = 0;
        for _ in 0..400 {
            match store.claim(claim(key)).await.unwrap() {
                Claimed::Granted(_) => grants += 1,
                Claimed::InProgress(_) | Claimed::Abandoned(_) => {}
                other => panic!("{other:?}"),
            }
            if grants > 0 && store.claim(claim(key)).await.is_ok() {
                break;
            }
            tokio::time::sleep(Duration::from_micros(200)).await;
        }
        let last = store.claim(claim(key)).await.unwrap();
        assert!(matches!(last, Claimed::InProgress(_)), "{last:?}");
        assert_eq!(grants, 1);
    }
}

#[tokio::test]
async fn b13_a_claim_without_any_lease_left_still_expires() {
    let (server, store) = server_and_store().await;
    for (lease, hold) in [(Duration::ZERO, HOLD), (Duration::from_nanos(1), HOLD)] {
        let key = new_key();
        granted(store.claim(lasting(key, lease, hold)).await);
        assert!(ms_left(&server, key).await > 0);
        tokio::time::sleep(Duration::from_millis(5)).await;
        let later = store.claim(claim(key)).await;
        assert!(matches!(later, Ok(Claimed::Abandoned(_))), "{later:?}");
    }
    // No hold at all is one millisecond, not for ever.
    let key = new_key();
    granted(store.claim(lasting(key, Duration::ZERO, Duration::ZERO)).await);
    tokio::time::sleep(Duration::from_millis(5)).await;
    assert_eq!(ms_left(&server, key).await, -2);
}

#[tokio::test]
async fn b24_when_retention_is_over_the_key_is_new_and_nothing_is_left() {
    let (server, store) = server_and_store().await;
    let key = new_key();
    let grant = granted(store.claim(claim(key)).await);
    let short = Kept::new("done".into(), Duration::from_millis(60));
    store.complete(&grant, short).await.unwrap();
    assert_eq!(completed(store.claim(claim(key)).await), b"done");
    tokio::time::sleep(Duration::from_millis(80)).await;
    assert!(server.names().await.is_empty());
    assert_eq!(granted(store.claim(claim(key)).await).attempt, 1);
}

#[tokio::test]
async fn b28_a_key_of_another_type_is_foreign_and_stays() {
    let (server, store) = server_and_store().await;
    let key = new_key();
    server.command(&["HSET", &name(key), "field", "value"]).await;
    assert!(matches!(store.claim(claim(key)).await, Ok(Claimed::Foreign)));
    let other = granted(store.claim(claim(new_key())).await);
    let mut mine = other.clone();
    mine.key = key;
    assert_eq!(store.complete(&mine, kept("x")).await.unwrap(), Written::Foreign);
    let value = server.command(&["HGET", &name(key), "field"]).await;
    assert_eq!(value, Value::BulkString(b"value".to_vec()));
    // It is not listed either, and keeps nothing else from being listed.
    let page = store.scan(Cursor::START, 100).await.unwrap();
    assert_eq!(page.records.len(), 1);
    assert_eq!(page.records[0].key, other.key);
}

#[tokio::test]
async fn b93_wherever_a_claim_is_cut_no_key_is_left_without_an_expiry() {
    let server = RedisServer::start().await;
    let proxy = Proxy::to(server.address()).await;
    let store = RedisStore::connect(&proxy.redis_url()).await.unwrap();
    claim_until_granted(&store, &claim(new_key())).await;
    for cut in 0..10 {
        let asked = claim(new_key());
        if cut % 2 == 0 {
            proxy.cut_at_reply();
            store.claim(asked.clone()).await.unwrap_err();
            // It had reached the server, whole.
            assert!(ms_left(&server, asked.key).await > 0);
        } else {
            proxy.hold_requests();
            let quick = store.clone().call_within(Duration::from_millis(30));
            quick.claim(asked.clone()).await.unwrap_err();
            proxy.cut().await;
            proxy.heal();
            assert_eq!(ms_left(&server, asked.key).await, -2);
        }
        claim_until_granted(&store, &asked).await;
        assert!(ms_left(&server, asked.key).await > 0);
    }
}

#[tokio::test]
async fn b94_durations_are_whole_milliseconds_from_one_to_a_hundred_years() {
    let (server, store) = server_and_store().await;
    let second = 1000;
    let century: i64 = 100 * 366 * 24 * 3600 * second;
    for (hold, least, most) in [
        (Duration::from_millis(500), 300, 500),
        (Duration::from_millis(1500), 1300, 1500),
        (Duration::from_secs(7 * 24 * 3600), 604_799_000, 604_800_000),
        (Duration::MAX, century - second, century),
        (Duration::from_millis(u64::MAX), century - second, century),
    ] {
        let key = new_key();
        let grant = granted(store.claim(lasting(key, hold, hold)).await);
        let left = ms_left(&server, key).await;
        assert!((least..=most).contains(&left), "{hold:?}: {left}");
        // A lease of that length is still a column of 16 digits.
        assert!(matches!(store.claim(claim(key)).await, Ok(Claimed::InProgress(_))));
        let stored = store.complete(&grant, Kept::new("x".into(), hold)).await.unwrap();
        assert_eq!(stored, Written::Stored);
        let left = ms_left(&server, key).await;
        assert!((least..=most).contains(&left), "{hold:?}: {left}");
    }
}

#[tokio::test]
async fn b100_a_thousand_keys_are_a_thousand_records_that_all_expire() {
    let (server, store) = server_and_store().await;
    for i in 0..1000 {
        let grant = granted(store.claim(claim(new_key())).await);
        if i % 2 == 0 {
            store.complete(&grant, kept("done")).await.unwrap();
        }
    }
    assert_eq!(server.names().await.len(), 1000);
    let (mut from, mut seen) = (Some(Cursor::START), 0);
    while let Some(cursor) = from {
        let page = store.scan(cursor, 100).await.unwrap();
        for record in &page.records {
            assert!(record.expires_in > Duration::ZERO && record.expires_in <= HOLD);
        }
        seen += page.records.len();
        from = page.next;
    }
    assert!(seen >= 1000, "{seen}");
}

#[tokio::test]
async fn b103_retention_counts_from_completion_and_renewal_shortens_nothing() {
    let (server, store) = server_and_store().await;
    let key = new_key();
    let grant = granted(store.claim(lasting(key, LEASE, Duration::from_secs(30))).await);
    tokio::time::sleep(Duration::from_millis(120)).await;
    let before = ms_left(&server, key).await;
    assert!(before <= 29_900, "{before}");
    assert_eq!(store.renew(&grant).await.unwrap(), Written::Stored);
    assert!(ms_left(&server, key).await > 29_900);
    let minute = Kept::new("done".into(), Duration::from_secs(60));
    store.complete(&grant, minute).await.unwrap();
    let left = ms_left(&server, key).await;
    assert!((59_900..=60_000).contains(&left), "{left}");
}

#[tokio::test]
async fn b109_a_tarpit_at_start_hangs_nobody_and_recovery_needs_no_restart() {
    let tarpit = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = tarpit.local_addr().unwrap();
    let url = format!("redis://{address}");
    assert!(RedisStore::connect(&url).await.is_err());
    let store = RedisStore::lazy(&url).unwrap().call_within(Duration::from_millis(50));
    assert!(store.claim(claim(new_key())).await.is_err());
    drop(tarpit);
    let _server = RedisServer::builder().port(address.port()).start().await;
    claim_until_granted(&store, &claim(new_key())).await;
}

#[tokio::test]
async fn b114_a_flush_of_the_scripts_between_transitions_is_not_noticed() {
    let (server, store) = server_and_store().await;
    let key = new_key();
    server.command(&["SCRIPT", "FLUSH"]).await;
    let grant = granted(store.claim(claim(key)).await);
    server.command(&["SCRIPT", "FLUSH"]).await;
    assert_eq!(store.renew(&grant).await.unwrap(), Written::Stored);
    server.command(&["SCRIPT", "FLUSH"]).await;
    assert_eq!(store.complete(&grant, kept("done")).await.unwrap(), Written::Stored);
    server.command(&["SCRIPT", "FLUSH"]).await;
    assert_eq!(completed(store.claim(claim(key)).await), b"done");
}

#[tokio::test]
async fn b115_every_name_is_the_prefix_and_43_characters_without_braces() {
    let (server, store) = server_and_store().await;
    for bytes in [[0; 32], [0xff; 32], *b"{}{}{}{}:*?[]\\{}{}{}{}:*?[]\\{}\r\n"] {
        granted(store.claim(claim(RecordKey::from_bytes(bytes))).await);
    }
    let names = server.names().await;
    assert_eq!(names.len(), 3);
    for name in names {
        let encoded = name.strip_prefix("idempotency:").unwrap();
        assert_eq!(encoded.len(), 43);
        assert!(encoded.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b)), "{name}");
    }
}

#[tokio::test]
async fn b117_errors_among_calls_that_share_a_connection_give_nobody_anothers_answer() {
    let (server, store) = server_and_store().await;
    let foreign = new_key();
    server.command(&["HSET", &name(foreign), "field", "value"]).await;
    let keys: Vec<RecordKey> = (0..20).map(|_| new_key()).collect();
    for key in &keys {
        let grant = granted(store.claim(claim(*key)).await);
        let payload = key.as_bytes().to_vec().into();
        store.complete(&grant, Kept::new(payload, HOLD)).await.unwrap();
    }
    server.command(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let calls: Vec<_> = (0..300)
        .map(|i| {
            let (store, key) = (store.clone(), keys[i % keys.len()]);
            tokio::spawn(async move {
                match i % 3 {
                    0 => assert_eq!(completed(store.claim(claim(key)).await), key.as_bytes()),
                    1 => {
                        let answer = store.claim(claim(foreign)).await;
                        assert!(matches!(answer, Ok(Claimed::Foreign)), "{answer:?}");
                    }
                    _ => {
                        let error = store.claim(claim(new_key())).await.unwrap_err();
                        assert!(error.is_refused(), "{error}");
                    }
                }
            })
        })
        .collect();
    for call in calls {
        call.await.unwrap();
    }
}
