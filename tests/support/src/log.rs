//! Keeps what the crate says through `tracing`.

use std::{
    fmt::{Debug, Write},
    mem,
    sync::{Arc, Mutex, OnceLock, PoisonError},
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
pub struct Log(Arc<Mutex<Vec<String>>>);

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
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// All events so far, which are forgotten.
    pub fn take(&self) -> Vec<String> {
        mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The events that begin with these words, as `docs/operations.md` lists them.
    pub fn of(&self, event: &str) -> Vec<String> {
        let begins = format!(" message={event}: ");
        self.all().into_iter().filter(|line| line.contains(&begins)).collect()
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
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(line.0);
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
