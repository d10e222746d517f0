//! Tells the store how an execution ended.
//!
//! For each call: if the process dies before it, the record lapses to abandoned and is refused; after
//! it, the record says how it ended. If its answer is lost or late, the keeper sends it again with the
//! same token, and the store answers it the same.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::time::{Instant, timeout};

use super::{Shared, handle::Subject, keeper::Watched};
use crate::{
    record::{Answer, ClaimToken, Grant, encode},
    store::{BoxFuture, Claim, Claimed, Kept, Reason, Release, StoreError, Written},
    telemetry,
};

/// The end of an execution, not yet told.
///
/// Dropped without being told, as when the runtime ends, it tells nobody: the record lapses to
/// abandoned, which is what is known.
pub(super) struct Settlement {
    shared: Arc<Shared>,
    subject: Subject,
    grant: Grant,
    watched: Watched,
}

impl Settlement {
    pub(super) fn new(
        shared: Arc<Shared>,
        subject: Subject,
        grant: Grant,
        watched: Watched,
    ) -> Self {
        Self { shared, subject, grant, watched }
    }

    /// Stores the answer. Returns what is stored instead, if another execution's answer is.
    pub(super) async fn keep(&self, answer: Answer) -> Option<Bytes> {
        let retention = self.subject.rule.policy().retention;
        let kept = Kept::new(encode(&self.grant.key, &answer, &self.subject.fields), retention);
        let marker = || {
            Kept::new(
                encode(&self.grant.key, &answer.clone().without_body(), &self.subject.fields),
                retention,
            )
        };
        self.watched.stop().await;
        let mut written = self.complete(kept.clone()).await;
        if let Err(error) = &written
            && error.is_full()
        {
            telemetry::body_not_stored(&self.grant, error);
            written = self.complete(marker()).await;
        }
        match written {
            Ok(Written::Stored) => {}
            Ok(Written::Restored) => telemetry::data_lost(&self.grant.key, "storing the answer"),
            Ok(Written::Foreign) => {
                telemetry::never_stored(&self.grant, "the record is none of ours");
            }
            Ok(lost @ (Written::Lost(_) | Written::Over)) => {
                telemetry::fenced_off(&self.grant, lost, "storing the answer");
                if let Some(payload) = self.look().await {
                    return Some(payload);
                }
                self.shared.keeper.complete_later(self.grant.clone(), kept, marker());
            }
            Err(error) => {
                telemetry::not_stored(&self.grant, &error);
                self.shared.keeper.complete_later(self.grant.clone(), kept, marker());
            }
        }
        None
    }

    /// Gives the grant back.
    pub(super) async fn release(&self, reason: Reason) {
        self.watched.stop().await;
        let release = Release::of(&self.grant, reason);
        match self.call(self.shared.store.clone().release(release.clone())).await {
            Ok(Written::Stored) => {}
            Ok(Written::Restored) => telemetry::data_lost(&self.grant.key, "releasing"),
            Ok(Written::Foreign) => {
                telemetry::record_unreadable(&self.grant.key, "it is no record of ours");
            }
            Ok(lost) => telemetry::fenced_off(&self.grant, lost, "releasing"),
            Err(_) => {
                let now = Instant::now();
                self.shared.keeper.release_later(release, self.grant.lease, now);
            }
        }
    }

    /// Gives the grant up: nobody knows whether it happened.
    pub(super) async fn uncertain(&self, why: &str) {
        telemetry::outcome_uncertain(&self.subject, self.grant.attempt, why);
        self.release(Reason::Unknown).await;
    }

    /// What is stored as completed, if anything is.
    async fn look(&self) -> Option<Bytes> {
        let look = Claim::new(
            self.grant.key,
            ClaimToken::random(),
            self.grant.print,
            self.grant.lease,
            self.grant.hold,
            Duration::ZERO,
        );
        match self.call(self.shared.store.clone().claim(look)).await {
            Ok(Claimed::Completed(completed)) => Some(completed.payload),
            _ => None,
        }
    }

    async fn complete(&self, kept: Kept) -> Result<Written, StoreError> {
        self.call(self.shared.store.clone().complete(self.grant.clone(), kept)).await
    }

    async fn call<T>(&self, call: BoxFuture<Result<T, StoreError>>) -> Result<T, StoreError> {
        timeout(self.subject.rule.policy().call_within, call)
            .await
            .unwrap_or_else(|_| Err(StoreError::too_slow()))
    }
}
