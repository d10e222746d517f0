//! One owner at a time, and what a grant carries.

use super::{
    World,
    case::{Case, HOLD, LEASE, RETENTION, SLACK, done, not_done, token},
};
use crate::{
    Fence, Grant, Mark, Previous, State, Store,
    store::{Reason, Resolve, Resolved, Takeover, Written},
};

const REASONS: [Reason; 3] = [Reason::DidNotHappen, Reason::Failed, Reason::Unknown];

/// While a grant is leased nobody else is granted the key, and nobody else can write it.
pub async fn one_owner<S: Store, W: World>(store: &S, world: &W) {
    let case = Case::new(store, "one_owner");
    let grant = case.grant().await;
    case.same("first grant", (1, Previous::Nothing), (grant.attempt, grant.previous));
    for takeover in [Takeover::Refuse, Takeover::Any] {
        let held = case.in_progress(case.taking(token(), takeover)).await;
        let about = held.remaining <= LEASE && held.remaining > LEASE - SLACK;
        case.holds("lease left", about, &held);
        case.holds("age of the run", held.running < SLACK, &held);
        case.same("attempt", 1, held.attempt);
    }
    // A stranger, with the owner's fence and with one that would be newer.
    for fence in [grant.fence, Fence::new(grant.fence.get() + 1_000_000)] {
        let stranger = Grant { token: token(), fence, ..grant.clone() };
        let lost = Written::Lost(State::InProgress);
        case.renew(&stranger, lost).await;
        case.complete(&stranger, "stranger", lost).await;
        for reason in REASONS {
            case.release(&stranger, reason, lost).await;
        }
        case.call_off(stranger.token, lost).await;
    }
    case.renew(&grant, Written::Stored).await;
    case.expires(world, HOLD).await;
    case.complete(&grant, "done", Written::Stored).await;
}

/// The same token asking again gets the same grant; once released it is dead for ever.
pub async fn same_token_same_grant<S: Store, W: World>(store: &S, _: &W) {
    let case = Case::new(store, "same_token_same_grant");
    let first = case.grant().await;
    case.same("resend", &first, &case.granted(case.ask(first.token)).await);
    case.release(&first, Reason::DidNotHappen, Written::Stored).await;
    case.release(&first, Reason::DidNotHappen, Written::Stored).await;
    case.dead(case.ask(first.token)).await;
    case.renew(&first, Written::Over).await;
    let second = case.grant().await;
    case.same("second grant", (2, Previous::Released), (second.attempt, second.previous));
    case.same("resend", &second, &case.granted(case.ask(second.token)).await);
    case.release(&second, Reason::Unknown, Written::Stored).await;
    case.dead(case.ask(second.token)).await;
    let third = case.granted(case.taking(token(), Takeover::Any)).await;
    case.same("takeover", Previous::AbandonedUnknown, third.previous);
    // The resend of a takeover is told the same, whether it would take over or not.
    case.same("resend", &third, &case.granted(case.taking(third.token, Takeover::Any)).await);
    case.same("resend", &third, &case.granted(case.ask(third.token)).await);
}

