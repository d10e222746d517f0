//! Other names of an operation.

use super::{
    World,
    case::{Case, HOLD, done, token},
};
use crate::{
    Fence, Grant, Mark, OneTimeToken, Previous, RecordKey, State, Store,
    store::{Reason, Resolve, Resolved, Written},
};

/// A claim binds its other name in the same trip, and that name leads to the operation.
pub async fn alias_leads_to_its_operation<S: Store, W: World>(store: &S, world: &W) {
    let delivery = Case::new(store, "alias: the delivery");
    let order = Case::new(store, "alias: the operation");
    let grant = order.granted(order.with_alias(token(), delivery.key)).await;
    order.same("first grant", (1, Previous::Nothing), (grant.attempt, grant.previous));
    delivery.alias_of(delivery.ask(token()), order.key).await;
    delivery.alias_of(delivery.look(), order.key).await;
    delivery.expires(world, HOLD).await;
    order.same("resend", &grant, &order.granted(order.with_alias(grant.token, delivery.key)).await);
    // Again, and under another name.
    order.in_progress(order.with_alias(token(), delivery.key)).await;
    let redelivery = Case::new(store, "alias: another delivery");
    order.in_progress(order.with_alias(token(), redelivery.key)).await;
    redelivery.alias_of(redelivery.ask(token()), order.key).await;
    order.complete(&grant, "done", Written::Stored).await;
    order.completed(order.with_alias(token(), delivery.key)).await;

    // An alias is nobody's grant, whatever its writer says.
    let fence = Fence::new(grant.fence.get() + 60_000_000);
    let stranger = Grant { key: delivery.key, token: token(), fence, ..grant };
    let lost = Written::Lost(State::Alias);
    delivery.renew(&stranger, lost).await;
    delivery.complete(&stranger, "stranger", lost).await;
    delivery.release(&stranger, Reason::Unknown, lost).await;
    delivery.call_off(token(), lost).await;
    delivery.issue_taken(State::Alias).await;
    let resolve = Resolve::new(delivery.key, Mark::new(fence, 0), done("no"), token()).forced();
    delivery.resolve(resolve, Resolved::Changed(State::Alias)).await;
    delivery.alias_of(delivery.ask(token()), order.key).await;
}

/// F17: a name that has a record of its own is told with its state, and what the claim may have been
/// granted can be called off as if it had never been.
pub async fn f17_a_taken_delivery_is_told_with_its_state<S: Store, W: World>(store: &S, _: &W) {
    let delivery = Case::new(store, "f17: the delivery");
    let one_time = OneTimeToken::random();
    delivery.issue(one_time, None, (one_time, None)).await;
    taken(store, delivery.key, State::Issued).await;
    let grant = delivery.granted(delivery.with_one_time(token(), one_time)).await;
    taken(store, delivery.key, State::InProgress).await;
    delivery.release(&grant, Reason::Unknown, Written::Stored).await;
    taken(store, delivery.key, State::InProgress).await;
    delivery.complete(&grant, "done", Written::Stored).await;
    taken(store, delivery.key, State::Completed).await;
    delivery.completed(delivery.ask(token())).await;

    let delivery = Case::new(store, "f17: another's alias");
    let order = Case::new(store, "f17: the operation");
    order.granted(order.with_alias(token(), delivery.key)).await;
    taken(store, delivery.key, State::Alias).await;
    delivery.alias_of(delivery.ask(token()), order.key).await;
}

async fn taken<S: Store>(store: &S, delivery: RecordKey, state: State) {
    let order = Case::new(store, "f17: the claim beside a taken delivery");
    let claim = order.with_alias(token(), delivery);
    order.taken(claim.clone(), state).await;
    // Granted or not: called off, it is as good as absent.
    let released = crate::store::Release::called_off(order.key, claim.token, HOLD);
    let answer = store.release(released).await;
    order.holds("call off", matches!(answer, Ok(written) if written.is_stored()), &answer);
    let next = order.grant().await;
    order.same("next", (1, Previous::Nothing), (next.attempt, next.previous));
}

/// A name whose own operation did not happen, or was called off, may be bound.
pub async fn released_delivery_is_bound_over<S: Store, W: World>(store: &S, _: &W) {
    for called_off in [false, true] {
        let delivery = Case::new(store, "released_delivery_is_bound_over");
        let order = Case::new(store, "released_delivery_is_bound_over: the operation");
        let grant = delivery.grant().await;
        match called_off {
            true => delivery.call_off(grant.token, Written::Stored).await,
            false => delivery.release(&grant, Reason::DidNotHappen, Written::Stored).await,
        }
        order.granted(order.with_alias(token(), delivery.key)).await;
        delivery.alias_of(delivery.ask(token()), order.key).await;
    }
}
