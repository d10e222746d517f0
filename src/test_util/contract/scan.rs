//! What an operator sees.

use std::collections::HashMap;

use super::{
    World,
    case::{Case, HOLD, LEASE, SLACK, token},
};
use crate::{
    OneTimeToken, RecordKey, State, Store,
    store::{Claim, Cursor, Listed, Reason, Takeover, Written},
};

/// More pages than this are no end.
const PAGES_AT_MOST: usize = 100_000;

/// All records of the store, by key, read in small pages.
async fn scan_all<S: Store>(case: &Case<'_, S>, at_most: usize) -> HashMap<RecordKey, Listed> {
    let (mut found, mut from) = (HashMap::new(), Cursor::START);
    for _ in 0..PAGES_AT_MOST {
        let page = match case.store.scan(from.clone(), at_most).await {
            Ok(page) => page,
            Err(error) => panic!("{}: scan from {from:?}: {error:?}", case.name),
        };
        found.extend(page.records.into_iter().map(|listed| (listed.key, listed)));
        match page.next {
            Some(next) => from = next,
            None => return found,
        }
    }
    panic!("{}: a scan of {PAGES_AT_MOST} pages came to no end", case.name)
}

/// A scan in small pages finds every record that is there all the while.
pub async fn scan_finds_every_record<S: Store, W: World>(store: &S, world: &W) {
    let name = "scan_finds_every_record";
    let cases: Vec<_> = (0..40).map(|_| Case::new(store, name)).collect();
    for case in &cases {
        case.grant().await;
    }
    let gone = Case::new(store, name);
    gone.grant().await;
    world.forget(&gone.key).await;
    for at_most in [7, 1000] {
        let found = scan_all(&gone, at_most).await;
        for case in &cases {
            case.holds("found", found.contains_key(&case.key), &found.get(&case.key));
        }
        gone.holds("a record that is gone", !found.contains_key(&gone.key), &gone.key);
    }
}

/// A scan may be left after any page, and another begun; records may come and go meanwhile.
pub async fn scan_may_be_abandoned<S: Store, W: World>(store: &S, world: &W) {
    let name = "scan_may_be_abandoned";
    let cases: Vec<_> = (0..20).map(|_| Case::new(store, name)).collect();
    for case in &cases {
        case.grant().await;
    }
    let first = store.scan(Cursor::START, 5).await;
    cases[0].holds("first page", first.is_ok(), &first);
    let later = Case::new(store, name);
    later.grant().await;
    world.forget(&cases[0].key).await;
    // The first scan's cursor is still good, and a new scan finds all that is there now.
    if let Some(next) = first.ok().and_then(|page| page.next) {
        let second = store.scan(next, 5).await;
        cases[0].holds("second page", second.is_ok(), &second);
    }
    let found = scan_all(&later, 50).await;
    later.holds("a later record", found.contains_key(&later.key), &later.key);
    later.holds("a forgotten record", !found.contains_key(&cases[0].key), &cases[0].key);
    for case in &cases[1..] {
        case.holds("found", found.contains_key(&case.key), &case.key);
    }
}

/// A scan tells state, mark, attempt, lease and label; what it tells of an abandoned record is enough
/// to settle it.
pub async fn scan_tells_what_an_operator_needs<S: Store, W: World>(store: &S, world: &W) {
    let labelled = |case: &Case<'_, S>| Claim { label: "order-7".into(), ..case.ask(token()) };
    let held = Case::new(store, "scan: held");
    let grant = held.granted(labelled(&held)).await;
    let lapsed = Case::new(store, "scan: lapsed");
    lapsed.lapsed(world, labelled(&lapsed)).await;
    let given_up = Case::new(store, "scan: given up");
    let unknown = given_up.granted(labelled(&given_up)).await;
    given_up.release(&unknown, Reason::Unknown, Written::Stored).await;
    let (completed, released) = (Case::new(store, "scan: completed"), Case::new(store, "released"));
    let done = completed.granted(labelled(&completed)).await;
    completed.complete(&done, "done", Written::Stored).await;
    let back = released.granted(labelled(&released)).await;
    released.release(&back, Reason::Failed, Written::Stored).await;
    let issued = Case::new(store, "scan: issued");
    let one_time = OneTimeToken::random();
    issued.issue(one_time, None, (one_time, None)).await;
    let alias = Case::new(store, "scan: alias");
    held.in_progress(held.with_alias(token(), alias.key)).await;

    let found = scan_all(&held, 50).await;
    let listed = |case: &Case<'_, S>, state, label: &str, abandoned| {
        let listed = found.get(&case.key).unwrap_or_else(|| panic!("{}: not found", case.name));
        case.same("state", state, listed.state);
        case.same("label", label.as_bytes(), &listed.label);
        case.same("abandoned", abandoned, listed.is_abandoned());
        case.holds("expiry", listed.expires_in <= HOLD && !listed.expires_in.is_zero(), listed);
        listed.clone()
    };
    let seen = listed(&held, State::InProgress, "order-7", false);
    held.holds("lease left", seen.leased.is_some_and(|t| t <= LEASE && t > LEASE - SLACK), &seen);
    held.same("its grant", (grant.fence, 1), (seen.mark.fence, seen.attempt));
    for case in [&lapsed, &given_up] {
        let seen = listed(case, State::InProgress, "order-7", true);
        case.same("mark", case.abandoned(case.look()).await.mark, seen.mark);
        case.granted(case.taking(token(), Takeover::Only(seen.mark))).await;
    }
    listed(&completed, State::Completed, "", false);
    listed(&released, State::Released, "", false);
    listed(&issued, State::Issued, "", false);
    listed(&alias, State::Alias, "", false);
}
