//! Refuses calls at once while the server has failed again and again, and lets one at a time try.

use std::{
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use crate::telemetry;

/// So many failures without an answer in between, over so long a time, are no blip: longer than a
/// claim goes on trying by itself, so that a restart costs waiting and no refusals.
const OPENS_AFTER_FAILURES: u32 = 4;
const OPENS_AFTER: Duration = Duration::from_secs(2);

/// Counts what fails: attempts to connect, connections that break, calls without an answer. Whatever a
/// server answers is an answer, a refusal and a busy key among them.
pub(super) struct Breaker {
    /// Failures since the last answer. Read without the lock, since it is 0 nearly always.
    failures: AtomicU32,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    since: Option<Instant>,
    open: bool,
    /// A call has been let through, and has not ended.
    trying: bool,
}

/// Whether a call may be made.
pub(super) enum Admission<'a> {
    Free,
    /// The one call that tries.
    Trial(Trial<'a>),
    Refused,
}

/// Held by the call that tries. When it is dropped the next may.
pub(super) struct Trial<'a>(&'a Breaker);

impl Breaker {
    pub(super) fn new() -> Self {
        Self { failures: AtomicU32::new(0), state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing under the lock can leave the state half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more failure; how many there were before it.
    pub(super) fn failed(&self, address: &str, why: &dyn std::fmt::Display) -> u32 {
        let before = self.failures.fetch_add(1, Relaxed);
        let mut state = self.state();
        let since = *state.since.get_or_insert_with(Instant::now);
        let opens =
            !state.open && before + 1 >= OPENS_AFTER_FAILURES && since.elapsed() >= OPENS_AFTER;
        state.open |= opens;
        drop(state);
        if opens {
            telemetry::store_suspended(address, why);
        }
        before
    }

    /// The server has answered.
    pub(super) fn answered(&self, address: &str) {
        if self.failures.load(Relaxed) == 0 {
            return;
        }
        self.failures.store(0, Relaxed);
        let State { since, open, .. } = std::mem::take(&mut *self.state());
        if open {
            telemetry::store_back(address, since.map(|since| since.elapsed()).unwrap_or_default());
        }
    }

    pub(super) fn admit(&self) -> Admission<'_> {
        if self.failures.load(Relaxed) < OPENS_AFTER_FAILURES {
            return Admission::Free;
        }
        let mut state = self.state();
        match *state {
            State { open: false, .. } => Admission::Free,
            State { trying: true, .. } => Admission::Refused,
            _ => {
                state.trying = true;
                Admission::Trial(Trial(self))
            }
        }
    }
}

impl Drop for Breaker {
    fn drop(&mut self) {
        if self.state().open {
            telemetry::store_forgotten();
        }
    }
}

impl Drop for Trial<'_> {
    fn drop(&mut self) {
        self.0.state().trying = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(breaker: &Breaker) {
        let long_ago =
            Instant::now().checked_sub(OPENS_AFTER).expect("the machine is up for longer");
        breaker.state().since = Some(long_ago);
        for _ in 0..OPENS_AFTER_FAILURES {
            breaker.failed("here", &"gone");
        }
    }

    #[test]
    fn it_opens_after_failures_over_some_time_and_an_answer_closes_it() {
        let breaker = Breaker::new();
        for _ in 0..100 {
            breaker.failed("here", &"gone");
        }
        assert!(matches!(breaker.admit(), Admission::Free), "a hundred at once are one blip");
        breaker.answered("here");
        open(&breaker);
        assert!(!matches!(breaker.admit(), Admission::Free));
        breaker.answered("here");
        assert!(matches!(breaker.admit(), Admission::Free));
        assert_eq!(breaker.failed("here", &"gone"), 0);
    }

    #[test]
    fn one_at_a_time_may_try_and_the_next_when_it_has_ended() {
        let breaker = Breaker::new();
        open(&breaker);
        let trial = breaker.admit();
        assert!(matches!(trial, Admission::Trial(_)));
        assert!(matches!(breaker.admit(), Admission::Refused));
        drop(trial);
        assert!(matches!(breaker.admit(), Admission::Trial(_)));
    }
}
