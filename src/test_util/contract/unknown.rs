//! Unknown outcomes stay unknown.

use bytes::Bytes;

use super::{
    World,
    case::{Case, HOLD, SLACK, token},
};
use crate::{
    Previous, Store,
    store::{Claim, Reason, Takeover, Written},
};

/// A grant that nobody renews is abandoned, with all that an operator needs; it is taken over only
/// as it was seen, and its owner can write no more.
pub async fn a_crash_leaves_abandoned<S: Store, W: World>(store: &S, world: &W) {
    let case = Case::new(store, "a_crash_leaves_abandoned");
    let label = Bytes::from_static(b"order-7");
    let crashed = case.lapsed(world, Claim { label: label.clone(), ..case.ask(token()) }).await;
    let seen = case.abandoned(case.ask(token())).await;
    case.same("label", &label, &seen.label);
    case.same("attempt", 1, seen.attempt);
    case.same("fence", crashed.fence, seen.mark.fence);
    case.holds("time since the lease", seen.lapsed.is_some_and(|t| t < SLACK), &seen);
    case.holds("time since the grant", seen.granted >= world.tick(), &seen);
    case.holds("stamp", seen.mark.stamp_ms > 0, &seen);

    let mut other = seen.mark;
    other.stamp_ms += 1;
    case.abandoned(case.taking(token(), Takeover::Only(other))).await;
    let mut other = seen.mark;
    other.fence = crate::Fence::new(seen.mark.fence.get() + 1);
    case.abandoned(case.taking(token(), Takeover::Only(other))).await;

    let taken = case.granted(case.taking(token(), Takeover::Only(seen.mark))).await;
    case.same("takeover", (2, Previous::AbandonedNotDone), (taken.attempt, taken.previous));
    case.holds("fences", taken.fence > crashed.fence, &taken);
    // Two recoveries never both win.
    case.in_progress(case.taking(token(), Takeover::Only(seen.mark))).await;
    let lost = Written::Lost(crate::State::InProgress);
    case.renew(&crashed, lost).await;
    case.complete(&crashed, "late", lost).await;
    case.release(&crashed, Reason::DidNotHappen, lost).await;
    case.complete(&taken, "done", Written::Stored).await;
}

/// F1: what was taken over blindly, or called off after a takeover, is abandoned again.
pub async fn f1_unknown_is_never_laundered<S: Store, W: World>(store: &S, world: &W) {
    for reason in [Reason::DidNotHappen, Reason::Failed, Reason::Unknown] {
        let case = Case::new(store, "f1: released after a blind takeover");
        case.lapsed(world, case.ask(token())).await;
        let blind = case.granted(case.taking(token(), Takeover::Any)).await;
        case.same("takeover", Previous::AbandonedUnknown, blind.previous);
        case.release(&blind, reason, Written::Stored).await;
        let seen = case.abandoned(case.ask(token())).await;
        case.same("given up", None, seen.lapsed);
        let next = case.granted(case.taking(token(), Takeover::Any)).await;
        case.same("takeover", Previous::AbandonedUnknown, next.previous);
    }
    let case = Case::new(store, "f1: a blind takeover called off");
    case.lapsed(world, case.ask(token())).await;
    let blind = case.granted(case.taking(token(), Takeover::Any)).await;
    case.call_off(blind.token, Written::Stored).await;
    case.abandoned(case.ask(token())).await;
    case.dead(case.ask(blind.token)).await;

    let case = Case::new(store, "f1: a resolved takeover called off");
    case.lapsed(world, case.ask(token())).await;
    let seen = case.abandoned(case.ask(token())).await;
    let resolved = case.granted(case.taking(token(), Takeover::Only(seen.mark))).await;
    case.call_off(resolved.token, Written::Stored).await;
    case.abandoned(case.ask(token())).await;

    // The twin: what is known not to have happened may run again once it is released.
    let case = Case::new(store, "f1: a resolved takeover released");
    case.lapsed(world, case.ask(token())).await;
    let seen = case.abandoned(case.ask(token())).await;
    let resolved = case.granted(case.taking(token(), Takeover::Only(seen.mark))).await;
    case.release(&resolved, Reason::DidNotHappen, Written::Stored).await;
    case.same("next", Previous::Released, case.grant().await.previous);
}

