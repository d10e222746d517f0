//! What a request does that met another's run: looks again, and waits if its policy says so.

use std::time::Duration;

use tokio::time::Instant;

use super::{Shared, claimant::look};
use crate::{
    policy::{OnAbandoned, Policy, Profile},
    record::RecordKey,
    refusal::{Refusal, RefusalKind},
    store::{Claim, Claimed, IfForgotten, InProgress, StoreError, Takeover, in_time},
    telemetry,
};

/// The most requests of a layer that wait at once.
pub(super) const WAITERS_AT_MOST: usize = 1024;

/// Waits until the record is something else than in progress, or `until` is over. It is looked at at
/// least once: the run may have ended while the answer of the claim was on its way.
///
/// A look compares the fingerprint, like a claim.
///
/// # Cancel safety
///
/// May be dropped: a look is never granted.
pub(super) async fn watch(
    shared: &Shared,
    claim: &Claim,
    policy: &Policy,
    met: InProgress,
    until: Instant,
) -> Claimed {
    let look = || look_once(shared, claim, policy.call_within);
    let permit = match until > Instant::now() {
        true => shared.waiters.try_acquire().ok(),
        false => None,
    };
    if permit.is_none() {
        // A store that cannot be asked just now does not change what was seen.
        return look().await.unwrap_or(Claimed::InProgress(met));
    }
    let waiting = shared.pollers.join(claim, met);
    telemetry::waiting(&claim.key);
    // On the heap: most requests do not wait.
    Box::pin(waiting.wait(look, policy.call_within, |found| is_for_one(policy, found), until)).await
}

/// Whether one of all waiters is enough to act on what was found: by the time that the next one looks,
/// it has changed.
fn is_for_one(policy: &Policy, found: &Claimed) -> bool {
    match found {
        Claimed::Free | Claimed::Forgotten => true,
        Claimed::Abandoned(_) => !matches!(policy.on_abandoned, OnAbandoned::Refuse),
        _ => false,
    }
}

impl Shared {
    /// A run under this key has ended, and the store knows. Whoever waits for it in this process need
    /// not wait for the next look.
    pub(super) fn run_ended(&self, key: &RecordKey) {
        // Whoever comes later looks by himself.
        if self.waiters.available_permits() < WAITERS_AT_MOST {
            self.pollers.hurry(key);
        }
    }
}

/// One look.
pub(super) async fn look_once(
    shared: &Shared,
    claim: &Claim,
    within: Duration,
) -> Result<Claimed, StoreError> {
    in_time(&*shared.store, within, shared.store.clone().claim(look(claim))).await
}

/// The same, and whether what is abandoned might be taken over: [`Claimed::Free`] says that it might. A
/// store that may have lost signs of life says not yet.
pub(super) async fn look_whether_free(
    shared: &Shared,
    claim: &Claim,
    takeover: Takeover,
    within: Duration,
) -> Result<Claimed, StoreError> {
    let mut look = look(claim);
    look.takeover = takeover;
    // What is abandoned is not forgotten.
    look.if_forgotten = IfForgotten::Grant;
    in_time(&*shared.store, within, shared.store.clone().claim(look)).await
}

/// Another delivery holds the operation.
pub(super) fn busy(profile: Profile, met: &InProgress) -> Refusal {
    // A run that has lasted long will likely last longer; but the lease that is left is the longest
    // it can take to know.
    let second = Duration::from_secs(1);
    let after = met.running.clamp(second, met.remaining.max(second));
    let refusal = Refusal::new(
        RefusalKind::InProgress,
        "another request with this identity is in progress; send it again, the same, a little later",
    );
    as_profile(profile, refusal).with_retry_after(after)
}

/// Nobody knows what became of the operation.
pub(super) fn outcome_unknown(profile: Profile) -> Refusal {
    let refusal = Refusal::new(
        RefusalKind::OutcomeUnknown,
        "an earlier request with this identity was started and its outcome is unknown; it is not \
         run again until somebody has settled it",
    );
    match profile {
        Profile::Api => refusal,
        Profile::Webhook => as_profile(profile, refusal).with_retry_after(Duration::from_secs(60)),
    }
}

/// Some senders take a 4xx as final, so that to them "not yet" is a 503.
fn as_profile(profile: Profile, refusal: Refusal) -> Refusal {
    match profile {
        Profile::Api => refusal,
        Profile::Webhook => refusal.with_status(http::StatusCode::SERVICE_UNAVAILABLE),
    }
}
