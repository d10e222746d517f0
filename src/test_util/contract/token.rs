//! One-time tokens.

use std::{
    future::{Future, poll_fn},
    task::Poll,
};

use super::{
    World,
    case::{Case, LEASE, not_done, token},
};
use crate::{
    ClaimToken, Fingerprint, OneTimeToken, Previous, State, Store,
    store::{Claim, Claimed, Issue, Issued, Reason, Release, Resolve, Resolved, Takeover, Written},
};

/// The fingerprint of a claim: whose token, and what must match; 0 is nothing.
fn halves(whose: u8, what: u8) -> Fingerprint {
    Fingerprint::of_halves([whose; 16], [what; 16])
}

fn bring<S: Store>(case: &Case<'_, S>, one_time: OneTimeToken, print: Fingerprint) -> Claim {
    Claim { one_time: Some(one_time), ..case.with_print(token(), print) }
}

/// A key with an issued token is granted to whoever brings it, once, and to nobody else.
pub async fn one_time_token_is_used_once<S: Store, W: World>(store: &S, world: &W) {
    let case = Case::new(store, "one_time_token_is_used_once");
    let one_time = OneTimeToken::random();
    case.token_unknown(bring(&case, one_time, halves(5, 0))).await;
    case.issue(one_time, None, (one_time, None)).await;
    case.expires(world, LEASE).await;
    case.token_unknown(bring(&case, OneTimeToken::random(), halves(6, 0))).await;
    case.token_unknown(case.ask(token())).await;
    case.free(Claim { one_time: Some(one_time), ..case.look() }).await;
    let grant = case.granted(bring(&case, one_time, halves(5, 0))).await;
    case.same("first", (1, Previous::Issued), (grant.attempt, grant.previous));
    case.in_progress(bring(&case, one_time, halves(5, 0))).await;
    // Whoever brings another learns nothing of what became of the first.
    case.token_unknown(bring(&case, OneTimeToken::random(), halves(6, 0))).await;
    case.issue_taken(State::InProgress).await;
    case.complete(&grant, "done", Written::Stored).await;
    case.completed(bring(&case, one_time, halves(5, 0))).await;
    case.token_unknown(bring(&case, OneTimeToken::random(), halves(6, 0))).await;
    case.issue_taken(State::Completed).await;
}

/// F6: after a release the same token may be used again, but not another one, nor for something else.
pub async fn f6_a_one_time_token_is_checked_after_a_release<S: Store, W: World>(store: &S, _: &W) {
    let case = Case::new(store, "f6_a_one_time_token_is_checked_after_a_release");
    let one_time = OneTimeToken::random();
    case.issue(one_time, None, (one_time, None)).await;
    let grant = case.granted(bring(&case, one_time, halves(5, 1))).await;
    case.release(&grant, Reason::DidNotHappen, Written::Stored).await;
    case.token_unknown(bring(&case, OneTimeToken::random(), halves(6, 1))).await;
    case.mismatch(bring(&case, one_time, halves(5, 2))).await;
    let second = case.granted(bring(&case, one_time, halves(5, 1))).await;
    case.same("second", (2, Previous::Released), (second.attempt, second.previous));

    let case = Case::new(store, "a token that nobody issued opens nothing that was here before");
    let grant = case.grant().await;
    case.token_unknown(bring(&case, one_time, halves(5, 0))).await;
    case.release(&grant, Reason::DidNotHappen, Written::Stored).await;
    case.token_unknown(bring(&case, one_time, halves(5, 0))).await;
    let grant = case.grant().await;
    case.complete(&grant, "done", Written::Stored).await;
    case.token_unknown(bring(&case, one_time, halves(5, 0))).await;

    let case = Case::new(store, "nor where a claim was called off");
    case.call_off(token(), Written::Restored).await;
    case.token_unknown(bring(&case, one_time, halves(5, 0))).await;
}

