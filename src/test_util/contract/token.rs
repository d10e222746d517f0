//! One-time tokens.

use super::{
    World,
    case::{Case, LEASE, print, token},
};
use crate::{
    OneTimeToken, Previous, State, Store,
    store::{Claim, Reason, Written},
};

/// A key with an issued token is granted to whoever brings it, once, and to nobody else.
pub async fn one_time_token_is_used_once<S: Store, W: World>(store: &S, world: &W) {
    let case = Case::new(store, "one_time_token_is_used_once");
    let one_time = OneTimeToken::random();
    case.token_unknown(case.with_one_time(token(), one_time)).await;
    case.issue(one_time, None, (one_time, None)).await;
    case.expires(world, LEASE).await;
    case.token_unknown(case.with_one_time(token(), OneTimeToken::random())).await;
    case.token_unknown(case.ask(token())).await;
    case.free(Claim { one_time: Some(one_time), ..case.look() }).await;
    let bring = |number, one_time| Claim {
        one_time: Some(one_time),
        ..case.with_print(token(), print(number))
    };
    let grant = case.granted(bring(5, one_time)).await;
    case.same("first", (1, Previous::Issued), (grant.attempt, grant.previous));
    case.in_progress(bring(5, one_time)).await;
    case.issue_taken(State::InProgress).await;
    case.complete(&grant, "done", Written::Stored).await;
    case.completed(bring(5, one_time)).await;
    // On a token route the fingerprint holds the token, so another one is told as a mismatch.
    case.mismatch(bring(6, OneTimeToken::random())).await;
    case.issue_taken(State::Completed).await;
}

/// F6: after a release the same token may be used again, but not another one.
pub async fn f6_a_one_time_token_is_checked_after_a_release<S: Store, W: World>(store: &S, _: &W) {
    let case = Case::new(store, "f6_a_one_time_token_is_checked_after_a_release");
    let one_time = OneTimeToken::random();
    case.issue(one_time, None, (one_time, None)).await;
    let bring = |number, one_time| Claim {
        one_time: Some(one_time),
        ..case.with_print(token(), print(number))
    };
    let grant = case.granted(bring(5, one_time)).await;
    case.release(&grant, Reason::DidNotHappen, Written::Stored).await;
    case.mismatch(bring(6, OneTimeToken::random())).await;
    let second = case.granted(bring(5, one_time)).await;
    case.same("second", (2, Previous::Released), (second.attempt, second.previous));
}

/// While a token is outstanding, that one is issued again, with what it is bound to.
pub async fn the_outstanding_token_is_issued_again<S: Store, W: World>(store: &S, _: &W) {
    let case = Case::new(store, "the_outstanding_token_is_issued_again");
    let (first, second) = (OneTimeToken::random(), OneTimeToken::random());
    case.issue(first, Some(print(1)), (first, Some(print(1)))).await;
    case.issue(second, Some(print(2)), (first, Some(print(1)))).await;
    case.issue(second, None, (first, Some(print(1)))).await;
    case.token_unknown(case.with_one_time(token(), second)).await;

    let case = Case::new(store, "a released key is issued a token, and counts on");
    let grant = case.grant().await;
    case.issue_taken(State::InProgress).await;
    case.release(&grant, Reason::DidNotHappen, Written::Stored).await;
    case.issue(second, None, (second, None)).await;
    case.token_unknown(case.ask(token())).await;
    let next = case.granted(case.with_one_time(token(), second)).await;
    case.same("next", (2, Previous::Issued), (next.attempt, next.previous));
    case.holds("fences", next.fence > grant.fence, &next);
}
