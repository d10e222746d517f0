//! The minimum in Redis: `SET NX GET` to claim, a script of two commands to save.

use std::fmt;

use bytes::Bytes;
use redis::{Cmd, Script, Value, aio::MultiplexedConnection};

use super::{Backend, Found, RETENTION_MS, record::ANSWER};

/// Stores the answer if the claim is still this one's.
const SAVE: &str = "\
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return 1";

/// One multiplexed connection.
#[derive(Clone)]
pub struct Redis {
    connection: MultiplexedConnection,
    save: std::sync::Arc<str>,
}

impl Redis {
    /// Connects, and loads the script.
    ///
    /// # Panics
    ///
    /// When there is no Redis.
    pub async fn connect(url: &str) -> Self {
        let client = redis::Client::open(url).expect("the bench was given a URL of Redis");
        let mut connection =
            client.get_multiplexed_async_connection().await.expect("there is a Redis");
        let script = Script::new(SAVE);
        let save = script.load_async(&mut connection).await.expect("the script can be loaded");
        Self { connection, save: save.into() }
    }

    fn name(key: &str) -> String {
        format!("bench-minimum:{key}")
    }

    async fn send(&self, command: &Cmd) -> Value {
        // Clones share the connection.
        let answer = self.connection.clone().send_packed_command(command).await;
        answer.expect("the bench's Redis answers")
    }
}

impl Backend for Redis {
    async fn claim(&self, key: &str, token: &[u8; 16]) -> Found {
        let mut command = Cmd::with_capacity(7, 160);
        command.arg("SET").arg(Self::name(key)).arg(&token[..]);
        command.arg("NX").arg("GET").arg("PX").arg(RETENTION_MS);
        match self.send(&command).await {
            Value::Nil => Found::Granted,
            // A token may begin with this byte too, but is never as long as an answer.
            Value::BulkString(found) if found[0] == ANSWER && found.len() > 16 => {
                Found::Answer(found.into())
            }
            Value::BulkString(_) => Found::Busy,
            other => panic!("SET NX GET answered {other:?}"),
        }
    }

    async fn save(&self, key: &str, token: &[u8; 16], answer: Bytes) {
        let mut command = Cmd::with_capacity(7, 160 + answer.len());
        command.arg("EVALSHA").arg(&*self.save).arg(1).arg(Self::name(key));
        command.arg(&token[..]).arg(&answer[..]).arg(RETENTION_MS);
        match self.send(&command).await {
            Value::Int(1) => {}
            other => panic!("the answer was not saved: {other:?}"),
        }
    }
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Redis")
    }
}
