//! Keeps what the crate says through `tracing`.

use std::{
    fmt::{Debug, Write},
    mem,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use tokio::{
    sync::Notify,
    time::{Instant, timeout_at},
};
use tracing::{
    Dispatch, Event, Id, Metadata, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Record},
    subscriber::DefaultGuard,
};

/// Keeps each event of the crate as one text: its level and its fields, the message among them. Clones
/// are the same log.
#[derive(Clone, Debug, Default)]
pub struct Log(Arc<Lines>);

#[derive(Debug, Default)]
struct Lines {
    all: Mutex<Vec<String>>,
    more: Notify,
}

impl Log {
    /// A log of this thread, until the guard is dropped.
    pub fn listen() -> (Self, DefaultGuard) {
        // While there is one subscriber alone, `tracing` asks that of the thread that meets an event first
        // whether anybody wants it, and remembers a no of a thread that has none.
        static ANOTHER: OnceLock<Dispatch> = OnceLock::new();
        ANOTHER.get_or_init(|| Dispatch::new(Self::default()));
        let log = Self::default();
        let guard = tracing::subscriber::set_default(log.clone());
        (log, guard)
    }

    /// All events so far.
    pub fn all(&self) -> Vec<String> {
        self.lines().clone()
    }

    fn lines(&self) -> MutexGuard<'_, Vec<String>> {
        self.0.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All events so far, which are forgotten.
    pub fn take(&self) -> Vec<String> {
        mem::take(&mut *self.lines())
    }

    /// The events that begin with these words, as `docs/operations.md` lists them.
    pub fn of(&self, event: &str) -> Vec<String> {
        let begins = format!(" message={event}: ");
        self.lines().iter().filter(|line| line.contains(&begins)).cloned().collect()
    }

    /// Waits until the event has been said so often.
    ///
    /// # Panics
    ///
    /// When that takes longer than a minute.
    pub async fn said(&self, event: &str, times: usize) {
        let begins = format!(" message={event}: ");
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            let more = self.0.more.notified();
            let mut more = pin!(more);
            // Registered before the look, so that a line in between is not missed.
            more.as_mut().enable();
            let said = self.lines().iter().filter(|line| line.contains(&begins)).count();
            if said >= times {
                return;
            }
            let in_time = timeout_at(until, more).await.is_ok();
            assert!(in_time, "{event} was said {said} times, and not {times}");
        }
    }
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = write!(self.0, " {}={value:?}", field.name());
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && metadata.target().starts_with("tower_idempotency")
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(event.metadata().level().to_string());
        event.record(&mut line);
        self.lines().push(line.0);
        self.0.more.notify_waiters();
    }

    // No span is enabled, so none is ever made.
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}
