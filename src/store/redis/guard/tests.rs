//! What is granted after a change or a loss, and what is a loss.

use super::*;
use crate::record::{ClaimToken, RecordKey};

const SECOND: Duration = Duration::from_secs(1);
const NAME: &str = "p:canary";

fn claim(lease: Duration) -> Claim {
    let key = RecordKey::from_bytes([1; 32]);
    Claim::new(key, ClaimToken::random(), None, lease, 60 * SECOND, SECOND)
}

fn changed_ago(ago: Duration) -> Option<Instant> {
    Instant::now().checked_sub(ago)
}

#[test]
fn f7_a_new_server_grants_nothing_for_a_third_of_the_lease_and_takes_over_nothing_for_one() {
    let guard = Guard::new("p:".into());
    let lease = 30 * SECOND;
    let gate = |ago, takeover| {
        let mut claim = claim(lease);
        claim.takeover = takeover;
        guard.gate(changed_ago(ago), &claim)
    };
    for takeover in [Takeover::Refuse, Takeover::Any] {
        assert!(matches!(gate(SECOND, takeover), Gate::Held(left) if left <= 10 * SECOND));
        assert!(matches!(gate(10 * SECOND, takeover), Gate::Held(_)));
    }
    assert_eq!(gate(12 * SECOND, Takeover::Refuse), Gate::Open);
    assert!(matches!(gate(29 * SECOND, Takeover::Any), Gate::NoTakeover(left) if left <= SECOND));
    assert_eq!(gate(31 * SECOND, Takeover::Any), Gate::Open);
    let mut look = claim(lease);
    look.within = Duration::ZERO;
    assert_eq!(guard.gate(changed_ago(SECOND), &look), Gate::Open);
    look.takeover = Takeover::Any;
    assert!(matches!(guard.gate(changed_ago(SECOND), &look), Gate::Held(_)));
    assert!(matches!(guard.gate(changed_ago(29 * SECOND), &look), Gate::NoTakeover(_)));
    assert_eq!(guard.gate(changed_ago(31 * SECOND), &look), Gate::Open);
    assert!(guard.holds_back(changed_ago(29 * SECOND), lease).is_some());
    assert_eq!(guard.holds_back(changed_ago(31 * SECOND), lease), None);
    assert_eq!(guard.holds_back(None, lease), None);
    assert_eq!(guard.gate(None, &claim(lease)), Gate::Open);
}

#[test]
fn a_ledger_is_asked_for_a_day_after_a_loss_and_not_for_longer() {
    let hour = 60 * 60 * SECOND;
    let asked = |ago: Duration| {
        let guard = Guard::new("p:".into());
        guard.lost.begin_at(changed_ago(ago).expect("clocks may be set back that far"));
        let mut claim = claim(30 * SECOND);
        claim.if_forgotten = IfForgotten::Tell;
        guard.gate(None, &claim)
    };
    assert_eq!(asked(hour), Gate::Told);
    assert_eq!(asked(23 * hour), Gate::Told);
    assert_eq!(asked(25 * hour), Gate::Open);
}

#[test]
fn a_new_server_does_not_call_a_token_unknown_before_owners_could_write_again() {
    let left = 10 * SECOND;
    let held = Gate::Held(left).judge(Claimed::TokenUnknown).unwrap_err();
    assert_eq!((held.kind(), held.retry_after()), (StoreErrorKind::Suspended, Some(left)));
    for gate in [Gate::Open, Gate::NoTakeover(left), Gate::Told, Gate::Refused] {
        assert!(matches!(gate.judge(Claimed::TokenUnknown), Ok(Claimed::TokenUnknown)));
    }
    // What is known is told all the while.
    assert!(matches!(Gate::Held(left).judge(Claimed::Mismatch), Ok(Claimed::Mismatch)));
}

