//! What outlives a request: renewals of leases, and releases and completions the store has not taken
//! yet.
//!
//! One task for each runtime in which something was kept does all of it, started by the first grant.
//! It sleeps until something is due; a grant that ends before its first renewal never wakes it.

mod late;
mod renewal;
mod schedule;

use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use tokio::{
    runtime::Handle,
    sync::{Notify, Semaphore},
    time::{Instant, timeout_at},
};

use late::{Late, Sending};
use renewal::Renewal;
pub(super) use renewal::Watched;
use schedule::{Due, Schedule, Step};

use crate::{
    record::Grant,
    store::{BoxFuture, DynStore, Kept, Release},
};

/// How many store calls the keeper makes at once.
const CALLS_AT_ONCE: usize = 256;

/// How long one store call of the keeper may take.
const CALL_WITHIN: Duration = Duration::from_secs(2);

/// Handle to what a layer keeps.
#[derive(Clone)]
pub(crate) struct Keeper {
    inner: Arc<Inner>,
}

struct Inner {
    store: Arc<dyn DynStore>,
    /// Held for a few map operations at a time and never across an await, so the standard mutex.
    schedule: Mutex<Schedule>,
    /// Claims that were sent, or are about to be, and are neither executions nor called off yet.
    claims: AtomicUsize,
    /// Something became due earlier than the tasks know.
    earlier: Notify,
    /// Something ended, for `drain`.
    ended: Notify,
    calls: Arc<Semaphore>,
}

/// What was left when [`IdempotencyLayer::drain`](crate::IdempotencyLayer::drain) ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Drained {
    /// Handlers that were still running. If the process ends now, their keys are abandoned.
    pub running: usize,
    /// Answers and releases that the store had not taken. If the process ends now, their keys are
    /// abandoned.
    pub unsent: usize,
}

impl Drained {
    /// Nothing was left.
    pub fn is_clean(&self) -> bool {
        self.running == 0 && self.unsent == 0
    }
}

impl Keeper {
    pub(crate) fn new(store: Arc<dyn DynStore>) -> Self {
        Self {
            inner: Arc::new(Inner {
                store,
                schedule: Mutex::new(Schedule::default()),
                claims: AtomicUsize::new(0),
                earlier: Notify::new(),
                ended: Notify::new(),
                calls: Arc::new(Semaphore::new(CALLS_AT_ONCE)),
            }),
        }
    }

    /// The layer is told to end: nothing new is started.
    pub(crate) fn is_draining(&self) -> bool {
        self.schedule().draining
    }

    /// Calls a claim off, or gives a grant back, not before this time and until it is answered.
    /// `lease` is how long the key is busy meanwhile.
    pub(super) fn release_later(&self, release: Release, lease: Duration, not_before: Instant) {
        self.keep_late(Late::release(release, lease, not_before), not_before);
    }

    /// Stores an answer, until it is stored or the record's hold is over; where there is no room
    /// for it, the marker that says only that it was executed.
    pub(super) fn complete_later(&self, grant: Grant, kept: Kept, marker: Kept) {
        let first = Instant::now() + late::RETRY_AFTER;
        self.keep_late(Late::completion(grant, kept, marker), first);
    }

    /// Lets a claim be sent; `None` when the layer is told to end.
    ///
    /// Counted before the look and said before the count is read, so that a drain either waits for
    /// the claim or keeps it from being sent.
    pub(super) fn let_claim(&self) -> Option<Claiming> {
        self.inner.claims.fetch_add(1, SeqCst);
        let claiming = Claiming(self.clone());
        (!self.is_draining()).then_some(claiming)
    }

    fn left(&self) -> Drained {
        // The claims first: one that ends meanwhile has left what it owes in the schedule before.
        let claims = self.inner.claims.load(SeqCst);
        let left = self.schedule().left();
        Drained { unsent: left.unsent + claims, ..left }
    }

    /// Starts nothing new, and waits until everything has ended or the time is over.
    pub(crate) async fn drain(&self, within: Duration) -> Drained {
        let until = Instant::now() + within;
        {
            let mut schedule = self.schedule();
            schedule.draining = true;
            schedule.hurry(Instant::now());
        }
        self.start_task();
        self.inner.earlier.notify_waiters();
        loop {
            let ended = self.inner.ended.notified();
            let mut ended = std::pin::pin!(ended);
            // Registered before the look, so that an end in between is not missed.
            ended.as_mut().enable();
            let left = self.left();
            if left.is_clean() || timeout_at(until, ended).await.is_err() {
                return self.left();
            }
        }
    }

    fn keep_late(&self, late: Late, due: Instant) {
        self.schedule().add_late(late, due);
        self.start_task();
        self.inner.earlier.notify_waiters();
    }

    fn schedule(&self) -> MutexGuard<'_, Schedule> {
        // Nothing under the lock can leave the schedule half changed.
        self.inner.schedule.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the task of this runtime, unless it runs already. Outside of a runtime there is none;
    /// what was kept waits for the task of another, or for the next grant.
    fn start_task(&self) {
        let Ok(runtime) = Handle::try_current() else { return };
        let mut schedule = self.schedule();
        if schedule.has_task(runtime.id()) {
            return;
        }
        let keeper = self.clone();
        let task = runtime.spawn(keeper.serve());
        schedule.add_task(runtime.id(), task.abort_handle());
    }

    /// The guard of what is due is made here and not in the task, so that a runtime that ends before
    /// the task is polled loses nothing.
    fn act(self, due: Due) -> BoxFuture<()> {
        match due {
            Due::Renewal(id, grant) => Box::pin(Renewal::new(self, id).run(grant)),
            Due::Late(late) => Box::pin(Sending::new(self, late).run()),
        }
    }

    /// Does what is due, until nothing has been left for a while. What is left keeps the store alive,
    /// though the layer may be gone.
    async fn serve(self) {
        let task = Handle::current().id();
        loop {
            let Ok(call) = self.inner.calls.clone().acquire_owned().await else { return };
            let earlier = self.inner.earlier.notified();
            let mut earlier = std::pin::pin!(earlier);
            // Registered before the look, so that a change in between is not missed.
            earlier.as_mut().enable();
            let step = self.schedule().next(Instant::now(), task);
            match step {
                Step::Do(due) => {
                    let work = self.clone().act(due);
                    tokio::spawn(async move {
                        work.await;
                        drop(call);
                    });
                }
                Step::SleepUntil(due) => {
                    drop(call);
                    let _ = timeout_at(due, earlier).await;
                }
                Step::End => return,
            }
        }
    }
}

/// A claim that a drain waits for.
pub(super) struct Claiming(Keeper);

impl Drop for Claiming {
    fn drop(&mut self) {
        self.0.inner.claims.fetch_sub(1, SeqCst);
        self.0.inner.ended.notify_waiters();
    }
}

impl fmt::Debug for Keeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keeper")
    }
}
