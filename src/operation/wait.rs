//! What a request does that met another's run: looks again, and waits if its policy says so.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::{Shared, claimant::look};
use crate::{
    policy::{Policy, Profile},
    refusal::{Refusal, RefusalKind},
    store::{Claim, Claimed, InProgress, StoreError},
};

/// The most requests of a layer that wait at once.
pub(super) const WAITERS_AT_MOST: usize = 1024;

/// Between two looks, doubled each time and jittered, so that waiters do not look in step.
const LOOK_AFTER: Duration = Duration::from_millis(25);
const LOOK_AFTER_AT_MOST: Duration = Duration::from_millis(500);

/// Looks until the record is something else than in progress, or `until` is over. It looks at least
/// once: the run may have ended while the answer of the claim was on its way.
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
    let mut seen = met;
    let mut permit = None;
    let mut pause = LOOK_AFTER;
    loop {
        match look_once(shared, claim, policy.call_within).await {
            Ok(Claimed::InProgress(now)) => seen = now,
            Ok(claimed) => return claimed,
            // A store that cannot be asked just now does not change what was seen.
            Err(_) => {}
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Claimed::InProgress(seen);
        }
        if permit.is_none() {
            match shared.waiters.try_acquire() {
                Ok(one) => permit = Some(one),
                Err(_) => return Claimed::InProgress(seen),
            }
        }
        sleep(pause.mul_f64(rand::random_range(0.5..1.0)).min(left)).await;
        pause = (pause * 2).min(LOOK_AFTER_AT_MOST);
    }
}

/// One look.
pub(super) async fn look_once(
    shared: &Shared,
    claim: &Claim,
    within: Duration,
) -> Result<Claimed, StoreError> {
    timeout(within, shared.store.clone().claim(look(claim)))
        .await
        .unwrap_or_else(|_| Err(StoreError::too_slow()))
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
