//! Tells the store how an execution ended.
//!
//! For each call: if the process dies before it, the record lapses to abandoned and is refused; after
//! it, the record says how it ended. If its answer is lost or late, the keeper sends it again with the
//! same token, and the store answers it the same.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use bytes::Bytes;
use tokio::time::Instant;

use super::{
    Operation, Shared,
    keeper::{Late, Watched},
};
use crate::{
    record::{Answer, ClaimToken, Grant, encode},
    store::{BoxFuture, Claim, Claimed, Kept, Reason, Release, StoreError, Written, in_time},
    telemetry::{self, Timer},
};

/// The end of an execution, not yet told.
///
/// Dropped before the handler has ended, as when the runtime ends, it tells nobody: the record lapses
/// to abandoned, which is what is known. Dropped later, or by a panic, it leaves what is known to the
/// keeper.
pub(super) struct Settlement {
    shared: Arc<Shared>,
    operation: Operation,
    watched: Watched,
    /// A claim of this grant that was sent may still arrive until then.
    claims_until: Option<Instant>,
    /// Somebody tells the store how it ended.
    is_told: AtomicBool,
}

impl Drop for Settlement {
    /// A handler's panic is caught while it runs. One in what is dropped after it, its service or what its
    /// future held, ends up here: nobody knows what happened, and nobody runs it any more.
    ///
    /// No event says so, since whoever takes events may be who has panicked.
    fn drop(&mut self) {
        if thread::panicking() && !*self.is_told.get_mut() {
            let release = Release::of(self.grant(), Reason::Unknown);
            self.shared.keeper.release_later(release, self.grant().lease, Instant::now());
        }
    }
}

impl Settlement {
    pub(super) fn new(
        shared: Arc<Shared>,
        operation: Operation,
        watched: Watched,
        claims_until: Option<Instant>,
    ) -> Self {
        let is_told = AtomicBool::new(false);
        Self { shared, operation, watched, claims_until, is_told }
    }

    fn grant(&self) -> &Grant {
        self.operation.grant()
    }

    /// Stores the answer. Returns what is stored instead, if another execution's answer is.
    pub(super) async fn keep(&self, answer: &Answer) -> Option<Bytes> {
        let kept = self.kept(answer);
        let unsent = Unsent::new(self, End::Completion { answer, kept: &kept });
        self.stop_renewals().await;
        let asked = Instant::now();
        let mut written = self.complete(&kept).await;
        if written.as_ref().is_ok_and(|written| written.is_stored()) {
            let Grant { key, print, .. } = *self.grant();
            self.shared.keep_recent(key, print, &kept.payload, asked, kept.retention);
        }
        if let Some(error) = full(&written) {
            telemetry::body_not_stored(self.grant(), error);
            written = Box::pin(self.complete_less(answer)).await;
        }
        if written.is_ok() {
            self.shared.run_ended(&self.grant().key);
        }
        match written {
            Ok(Written::Stored) => unsent.told(),
            Ok(Written::Restored) => {
                unsent.told();
                telemetry::data_lost(self.grant(), "storing the answer");
            }
            Ok(Written::Foreign) => {
                unsent.told();
                telemetry::never_stored(self.grant(), "the record is none of ours");
            }
            Ok(lost @ (Written::Lost(_) | Written::Over)) => {
                telemetry::fenced_off(self.grant(), lost, "storing the answer");
                if let Some(payload) = Box::pin(self.look()).await {
                    unsent.told();
                    return Some(payload);
                }
            }
            Err(error) => telemetry::not_stored(self.grant(), &error),
        }
        None
    }

    /// Gives the grant back.
    pub(super) async fn release(&self, reason: Reason) {
        let unsent = Unsent::new(self, End::Release(reason));
        self.stop_renewals().await;
        let release = Release::of(self.grant(), reason);
        let Ok(written) = self.call(self.shared.store.clone().release(release)).await else {
            return;
        };
        unsent.told();
        self.shared.run_ended(&self.grant().key);
        if let Some(late_claim) = self.late_claim(reason) {
            self.shared.keeper.keep(late_claim);
        }
        match written {
            Written::Stored => {}
            Written::Restored => telemetry::data_lost(self.grant(), "releasing"),
            Written::Foreign => {
                telemetry::record_unreadable(&self.grant().key, "it is no record of ours");
            }
            lost => telemetry::fenced_off(self.grant(), lost, "releasing"),
        }
    }

