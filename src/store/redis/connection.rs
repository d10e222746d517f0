//! One connection for all calls: made once for everybody, replaced when it is dead, paced when it
//! cannot be made; and the server's clock as it was last heard over it.

use std::{
    fmt,
    sync::{
        Arc, Weak,
        atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use rand::RngExt;
use redis::{
    AsyncConnectionConfig, Client, Cmd, IntoConnectionInfo, Pipeline, Value,
    aio::MultiplexedConnection, io::tcp::TcpSettings,
};
use tokio::{
    sync::{oneshot, watch},
    time::timeout,
};

use super::{refused, reply};
use crate::store::{StoreError, StoreErrorKind};

/// The whole of an attempt to connect: name, TCP, log-in and the first word about the time.
pub(super) const CONNECT_WITHIN: Duration = Duration::from_secs(1);
/// Longer than an attempt takes on a busy machine.
const TAKEN_FOR_STOPPED_AFTER: Duration = Duration::from_secs(2);
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// A connection that let this many calls in a row go unanswered is taken for half open.
const TIMEOUTS_IN_A_ROW: u32 = 3;

/// Where the connection comes from.
pub(super) struct Link {
    client: Client,
    address: String,
    status: watch::Sender<Status>,
    generations: AtomicU64,
    /// Attempts and connections since the last answer that came to nothing.
    failures: AtomicU32,
}

enum Status {
    /// Whoever calls next connects, but not before the pause is over. Until then this is why not.
    Down(Option<Pause>),
    /// A task is connecting, on the runtime of the caller that started it, and since then.
    Connecting(u64, Instant),
    Up(Arc<Connection>),
}

struct Pause {
    until: Instant,
    kind: StoreErrorKind,
    message: String,
}

/// A connection, which lives on the runtime that made it.
pub(super) struct Connection {
    client: MultiplexedConnection,
    generation: u64,
    clock: Clock,
    timeouts: AtomicU32,
    /// Dropped with the last user of the connection: ends the task that watches over it.
    _watched: oneshot::Sender<()>,
}

impl Link {
    /// Checks the URL; connects to nothing.
    pub(super) fn new(url: &str) -> Result<Arc<Self>, StoreError> {
        // The parser's own words are not repeated: they may quote the URL, and with it a password.
        let tls = url.starts_with("rediss:") || url.starts_with("valkeys:");
        let wrong = |_| {
            let why = if tls { "TLS is not supported yet" } else { "it must look so" };
            StoreError::new(
                StoreErrorKind::Refused,
                format!(
                    "this is no URL of a Redis that this build can reach; {why}: \
                     redis://user:password@host:6379/0"
                ),
            )
        };
        let info = url.into_connection_info().map_err(wrong)?;
        let address = info.addr().to_string();
        let redis = info.redis_settings().clone().set_skip_set_lib_name();
        // Without TCP_NODELAY a claim may wait for the acknowledgement of the one before it.
        let info = info
            .set_tcp_settings(TcpSettings::default().set_nodelay(true))
            .set_redis_settings(redis);
        Ok(Arc::new(Self {
            client: Client::open(info).map_err(wrong)?,
            address,
            status: watch::Sender::new(Status::Down(None)),
            generations: AtomicU64::new(0),
            failures: AtomicU32::new(0),
        }))
    }

    /// Host and port, without name and password.
    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// The connection. Waits while somebody is connecting; is told at once why there is none while
    /// a failed attempt is not long ago.
    ///
    /// Cancel safe: the attempt belongs to a task of its own.
    pub(super) async fn get(self: &Arc<Self>) -> Result<Arc<Connection>, StoreError> {
        if let Status::Up(connection) = &*self.status.borrow() {
            return Ok(connection.clone());
        }
        let mut changes = self.status.subscribe();
        loop {
            match &*changes.borrow_and_update() {
                Status::Up(connection) => return Ok(connection.clone()),
                Status::Down(Some(pause)) if Instant::now() < pause.until => {
                    return Err(StoreError::new(pause.kind, pause.message.clone()));
                }
                Status::Down(_) | Status::Connecting(..) => {}
            }
            self.connect_unless_somebody_does();
            if changes.changed().await.is_err() {
                return Err(StoreError::new(StoreErrorKind::Unreachable, "the store is gone"));
            }
        }
    }

    fn connect_unless_somebody_does(self: &Arc<Self>) {
        let generation = self.generations.fetch_add(1, Relaxed) + 1;
        let mut mine = false;
        self.status.send_if_modified(|status| {
            let nobody_does = match status {
                Status::Down(pause) => pause.as_ref().is_none_or(Pause::is_over),
                // An attempt has an end of its own, unless its runtime is there and does not run.
                Status::Connecting(_, since) => since.elapsed() > TAKEN_FOR_STOPPED_AFTER,
                Status::Up(_) => false,
            };
            if nobody_does {
                *status = Status::Connecting(generation, Instant::now());
                mine = true;
            }
            // Nobody waits for a beginning.
            false
        });
        if mine {
            let task = Task { link: Arc::downgrade(self), generation };
            tokio::spawn(task.run(self.client.clone()));
        }
    }

    /// The connection, or the attempt, of this generation has come to nothing. Said of another
    /// generation it changes nothing: a connection that was replaced is not reported dead twice.
    fn gone(&self, generation: u64, why: Option<&StoreError>) {
        // What is replaced is dropped after the lock is given back.
        let mut replaced = None;
        self.status.send_if_modified(|status| {
            let connecting = match status {
                Status::Down(_) => return false,
                Status::Connecting(current, _) if *current == generation => true,
                Status::Up(connection) if connection.generation == generation => false,
                Status::Connecting(..) | Status::Up(_) => return false,
            };
            let pause = why.and_then(|why| self.pause(connecting, why));
            replaced = Some(std::mem::replace(status, Status::Down(pause)));
            true
        });
        drop(replaced);
    }

    /// How long to wait after one more failure. A connection that had answered before it broke may
    /// be replaced at once, so that a blip costs nobody more than the one call.
    fn pause(&self, connecting: bool, why: &StoreError) -> Option<Pause> {
        let failures = self.failures.fetch_add(1, Relaxed);
        let steps = if connecting { failures } else { failures.checked_sub(1)? };
        let longest = FIRST_PAUSE.saturating_mul(1 << steps.min(8)).min(LONGEST_PAUSE);
        let pause = longest.mul_f64(rand::rng().random_range(0.5..1.0));
        Some(Pause { until: Instant::now() + pause, kind: why.kind(), message: why.to_string() })
    }

    /// A call was answered: the connection lives. `now_ms` is what the server's clock said, or 0.
    pub(super) fn answered(&self, connection: &Connection, now_ms: u64) {
        if now_ms != 0 {
            connection.clock.heard(now_ms);
        }
        connection.timeouts.store(0, Relaxed);
        self.failures.store(0, Relaxed);
    }

    /// A call was not answered in time. Three in a row, and the connection is taken for half open.
    pub(super) fn timed_out(&self, connection: &Connection, error: &StoreError) {
        if connection.timeouts.fetch_add(1, Relaxed) + 1 >= TIMEOUTS_IN_A_ROW {
            self.gone(connection.generation, Some(error));
        }
    }

    /// The connection broke, or leads to a node that is no primary any more.
    pub(super) fn replace(&self, connection: &Connection, error: &StoreError) {
        self.gone(connection.generation, Some(error));
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Pause {
    fn is_over(&self) -> bool {
        self.until <= Instant::now()
    }
}

/// Connects, then watches over the connection until it is replaced. If the runtime ends first, the
/// connection ends with it, and dropping this says so: the next call connects on its own runtime.
struct Task {
    link: Weak<Link>,
    generation: u64,
}

impl Task {
    async fn run(self, client: Client) {
        let (watched, replaced) = oneshot::channel();
        let made = timeout(CONNECT_WITHIN, connect(&client, self.generation, watched)).await;
        let Some(link) = self.link.upgrade() else { return };
        match made {
            Ok(Ok(connection)) => {
                link.status.send_if_modified(|status| {
                    let mine = matches!(status, Status::Connecting(g, _) if *g == self.generation);
                    if mine {
                        *status = Status::Up(Arc::new(connection));
                    }
                    mine
                });
                drop(link);
                // Either way it ends the sender is gone, and so is the connection.
                let _ = replaced.await;
            }
            Ok(Err(error)) => link.gone(self.generation, Some(&error.at(&link.address))),
            Err(_) => {
                let address = &link.address;
                let message =
                    format!("no answer from Redis at {address} within {CONNECT_WITHIN:?}");
                let error = StoreError::new(StoreErrorKind::Timeout, message);
                link.gone(self.generation, Some(&error));
            }
        }
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        if let Some(link) = self.link.upgrade() {
            link.gone(self.generation, None);
        }
    }
}

enum NotConnected {
    Client(redis::RedisError),
    Server(redis::ServerError),
    NoTime,
}

impl NotConnected {
    fn at(&self, address: &str) -> StoreError {
        match self {
            Self::Client(error) => refused::by_client(address, error),
            Self::Server(error) => refused::by_server("TIME", error),
            Self::NoTime => reply::garbled("TIME"),
        }
    }
}

/// Connects, and hears the server's clock before anything else may be sent.
async fn connect(
    client: &Client,
    generation: u64,
    watched: oneshot::Sender<()>,
) -> Result<Connection, NotConnected> {
    // Time limits are ours alone, each round a whole call.
    let config =
        AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
    let mut client = client
        .get_multiplexed_async_connection_with_config(&config)
        .await
        .map_err(NotConnected::Client)?;
    let mut time = Cmd::new();
    time.arg("TIME");
    let now_ms = match client.send_packed_command(&time).await.map_err(NotConnected::Client)? {
        Value::ServerError(error) => return Err(NotConnected::Server(error)),
        value => reply::time_ms(value).ok_or(NotConnected::NoTime)?,
    };
    Ok(Connection {
        client,
        generation,
        clock: Clock::new(now_ms),
        timeouts: AtomicU32::new(0),
        _watched: watched,
    })
}

impl Connection {
    /// The server's time in ms, or a little less.
    pub(super) fn server_ms(&self) -> u64 {
        self.clock.estimate()
    }

    /// Sends one command.
    pub(super) async fn send(&self, command: &Cmd) -> redis::RedisResult<Value> {
        self.client.clone().send_packed_command(command).await
    }

    /// Sends several commands in one write and reads all answers.
    pub(super) async fn send_all(&self, commands: &Pipeline) -> redis::RedisResult<Vec<Value>> {
        self.client.clone().send_packed_commands(commands, 0, commands.len()).await
    }
}

/// The server's clock: what was last heard, plus the time since then by our own monotonic clock.
///
/// What was heard was said before it was heard, so the estimate never runs ahead of the server; a
/// claim's deadline is then never later than its owner meant it to be.
struct Clock {
    started: Instant,
    /// The server's ms when `started` was, or a little less.
    offset_ms: AtomicI64,
}

impl Clock {
    fn new(now_ms: u64) -> Self {
        Self { started: Instant::now(), offset_ms: AtomicI64::new(signed(now_ms)) }
    }

    fn heard(&self, now_ms: u64) {
        // Rounded up here and down in the estimate: both make it earlier.
        let since = self.started.elapsed().as_millis() as i64 + 1;
        self.offset_ms.store(signed(now_ms) - since, Relaxed);
    }

    fn estimate(&self) -> u64 {
        let since = self.started.elapsed().as_millis() as i64;
        // Never 0 or 1, which mean something else in a claim.
        u64::try_from(self.offset_ms.load(Relaxed) + since).unwrap_or_default().max(2)
    }
}

/// A time in ms since 1970 fits for the next 140 million years, with room for what is added.
fn signed(ms: u64) -> i64 {
    i64::try_from(ms).unwrap_or(i64::MAX).min(i64::MAX / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_estimate_is_never_ahead_of_what_was_heard_and_follows_the_server_back() {
        let clock = Clock::new(1_000_000);
        assert!((1_000_000..1_000_900).contains(&clock.estimate()));
        clock.heard(2_000_000);
        assert!((1_999_990..2_000_900).contains(&clock.estimate()));
        clock.heard(500_000);
        assert!((499_990..500_900).contains(&clock.estimate()));
        for absurd in [0, i64::MAX as u64, u64::MAX] {
            clock.heard(absurd);
            assert!(clock.estimate() >= 2, "{absurd}");
        }
    }

    #[test]
    fn pauses_grow_to_a_second_and_the_first_loss_of_a_good_connection_costs_none() {
        let link = Link::new("redis://127.0.0.1:1").unwrap();
        let why = StoreError::new(StoreErrorKind::Unreachable, "gone");
        assert!(link.pause(false, &why).is_none());
        for _ in 0..40 {
            let pause = link.pause(true, &why).unwrap().until - Instant::now();
            assert!(pause <= LONGEST_PAUSE);
        }
        let pause = link.pause(false, &why).unwrap().until - Instant::now();
        assert!(pause > LONGEST_PAUSE / 3, "{pause:?}");
    }
}
