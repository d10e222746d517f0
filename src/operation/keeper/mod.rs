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
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    runtime::Handle,
    sync::{Notify, Semaphore},
    time::{Instant, timeout_at},
};

use late::Sending;
pub(super) use late::{Claiming, Late};
use renewal::Renewal;
pub(super) use renewal::Watched;
use schedule::{Due, Schedule, Step};

use super::{detach::CatchPanic, poller::Pollers};
use crate::{
    record::Grant,
    store::{BoxFuture, DynStore, Kept, Release, StoreError, StoreErrorKind, in_time},
};

/// How many store calls the keeper makes at once.
const CALLS_AT_ONCE: usize = 256;

const FOREVER: Duration = Duration::from_secs(100 * 366 * 24 * 60 * 60);

/// How long the store may take for a late write.
const CALL_WITHIN: Duration = Duration::from_secs(2);

/// Handle to what a layer keeps.
#[derive(Clone)]
pub(crate) struct Keeper {
    inner: Arc<Inner>,
}

struct Inner {
    store: Arc<dyn DynStore>,
    /// Whoever waits for what is written late.
    pollers: Arc<Pollers>,
    /// The layer is told to end.
    draining: AtomicBool,
    /// Claims of which something may be owed.
    claims: AtomicUsize,
    /// Held for a few map operations at a time and never across an await, so the standard mutex.
    schedule: Mutex<Schedule>,
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
    /// Answers, releases and claims that the store had not taken or answered. If the process ends
    /// now, their keys are abandoned.
    pub unsent: usize,
}

impl Drained {
    /// Nothing was left.
    pub fn is_clean(&self) -> bool {
        self.running == 0 && self.unsent == 0
    }
}

impl Keeper {
    pub(super) fn new(store: Arc<dyn DynStore>, pollers: Arc<Pollers>) -> Self {
        Self {
            inner: Arc::new(Inner {
                store,
                pollers,
                draining: AtomicBool::new(false),
                claims: AtomicUsize::new(0),
                schedule: Mutex::new(Schedule::default()),
                earlier: Notify::new(),
                ended: Notify::new(),
                calls: Arc::new(Semaphore::new(CALLS_AT_ONCE)),
            }),
        }
    }

    /// The layer is told to end: nothing new is started.
    pub(crate) fn is_draining(&self) -> bool {
        self.inner.draining.load(Ordering::SeqCst)
    }

    /// Calls a claim off, or gives a grant back, not before this time and until it is answered.
    /// `lease` is how long the key is busy meanwhile.
    pub(super) fn release_later(&self, release: Release, lease: Duration, not_before: Instant) {
        self.keep(Late::release(release, lease, not_before));
    }

    /// Writes this until it is answered.
    pub(super) fn keep(&self, late: Late) {
        let due = late.due;
        self.keep_late(late, due);
    }

    /// Stores an answer, until it is stored or the record's hold is over; where there is no room
    /// for it, the marker that says only that it was executed.
    pub(super) fn complete_later(&self, grant: Grant, kept: Kept, marker: Kept) {
        let first = Instant::now() + late::RETRY_AFTER;
        self.keep_late(Late::completion(grant, kept, marker), first);
    }

    /// Counts a claim that is about to be sent; `None` when the layer is told to end.
    pub(super) fn begin_claim(&self) -> Option<Claiming> {
        // Counted before the look, as `drain` looks at the count after it has said so: one of the two
        // sees the other.
        self.inner.claims.fetch_add(1, Ordering::SeqCst);
        let claiming = Claiming(self.clone());
        (!self.is_draining()).then_some(claiming)
    }

    fn left(&self) -> Drained {
        // In this order: a claim is counted off when what it leaves behind is in the schedule.
        let claims = self.inner.claims.load(Ordering::SeqCst);
        let mut left = self.schedule().left();
        left.unsent += claims;
        left
    }

    /// Starts nothing new, and waits until everything has ended or the time is over.
    pub(crate) async fn drain(&self, within: Duration) -> Drained {
        let now = Instant::now();
        // Longer than any clock counts is as long as it takes.
        let until = now.checked_add(within).unwrap_or(now + FOREVER);
        self.inner.draining.store(true, Ordering::SeqCst);
        self.schedule().hurry(Instant::now());
        self.start_task();
        self.inner.earlier.notify_waiters();
        loop {
            let ended = self.inner.ended.notified();
            let mut ended = std::pin::pin!(ended);
            // Registered before the look, so that an end in between is not missed.
            ended.as_mut().enable();
            if self.left().is_clean() || timeout_at(until, ended).await.is_err() {
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

    /// Goes on with what another runtime left when it ended, if there is anything.
    pub(super) fn resume(&self) {
        let left = self.schedule().left();
        if !left.is_clean() {
            self.start_task();
        }
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

/// A call of the store. One that panics has failed like any other: it is made again, but not at once.
async fn ask<T>(
    store: &dyn DynStore,
    within: Duration,
    call: BoxFuture<Result<T, StoreError>>,
) -> Result<T, StoreError> {
    let panicked = |_| Err(StoreError::new(StoreErrorKind::Garbled, "the store panicked"));
    CatchPanic::new(in_time(store, within, call)).await.unwrap_or_else(panicked)
}

impl fmt::Debug for Keeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keeper")
    }
}