    /// What calls off a claim of this grant that is on its way still: where somebody else has had the key
    /// since, and given it back, it would be granted, and nobody would know. Where this run was kept or is
    /// unknown, it finds that.
    fn late_claim(&self, reason: Reason) -> Option<Late> {
        let until = self.claims_until.filter(|until| *until > Instant::now())?;
        let Grant { key, token, hold, lease, .. } = *self.grant();
        (reason != Reason::Unknown)
            .then(|| Late::release(Release::called_off(key, token, hold), lease, until))
    }

    /// Gives the grant up: nobody knows whether it happened.
    pub(super) async fn uncertain(&self, why: &str) {
        telemetry::outcome_uncertain(self.operation.subject(), self.grant(), why);
        self.release(Reason::Unknown).await;
    }

    fn kept(&self, answer: &Answer) -> Kept {
        let payload = encode(&self.grant().key, answer, &self.operation.subject().print.fields);
        Kept::new(payload, self.operation.subject().rule.policy().retention)
    }

    /// The least that can be kept.
    fn bare(&self, answer: &Answer) -> Kept {
        let payload = encode(&self.grant().key, &answer.bare(), &[]);
        Kept::new(payload, self.operation.subject().rule.policy().retention)
    }

    /// What is stored as completed, if anything is.
    async fn look(&self) -> Option<Bytes> {
        let look = Claim::new(
            self.grant().key,
            ClaimToken::random(),
            self.grant().print,
            self.grant().lease,
            self.grant().hold,
            Duration::ZERO,
        );
        match self.call(self.shared.store.clone().claim(Box::new(look))).await {
            Ok(Claimed::Completed(completed)) => Some(completed.payload),
            _ => None,
        }
    }

    /// Waits for a renewal that is on its way, of which there is rarely one.
    async fn stop_renewals(&self) {
        if let Some(renewal) = self.watched.stop() {
            Box::pin(renewal).await;
        }
    }

    async fn complete(&self, kept: &Kept) -> Result<Written, StoreError> {
        let timer = Timer::start();
        let store = self.shared.store.clone();
        let written = self.call(store.complete(self.grant().clone(), kept.clone())).await;
        let metrics = self.operation.subject().rule.metrics();
        metrics.completed(timer);
        if written.as_ref().is_ok_and(|written| written.is_stored()) {
            metrics.stored(kept.payload.len());
        }
        written
    }

    /// What a store without room for an answer may have room for.
    async fn complete_less(&self, answer: &Answer) -> Result<Written, StoreError> {
        let written = self.complete(&self.kept(&answer.clone().without_body())).await;
        match full(&written) {
            Some(_) => self.complete(&self.bare(answer)).await,
            None => written,
        }
    }

    async fn call<T>(&self, call: BoxFuture<Result<T, StoreError>>) -> Result<T, StoreError> {
        in_time(&*self.shared.store, self.operation.subject().rule.policy().call_within, call).await
    }
}

/// Why the store did not take it, if it has no room.
fn full(written: &Result<Written, StoreError>) -> Option<&StoreError> {
    written.as_ref().err().filter(|error| error.is_full())
}

/// How an execution ended, until the store has it. Dropped before, it leaves it to the keeper.
struct Unsent<'a> {
    settlement: &'a Settlement,
    end: Option<End<'a>>,
}

enum End<'a> {
    Completion { answer: &'a Answer, kept: &'a Kept },
    Release(Reason),
}

impl<'a> Unsent<'a> {
    fn new(settlement: &'a Settlement, end: End<'a>) -> Self {
        settlement.is_told.store(true, Relaxed);
        Self { settlement, end: Some(end) }
    }

    /// The store has it, or will never take it.
    fn told(mut self) {
        self.end = None;
    }
}

impl Drop for Unsent<'_> {
    fn drop(&mut self) {
        let (shared, grant) = (&self.settlement.shared, self.settlement.grant());
        match self.end.take() {
            None => {}
            Some(End::Release(reason)) => {
                let release = Release::of(grant, reason);
                let late = Late::release(release, grant.lease, Instant::now());
                shared.keeper.keep(late.and_then(self.settlement.late_claim(reason)));
            }
            Some(End::Completion { answer, kept }) => {
                let marker = self.settlement.bare(answer);
                shared.keeper.complete_later(grant.clone(), kept.clone(), marker);
            }
        }
    }
}
