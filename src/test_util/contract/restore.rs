//! What the owner writes again when the store lost it.

use super::{
    World,
    case::{Case, HOLD, RETENTION, print, token},
};
use crate::{
    Grant, OneTimeToken, Previous, State, Store,
    store::{Claim, Reason, Takeover, Written},
};

/// F5: a record that vanished is written again, whatever its owner has to say.
pub async fn what_was_lost_is_written_again<S: Store, W: World>(store: &S, world: &W) {
    let case = Case::new(store, "lost: renewed, then completed");
    let grant = case.granted(case.with_print(token(), print(1))).await;
    world.forget(&case.key).await;
    case.renew(&grant, Written::Restored).await;
    case.expires(world, HOLD).await;
    case.in_progress(case.with_print(token(), print(1))).await;
    case.mismatch(case.with_print(token(), print(2))).await;
    case.same("resend", &grant, &case.granted(case.with_print(grant.token, print(1))).await);
    world.forget(&case.key).await;
    case.complete(&grant, "done", Written::Restored).await;
    case.expires(world, RETENTION).await;
    let completed = case.completed(case.with_print(token(), print(1))).await;
    case.same("fence", grant.fence, completed.fence);
    case.mismatch(case.with_print(token(), print(2))).await;

    let case = Case::new(store, "lost: given up as unknown");
    let grant = case.granted(Claim { label: "order-7".into(), ..case.ask(token()) }).await;
    world.forget(&case.key).await;
    case.release(&grant, Reason::Unknown, Written::Restored).await;
    let seen = case.abandoned(case.ask(token())).await;
    case.same("label", "order-7", &String::from_utf8_lossy(&seen.label));
    case.same("fence", grant.fence, seen.mark.fence);

    for (reason, previous) in
        [(Reason::DidNotHappen, Previous::Released), (Reason::Failed, Previous::Failed)]
    {
        let case = Case::new(store, "lost: released");
        let grant = case.grant().await;
        world.forget(&case.key).await;
        case.release(&grant, reason, Written::Restored).await;
        case.renew(&grant, Written::Over).await;
        case.dead(case.ask(grant.token)).await;
        let next = case.grant().await;
        case.same("next", (2, previous), (next.attempt, next.previous));
    }

    // Never over a lease: somebody else was granted the lost key meanwhile.
    let case = Case::new(store, "lost: claimed by another");
    let grant = case.grant().await;
    world.forget(&case.key).await;
    let other = case.grant().await;
    let lost = Written::Lost(State::InProgress);
    case.renew(&grant, lost).await;
    case.complete(&grant, "first", lost).await;
    case.release(&grant, Reason::Unknown, lost).await;
    case.complete(&other, "other", Written::Stored).await;
    case.complete(&grant, "first", Written::Lost(State::Completed)).await;
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Older {
    Released,
    Issued,
    Lapsed,
}

#[derive(Clone, Copy, Debug)]
enum Act {
    Renew,
    Complete,
    GiveUp,
    Release,
}

/// F5: after a failover to an older state of the key the owner's word counts, as nobody holds it.
pub async fn f5_an_older_state_is_written_over<S: Store, W: World>(store: &S, world: &W) {
    for older in [Older::Released, Older::Issued, Older::Lapsed] {
        for act in [Act::Renew, Act::Complete, Act::GiveUp, Act::Release] {
            rolled_back(store, world, older, act).await;
        }
    }
    let case = Case::new(store, "f5: an older grant is still leased");
    let first = case.grant().await;
    let leased = world.snapshot(&case.key).await.expect("it was granted just now");
    case.release(&first, Reason::DidNotHappen, Written::Stored).await;
    let second = case.grant().await;
    world.put_back(&case.key, leased).await;
    case.renew(&second, Written::Lost(State::InProgress)).await;
    case.complete(&second, "second", Written::Lost(State::InProgress)).await;
}

async fn rolled_back<S: Store, W: World>(store: &S, world: &W, older: Older, act: Act) {
    let case = Case::new(store, "f5_an_older_state_is_written_over");
    let one_time = OneTimeToken::random();
    let issued = older == Older::Issued;
    match older {
        Older::Issued => case.issue(one_time, None, (one_time, None)).await,
        Older::Released => {
            let grant = case.grant().await;
            case.release(&grant, Reason::DidNotHappen, Written::Stored).await;
        }
        Older::Lapsed => drop(case.lapsed(world, case.ask(token())).await),
    }
    let old = world.snapshot(&case.key).await.expect("it was written just now");
    let again = || Claim { one_time: issued.then_some(one_time), ..case.ask(token()) };
    let grant = case.granted(Claim { takeover: Takeover::Any, ..again() }).await;
    world.put_back(&case.key, old).await;
    match act {
        Act::Renew => case.renew(&grant, Written::Restored).await,
        Act::Complete => case.complete(&grant, "done", Written::Restored).await,
        Act::GiveUp => case.release(&grant, Reason::Unknown, Written::Restored).await,
        Act::Release => case.release(&grant, Reason::DidNotHappen, Written::Restored).await,
    }
    match act {
        Act::Renew => drop(case.in_progress(again()).await),
        Act::Complete => drop(case.completed(again()).await),
        Act::GiveUp => drop(case.abandoned(again()).await),
        // It was taken over blindly, so its release does not make it "did not happen".
        Act::Release if older == Older::Lapsed => drop(case.abandoned(again()).await),
        Act::Release => {
            case.same("next", Previous::Released, case.granted(again()).await.previous);
        }
    }
}

/// F7: a claim on a lost record that was called off does not fence off the owner, who lives.
pub async fn f7_a_living_owner_comes_back<S: Store, W: World>(store: &S, world: &W) {
    let case = Case::new(store, "f7_a_living_owner_comes_back");
    let grant = case.grant().await;
    world.forget(&case.key).await;
    let other = case.grant().await;
    case.call_off(other.token, Written::Stored).await;
    case.renew(&grant, Written::Restored).await;
    case.in_progress(case.ask(token())).await;
    case.complete(&grant, "done", Written::Stored).await;
    // The twin: what somebody else's run left behind is no tombstone.
    let case = Case::new(store, "f7: the other one ran");
    let grant = case.grant().await;
    world.forget(&case.key).await;
    let other = case.grant().await;
    case.release(&other, Reason::Failed, Written::Stored).await;
    case.renew(&grant, Written::Lost(State::Released)).await;
}

/// An executed answer outweighs a stranger's lapsed grant and a released record, never a lease.
pub async fn the_executed_answer_outweighs_a_lapsed_stranger<S: Store, W: World>(
    store: &S,
    world: &W,
) {
    let case = Case::new(store, "the_executed_answer_outweighs_a_lapsed_stranger");
    let stalled = case.lapsed(world, case.ask(token())).await;
    let seen = case.abandoned(case.ask(token())).await;
    let claim = case.taking(token(), Takeover::Only(seen.mark));
    let mut taken = case.granted(claim).await;
    case.complete(&stalled, "late", Written::Lost(State::InProgress)).await;
    taken.lease = world.tick();
    case.renew(&taken, Written::Stored).await;
    world.pass(world.tick() * 2).await;
    case.complete(&stalled, "late", Written::Restored).await;
    case.same("answer", "late", &text(&case.completed(case.ask(token())).await.payload));
    case.complete(&taken, "taken", Written::Lost(State::Completed)).await;

    let case = Case::new(store, "an executed answer outweighs a release by another");
    let stalled = case.lapsed(world, case.with_print(token(), print(1))).await;
    let seen = case.abandoned(case.ask(token())).await;
    let taken = case.granted(case.taking(token(), Takeover::Only(seen.mark))).await;
    case.release(&taken, Reason::DidNotHappen, Written::Stored).await;
    // Only the answer does: a renewal would bring back a run that nobody waits for.
    case.renew(&stalled, Written::Lost(State::Released)).await;
    let stranger = Grant { token: token(), ..stalled.clone() };
    case.release(&stranger, Reason::DidNotHappen, Written::Lost(State::Released)).await;
    case.complete(&stalled, "late", Written::Restored).await;
    case.completed(case.with_print(token(), print(1))).await;
    case.mismatch(case.with_print(token(), print(2))).await;

    let case = Case::new(store, "an unknown end outweighs a release by another");
    let stalled = case.lapsed(world, case.ask(token())).await;
    let seen = case.abandoned(case.ask(token())).await;
    let taken = case.granted(case.taking(token(), Takeover::Only(seen.mark))).await;
    case.release(&taken, Reason::DidNotHappen, Written::Stored).await;
    case.release(&stalled, Reason::Unknown, Written::Restored).await;
    case.abandoned(case.ask(token())).await;
}

fn text(payload: &[u8]) -> String {
    String::from_utf8_lossy(payload).into_owned()
}
