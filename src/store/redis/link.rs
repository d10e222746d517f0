//! One connection for all calls: made once for everybody, replaced when it is dead, paced when it
//! cannot be made.

use std::{
    fmt,
    sync::{
        Arc, Weak,
        atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use rand::RngExt;
use tokio::{
    sync::{oneshot, watch},
    time::{sleep_until, timeout},
};

use super::{
    adapter::RedisTrouble,
    again,
    breaker::{Admission, Breaker, Trial},
    connection::Connection,
    known::Known,
    origin::{Origin, explain},
    pulse,
    side::Side,
};
use crate::store::{StoreError, StoreErrorKind};

/// The whole of an attempt to connect: name, TCP, log-in and the first word about the time.
pub(super) const CONNECT_WITHIN: Duration = Duration::from_secs(1);
/// Longer than an attempt takes on a busy machine.
const TAKEN_FOR_STOPPED_AFTER: Duration = Duration::from_secs(2);
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// A connection that let this many calls in a row go unanswered is taken for half open.
const TIMEOUTS_IN_A_ROW: u32 = 3;

/// Where the connection is found.
pub(super) struct Link {
    pub(super) origin: Arc<Origin>,
    address: String,
    status: watch::Sender<Status>,
    generations: AtomicU64,
    /// Attempts and connections since the last answer that came to nothing.
    failures: AtomicU32,
    breaker: Breaker,
    /// Shared with the links that have connections of their own to the same server.
    pub(super) known: Arc<Known>,
    side: Side,
    /// It is one of those.
    is_side: bool,
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

/// The connection, lent to one call.
pub(super) struct Lent<'a> {
    pub(super) connection: Arc<Connection>,
    _trial: Option<Trial<'a>>,
}

impl Link {
    pub(super) fn new(origin: Origin, address: String) -> Arc<Self> {
        let known = Arc::new(Known::new(address.clone()));
        Self::with(Arc::new(origin), address, known, false)
    }

    fn with(origin: Arc<Origin>, address: String, known: Arc<Known>, is_side: bool) -> Arc<Self> {
        Arc::new(Self {
            origin,
            address,
            status: watch::Sender::new(Status::Down(None)),
            generations: AtomicU64::new(0),
            failures: AtomicU32::new(0),
            breaker: Breaker::new(),
            known,
            side: Side::new(),
            is_side,
        })
    }

    /// Whether the connection is the program's own.
    pub(super) fn is_given(&self) -> bool {
        matches!(*self.origin, Origin::Given(_))
    }

    /// Another connection to the same server.
    pub(super) fn beside(&self) -> Arc<Self> {
        Self::with(self.origin.clone(), self.address.clone(), self.known.clone(), true)
    }

    /// The connections that are not shared.
    pub(super) fn side(&self) -> &Side {
        &self.side
    }

    /// Whether it is one of those.
    pub(super) fn is_side(&self) -> bool {
        self.is_side
    }

    /// Host and port, without name and password.
    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// The connection, if there is one and nothing speaks against it.
    pub(super) fn ready(&self) -> Option<Lent<'_>> {
        let Admission::Free = self.breaker.admit() else { return None };
        let Status::Up(connection) = &*self.status.borrow() else { return None };
        Some(Lent { connection: connection.clone(), _trial: None })
    }

    /// The connection. Waits while somebody is connecting; is told at once why there is none while
    /// a failed attempt is not long ago, or the server has failed again and again.
    ///
    /// Cancel safe: the attempt belongs to a task of its own.
    pub(super) async fn get(self: &Arc<Self>) -> Result<Lent<'_>, StoreError> {
        let trial = match self.breaker.admit() {
            Admission::Free => None,
            Admission::Trial(trial) => Some(trial),
            Admission::Refused => return Err(self.suspended()),
        };
        if let Status::Up(connection) = &*self.status.borrow() {
            return Ok(Lent { connection: connection.clone(), _trial: trial });
        }
        let mut changes = self.status.subscribe();
        loop {
            match &*changes.borrow_and_update() {
                Status::Up(connection) => {
                    return Ok(Lent { connection: connection.clone(), _trial: trial });
                }
                Status::Down(Some(pause)) if trial.is_none() && !pause.is_over() => {
                    return Err(StoreError::new(pause.kind, pause.message.clone()));
                }
                Status::Down(_) | Status::Connecting(..) => {}
            }
            self.connect_unless_somebody_does();
            if trial.is_some() {
                return Err(self.suspended());
            }
            if changes.changed().await.is_err() {
                return Err(StoreError::new(StoreErrorKind::Unreachable, "the store is gone"));
            }
        }
    }

    /// Nobody is let through but the one that tries.
    fn suspended(&self) -> StoreError {
        let pause = match &*self.status.borrow() {
            Status::Down(Some(pause)) => pause.until.saturating_duration_since(Instant::now()),
            _ => Duration::ZERO,
        };
        let message = format!(
            "Redis at {} has not answered for some time, so nobody waits for it now; it is tried \
             again all the time, one attempt at a time: {}",
            self.address,
            self.origin.doubt()
        );
        StoreError::new(StoreErrorKind::Suspended, message).with_retry_after(pause)
    }

    /// Connects although nobody calls.
    #[cfg(feature = "redis-cluster")]
    pub(super) fn keep(self: &Arc<Self>) {
        self.connect_unless_somebody_does();
    }

    fn connect_unless_somebody_does(self: &Arc<Self>) {
        if let Some(generation) = self.begin() {
            tokio::spawn(Task { link: Arc::downgrade(self), generation }.run());
        }
    }

    /// Begins an attempt, unless there is one already, or it is too early.
    fn begin(&self) -> Option<u64> {
        let generation = self.generations.fetch_add(1, Relaxed) + 1;
        let mut mine = None;
        self.status.send_if_modified(|status| {
            let nobody_does = match status {
                Status::Down(pause) => pause.as_ref().is_none_or(Pause::is_over),
                // An attempt has an end of its own, unless its runtime is there and does not run.
                Status::Connecting(_, since) => since.elapsed() > TAKEN_FOR_STOPPED_AFTER,
                Status::Up(_) => false,
            };
            if nobody_does {
                *status = Status::Connecting(generation, Instant::now());
                mine = Some(generation);
            }
            // Nobody waits for a beginning.
            false
        });
        mine
    }

    /// The connection, or the attempt, of this generation has come to nothing. Said of another
    /// generation it changes nothing: a connection that was replaced is not reported dead twice.
    fn gone(&self, generation: u64, why: Option<&StoreError>) -> bool {
        // What is replaced is dropped after the lock is given back.
        let mut replaced = None;
        self.status.send_if_modified(|status| {
            let connecting = match status {
                Status::Down(_) => return false,
                Status::Connecting(current, _) if *current == generation => true,
                Status::Up(connection) if connection.generation() == generation => false,
                Status::Connecting(..) | Status::Up(_) => return false,
            };
            let pause = why.and_then(|why| self.pause(connecting, why));
            replaced = Some(std::mem::replace(status, Status::Down(pause)));
            true
        });
        replaced.is_some()
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

    /// A call was answered by the server's clock: the connection lives.
    pub(super) fn answered(&self, connection: &Connection, now_ms: u64) {
        match now_ms {
            0 => connection.alive(),
            _ => connection.heard(now_ms),
        }
        self.failures.store(0, Relaxed);
        self.breaker.answered(&self.address);
    }

    /// A call was answered with an error of the server's: it is there all the same.
    pub(super) fn was_refused(&self, connection: &Connection) {
        connection.alive();
        self.breaker.answered(&self.address);
    }

    /// A call was not answered in time. Three in a row, and the connection is taken for half open.
    /// Whether it was.
    pub(super) fn timed_out(&self, connection: &Connection, error: &StoreError) -> bool {
        self.breaker.failed(&self.address, error);
        let half_open = connection.timed_out() >= TIMEOUTS_IN_A_ROW;
        if half_open && self.gone(connection.generation(), Some(error)) {
            self.origin.report(RedisTrouble::TimedOut);
        }
        half_open
    }

    /// The connection broke.
    pub(super) fn broken(&self, connection: &Connection, error: &StoreError) {
        if self.gone(connection.generation(), Some(error)) {
            self.breaker.failed(&self.address, error);
            self.origin.report(RedisTrouble::Broken);
        }
    }

    /// Replaces the connection if the sentinels name another server by now.
    #[cfg(feature = "redis-sentinel")]
    pub(super) async fn follow(&self, connection: &Connection) {
        if self.origin.leads_elsewhere(connection.named.as_ref()).await {
            let message = format!("{} has moved to another server", self.address);
            let error = StoreError::new(StoreErrorKind::Unreachable, message);
            self.gone(connection.generation(), Some(&error));
        }
    }

    /// The connection leads to a node that is no primary any more.
    pub(super) fn read_only(&self, connection: &Connection, error: &StoreError) {
        if self.gone(connection.generation(), Some(error)) {
            self.origin.report(RedisTrouble::ReadOnly);
        }
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

/// Connects, watches over the connection until it is replaced, and then connects again, unless a
/// caller was quicker. If the runtime ends first, the connection ends with it, and dropping this says
/// so: the next call connects on its own runtime.
struct Task {
    link: Weak<Link>,
    generation: u64,
}

impl Task {
    async fn run(mut self) {
        while let Some(next) = self.connection().await {
            if let Some(until) = next {
                sleep_until(until.into()).await;
            }
            let Some(link) = self.link.upgrade() else { return };
            let Some(generation) = link.begin() else { return };
            self.generation = generation;
        }
    }

    /// One attempt, and the life of the connection; then when to try again. `None` when the store is
    /// gone.
    async fn connection(&self) -> Option<Option<Instant>> {
        let made = {
            let link = self.link.upgrade()?;
            timeout(CONNECT_WITHIN, link.origin.connect()).await
        };
        let link = self.link.upgrade()?;
        match made {
            Ok(Ok(greeting)) => {
                let (watched, replaced) = oneshot::channel();
                let connection = Connection::new(greeting, self.generation, watched);
                again::first(&link, &connection).await;
                if let Some(connection) = link.up(connection) {
                    drop(link);
                    pulse::watch(&self.link, connection, replaced).await;
                }
            }
            Ok(Err(failure)) => {
                self.failed(&link, &explain(&link.address, "the connection", failure));
            }
            Err(_) => {
                let (address, doubt) = (&link.address, link.origin.doubt());
                let message =
                    format!("no answer from Redis at {address} within {CONNECT_WITHIN:?}: {doubt}");
                self.failed(&link, &StoreError::new(StoreErrorKind::Timeout, message));
            }
        }
        let link = self.link.upgrade()?;
        match &*link.status.borrow() {
            Status::Down(pause) => Some(pause.as_ref().map(|pause| pause.until)),
            // A caller was quicker.
            Status::Connecting(..) | Status::Up(_) => None,
        }
    }

    fn failed(&self, link: &Link, error: &StoreError) {
        if link.gone(self.generation, Some(error)) {
            link.breaker.failed(&link.address, error);
        }
    }
}

impl Link {
    /// A connection is there, unless its attempt was taken for stopped.
    fn up(&self, connection: Connection) -> Option<Weak<Connection>> {
        let generation = connection.generation();
        let connection = Arc::new(connection);
        let weak = Arc::downgrade(&connection);
        let mine = self.status.send_if_modified(|status| {
            let mine = matches!(status, Status::Connecting(current, _) if *current == generation);
            if mine {
                *status = Status::Up(connection);
            }
            mine
        });
        mine.then_some(weak)
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        let Some(link) = self.link.upgrade() else { return };
        if thread::panicking() {
            // Paced like any other failure, or whoever waits would try it again and again.
            let message = format!("the connection to Redis at {} panicked", link.address);
            self.failed(&link, &StoreError::new(StoreErrorKind::Unreachable, message));
        } else {
            link.gone(self.generation, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{RedisServers, redis::reach::Reach};

    #[test]
    fn pauses_grow_to_a_second_and_the_first_loss_of_a_good_connection_costs_none() {
        let servers = RedisServers::url("redis://127.0.0.1:1").unwrap();
        let Reach::One(link) = servers.reach().unwrap() else { panic!("it is one server") };
        let why = StoreError::new(StoreErrorKind::Unreachable, "gone");
        assert!(link.pause(false, &why).is_none());
        let pauses: Vec<_> = (0..40)
            .map(|_| {
                link.pause(true, &why).unwrap().until.saturating_duration_since(Instant::now())
            })
            .collect();
        assert!(pauses.iter().all(|pause| *pause <= LONGEST_PAUSE), "{pauses:?}");
        // No two processes that lost the same server come back in step: a half of each pause is chance.
        let longest = &pauses[10..];
        let tenths = |from: u32, to: u32| LONGEST_PAUSE * from / 10..LONGEST_PAUSE * to / 10;
        for part in [tenths(4, 7), tenths(7, 11)] {
            assert!(longest.iter().any(|pause| part.contains(pause)), "{pauses:?}");
        }
        let pause = link.pause(false, &why).unwrap().until - Instant::now();
        assert!(pause > LONGEST_PAUSE / 3, "{pause:?}");
    }
}