/// F10: a release after a failure is told apart from an explicit one, also to a resend, and also
/// when a claim in between was called off.
pub async fn f10_failed_is_not_released<S: Store, W: World>(store: &S, _: &W) {
    for (reason, previous) in
        [(Reason::Failed, Previous::Failed), (Reason::DidNotHappen, Previous::Released)]
    {
        let case = Case::new(store, "f10_failed_is_not_released");
        let grant = case.grant().await;
        case.release(&grant, reason, Written::Stored).await;
        let next = case.grant().await;
        case.same("next", previous, next.previous);
        case.same("resend", previous, case.granted(case.ask(next.token)).await.previous);
        case.call_off(next.token, Written::Stored).await;
        case.same("after a call-off", previous, case.grant().await.previous);
    }
}

/// F12: a grant given up as unknown is never revived, renewed or released; its late answer counts.
pub async fn f12_given_up_is_never_revived<S: Store, W: World>(store: &S, world: &W) {
    let case = Case::new(store, "f12_given_up_is_never_revived");
    let grant = case.grant().await;
    case.release(&grant, Reason::Unknown, Written::Stored).await;
    case.release(&grant, Reason::Unknown, Written::Stored).await;
    case.dead(case.ask(grant.token)).await;
    case.renew(&grant, Written::Over).await;
    case.release(&grant, Reason::DidNotHappen, Written::Over).await;
    case.release(&grant, Reason::Failed, Written::Over).await;
    case.call_off(grant.token, Written::Over).await;
    let seen = case.abandoned(case.ask(token())).await;
    case.same("mark", (0, None), (seen.mark.stamp_ms, seen.lapsed));
    case.expires(world, HOLD).await;
    case.complete(&grant, "it happened", Written::Stored).await;
    case.completed(case.ask(token())).await;
}

/// An unknown outcome that is told once more, after a verdict has let another run and that one gave
/// back, is unknown again, and no grant is forgotten in the count.
pub async fn unknown_told_again_counts_every_grant<S: Store, W: World>(store: &S, _: &W) {
    let case = Case::new(store, "unknown_told_again_counts_every_grant");
    let first = case.grant().await;
    case.release(&first, Reason::Unknown, Written::Stored).await;
    let seen = case.abandoned(case.ask(token())).await;
    let second = case.granted(case.taking(token(), Takeover::Only(seen.mark))).await;
    case.release(&second, Reason::DidNotHappen, Written::Stored).await;
    case.release(&first, Reason::Unknown, Written::Restored).await;
    let seen = case.abandoned(case.ask(token())).await;
    case.same("attempt", 2, seen.attempt);
    case.same("fence", second.fence, seen.mark.fence);
    let third = case.granted(case.taking(token(), Takeover::Only(seen.mark))).await;
    case.same("attempt", 3, third.attempt);
}

/// An owner that learns of an unknown run before its own says so by a renewal: given back or called
/// off, it is unknown.
pub async fn a_renewal_tells_of_an_unknown_run_before<S: Store, W: World>(store: &S, _: &W) {
    let case = Case::new(store, "a_renewal_tells_of_an_unknown_run_before: given back");
    let mut grant = case.grant().await;
    grant.previous = Previous::AbandonedUnknown;
    case.renew(&grant, Written::Stored).await;
    case.release(&grant, Reason::DidNotHappen, Written::Stored).await;
    case.abandoned(case.ask(token())).await;

    let case = Case::new(store, "a_renewal_tells_of_an_unknown_run_before: called off");
    let mut grant = case.grant().await;
    grant.previous = Previous::AbandonedUnknown;
    case.renew(&grant, Written::Stored).await;
    case.call_off(grant.token, Written::Stored).await;
    case.abandoned(case.ask(token())).await;
}
