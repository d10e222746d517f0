//! What an operator would see: warnings and errors, one line each on stdout.

use std::fmt::{Debug, Write};

use tracing::{
    Event, Id, Level, Metadata, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Record},
    subscriber::{SetGlobalDefaultError, set_global_default},
};

/// Prints the layer's warnings and errors from now on.
pub(crate) fn print_warnings() -> Result<(), SetGlobalDefaultError> {
    set_global_default(Warnings)
}

struct Warnings;

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event()
            && *metadata.level() <= Level::WARN
            && metadata.target().starts_with("tower_idempotency")
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = event.metadata().level().to_string();
        event.record(&mut Fields(&mut line));
        crate::say(&line);
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

struct Fields<'a>(&'a mut String);

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = match field.name() {
            "message" => write!(self.0, " {value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
    }
}
