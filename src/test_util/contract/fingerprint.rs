//! What must be equal when an identity comes again.

use super::{
    World,
    case::{Case, print, token},
};
use crate::{
    Fingerprint, OneTimeToken, Store,
    store::{Claim, Reason, Takeover, Written},
};

/// Another fingerprint is told before anything of the state. A released key may take another one.
pub async fn fingerprint_first<S: Store, W: World>(store: &S, world: &W) {
    let case = Case::new(store, "fingerprint_first");
    let other = || Claim { takeover: Takeover::Any, ..case.with_print(token(), print(2)) };
    let equal = || case.with_print(token(), print(1));
    let grant = case.granted(equal()).await;
    case.mismatch(other()).await;
    case.mismatch(Claim { token: grant.token, ..other() }).await;
    case.mismatch(Claim { within: std::time::Duration::ZERO, ..other() }).await;
    case.in_progress(equal()).await;
    case.in_progress(case.ask(token())).await;
    case.release(&grant, Reason::Unknown, Written::Stored).await;
    case.mismatch(other()).await;
    case.abandoned(equal()).await;
    case.complete(&grant, "done", Written::Stored).await;
    case.mismatch(other()).await;
    case.completed(equal()).await;
    case.completed(case.ask(token())).await;

    let case = Case::new(store, "fingerprint: lapsed");
    case.lapsed(world, case.with_print(token(), print(1))).await;
    case.mismatch(case.with_print(token(), print(2))).await;
    case.abandoned(case.with_print(token(), print(1))).await;

    let case = Case::new(store, "fingerprint: released");
    let grant = case.granted(case.with_print(token(), print(1))).await;
    case.release(&grant, Reason::DidNotHappen, Written::Stored).await;
    case.granted(case.with_print(token(), print(2))).await;
    case.mismatch(case.with_print(token(), print(1))).await;

    let case = Case::new(store, "fingerprint: issued");
    let one_time = OneTimeToken::random();
    case.issue(one_time, Some(print(1)), (one_time, Some(print(1)))).await;
    let bring = |what| {
        let print = Fingerprint::of_halves([1; 16], [what; 16]);
        Claim { one_time: Some(one_time), ..case.with_print(token(), print) }
    };
    case.mismatch(bring(2)).await;
    case.granted(bring(1)).await;
}

/// F15: another principal, which is part of the fingerprint, takes over neither what is abandoned nor
/// what it became; the rightful one does.
pub async fn f15_another_principal_takes_nothing_over<S: Store, W: World>(store: &S, world: &W) {
    let case = Case::new(store, "f15_another_principal_takes_nothing_over");
    let rightful = |takeover| Claim { takeover, ..case.with_print(token(), print(1)) };
    let other = |takeover| Claim { takeover, ..case.with_print(token(), print(2)) };
    case.lapsed(world, rightful(Takeover::Refuse)).await;
    let seen = case.abandoned(rightful(Takeover::Refuse)).await;
    case.mismatch(other(Takeover::Any)).await;
    case.mismatch(other(Takeover::Only(seen.mark))).await;
    let grant = case.granted(rightful(Takeover::Only(seen.mark))).await;
    case.mismatch(other(Takeover::Any)).await;
    case.complete(&grant, "done", Written::Stored).await;
    case.mismatch(other(Takeover::Any)).await;
    case.completed(rightful(Takeover::Refuse)).await;
}

/// F14: the bound fingerprint survives takeover, renewal and completion by those who have none.
pub async fn f14_bound_fingerprint_survives<S: Store, W: World>(store: &S, world: &W) {
    let case = Case::new(store, "f14_bound_fingerprint_survives");
    case.lapsed(world, case.with_print(token(), print(1))).await;
    let seen = case.abandoned(case.ask(token())).await;
    let taken = case.granted(case.taking(token(), Takeover::Only(seen.mark))).await;
    case.mismatch(case.with_print(token(), print(2))).await;
    case.same("resend", &taken, &case.granted(case.ask(taken.token)).await);
    case.renew(&taken, Written::Stored).await;
    case.mismatch(case.with_print(token(), print(2))).await;
    case.complete(&taken, "done", Written::Stored).await;
    case.mismatch(case.with_print(token(), print(2))).await;
    case.completed(case.with_print(token(), print(1))).await;

    let case = Case::new(store, "f14: a blind takeover");
    case.lapsed(world, case.with_print(token(), print(1))).await;
    let blind = case.granted(case.taking(token(), Takeover::Any)).await;
    case.mismatch(case.with_print(token(), print(2))).await;
    case.release(&blind, Reason::Unknown, Written::Stored).await;
    case.mismatch(case.with_print(token(), print(2))).await;

    let case = Case::new(store, "f14: a one-time token");
    let one_time = OneTimeToken::random();
    case.issue(one_time, Some(print(1)), (one_time, Some(print(1)))).await;
    let brought = Claim { one_time: Some(one_time), ..case.with_print(token(), print(1)) };
    case.granted(brought).await;
    case.mismatch(case.with_print(token(), print(2))).await;
    case.in_progress(case.ask(token())).await;
    // The twin: where none was bound, the first one that comes is bound by its grant alone.
    let case = Case::new(store, "f14: none was bound");
    case.grant().await;
    case.in_progress(case.with_print(token(), print(1))).await;
    case.in_progress(case.with_print(token(), print(2))).await;
}
