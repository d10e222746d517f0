//! What these tests share.

use std::time::Duration;

use tower_idempotency::{
    ClaimToken, Grant, RecordKey, RedisStore, Store, StoreError,
    store::{Claim, Claimed, Kept},
};
use tower_idempotency_test_support::RedisServer;
pub(crate) use tower_idempotency_test_support::redis::Value;

pub(crate) const LEASE: Duration = Duration::from_secs(20);
pub(crate) const HOLD: Duration = Duration::from_secs(60);
pub(crate) const WITHIN: Duration = Duration::from_millis(1500);

/// A key that no other test uses.
pub(crate) fn new_key() -> RecordKey {
    let [one, two] = [ClaimToken::random(), ClaimToken::random()];
    let bytes = [*one.as_bytes(), *two.as_bytes()].concat();
    RecordKey::from_bytes(bytes.try_into().expect("twice 16 bytes"))
}

/// A claim of `key` with a new token.
pub(crate) fn claim(key: RecordKey) -> Claim {
    Claim::new(key, ClaimToken::random(), None, LEASE, HOLD, WITHIN)
}

pub(crate) fn kept(payload: &'static str) -> Kept {
    Kept::new(payload.into(), HOLD)
}

/// The grant of an answer that should be one.
#[track_caller]
pub(crate) fn granted(answer: Result<Claimed, StoreError>) -> Grant {
    match answer {
        Ok(Claimed::Granted(grant)) => grant,
        other => panic!("not granted: {other:?}"),
    }
}

/// The payload of an answer that should be a completed record.
#[track_caller]
pub(crate) fn completed(answer: Result<Claimed, StoreError>) -> Vec<u8> {
    match answer {
        Ok(Claimed::Completed(completed)) => completed.payload.to_vec(),
        other => panic!("not completed: {other:?}"),
    }
}

/// A server and a store of its own.
pub(crate) async fn server_and_store() -> (RedisServer, RedisStore) {
    let server = RedisServer::start().await;
    let store = RedisStore::connect(&server.url()).await.expect("the server answers");
    (server, store)
}

/// The name of a record in the server, under the default prefix.
pub(crate) fn name(key: RecordKey) -> String {
    format!("idempotency:{key}")
}

/// Claims until it is granted, as the layer does, for five seconds at most.
pub(crate) async fn claim_until_granted(store: &RedisStore, claim: &Claim) -> Grant {
    let until = tokio::time::Instant::now() + Duration::from_secs(5);
    loop {
        match store.claim(claim.clone()).await {
            Ok(Claimed::Granted(grant)) => return grant,
            answer if tokio::time::Instant::now() > until => panic!("still: {answer:?}"),
            _ => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}
