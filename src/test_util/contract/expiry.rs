//! Every record goes away.

use std::time::Duration;

use bytes::Bytes;

use super::{
    World,
    case::{Case, done, not_done, token},
};
use crate::{
    OneTimeToken, Previous, Store,
    store::{Alias, Claim, Issue, Kept, Reason, Release, Resolve, Verdict, Written},
};

/// Every kind of record expires, and what expired is absent; a completed one counts from completion.
pub async fn every_record_expires<S: Store, W: World>(store: &S, world: &W) {
    let short = world.tick() * 10;
    let brief = |case: &Case<'_, S>| Claim { hold: short, ..case.ask(token()) };
    let mut cases = Vec::new();

    let case = Case::new(store, "expiry: in progress");
    case.granted(brief(&case)).await;
    cases.push(case);
    for reason in [Reason::DidNotHappen, Reason::Failed, Reason::Unknown] {
        let case = Case::new(store, "expiry: released");
        let grant = case.granted(brief(&case)).await;
        case.release(&grant, reason, Written::Stored).await;
        cases.push(case);
    }
    let case = Case::new(store, "expiry: called off");
    let gone = store.release(Release::called_off(case.key, token(), short)).await;
    case.holds("call off", gone.is_ok(), &gone);
    cases.push(case);
    let case = Case::new(store, "expiry: completed");
    let grant = case.grant().await;
    let stored = store.complete(&grant, Kept::new(Bytes::new(), short)).await;
    case.holds("complete", stored.is_ok(), &stored);
    cases.push(case);
    let case = Case::new(store, "expiry: issued");
    let issued = store.issue(Issue::new(case.key, OneTimeToken::random(), None, short)).await;
    case.holds("issue", issued.is_ok(), &issued);
    cases.push(case);
    let (case, order) = (Case::new(store, "expiry: alias"), Case::new(store, "expiry: operation"));
    order.granted(Claim { alias: Some(Alias::new(case.key, short)), ..brief(&order) }).await;
    cases.extend([case, order]);
    for verdict in [Verdict::Done(Kept::new(Bytes::new(), short)), Verdict::NotDone { hold: short }]
    {
        let case = Case::new(store, "expiry: resolved");
        let grant = case.grant().await;
        case.release(&grant, Reason::Unknown, Written::Stored).await;
        let seen = case.abandoned(case.look()).await;
        let settled = store.resolve(Resolve::new(case.key, seen.mark, verdict, token())).await;
        case.holds("resolve", settled.is_ok(), &settled);
        cases.push(case);
    }
    for case in &cases {
        let left = world.expires_in(&case.key).await;
        case.holds("time to live", left.is_none_or(|left| left <= short), &left);
    }
    world.pass(short + world.tick()).await;
    for case in &cases {
        case.free(case.look()).await;
        case.same("time to live", None, world.expires_in(&case.key).await);
        let grant = case.grant().await;
        case.same("next", (1, Previous::Nothing), (grant.attempt, grant.previous));
    }
}

/// F4: an unfinished record is kept for its whole hold after its last write, long past its lease.
pub async fn unfinished_outlives_its_lease<S: Store, W: World>(store: &S, world: &W) {
    let (tick, hold) = (world.tick(), world.tick() * 24);
    let case = Case::new(store, "unfinished_outlives_its_lease");
    let brief = Claim { hold, lease: tick, ..case.ask(token()) };
    let grant = case.granted(brief.clone()).await;
    let resolved = Case::new(store, "a verdict counts from when it is given");
    let other = resolved.granted(Claim { key: resolved.key, token: token(), ..brief }).await;
    world.pass(tick * 14).await;
    // Lapsed long ago and there still.
    case.abandoned(case.look()).await;
    case.renew(&grant, Written::Stored).await;
    let seen = resolved.abandoned(resolved.look()).await;
    let verdict = if seen.attempt == 1 { done("done") } else { not_done() };
    let resolve = Resolve::new(resolved.key, seen.mark, verdict, token());
    resolved.resolve(resolve, crate::store::Resolved::Settled).await;
    world.pass(tick * 14).await;
    // Its first hold is over; the one of the renewal is not.
    case.abandoned(case.look()).await;
    resolved.completed(resolved.look()).await;
    resolved.complete(&other, "late", Written::Lost(crate::State::Completed)).await;
    world.pass(hold.saturating_sub(tick * 14) + tick + Duration::from_millis(1)).await;
    case.free(case.look()).await;
}
