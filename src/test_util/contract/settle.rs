//! Verdicts over abandoned operations.

use super::{
    World,
    case::{Case, HOLD, LEASE, RETENTION, SLACK, done, not_done, print, token},
};
use crate::{
    Fence, Mark, Previous, State, Store,
    store::{Reason, Resolve, Resolved, Takeover, Written},
};

/// What is abandoned is settled either way, once, for those who saw it as it is.
pub async fn resolve_settles_what_is_abandoned<S: Store, W: World>(store: &S, world: &W) {
    let case = Case::new(store, "resolve: it was done");
    let grant = case.granted(case.with_print(token(), print(1))).await;
    case.release(&grant, Reason::Unknown, Written::Stored).await;
    let seen = case.abandoned(case.ask(token())).await;
    let other = Mark::new(Fence::new(seen.mark.fence.get() + 1), seen.mark.stamp_ms);
    let changed = Resolved::Changed(State::InProgress);
    case.resolve(Resolve::new(case.key, other, done("no"), token()), changed).await;
    let verdict = Resolve::new(case.key, seen.mark, done("resolver"), token());
    case.resolve(verdict.clone(), Resolved::Settled).await;
    // F8: the same verdict sent again is settled, another one is not.
    case.resolve(verdict, Resolved::Settled).await;
    let changed = Resolved::Changed(State::Completed);
    case.resolve(Resolve::new(case.key, seen.mark, done("no"), token()), changed).await;
    case.expires(world, RETENTION).await;
    let completed = case.completed(case.with_print(token(), print(1))).await;
    case.same("answer", b"resolver".as_slice(), &completed.payload);
    case.mismatch(case.with_print(token(), print(2))).await;
    // F8: the owner is not told that its own answer was stored.
    case.complete(&grant, "owner", Written::Lost(State::Completed)).await;

    let case = Case::new(store, "resolve: it was not done");
    case.lapsed(world, case.ask(token())).await;
    let seen = case.abandoned(case.ask(token())).await;
    let verdict = Resolve::new(case.key, seen.mark, not_done(), token());
    case.resolve(verdict.clone(), Resolved::Settled).await;
    case.resolve(verdict, Resolved::Settled).await;
    case.expires(world, HOLD).await;
    let next = case.grant().await;
    case.same("next", (2, Previous::Released), (next.attempt, next.previous));

    let case = Case::new(store, "resolve: nothing is there");
    let verdict = Resolve::new(case.key, seen.mark, done("no"), token()).forced();
    case.resolve(verdict, Resolved::Changed(State::Absent)).await;
    case.free(case.look()).await;
}

/// F8: a sign of life between the question and the verdict voids it.
pub async fn f8_a_sign_of_life_voids_a_verdict<S: Store, W: World>(store: &S, world: &W) {
    let case = Case::new(store, "f8_a_sign_of_life_voids_a_verdict");
    let mut grant = case.lapsed(world, case.ask(token())).await;
    let seen = case.abandoned(case.ask(token())).await;
    grant.lease = world.tick();
    case.renew(&grant, Written::Stored).await;
    world.pass(world.tick() * 2).await;
    let now = case.abandoned(case.taking(token(), Takeover::Only(seen.mark))).await;
    case.same("fence", seen.mark.fence, now.mark.fence);
    case.holds("stamp", now.mark.stamp_ms > seen.mark.stamp_ms, &now);
    let changed = Resolved::Changed(State::InProgress);
    for verdict in [done("no"), not_done()] {
        case.resolve(Resolve::new(case.key, seen.mark, verdict, token()), changed).await;
    }
    // Given up is a sign of life too.
    case.release(&grant, Reason::Unknown, Written::Stored).await;
    case.resolve(Resolve::new(case.key, now.mark, done("no"), token()), changed).await;
    // The twin: a verdict over what is there now.
    let seen = case.abandoned(case.ask(token())).await;
    let verdict = Resolve::new(case.key, seen.mark, done("yes"), token());
    case.resolve(verdict, Resolved::Settled).await;
}

/// F20: a leased grant is settled by force alone, and a late answer of its owner still counts where
/// the verdict was that it had not happened.
pub async fn f20_a_forced_verdict_does_not_hide_what_happened<S: Store, W: World>(
    store: &S,
    _: &W,
) {
    let case = Case::new(store, "f20_a_forced_verdict_does_not_hide_what_happened");
    let grant = case.grant().await;
    let mark = Mark::new(grant.fence, 0);
    let verdict = Resolve::new(case.key, mark, not_done(), token());
    match store.resolve(verdict.clone()).await {
        Ok(Resolved::Leased(left)) if left <= LEASE && left > LEASE - SLACK => {}
        other => case.holds("resolve while it is leased", false, &other),
    }
    case.in_progress(case.look()).await;
    case.resolve(verdict.forced(), Resolved::Settled).await;
    case.renew(&grant, Written::Lost(State::Released)).await;
    case.complete(&grant, "it happened", Written::Restored).await;
    let completed = case.completed(case.ask(token())).await;
    case.same("answer", b"it happened".as_slice(), &completed.payload);

    let case = Case::new(store, "f20: the key is claimed after the verdict");
    let grant = case.grant().await;
    let verdict = Resolve::new(case.key, Mark::new(grant.fence, 0), not_done(), token());
    case.resolve(verdict.forced(), Resolved::Settled).await;
    case.same("next", Previous::Released, case.grant().await.previous);
    case.complete(&grant, "late", Written::Lost(State::InProgress)).await;

    let case = Case::new(store, "f20: force does not make up for another fence");
    let grant = case.grant().await;
    let mark = Mark::new(Fence::new(grant.fence.get() + 1), 0);
    let verdict = Resolve::new(case.key, mark, done("no"), token()).forced();
    case.resolve(verdict, Resolved::Changed(State::InProgress)).await;
    case.renew(&grant, Written::Stored).await;
}
