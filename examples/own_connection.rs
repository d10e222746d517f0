//! A connection that the program has already, used for the records too: an adapter of the crate `redis`.
//!
//! ```sh
//! cargo run --example own_connection -- redis://127.0.0.1:6379
//! ```
//!
//! Without such a reason, `RedisStore::connect` is simpler, and replaces what is dead by itself.

use std::{error::Error, sync::Mutex};

use redis::{
    Client, Cmd, Pipeline, Value,
    aio::{ConnectionLike, MultiplexedConnection},
};
use tower_idempotency::{
    ClaimToken, RecordKey, RedisStore, Store, StoreError,
    store::{
        Claim, Claimed, Kept, RedisCommand, RedisConnection, RedisTrouble, RedisValue,
        StoreErrorKind,
    },
};

/// A connection that all of the program uses, made again when the store has lost its trust in it.
struct Own {
    client: Client,
    connection: Mutex<Option<MultiplexedConnection>>,
}

impl Own {
    fn new(url: &str) -> redis::RedisResult<Self> {
        Ok(Self { client: Client::open(url)?, connection: Mutex::new(None) })
    }

    /// The connection. The store bounds the time of every call, and asks one call at a time to
    /// connect, so that this need not.
    async fn get(&self) -> redis::RedisResult<MultiplexedConnection> {
        let there = self.connection.lock().expect("no holder panics").clone();
        if let Some(connection) = there {
            return Ok(connection);
        }
        let connection = self.client.get_multiplexed_async_connection().await?;
        *self.connection.lock().expect("no holder panics") = Some(connection.clone());
        Ok(connection)
    }
}

impl RedisConnection for Own {
    async fn send(&self, commands: Vec<RedisCommand>) -> Result<Vec<RedisValue>, StoreError> {
        let mut pipeline = Pipeline::with_capacity(commands.len());
        for command in &commands {
            let mut words = Cmd::new();
            for argument in command.arguments() {
                words.arg(&argument[..]);
            }
            pipeline.add_command(words);
        }
        let mut connection = self.get().await.map_err(broken)?;
        // One write, and errors of single commands as values.
        let answers = connection.req_packed_commands(&pipeline, 0, commands.len()).await;
        Ok(answers.map_err(broken)?.into_iter().map(value).collect())
    }

    fn report(&self, trouble: RedisTrouble) {
        println!("a new connection is needed: {trouble:?}");
        *self.connection.lock().expect("no holder panics") = None;
    }
}

fn broken(error: redis::RedisError) -> StoreError {
    let message = "the program's own connection to Redis broke";
    StoreError::new(StoreErrorKind::Unreachable, message).caused_by(error)
}

fn value(value: Value) -> RedisValue {
    match value {
        Value::Nil => RedisValue::Nil,
        Value::Int(number) => RedisValue::Integer(number),
        Value::BulkString(bytes) => RedisValue::Bytes(bytes),
        Value::SimpleString(status) => RedisValue::Status(status),
        Value::Okay => RedisValue::Status("OK".into()),
        Value::Array(values) => RedisValue::Array(values.into_iter().map(self::value).collect()),
        Value::ServerError(error) => RedisValue::Error {
            code: error.code().into(),
            message: error.details().unwrap_or_default().into(),
        },
        // The store's commands are answered with none of the rest.
        other => RedisValue::Error { code: "UNEXPECTED".into(), message: format!("{other:?}") },
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1).unwrap_or("redis://127.0.0.1:6379".to_owned());
    let store = RedisStore::over(Own::new(&url)?).prefix("own");

    let policy = tower_idempotency::Policy::api(tower_idempotency::Scope::everyone());
    let rule = tower_idempotency::Rule::new("order", policy);
    let _layer = tower_idempotency::IdempotencyLayer::new(store.clone(), rule);

    // What the layer does with it, by hand.
    let key =
        RecordKey::from_bytes([*ClaimToken::random().as_bytes(); 2].concat().try_into().unwrap());
    let second = std::time::Duration::from_secs(1);
    let claim = || Claim::new(key, ClaimToken::random(), None, 30 * second, 60 * second, second);
    let Claimed::Granted(grant) = store.claim(claim()).await? else { return Err("claimed".into()) };
    println!("granted: attempt {}", grant.attempt);
    store.complete(&grant, Kept::new("two pizzas".into(), 60 * second)).await?;
    let Claimed::Completed(done) = store.claim(claim()).await? else { return Err("lost".into()) };
    println!("replayed: {}", String::from_utf8_lossy(&done.payload));
    Ok(())
}
