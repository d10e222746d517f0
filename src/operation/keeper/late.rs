//! Releases and completions the store has not taken yet.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::time::Instant;

use super::{CALL_WITHIN, Keeper, ask};
use crate::{
    record::{Grant, RecordKey, State},
    store::{DynStore, Kept, Release, StoreError, Written},
    telemetry,
};

/// Before the second try.
pub(super) const RETRY_AFTER: Duration = Duration::from_millis(50);
const RETRY_AFTER_AT_MOST: Duration = Duration::from_secs(5);
/// An executed operation whose lease is not renewed any more: as often as a failing renewal.
const COMPLETE_AFTER_AT_MOST: Duration = Duration::from_secs(1);

/// A write that is tried until it is answered, or the record's hold is over.
pub(in crate::operation) struct Late {
    write: Write,
    /// What is written once this is.
    then: Option<Box<Late>>,
    /// Its number in the schedule; 0 before it has one.
    pub(super) id: u64,
    pub(super) due: Instant,
    pub(super) not_before: Instant,
    until: Instant,
    pause: Duration,
    /// A part of the lease: when the store is back, nobody is to be refused much longer than that.
    longest_pause: Duration,
}

enum Write {
    Release(Release),
    Completion { grant: Grant, kept: Kept, marker: Kept },
}

/// What one try came to.
enum Tried {
    Ended,
    /// The store has no room for the answer: only that it was executed is stored.
    Shrunk,
    Again,
    /// Somebody has the record for now; no need to hurry.
    AgainMuchLater,
}

impl Late {
    /// Calls a claim off, or gives a grant back, not before this time. `lease` is how long the key is
    /// busy meanwhile.
    pub(in crate::operation) fn release(
        release: Release,
        lease: Duration,
        not_before: Instant,
    ) -> Self {
        let hold = match &release {
            Release::Grant { grant, .. } => grant.hold,
            Release::CalledOff { hold, .. } => *hold,
        };
        let longest_pause = (lease / 3).clamp(RETRY_AFTER, RETRY_AFTER_AT_MOST);
        Self::new(Write::Release(release), not_before, hold, longest_pause)
    }

    pub(super) fn completion(grant: Grant, kept: Kept, marker: Kept) -> Self {
        let hold = grant.hold;
        let longest_pause = (grant.lease / 10).clamp(RETRY_AFTER, COMPLETE_AFTER_AT_MOST);
        Self::new(Write::Completion { grant, kept, marker }, Instant::now(), hold, longest_pause)
    }

    fn new(write: Write, not_before: Instant, hold: Duration, longest_pause: Duration) -> Self {
        let until = not_before + hold;
        let (due, pause) = (not_before, RETRY_AFTER);
        Self { write, then: None, id: 0, due, not_before, until, pause, longest_pause }
    }

    /// The same, and then another.
    pub(in crate::operation) fn and_then(self, then: Option<Self>) -> Self {
        Self { then: then.map(Box::new), ..self }
    }

    pub(super) fn is_release(&self) -> bool {
        matches!(self.write, Write::Release(_))
    }

    /// How many bytes of an answer it holds.
    pub(super) fn bytes(&self) -> usize {
        match &self.write {
            Write::Release(_) => 0,
            Write::Completion { kept, .. } => kept.payload.len(),
        }
    }

    /// Holds no more than that it was executed.
    pub(super) fn shrink(&mut self) {
        if let Write::Completion { kept, marker, .. } = &mut self.write {
            *kept = marker.clone();
        }
    }

    /// The same, because too many answers wait for the store.
    pub(super) fn shrink_to_fit(&mut self) {
        if let Write::Completion { grant, .. } = &self.write
            && self.can_shrink()
        {
            telemetry::body_not_stored(grant, &"too many bytes of answers wait for the store");
            self.shrink();
        }
    }

    fn can_shrink(&self) -> bool {
        match &self.write {
            Write::Release(_) => false,
            Write::Completion { kept, marker, .. } => kept.payload.len() > marker.payload.len(),
        }
    }

    pub(super) fn give_up(&self, why: &'static str) {
        match &self.write {
            Write::Release(release) => telemetry::late_given_up(&release.key(), why),
            Write::Completion { grant, .. } => telemetry::never_stored(grant, why),
        }
    }

    pub(super) fn key(&self) -> RecordKey {
        match &self.write {
            Write::Release(release) => release.key(),
            Write::Completion { grant, .. } => grant.key,
        }
    }

