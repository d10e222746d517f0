//! One connection that all callers share: commands that are ready together leave in one write.
//!
//! A caller writes its command into the outbox that all share, and waits for its answer; a task that
//! owns the stream sends what is in the outbox and hands out the answers, which come in the order of
//! the commands. Before it writes it lets the tasks that are ready run once, since each of them may
//! have a command too. What no command asked for, and what is no answer, ends the connection: answers
//! after it could be anybody's.
//!
//! Nothing is ever sent twice, and no time is limited here: that is the caller's.

mod driver;
mod parse;

use std::{
    borrow::Borrow,
    collections::VecDeque,
    io, mem,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker, ready},
};

use redis::Value;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::oneshot,
    task::AbortHandle,
};

use self::driver::Driver;
use super::resp::Command;

/// What waits to be sent at most: a server that reads nothing must not fill the memory.
const UNSENT_AT_MOST: usize = 64 * 1024 * 1024;

/// Why a connection came to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Broken {
    /// The stream ended or failed.
    Io(io::ErrorKind, String),
    /// What was read is no answer, or none that was asked for.
    Garbled,
}

impl From<io::Error> for Broken {
    fn from(error: io::Error) -> Self {
        Self::Io(error.kind(), error.to_string())
    }
}

impl Broken {
    fn ended() -> Self {
        Self::Io(io::ErrorKind::UnexpectedEof, "the connection has ended".to_owned())
    }
}

/// A connection. Dropped, it closes the stream.
pub(super) struct Session {
    outbox: Arc<Mutex<Outbox>>,
    driver: AbortHandle,
}

/// What was sent is answered some time, or never: then the connection is broken.
pub(super) struct Answer<T>(oneshot::Receiver<Result<T, Broken>>);

impl<T> Future for Answer<T> {
    type Output = Result<T, Broken>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = ready!(Pin::new(&mut self.0).poll(cx));
        Poll::Ready(answer.unwrap_or_else(|_| Err(Broken::ended())))
    }
}

/// What callers have written and the driver has not sent yet.
#[derive(Default)]
struct Outbox {
    bytes: Vec<u8>,
    /// Who waits for the answers, in the order of the commands.
    waiting: VecDeque<Waiting>,
    /// Wakes the driver, which looks for more once what it has is sent.
    driver: Option<Waker>,
    broken: Option<Broken>,
}

/// Somebody who waits for answers; whoever has gone away leaves his place, so that nobody gets another's.
enum Waiting {
    One(oneshot::Sender<Result<Value, Broken>>),
    Several { left: usize, values: Vec<Value>, to: oneshot::Sender<Result<Vec<Value>, Broken>> },
}

fn lock(outbox: &Mutex<Outbox>) -> MutexGuard<'_, Outbox> {
    // Nothing that runs under the lock can leave it half changed but a failed allocation.
    outbox.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Session {
    /// Takes over a stream on which nothing has been said yet. Must be called on a runtime, which the
    /// connection ends with.
    pub(super) fn over(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) -> Self {
        let outbox = Arc::<Mutex<Outbox>>::default();
        let driver = tokio::spawn(Driver::new(stream, outbox.clone())).abort_handle();
        Self { outbox, driver }
    }

    /// Sends one command, whether its answer is waited for or not.
    ///
    /// Cancel safe: its answer is thrown away.
    pub(super) fn send(&self, command: &Command) -> Answer<Value> {
        let (to, answer) = oneshot::channel();
        self.post(|bytes| command.write(bytes), Waiting::One(to));
        Answer(answer)
    }

    /// Sends several commands one right after the other, and gives back as many answers.
    ///
    /// Cancel safe like [`send`](Self::send).
    pub(super) fn send_all<C: Borrow<Command>>(&self, commands: &[C]) -> Answer<Vec<Value>> {
        let left = commands.len();
        let (to, answers) = oneshot::channel();
        if left == 0 {
            drop(to.send(Ok(Vec::new())));
            return Answer(answers);
        }
        let write = |bytes: &mut Vec<u8>| {
            commands.iter().for_each(|command| command.borrow().write(bytes));
        };
        let values = Vec::with_capacity(left);
        self.post(write, Waiting::Several { left, values, to });
        Answer(answers)
    }

    fn post(&self, write: impl FnOnce(&mut Vec<u8>), waiting: Waiting) {
        let mut outbox = lock(&self.outbox);
        if let Some(broken) = &outbox.broken {
            return waiting.broken(broken);
        }
        if outbox.bytes.len() > UNSENT_AT_MOST {
            let message = "the server reads nothing, and too much waits to be sent";
            return waiting.broken(&Broken::Io(io::ErrorKind::TimedOut, message.to_owned()));
        }
        write(&mut outbox.bytes);
        outbox.waiting.push_back(waiting);
        let driver = outbox.driver.take();
        drop(outbox);
        if let Some(driver) = driver {
            driver.wake();
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Outbox {
    /// From now on nobody waits here any more.
    fn end(&mut self, broken: &Broken) -> VecDeque<Waiting> {
        self.broken.get_or_insert_with(|| broken.clone());
        self.bytes = Vec::new();
        mem::take(&mut self.waiting)
    }
}

impl Waiting {
    /// One more answer. Gives itself back while more are to come.
    fn answered(self, value: Value) -> Option<Self> {
        match self {
            // Whoever has gone away wants no answer.
            Self::One(to) => drop(to.send(Ok(value))),
            Self::Several { mut left, mut values, to } => {
                values.push(value);
                left -= 1;
                if left > 0 {
                    return Some(Self::Several { left, values, to });
                }
                drop(to.send(Ok(values)));
            }
        }
        None
    }

    fn broken(self, broken: &Broken) {
        match self {
            Self::One(to) => drop(to.send(Err(broken.clone()))),
            Self::Several { to, .. } => drop(to.send(Err(broken.clone()))),
        }
    }
}

#[cfg(test)]
mod tests;