#[test]
fn a_canary_that_is_gone_or_another_is_a_loss_once() {
    let guard = Guard::new("p:".into());
    assert_eq!(guard.found(NAME, "one"), Found::Known, "the first that is seen");
    assert_eq!(guard.found(NAME, "one"), Found::Known);
    assert_eq!(guard.found(NAME, ""), Found::Lost);
    assert_eq!(guard.canary(NAME), None, "the next look makes one");
    assert_eq!(guard.found(NAME, "two"), Found::Known);
    assert_eq!(guard.found(NAME, "three"), Found::Lost);
    assert_eq!(guard.canary(NAME).as_deref(), Some("three"));
}

#[test]
fn each_canary_is_known_by_its_name_and_a_loss_that_is_accepted_is_one_of_them_all() {
    let guard = Guard::new("p:".into());
    guard.on_data_loss(OnDataLoss::Refuse);
    for (name, canary) in [(NAME, "one"), ("p:canary.2", "two"), ("p:canary.5", "three")] {
        assert!(guard.is_due(name, false));
        assert_eq!(guard.found(name, canary), Found::Known);
        assert!(!guard.is_due(name, false) && guard.is_due(name, true));
    }
    assert_eq!(guard.found("p:canary.2", "one"), Found::Lost, "it is another's");
    assert_eq!(guard.found("p:canary.5", ""), Found::StillLost);
    assert_eq!(guard.found(NAME, "+four"), Found::Accepted);
    // Whoever accepted has written new ones by now, or the next look does.
    assert_eq!(guard.found("p:canary.2", "five"), Found::Known);
    assert_eq!(guard.found("p:canary.5", ""), Found::Known);
    assert_eq!(guard.found("p:canary.2", ""), Found::Lost, "one more loss");
}

#[test]
#[cfg(feature = "redis-cluster")]
fn a_canary_that_is_not_looked_at_any_more_may_be_gone_when_it_is_met_again() {
    let guard = Guard::new("p:".into());
    guard.found(NAME, "one");
    guard.found("p:canary.2", "two");
    guard.forget(|name| name == NAME);
    assert_eq!(guard.found(NAME, ""), Found::Known);
    assert_eq!(guard.found("p:canary.2", ""), Found::Lost);
}

#[test]
fn a_loss_that_is_not_to_be_gone_over_is_refused_until_it_is_accepted() {
    let guard = Guard::new("p:".into());
    guard.on_data_loss(OnDataLoss::Refuse);
    guard.found(NAME, "one");
    assert_eq!(guard.found(NAME, ""), Found::Lost);
    *guard.lost.since.lock().unwrap() = Instant::now().checked_sub(60 * SECOND);
    let mut asked = claim(SECOND);
    assert_eq!(guard.gate(None, &asked), Gate::Refused);
    assert_eq!(guard.found(NAME, ""), Found::StillLost);
    assert_eq!(guard.found(NAME, "two"), Found::StillLost, "a process that has just started");
    asked.if_forgotten = IfForgotten::Tell;
    assert_eq!(guard.gate(None, &asked), Gate::Told);
    asked.if_forgotten = IfForgotten::Grant;
    assert_eq!(guard.gate(None, &asked), Gate::Open);
    asked.if_forgotten = IfForgotten::AsTheStoreSays;
    *guard.lost.since.lock().unwrap() = Instant::now().checked_sub(2 * REMEMBERED_FOR);
    assert_eq!(guard.gate(None, &asked), Gate::Refused, "nobody has accepted it in two days");
    *guard.lost.since.lock().unwrap() = Instant::now().checked_sub(60 * SECOND);
    assert_eq!(guard.found(NAME, "+three"), Found::Accepted);
    assert_eq!(guard.gate(None, &asked), Gate::Open);
    asked.if_forgotten = IfForgotten::Tell;
    assert_eq!(guard.gate(None, &asked), Gate::Told, "what was lost is lost");
}

#[test]
fn whoever_is_refused_in_the_pause_after_a_loss_reads_that_it_may_not_end_by_itself() {
    let held = Gate::Held(SECOND).judge(Claimed::Free).unwrap_err();
    assert!(held.to_string().contains("accept_data_loss"), "{held}");
    assert_eq!(held.retry_after(), Some(SECOND));
}
