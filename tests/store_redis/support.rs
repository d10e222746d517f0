//! What these tests share.

use std::time::Duration;

use tower_idempotency::{
    ClaimToken, Grant, RecordKey, RedisStore, Store, StoreError,
    store::{Claim, Claimed, Kept, RedisCommand, RedisValue, Written},
};
pub(crate) use tower_idempotency_test_support::redis::{
    Value, aio::MultiplexedConnection as Connection,
};
use tower_idempotency_test_support::{
    RedisServer,
    redis::{Client, Cmd, Pipeline, RedisResult, aio::MultiplexedConnection},
};

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

/// A claim with so short a lease that, after a change of the server, it waits for little more than a
/// second.
pub(crate) fn short_claim(key: RecordKey) -> Claim {
    let mut short = claim(key);
    short.lease = Duration::from_millis(300);
    short
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

/// A server and a store of its own, with more patience than half a second: a small machine has many of them
/// at once.
pub(crate) async fn server_and_store() -> (RedisServer, RedisStore) {
    let server = RedisServer::start().await;
    let store = RedisStore::connect(&server.url()).await.expect("the server answers");
    (server, store.call_within(Duration::from_secs(5)))
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

/// A connection of the client's own.
pub(crate) async fn connect(url: &str) -> RedisResult<MultiplexedConnection> {
    Client::open(url)?.get_multiplexed_async_connection().await
}

/// What an adapter does: sends commands in one write, with errors of single ones as values.
pub(crate) async fn send_raw(
    mut connection: MultiplexedConnection,
    commands: &[RedisCommand],
) -> RedisResult<Vec<RedisValue>> {
    let mut pipeline = Pipeline::with_capacity(commands.len());
    for command in commands {
        let mut words = Cmd::new();
        for argument in command.arguments() {
            words.arg(&argument[..]);
        }
        pipeline.add_command(words);
    }
    let answers = connection.send_packed_commands(&pipeline, 0, commands.len()).await?;
    Ok(answers.into_iter().map(adapted).collect())
}

fn adapted(value: Value) -> RedisValue {
    match value {
        Value::Nil => RedisValue::Nil,
        Value::Int(number) => RedisValue::Integer(number),
        Value::BulkString(bytes) => RedisValue::Bytes(bytes),
        Value::Okay => RedisValue::Status("OK".into()),
        Value::Array(values) => RedisValue::Array(values.into_iter().map(adapted).collect()),
        Value::ServerError(error) => RedisValue::Error {
            code: error.code().into(),
            message: error.details().unwrap_or_default().into(),
        },
        other => panic!("{other:?}"),
    }
}

/// Claims a key, runs for a moment and completes, or is told that it was done; how often it ran.
pub(crate) async fn until_done(store: RedisStore, key: RecordKey) -> usize {
    let started = tokio::time::Instant::now();
    let lease = Duration::from_secs(6);
    let asked = Claim::new(key, ClaimToken::random(), None, lease, HOLD, Duration::from_secs(1));
    loop {
        match store.claim(asked.clone()).await {
            Ok(Claimed::Granted(grant)) => {
                tokio::time::sleep(Duration::from_millis(20)).await;
                while !store.complete(&grant, kept("done")).await.is_ok_and(Written::is_stored) {
                    assert!(started.elapsed() < Duration::from_secs(30), "not stored");
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                return 1;
            }
            Ok(Claimed::Completed(_)) => return 0,
            other => assert!(started.elapsed() < Duration::from_secs(30), "still: {other:?}"),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
