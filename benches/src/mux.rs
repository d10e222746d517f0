//! The store over a connection of the crate `redis`, with its multiplexing: what the store's own
//! session is measured against, with nothing else changed.

use std::fmt;

use bytes::Bytes;
use redis::{AsyncConnectionConfig, Cmd, Pipeline, RedisError, Value, aio::MultiplexedConnection};
use tower_idempotency::{
    StoreError,
    store::{RedisCommand, RedisConnection, RedisValue, StoreErrorKind},
};

/// One multiplexed connection, as the example `own_connection` adapts it, less what replaces it.
pub struct Mux {
    connection: MultiplexedConnection,
}

impl Mux {
    /// Connects.
    ///
    /// # Panics
    ///
    /// When there is no Redis.
    pub async fn connect(url: &str) -> Self {
        let client = redis::Client::open(url).expect("the bench was given a URL of Redis");
        // The store bounds the time of every call; a second timer for each would count against `redis`.
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let connection = client.get_multiplexed_async_connection_with_config(&config).await;
        Self { connection: connection.expect("there is a Redis") }
    }
}

impl RedisConnection for Mux {
    async fn send(&self, commands: Vec<RedisCommand>) -> Result<Vec<RedisValue>, StoreError> {
        // Clones share the connection.
        let mut connection = self.connection.clone();
        if let [command] = &commands[..] {
            // Nearly every call is one command, which the hand-written minimum sends like this too.
            let answer = connection.send_packed_command(&words(command)).await;
            return Ok(vec![value(answer.map_err(broken)?)]);
        }
        let mut pipeline = Pipeline::with_capacity(commands.len());
        for command in &commands {
            pipeline.add_command(words(command));
        }
        let answers = connection.send_packed_commands(&pipeline, 0, commands.len()).await;
        let answers = answers.map_err(broken)?;
        Ok(answers.into_iter().map(value).collect())
    }
}

/// The arguments are copied, as whoever adapts a connection must.
fn words(command: &RedisCommand) -> Cmd {
    let arguments = command.arguments();
    let bytes = arguments.iter().map(Bytes::len).sum();
    let mut words = Cmd::with_capacity(arguments.len(), bytes);
    for argument in arguments {
        words.arg(&argument[..]);
    }
    words
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

fn broken(error: RedisError) -> StoreError {
    StoreError::new(StoreErrorKind::Unreachable, "the bench's Redis does not answer")
        .caused_by(error)
}

impl fmt::Debug for Mux {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Mux")
    }
}
