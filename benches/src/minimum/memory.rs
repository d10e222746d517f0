//! The minimum in memory: a map under a mutex.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use bytes::Bytes;

use super::{Backend, Found, RETENTION_MS};

/// A map under a mutex. Nothing is ever cleared away.
#[derive(Clone, Default)]
pub struct Memory {
    slots: Arc<Mutex<HashMap<String, Slot>>>,
}

struct Slot {
    until: Instant,
    state: State,
}

enum State {
    Claimed([u8; 16]),
    Answer(Bytes),
}

fn until() -> Instant {
    Instant::now() + Duration::from_millis(RETENTION_MS)
}

impl Backend for Memory {
    async fn claim(&self, key: &str, token: &[u8; 16]) -> Found {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        match slots.get(key) {
            Some(slot) if slot.until > Instant::now() => match &slot.state {
                State::Claimed(_) => Found::Busy,
                State::Answer(answer) => Found::Answer(answer.clone()),
            },
            _ => {
                slots
                    .insert(key.to_owned(), Slot { until: until(), state: State::Claimed(*token) });
                Found::Granted
            }
        }
    }

    async fn save(&self, key: &str, token: &[u8; 16], answer: Bytes) {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(slot) = slots.get_mut(key)
            && matches!(&slot.state, State::Claimed(owner) if owner == token)
        {
            *slot = Slot { until: until(), state: State::Answer(answer) };
        }
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Memory")
    }
}