    async fn try_once(&self, store: Arc<dyn DynStore>) -> Tried {
        let again = store.clone();
        match &self.write {
            Write::Release(release) => {
                let answer = ask(&*store, CALL_WITHIN, again.release(release.clone())).await;
                self.after_release(release, answer)
            }
            Write::Completion { grant, kept, .. } => {
                let completion = again.complete(grant.clone(), kept.clone());
                let answer = ask(&*store, CALL_WITHIN, completion).await;
                let refused = answer.as_ref().is_err_and(StoreError::is_refused);
                if refused {
                    // A store that refuses the answer may still take a renewal, which keeps others
                    // from taking the operation for abandoned.
                    let renewal = store.clone().renew(grant.clone());
                    let _ = ask(&*store, CALL_WITHIN, renewal).await;
                }
                after_completion(grant, answer, self.can_shrink())
            }
        }
    }

    fn after_release(&self, release: &Release, answer: Result<Written, StoreError>) -> Tried {
        match (answer, release) {
            (Err(_), _) => return Tried::Again,
            (Ok(Written::Foreign), _) => {
                telemetry::record_unreadable(&self.key(), "a late release met it");
            }
            // Either an earlier send was carried out and somebody runs by its word, or somebody took
            // over before it came. The store cannot tell the two apart, so it is no alarm.
            (Ok(Written::Lost(state)), Release::Grant { grant, .. }) => {
                telemetry::released_late(grant, state);
            }
            (Ok(Written::Restored), Release::Grant { grant, .. }) => {
                telemetry::data_lost(grant, "releasing");
            }
            // A claim that was called off leaves nothing to be told, whatever it met.
            (Ok(_), _) => {}
        }
        Tried::Ended
    }
}

fn after_completion(grant: &Grant, answer: Result<Written, StoreError>, can_shrink: bool) -> Tried {
    match answer {
        Ok(Written::Stored) => telemetry::stored_late(grant),
        Ok(Written::Restored) => telemetry::data_lost(grant, "storing the answer"),
        // Another execution's answer is there, and is final.
        Ok(Written::Lost(State::Completed)) => {}
        // A name it stays for longer than this is tried.
        Ok(Written::Lost(State::Alias)) => {
            telemetry::never_stored(
                grant,
                "its delivery id is another name of an operation by now",
            );
        }
        Ok(Written::Lost(_) | Written::Over) => return Tried::AgainMuchLater,
        Ok(Written::Foreign) => telemetry::never_stored(grant, "the record is none of ours"),
        Err(error) if error.is_full() && can_shrink => {
            telemetry::body_not_stored(grant, &error);
            return Tried::Shrunk;
        }
        Err(_) => return Tried::Again,
    }
    Tried::Ended
}

/// A late write on its way. Dropped before its end, it brings the write back.
pub(super) struct Sending {
    keeper: Keeper,
    late: Option<Late>,
}

impl Sending {
    pub(super) fn new(keeper: Keeper, late: Late) -> Self {
        Self { keeper, late: Some(late) }
    }

    /// Tries it once.
    pub(super) async fn run(mut self) {
        let Some(late) = self.late.as_mut() else { return };
        match late.try_once(self.keeper.inner.store.clone()).await {
            Tried::Ended => return self.end(),
            Tried::Again => late.pause = (late.pause * 2).min(late.longest_pause),
            Tried::AgainMuchLater => late.pause = RETRY_AFTER_AT_MOST,
            Tried::Shrunk => {
                let before = late.bytes();
                late.shrink();
                self.keeper.schedule().shrunk(before - late.bytes());
            }
        }
        if Instant::now() >= late.until {
            late.give_up("the record's hold is over");
            self.end();
        }
    }

    fn end(mut self) {
        if let Some(mut late) = self.late.take() {
            // Before this one is counted off: whoever waits for all must not see a gap.
            if let Some(then) = late.then.take() {
                self.keeper.keep(*then);
            }
            self.keeper.schedule().end_late(late.bytes());
            self.keeper.inner.ended.notify_waiters();
            self.keeper.inner.pollers.hurry(&late.key());
        }
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        let Some(late) = self.late.take() else { return };
        let due = Instant::now() + late.pause.mul_f64(rand::random_range(0.5..1.0));
        self.keeper.schedule().put_back(late, due);
        self.keeper.inner.earlier.notify_waiters();
    }
}

/// A claim that was or will be sent, and of which it is not known that nothing is owed.
pub(in crate::operation) struct Claiming(pub(super) Keeper);

impl Drop for Claiming {
    fn drop(&mut self) {
        self.0.inner.claims.fetch_sub(1, Ordering::SeqCst);
        self.0.inner.ended.notify_waiters();
    }
}
