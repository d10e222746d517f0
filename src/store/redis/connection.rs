//! One connection, and what is said over it.

use std::{
    borrow::Borrow,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use redis::Value;
use tokio::{sync::oneshot, time::Instant};

use super::{
    Failure,
    adapter::{self, DynConnection, RedisCommand},
    clock::Clock,
    info::Info,
    origin::Greeting,
    reply,
    resp::Command,
    session::{Answer, Session},
};

/// A connection, which lives on the runtime that made it.
pub(super) struct Connection {
    wire: Wire,
    generation: u64,
    clock: Clock,
    /// Calls in a row that were not answered in time.
    timeouts: AtomicU32,
    /// What the server said about itself when it was connected to.
    info: Option<Info>,
    /// Which server the sentinels had named.
    #[cfg(feature = "redis-sentinel")]
    pub(super) named: Option<super::sentinel::Named>,
    /// Dropped with the last user of the connection: ends the task that watches over it.
    _watched: oneshot::Sender<()>,
}

/// What carries the bytes.
pub(super) enum Wire {
    Own(Session),
    /// The program's own.
    Given(Arc<dyn DynConnection>),
}

/// A command that was sent, until its answer is there.
pub(super) enum Sent<'a> {
    Own(Answer<Value>),
    /// In a box: calls over a session of our own need not be as large. The answer is the last.
    Boxed(Pin<Box<dyn Future<Output = Result<Vec<Value>, Failure>> + Send + 'a>>),
}

impl Future for Sent<'_> {
    type Output = Result<Value, Failure>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(match &mut *self {
            Self::Own(answer) => Ok(ready!(Pin::new(answer).poll(cx))?),
            Self::Boxed(answers) => {
                let answer = ready!(answers.as_mut().poll(cx))?.pop();
                Ok(answer.ok_or_else(|| reply::garbled("a command"))?)
            }
        })
    }
}

impl Wire {
    /// Sends one command, of which nothing is kept.
    pub(super) fn send(&self, command: &Command) -> Sent<'_> {
        match self {
            Self::Own(session) => Sent::Own(session.send(command)),
            Self::Given(given) => {
                let commands = vec![RedisCommand::of(command)];
                Sent::Boxed(Box::pin(async { Ok(adapter::send(given, commands).await?) }))
            }
        }
    }

    /// Sends several commands in one write and reads all answers.
    pub(super) async fn send_all<C: Borrow<Command> + Sync>(
        &self,
        commands: &[C],
    ) -> Result<Vec<Value>, Failure> {
        match self {
            Self::Own(session) => Ok(session.send_all(commands).await?),
            Self::Given(given) => {
                let commands = commands.iter().map(Borrow::borrow).map(RedisCommand::of).collect();
                Ok(adapter::send(given, commands).await?)
            }
        }
    }
}

impl Connection {
    pub(super) fn new(greeting: Greeting, generation: u64, watched: oneshot::Sender<()>) -> Self {
        Self {
            wire: greeting.wire,
            generation,
            clock: Clock::new(greeting.now_ms),
            timeouts: AtomicU32::new(0),
            info: greeting.info,
            #[cfg(feature = "redis-sentinel")]
            named: greeting.named,
            _watched: watched,
        }
    }

    /// What the server said about itself when it was connected to; `None` where it does not say.
    pub(super) fn info(&self) -> Option<&Info> {
        self.info.as_ref()
    }

    /// Which of all connections it is.
    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    /// The server's time in ms at this time of ours, or a little less.
    pub(super) fn server_ms(&self, at: Instant) -> u64 {
        self.clock.estimate(at)
    }

    /// How long the server has said nothing over it.
    pub(super) fn silent_for(&self) -> Duration {
        self.clock.silent_for()
    }

    /// The server has said its time over it.
    pub(super) fn heard(&self, now_ms: u64) {
        self.clock.heard(now_ms);
        self.alive();
    }

    /// The server has said something over it.
    pub(super) fn alive(&self) {
        self.timeouts.store(0, Relaxed);
    }

    /// One more call in a row was not answered in time; how many.
    pub(super) fn timed_out(&self) -> u32 {
        self.timeouts.fetch_add(1, Relaxed) + 1
    }

    /// Asks for the server's time.
    pub(super) async fn server_time(&self) -> Result<u64, Failure> {
        match self.wire.send(&Command::new("TIME")).await? {
            Value::ServerError(error) => Err(Failure::Server(error)),
            value => Ok(reply::time_ms(value).ok_or_else(|| reply::garbled("TIME"))?),
        }
    }

    /// Sends one command, of which nothing is kept.
    pub(super) fn send(&self, command: &Command) -> Sent<'_> {
        self.wire.send(command)
    }

    /// Sends several commands in one write and reads all answers.
    pub(super) fn send_all<C: Borrow<Command> + Sync>(
        &self,
        commands: &[C],
    ) -> impl Future<Output = Result<Vec<Value>, Failure>> {
        self.wire.send_all(commands)
    }
}