/// A completed record is answered to everybody and never changes.
pub async fn completed_is_final<S: Store, W: World>(store: &S, world: &W) {
    let case = Case::new(store, "completed_is_final");
    let grant = case.grant().await;
    case.complete(&grant, "hello", Written::Stored).await;
    case.complete(&grant, "hello", Written::Stored).await;
    case.complete(&grant, "something else", Written::Stored).await;
    case.renew(&grant, Written::Over).await;
    let lost = Written::Lost(State::Completed);
    for reason in REASONS {
        case.release(&grant, reason, lost).await;
    }
    case.call_off(grant.token, lost).await;
    let newer = Fence::new(grant.fence.get() + 9);
    let stranger = Grant { token: token(), fence: newer, ..grant.clone() };
    case.complete(&stranger, "stranger", lost).await;
    case.renew(&stranger, lost).await;
    case.release(&stranger, Reason::Unknown, lost).await;
    case.call_off(stranger.token, lost).await;
    for verdict in [done("resolver"), not_done()] {
        let resolve = Resolve::new(case.key, Mark::new(grant.fence, 0), verdict, token());
        case.resolve(resolve.forced(), Resolved::Changed(State::Completed)).await;
    }
    case.issue_taken(State::Completed).await;
    for asked in [case.ask(token()), case.ask(grant.token), case.look()] {
        let completed = case.completed(asked).await;
        case.same("payload", b"hello".as_slice(), &completed.payload);
        case.same("its grant", (grant.fence, 1), (completed.fence, completed.attempt));
        case.holds("age", completed.age < SLACK, &completed);
    }
    case.completed(case.taking(token(), Takeover::Any)).await;
    case.expires(world, RETENTION).await;
}

/// Every grant of a key has a larger fence than those before it, and one attempt more.
pub async fn fences_grow<S: Store, W: World>(store: &S, world: &W) {
    let case = Case::new(store, "fences_grow");
    let mut grants = vec![case.grant().await];
    for reason in [Reason::DidNotHappen, Reason::Failed, Reason::Unknown, Reason::Unknown] {
        let last = &grants[grants.len() - 1];
        case.release(last, reason, Written::Stored).await;
        grants.push(case.granted(case.taking(token(), Takeover::Any)).await);
    }
    for pair in grants.windows(2) {
        case.holds("fences", pair[0].fence < pair[1].fence, &pair);
        case.same("attempts", pair[0].attempt + 1, pair[1].attempt);
    }
    // Also where the fence that is there is ahead of the clock.
    let last = &grants[grants.len() - 1];
    let ahead = Grant { fence: Fence::new(last.fence.get() + 60_000_000), ..last.clone() };
    world.forget(&case.key).await;
    case.renew(&ahead, Written::Restored).await;
    case.release(&ahead, Reason::Failed, Written::Stored).await;
    let next = case.granted(case.taking(token(), Takeover::Any)).await;
    case.holds("fence ahead of the clock", next.fence > ahead.fence, &(next, ahead));
}

/// F11: the same token after its lease lapsed gets its grant with a whole lease, not a dead one.
pub async fn f11_the_same_token_gets_a_fresh_lease<S: Store, W: World>(store: &S, world: &W) {
    let case = Case::new(store, "f11_the_same_token_gets_a_fresh_lease");
    let lapsed = case.lapsed(world, case.ask(token())).await;
    case.abandoned(case.look()).await;
    let again = case.granted(case.ask(lapsed.token)).await;
    case.same("grant", &lapsed, &again);
    let held = case.in_progress(case.ask(token())).await;
    case.holds("lease left", held.remaining > LEASE - SLACK, &held);
}

/// F13: the count of attempts stops at 999,999 and spoils nothing beside it.
pub async fn f13_attempts_stop_at_999_999<S: Store, W: World>(store: &S, world: &W) {
    let case = Case::new(store, "f13_attempts_stop_at_999_999");
    let bound = super::case::print(1);
    let mut grant = case.granted(case.with_print(token(), bound)).await;
    for attempt in [999_999, 1_000_000, u32::MAX] {
        world.forget(&case.key).await;
        grant.attempt = attempt;
        case.renew(&grant, Written::Restored).await;
        case.same("attempt", 999_999, case.in_progress(case.look()).await.attempt);
        case.mismatch(case.with_print(token(), super::case::print(2))).await;
        case.release(&grant, Reason::Failed, Written::Stored).await;
        grant = case.granted(case.with_print(token(), bound)).await;
        case.same("next", (999_999, Previous::Failed), (grant.attempt, grant.previous));
    }
    grant.attempt = u32::MAX;
    case.complete(&grant, "done", Written::Stored).await;
    case.same("completed", 999_999, case.completed(case.look()).await.attempt);
}
