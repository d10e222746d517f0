//! Keeps the lease of a running execution.

use std::time::Duration;

use tokio::{
    sync::oneshot,
    time::{Instant, timeout},
};

use super::{Keeper, ask};
use crate::{operation::Operation, record::Grant, store::Written, telemetry};

/// How much later than it should a runtime that runs may do what is due.
pub(super) const RUNTIME_MAY_LAG: Duration = Duration::from_millis(500);

/// An execution whose lease is renewed.
pub(super) struct Run {
    operation: Operation,
    /// No renewal after this.
    renewed_until: Instant,
    /// By this process's clock the lease holds until then.
    held_until: Instant,
    pub(super) due: Option<Instant>,
    pub(super) renewing: bool,
    /// Whoever waits for a renewal that is on its way.
    waiting: Option<oneshot::Sender<()>>,
    stopped: bool,
}

impl Run {
    /// How long one renewal may take. No longer than it takes until the next is due, so that a lease
    /// that lapses while the store hangs is noticed.
    pub(super) fn call_within(&self) -> Duration {
        let policy = self.operation.subject().rule.policy();
        policy.call_within.min(self.grant().lease / 3)
    }

    pub(super) fn grant(&self) -> &Grant {
        self.operation.grant()
    }
}

/// A running execution as the keeper knows it. When it is dropped the keeper forgets it.
pub(in crate::operation) struct Watched {
    keeper: Keeper,
    id: u64,
}

impl Keeper {
    /// Renews the lease of what an operation runs under, which began at `since`, until it is stopped;
    /// `None` when the layer is told to end.
    pub(in crate::operation) fn watch(
        &self,
        operation: Operation,
        since: Instant,
    ) -> Option<Watched> {
        let now = Instant::now();
        let lease = operation.grant().lease;
        let longest = operation.subject().rule.policy().longest_run();
        let due = (since + lease / 3).max(now);
        let run = Run {
            operation,
            renewed_until: now + longest,
            held_until: since + lease,
            due: None,
            renewing: false,
            waiting: None,
            stopped: false,
        };
        let (id, wake) = {
            let mut schedule = self.schedule();
            if self.is_draining() {
                return None;
            }
            schedule.add_run(run, due, now)
        };
        self.start_task();
        if wake {
            self.inner.earlier.notify_waiters();
        }
        Some(Watched { keeper: self.clone(), id })
    }
}

impl Watched {
    /// Stops the renewals. Gives back what waits for one that is on its way, as long as it may take: it
    /// should not arrive after what ends the grant, and changes nothing if it does.
    pub(in crate::operation) fn stop(&self) -> Option<impl Future<Output = ()> + use<>> {
        let mut schedule = self.keeper.schedule();
        schedule.unset_due(self.id);
        let run = schedule.runs.get_mut(&self.id)?;
        run.stopped = true;
        if !run.renewing {
            return None;
        }
        let (ended, waiting) = oneshot::channel();
        run.waiting = Some(ended);
        let within = run.call_within() + RUNTIME_MAY_LAG;
        // An error means that the renewal was dropped: it is over too. It takes longer where another
        // runtime has it and has stopped running: one that is driven call by call.
        Some(async move { drop(timeout(within, waiting).await) })
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.keeper.schedule().remove_run(self.id);
        self.keeper.inner.ended.notify_waiters();
    }
}

/// A renewal on its way. Dropped, it brings the run back, whatever happened.
pub(super) struct Renewal {
    keeper: Keeper,
    id: u64,
    /// When to renew again.
    next: Option<Instant>,
}

impl Renewal {
    pub(super) fn new(keeper: Keeper, id: u64) -> Self {
        Self { keeper, id, next: Some(Instant::now()) }
    }

    /// Renews one lease.
    pub(super) async fn run(mut self, grant: Grant) {
        if !self.may_go_on() {
            self.next = None;
            return;
        }
        let within = self.with_run(|run| run.call_within()).unwrap_or_default();
        let sent = Instant::now();
        let store = self.keeper.inner.store.clone();
        let written = ask(&*store, within, store.clone().renew(grant.clone())).await;
        match written {
            Ok(written) if written.is_stored() => {
                if written == Written::Restored {
                    telemetry::data_lost(&grant, "renewing");
                }
                self.renewed(sent, grant.lease);
            }
            Ok(written) => {
                // A renewal that meets the end of its own execution is no news.
                self.next = None;
                if !self.is_stopped() {
                    telemetry::fenced_off(&grant, written, "renewing");
                    self.lose_lease();
                }
            }
            Err(error) => {
                telemetry::not_renewed(&grant, &error);
                self.failed(&grant);
            }
        }
    }

    fn with_run<T>(&self, act: impl FnOnce(&mut Run) -> T) -> Option<T> {
        self.keeper.schedule().runs.get_mut(&self.id).map(act)
    }

    fn is_stopped(&self) -> bool {
        self.with_run(|run| run.stopped).unwrap_or(true)
    }

    /// Whether the execution may still be renewed, or has run for too long.
    fn may_go_on(&self) -> bool {
        let now = Instant::now();
        let too_long =
            self.with_run(|run| (now >= run.renewed_until).then(|| run.operation.clone()));
        match too_long {
            None => false,
            Some(None) => true,
            Some(Some(operation)) => {
                let longest = operation.subject().rule.policy().longest_run();
                telemetry::max_run_passed(operation.grant(), longest);
                operation.lose_lease();
                false
            }
        }
    }

    fn renewed(&mut self, sent: Instant, lease: Duration) {
        self.with_run(|run| run.held_until = sent + lease);
        self.next = Some(Instant::now() + lease / 3);
    }

    fn failed(&mut self, grant: &Grant) {
        let now = Instant::now();
        let lapsed = self
            .with_run(|run| (now >= run.held_until).then(|| run.operation.clone()))
            .flatten()
            .filter(|operation| !operation.is_lease_lost());
        if let Some(operation) = lapsed {
            telemetry::lease_lapsed(grant);
            operation.lose_lease();
        }
        let pause = (grant.lease / 10)
            .clamp(Duration::from_millis(10), Duration::from_secs(1))
            .mul_f64(rand::random_range(0.5..1.0));
        self.next = Some(now + pause);
    }

    fn lose_lease(&self) {
        if let Some(operation) = self.with_run(|run| run.operation.clone()) {
            operation.lose_lease();
        }
    }
}

impl Drop for Renewal {
    fn drop(&mut self) {
        let mut schedule = self.keeper.schedule();
        let Some(run) = schedule.runs.get_mut(&self.id) else { return };
        run.renewing = false;
        if run.stopped {
            drop(run.waiting.take());
            return;
        }
        let Some(next) = self.next else { return schedule.unset_due(self.id) };
        let wake = schedule.set_due(self.id, next);
        drop(schedule);
        if wake {
            self.keeper.inner.earlier.notify_waiters();
        }
    }
}
