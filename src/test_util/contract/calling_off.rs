//! Claims called off, and looks.

use super::{
    World,
    case::{Case, HOLD, token},
};
use crate::{
    OneTimeToken, Previous, State, Store,
    store::{Claim, Reason, Takeover, Written},
};

/// F2: a claim called off, before it came or after, leaves what counts as nothing; the token is dead.
pub async fn f2_called_off_is_as_good_as_absent<S: Store, W: World>(store: &S, world: &W) {
    let case = Case::new(store, "f2: called off before it came");
    let late = token();
    case.call_off(late, Written::Restored).await;
    case.call_off(late, Written::Stored).await;
    case.expires(world, HOLD).await;
    case.dead(case.ask(late)).await;
    case.token_unknown(case.with_one_time(token(), OneTimeToken::random())).await;
    case.free(case.look()).await;
    let next = case.grant().await;
    case.same("next", (1, Previous::Nothing), (next.attempt, next.previous));

    let case = Case::new(store, "f2: called off after it was granted");
    let grant = case.grant().await;
    case.call_off(grant.token, Written::Stored).await;
    case.call_off(grant.token, Written::Stored).await;
    case.dead(case.ask(grant.token)).await;
    case.token_unknown(case.with_one_time(token(), OneTimeToken::random())).await;
    let next = case.grant().await;
    case.same("next", (1, Previous::Nothing), (next.attempt, next.previous));
    case.holds("fences", next.fence > grant.fence, &next);

    let case = Case::new(store, "f2: called off while another holds it");
    let grant = case.grant().await;
    case.call_off(token(), Written::Lost(State::InProgress)).await;
    case.renew(&grant, Written::Stored).await;

    let case = Case::new(store, "f2: a second attempt called off");
    let grant = case.grant().await;
    case.release(&grant, Reason::DidNotHappen, Written::Stored).await;
    let second = case.grant().await;
    case.call_off(second.token, Written::Stored).await;
    case.same("next", Previous::Released, case.grant().await.previous);

    let case = Case::new(store, "f2: called off after it used a one-time token");
    let one_time = OneTimeToken::random();
    case.issue(one_time, None, (one_time, None)).await;
    let grant = case.granted(case.with_one_time(token(), one_time)).await;
    case.call_off(grant.token, Written::Stored).await;
    case.granted(case.with_one_time(token(), one_time)).await;
}

/// A look reads what is there, is never granted, and writes nothing.
pub async fn a_look_is_never_granted<S: Store, W: World>(store: &S, world: &W) {
    let case = Case::new(store, "a_look_is_never_granted");
    let any = |look: Claim| Claim { takeover: Takeover::Any, ..look };
    case.free(case.look()).await;
    case.same("written by a look", None, world.expires_in(&case.key).await);
    let delivery = Case::new(store, "a_look_is_never_granted: the delivery");
    let alias = case.with_alias(token(), delivery.key).alias;
    case.free(Claim { alias, ..case.look() }).await;
    delivery.free(delivery.look()).await;
    delivery.same("bound by a look", None, world.expires_in(&delivery.key).await);
    let grant = case.grant().await;
    case.in_progress(case.look()).await;
    // A look under the owner's token would give it a whole lease again.
    case.free(Claim { token: grant.token, ..case.look() }).await;
    case.release(&grant, Reason::DidNotHappen, Written::Stored).await;
    case.free(case.look()).await;
    case.dead(Claim { token: grant.token, ..case.look() }).await;

    let lapsed = case.lapsed(world, case.ask(token())).await;
    case.same("attempt", 2, lapsed.attempt);
    case.abandoned(case.look()).await;
    case.free(any(case.look())).await;
    let seen = case.abandoned(case.look()).await;
    case.free(Claim { takeover: Takeover::Only(seen.mark), ..case.look() }).await;
    case.same("seen after looks", seen.mark, case.abandoned(case.look()).await.mark);
    case.complete(&lapsed, "done", Written::Stored).await;
    case.completed(case.look()).await;
}