/// While a token is outstanding, that one is issued again, with what it is bound to.
pub async fn the_outstanding_token_is_issued_again<S: Store, W: World>(store: &S, world: &W) {
    let case = Case::new(store, "the_outstanding_token_is_issued_again");
    let (first, second) = (OneTimeToken::random(), OneTimeToken::random());
    let bound = Some(halves(1, 2));
    case.issue(first, bound, (first, bound)).await;
    case.issue(second, Some(halves(3, 4)), (first, bound)).await;
    case.issue(second, None, (first, bound)).await;
    case.token_unknown(case.with_one_time(token(), second)).await;
    case.expires(world, LEASE).await;

    let case = Case::new(store, "a released key is issued a token, and counts on");
    let grant = case.grant().await;
    case.issue_taken(State::InProgress).await;
    case.release(&grant, Reason::DidNotHappen, Written::Stored).await;
    case.issue(second, None, (second, None)).await;
    case.token_unknown(case.ask(token())).await;
    let next = case.granted(bring(&case, second, halves(5, 0))).await;
    case.same("next", (2, Previous::Issued), (next.attempt, next.previous));
    case.holds("fences", next.fence > grant.fence, &next);

    let case = Case::new(store, "a token issued over a failed run tells of it");
    let grant = case.grant().await;
    case.release(&grant, Reason::Failed, Written::Stored).await;
    case.issue(second, None, (second, None)).await;
    case.issue(first, None, (second, None)).await;
    let next = case.granted(bring(&case, second, halves(5, 0))).await;
    case.same("next", (2, Previous::Failed), (next.attempt, next.previous));
}

/// A token is granted to whom, and for what, it was issued.
pub async fn a_bound_token_is_held_to_what_it_is_bound_to<S: Store, W: World>(
    store: &S,
    world: &W,
) {
    let one_time = OneTimeToken::random();
    let case = Case::new(store, "a token bound to somebody, for anything");
    case.issue(one_time, Some(halves(1, 0)), (one_time, Some(halves(1, 0)))).await;
    case.token_unknown(bring(&case, one_time, halves(2, 7))).await;
    let grant = case.granted(bring(&case, one_time, halves(1, 7))).await;
    // The first use says for what.
    case.mismatch(bring(&case, one_time, halves(1, 8))).await;
    case.in_progress(bring(&case, one_time, halves(1, 7))).await;
    case.complete(&grant, "done", Written::Stored).await;
    case.token_unknown(bring(&case, one_time, halves(2, 7))).await;
    case.mismatch(bring(&case, one_time, halves(1, 8))).await;
    case.mismatch(bring(&case, one_time, halves(1, 0))).await;
    case.completed(bring(&case, one_time, halves(1, 7))).await;

    let case = Case::new(store, "a token bound to somebody and something");
    case.issue(one_time, Some(halves(1, 7)), (one_time, Some(halves(1, 7)))).await;
    case.mismatch(bring(&case, one_time, halves(1, 8))).await;
    case.mismatch(bring(&case, one_time, halves(1, 0))).await;
    case.token_unknown(bring(&case, one_time, halves(2, 7))).await;
    // What was refused used nothing up; an abandoned run lets nobody else in.
    let lapsed = case.lapsed(world, bring(&case, one_time, halves(1, 7))).await;
    case.token_unknown(bring(&case, OneTimeToken::random(), halves(2, 7))).await;
    case.mismatch(bring(&case, one_time, halves(1, 8))).await;
    let found = case.abandoned(bring(&case, one_time, halves(1, 7))).await;
    case.issue_taken(State::InProgress).await;
    let verdict = Resolve::new(case.key, found.mark, not_done(), ClaimToken::random());
    case.resolve(verdict, Resolved::Settled).await;
    case.token_unknown(bring(&case, OneTimeToken::random(), halves(2, 7))).await;
    let again = case.granted(bring(&case, one_time, halves(1, 7))).await;
    case.holds("fences", again.fence > lapsed.fence, &again);
}

/// Of many uses of one token at once one is granted; of many that issue one at once all get the same.
pub async fn a_token_has_one_use_and_a_key_one_token<S: Store, W: World>(store: &S, _: &W) {
    let case = Case::new(store, "a_token_has_one_use_and_a_key_one_token");
    let ask = || Issue::new(case.key, OneTimeToken::random(), Some(halves(1, 0)), LEASE);
    let mut issued = Vec::new();
    for answer in all((0..8).map(|_| store.issue(ask()))).await {
        match answer {
            Ok(Issued::Token { token, .. }) => issued.push(token),
            other => case.holds("an issue", false, &other),
        }
    }
    let one_time = issued[0];
    case.holds("issuers at once", issued.iter().all(|token| *token == one_time), &"two tokens");
    let uses = (0..8).map(|_| store.claim(bring(&case, one_time, halves(1, 7))));
    let mut granted = 0;
    for answer in all(uses).await {
        match answer {
            Ok(Claimed::Granted(_)) => granted += 1,
            Ok(Claimed::InProgress(_)) => {}
            other => case.holds("a use", false, &other),
        }
    }
    case.same("granted", 1, granted);
}

