//! A connection that the program has already, as this store uses it: a trait of our own, so that no
//! client's types are in anybody's way.

use std::{fmt, future::Future, sync::Arc};

use bytes::Bytes;
use redis::Value;

use super::resp::Command;
use crate::store::{BoxFuture, StoreError, StoreErrorKind};

/// One command: its name and its arguments, as they go over the wire.
///
/// There are one-time tokens and answers among the arguments: its `Debug` says how long each is, and no
/// more.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisCommand {
    arguments: Vec<Bytes>,
}

impl RedisCommand {
    /// The name, then the arguments. Any of them may hold any bytes.
    pub fn arguments(&self) -> &[Bytes] {
        &self.arguments
    }

    pub(super) fn of(command: &Command) -> Self {
        Self { arguments: command.parts() }
    }
}

/// What a server answered to one command.
///
/// There may be one-time tokens and answers in it: its `Debug` says how long a bulk string is, and no more.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum RedisValue {
    /// Nothing.
    Nil,
    /// An integer.
    Integer(i64),
    /// A bulk string.
    Bytes(Vec<u8>),
    /// A simple string, such as `OK`.
    Status(String),
    /// Several values.
    Array(Vec<RedisValue>),
    /// The server's refusal of this one command.
    Error {
        /// The first word, such as `NOSCRIPT`.
        code: String,
        /// The rest.
        message: String,
    },
}

impl fmt::Debug for RedisCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, rest) = self.arguments.split_first().unzip();
        let name = String::from_utf8_lossy(name.map_or(&[], |name| &name[..]));
        let lengths: Vec<_> = rest.into_iter().flatten().map(Bytes::len).collect();
        f.debug_struct("RedisCommand").field("name", &name).field("lengths", &lengths).finish()
    }
}

impl fmt::Debug for RedisValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nil => f.write_str("Nil"),
            Self::Integer(number) => f.debug_tuple("Integer").field(number).finish(),
            Self::Bytes(bytes) => write!(f, "Bytes({} bytes)", bytes.len()),
            Self::Status(status) => f.debug_tuple("Status").field(status).finish(),
            Self::Array(values) => f.debug_tuple("Array").field(values).finish(),
            Self::Error { code, message } => {
                f.debug_struct("Error").field("code", code).field("message", message).finish()
            }
        }
    }
}

impl RedisValue {
    pub(super) fn into_value(self) -> Value {
        match self {
            Self::Nil => Value::Nil,
            Self::Integer(number) => Value::Int(number),
            Self::Bytes(bytes) => Value::BulkString(bytes),
            Self::Status(status) if status == "OK" => Value::Okay,
            Self::Status(status) => Value::SimpleString(status),
            Self::Array(values) => Value::Array(values.into_iter().map(Self::into_value).collect()),
            Self::Error { code, message } => {
                let error = redis::make_extension_error(code, Some(message));
                let error = error.into_server_errors().and_then(|errors| errors.first().cloned());
                error.map_or(Value::Nil, |(_, error)| Value::ServerError(error))
            }
        }
    }
}

/// What the store found out about a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RedisTrouble {
    /// It leads to a replica: the primary is elsewhere now.
    ReadOnly,
    /// Several calls in a row were not answered in time.
    TimedOut,
    /// It broke, or its answers are out of step with what was asked.
    Broken,
}

/// A connection to a Redis that the program has already, adapted for
/// [`RedisStore::over`](crate::RedisStore::over).
///
/// It leads to one primary (not to a cluster, whose redirections the adapter would have to hide). It
/// has no timeouts of its own to have: the store drops what takes too long. It must not send a command
/// twice on its own account; where it does, no claim is granted twice all the same.
///
/// # Cancel safety
///
/// The future of `send` may be dropped. Later answers must still fit the commands they belong to.
///
/// The example `own_connection` adapts a connection of the crate `redis`.
pub trait RedisConnection: Send + Sync + 'static {
    /// Sends these commands in this order over one connection, in one write if it can, and gives back
    /// one value for each. A command that the server refuses is [`RedisValue::Error`].
    ///
    /// # Errors
    ///
    /// When there is no connection, or it breaks before the last answer is there: of kind
    /// [`Unreachable`](StoreErrorKind::Unreachable), or what fits better.
    fn send(
        &self,
        commands: Vec<RedisCommand>,
    ) -> impl Future<Output = Result<Vec<RedisValue>, StoreError>> + Send;

    /// The store has no trust in the connection any more, and will use what `send` leads to from now
    /// on. Does nothing if it is not implemented: right for whatever replaces connections by itself.
    /// Called for [`RedisTrouble::ReadOnly`] too, which few clients take for a reason.
    fn report(&self, trouble: RedisTrouble) {
        let _ = trouble;
    }
}

/// A [`RedisConnection`] behind a pointer.
pub(super) trait DynConnection: Send + Sync {
    fn send(
        self: Arc<Self>,
        commands: Vec<RedisCommand>,
    ) -> BoxFuture<Result<Vec<RedisValue>, StoreError>>;
    fn report(&self, trouble: RedisTrouble);
}

impl<C: RedisConnection> DynConnection for C {
    fn send(
        self: Arc<Self>,
        commands: Vec<RedisCommand>,
    ) -> BoxFuture<Result<Vec<RedisValue>, StoreError>> {
        Box::pin(async move { RedisConnection::send(&*self, commands).await })
    }

    fn report(&self, trouble: RedisTrouble) {
        RedisConnection::report(self, trouble);
    }
}

/// Sends commands through an adapter: as many answers as commands, or an error.
pub(super) async fn send(
    connection: &Arc<dyn DynConnection>,
    commands: Vec<RedisCommand>,
) -> Result<Vec<Value>, StoreError> {
    let asked = commands.len();
    let answers = connection.clone().send(commands).await?;
    if answers.len() != asked {
        let message = format!(
            "the program's own connection gave {} answers to {asked} commands: its adapter is wrong",
            answers.len()
        );
        return Err(StoreError::new(StoreErrorKind::Garbled, message));
    }
    Ok(answers.into_iter().map(RedisValue::into_value).collect())
}