/// The owner of a grant that the store has lost writes it again over a token that was issued
/// meanwhile, and that nobody has used; what happened is never forgotten for a token.
pub async fn an_unused_token_does_not_outweigh_a_run<S: Store, W: World>(store: &S, world: &W) {
    let (old, new) = (OneTimeToken::random(), OneTimeToken::random());
    for end in ["renewed", "completed", "unknown"] {
        let case = Case::new(store, end);
        case.issue(old, None, (old, None)).await;
        let grant = case.granted(bring(&case, old, halves(1, 7))).await;
        world.forget(&case.key).await;
        case.issue(new, None, (new, None)).await;
        match end {
            "renewed" => {
                case.renew(&grant, Written::Restored).await;
                case.in_progress(bring(&case, old, halves(1, 7))).await;
            }
            "completed" => {
                case.complete(&grant, "done", Written::Restored).await;
                case.completed(bring(&case, old, halves(1, 7))).await;
            }
            _ => {
                case.release(&grant, Reason::Unknown, Written::Restored).await;
                case.abandoned(bring(&case, old, halves(1, 7))).await;
            }
        }
        case.token_unknown(bring(&case, new, halves(2, 7))).await;
    }

    // Nor where somebody had declared a living owner's run as not done.
    for end in ["completed", "unknown", "renewed"] {
        let case = Case::new(store, end);
        let grant = case.grant().await;
        let mark = crate::Mark::new(grant.fence, 0);
        let forced = Resolve::new(case.key, mark, not_done(), ClaimToken::random()).forced();
        case.resolve(forced, Resolved::Settled).await;
        case.issue(new, None, (new, None)).await;
        match end {
            "completed" => {
                case.complete(&grant, "done", Written::Restored).await;
                case.issue_taken(State::Completed).await;
            }
            "unknown" => {
                case.release(&grant, Reason::Unknown, Written::Restored).await;
                case.issue_taken(State::InProgress).await;
            }
            _ => {
                case.renew(&grant, Written::Lost(State::Issued)).await;
                case.issue(old, None, (new, None)).await;
            }
        }
    }
}

/// What is told of a token's use after it was called off, or sent again.
pub async fn a_used_token_survives_its_claims<S: Store, W: World>(store: &S, _: &W) {
    let one_time = OneTimeToken::random();
    let case = Case::new(store, "the same claim again");
    case.issue(one_time, None, (one_time, None)).await;
    let claim = bring(&case, one_time, halves(1, 7));
    let first = case.granted(claim.clone()).await;
    let again = case.granted(claim.clone()).await;
    case.same("again", (first.fence, 1), (again.fence, again.attempt));
    case.same("previous", Previous::Issued, again.previous);
    case.call_off(claim.token, Written::Stored).await;
    case.dead(claim).await;
    let next = case.granted(bring(&case, one_time, halves(1, 7))).await;
    case.holds("fences", next.fence > first.fence, &next);

    let case = Case::new(store, "a claim called off before it came does not use the token up");
    case.issue(one_time, None, (one_time, None)).await;
    case.call_off(token(), Written::Lost(State::Issued)).await;
    case.issue(OneTimeToken::random(), None, (one_time, None)).await;
    case.granted(bring(&case, one_time, halves(1, 7))).await;

    let case = Case::new(store, "a takeover needs the token too");
    case.issue(one_time, Some(halves(1, 7)), (one_time, Some(halves(1, 7)))).await;
    let grant = case.granted(bring(&case, one_time, halves(1, 7))).await;
    case.release(&grant, Reason::Unknown, Written::Stored).await;
    let taking = |claim| Claim { takeover: Takeover::Any, ..claim };
    case.token_unknown(taking(bring(&case, OneTimeToken::random(), halves(2, 7)))).await;
    case.mismatch(taking(bring(&case, one_time, halves(1, 8)))).await;
    let next = case.granted(taking(bring(&case, one_time, halves(1, 7)))).await;
    case.same("next", Previous::AbandonedUnknown, next.previous);
    let answer = store.release(Release::of(&next, Reason::DidNotHappen)).await;
    case.holds("released", answer.is_ok(), &answer);
    // Unknown is unknown still.
    case.abandoned(bring(&case, one_time, halves(1, 7))).await;
}

/// Drives all of them at once; the answers are in their order.
async fn all<F: Future>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let mut running: Vec<_> = futures.into_iter().map(|future| (Box::pin(future), None)).collect();
    poll_fn(|cx| {
        for (future, answer) in &mut running {
            if answer.is_none()
                && let Poll::Ready(ready) = future.as_mut().poll(cx)
            {
                *answer = Some(ready);
            }
        }
        match running.iter().all(|(_, answer)| answer.is_some()) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    })
    .await;
    running.into_iter().filter_map(|(_, answer)| answer).collect()
}
