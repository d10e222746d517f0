//! The memory store keeps the contract, within its bounds.

use std::time::Duration;

use bytes::Bytes;
use tower_idempotency::{
    ClaimToken, Grant, MemoryStore, OneTimeToken, Previous, RecordKey, Store, StoreError,
    store::{Alias, Claim, Claimed, Cursor, Issue, Kept, Reason, Release, Written},
    test_util::contract,
};

macro_rules! groups {
    ($($group:ident),* $(,)?) => {$(
        #[tokio::test(start_paused = true)]
        async fn $group() {
            let store = MemoryStore::new();
            contract::$group(&store, &store).await;
        }
    )*};
}

groups!(
    one_owner,
    same_token_same_grant,
    completed_is_final,
    fences_grow,
    f11_the_same_token_gets_a_fresh_lease,
    f13_attempts_stop_at_999_999,
    a_crash_leaves_abandoned,
    f1_unknown_is_never_laundered,
    f10_failed_is_not_released,
    f12_given_up_is_never_revived,
    unknown_told_again_counts_every_grant,
    a_renewal_tells_of_an_unknown_run_before,
    fingerprint_first,
    f14_bound_fingerprint_survives,
    f15_another_principal_takes_nothing_over,
    what_was_lost_is_written_again,
    f5_an_older_state_is_written_over,
    f7_a_living_owner_comes_back,
    the_executed_answer_outweighs_a_lapsed_stranger,
    f2_called_off_is_as_good_as_absent,
    a_look_is_never_granted,
    resolve_settles_what_is_abandoned,
    f8_a_sign_of_life_voids_a_verdict,
    f20_a_forced_verdict_does_not_hide_what_happened,
    one_time_token_is_used_once,
    f6_a_one_time_token_is_checked_after_a_release,
    the_outstanding_token_is_issued_again,
    a_bound_token_is_held_to_what_it_is_bound_to,
    a_token_has_one_use_and_a_key_one_token,
    an_unused_token_does_not_outweigh_a_run,
    a_used_token_survives_its_claims,
    alias_leads_to_its_operation,
    f17_a_taken_delivery_is_told_with_its_state,
    released_delivery_is_bound_over,
    every_record_expires,
    unfinished_outlives_its_lease,
    scan_finds_every_record,
    scan_may_be_abandoned,
    scan_tells_what_an_operator_needs,
);

#[tokio::test(start_paused = true)]
async fn the_whole_suite_runs_over_one_store() {
    let store = MemoryStore::new();
    contract::run_all(&store, &store).await;
}

#[tokio::test(start_paused = true)]
async fn random_walk() {
    let store = MemoryStore::new();
    let walk = contract::Walk { runs: 300, ..contract::Walk::default() };
    contract::random_walk(&store, &store, walk).await;
}

const LEASE: Duration = Duration::from_secs(30);
const HOLD: Duration = Duration::from_secs(60);
/// What a record counts, as `bytes_at_most` says.
const RECORD: usize = 640;

fn key(number: u32) -> RecordKey {
    let mut bytes = [0; 32];
    bytes[..4].copy_from_slice(&number.to_be_bytes());
    RecordKey::from_bytes(bytes)
}

fn ask(key: RecordKey) -> Claim {
    Claim::new(key, ClaimToken::random(), None, LEASE, HOLD, LEASE)
}

async fn grant(store: &MemoryStore, number: u32) -> Grant {
    match store.claim(ask(key(number))).await {
        Ok(Claimed::Granted(grant)) => grant,
        other => panic!("key {number} should be granted: {other:?}"),
    }
}

fn refused_as_full<T: std::fmt::Debug>(answer: Result<T, StoreError>) {
    match answer {
        Err(error) if error.is_full() => {}
        other => panic!("it should be refused as full: {other:?}"),
    }
}

fn kept(bytes: usize) -> Kept {
    Kept::new(Bytes::from(vec![b'x'; bytes]), HOLD)
}

#[tokio::test(start_paused = true)]
async fn a_full_store_refuses_what_is_new_and_forgets_nothing() {
    let store = MemoryStore::new().records_at_most(3);
    let mut grants = Vec::new();
    for number in 0..3 {
        grants.push(grant(&store, number).await);
    }
    refused_as_full(store.claim(ask(key(9))).await);
    refused_as_full(store.issue(Issue::new(key(9), OneTimeToken::random(), None, HOLD)).await);
    refused_as_full(store.release(Release::called_off(key(9), ClaimToken::random(), HOLD)).await);
    // What needs no new record goes on.
    for grant in &grants {
        assert!(matches!(store.claim(ask(grant.key)).await, Ok(Claimed::InProgress(_))));
        assert_eq!(store.renew(grant).await.unwrap(), Written::Stored);
        assert_eq!(store.complete(grant, kept(100)).await.unwrap(), Written::Stored);
        assert!(matches!(store.claim(ask(grant.key)).await, Ok(Claimed::Completed(_))));
    }
    refused_as_full(store.claim(ask(key(9))).await);
    assert_eq!(store.len(), 3);
}

#[tokio::test(start_paused = true)]
async fn room_comes_back_when_records_expire() {
    let store = MemoryStore::new().records_at_most(2);
    grant(&store, 0).await;
    grant(&store, 1).await;
    tokio::time::sleep(HOLD - Duration::from_millis(1)).await;
    refused_as_full(store.claim(ask(key(2))).await);
    tokio::time::sleep(Duration::from_millis(1)).await;
    grant(&store, 2).await;
    grant(&store, 3).await;
    refused_as_full(store.claim(ask(key(4))).await);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_does_not_fit_is_refused_and_a_small_one_fits() {
    let store = MemoryStore::new().bytes_at_most(2 * RECORD);
    let first = grant(&store, 0).await;
    let second = grant(&store, 1).await;
    refused_as_full(store.claim(ask(key(2))).await);
    for grant in [first, second] {
        refused_as_full(store.complete(&grant, kept(301)).await);
        // Nothing was written: it is held as before.
        assert!(matches!(store.claim(ask(grant.key)).await, Ok(Claimed::InProgress(_))));
        assert_eq!(store.complete(&grant, kept(300)).await.unwrap(), Written::Stored);
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_written_over_gives_its_room_back() {
    let store = MemoryStore::new().bytes_at_most(2 * RECORD);
    let held = grant(&store, 0).await;
    for _ in 0..10 {
        assert_eq!(store.renew(&held).await.unwrap(), Written::Stored);
    }
    grant(&store, 1).await;
    refused_as_full(store.claim(ask(key(2))).await);
}

#[tokio::test(start_paused = true)]
async fn a_large_answer_fits_once_many_small_records_have_expired() {
    let store = MemoryStore::new().bytes_at_most(200 * RECORD);
    for number in 0..199 {
        grant(&store, number).await;
    }
    tokio::time::sleep(HOLD / 2).await;
    let late = grant(&store, 1000).await;
    refused_as_full(store.complete(&late, kept(100 * RECORD)).await);
    tokio::time::sleep(HOLD / 2).await;
    assert_eq!(store.complete(&late, kept(199 * RECORD)).await.unwrap(), Written::Stored);
    refused_as_full(store.claim(ask(key(0))).await);
    tokio::time::sleep(HOLD).await;
    grant(&store, 0).await;
    assert_eq!(store.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_claim_refused_for_want_of_room_leaves_no_alias() {
    let store = MemoryStore::new().records_at_most(1);
    let mut claim = ask(key(0));
    claim.alias = Some(Alias::new(key(1), HOLD));
    refused_as_full(store.claim(claim.clone()).await);
    assert!(store.is_empty());
    // Also where the name had a record of its own that it would have replaced.
    let own = grant(&store, 1).await;
    store.release(Release::of(&own, Reason::Failed)).await.unwrap();
    refused_as_full(store.claim(claim.clone()).await);
    assert_eq!(grant(&store, 1).await.previous, Previous::Failed);
    let store = MemoryStore::new().records_at_most(2);
    assert!(matches!(store.claim(claim).await, Ok(Claimed::Granted(_))));
}

#[tokio::test(start_paused = true)]
async fn a_million_keys_with_a_short_hold_stay_few() {
    let store = MemoryStore::new().records_at_most(2_000);
    for number in 0..1_000_000 {
        let mut claim = ask(key(number));
        claim.hold = Duration::from_millis(10);
        assert!(matches!(store.claim(claim).await, Ok(Claimed::Granted(_))), "key {number}");
        if number % 1_000 == 0 {
            tokio::time::advance(Duration::from_millis(10)).await;
            assert!(store.len() <= 1_100, "{} records after key {number}", store.len());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn clones_share_records_and_limits() {
    let store = MemoryStore::new();
    let clone = store.clone();
    let held = grant(&store, 0).await;
    assert!(matches!(clone.claim(ask(held.key)).await, Ok(Claimed::InProgress(_))));
    assert_eq!(clone.complete(&held, kept(1)).await.unwrap(), Written::Stored);
    assert!(matches!(store.claim(ask(held.key)).await, Ok(Claimed::Completed(_))));
    let _limited = clone.records_at_most(1);
    refused_as_full(store.claim(ask(key(1))).await);
    // The twin: another store knows nothing of it.
    let other = MemoryStore::new();
    assert!(matches!(other.claim(ask(held.key)).await, Ok(Claimed::Granted(_))));
}

#[tokio::test(start_paused = true)]
async fn pages_are_as_short_as_asked_and_never_long() {
    let store = MemoryStore::new();
    for number in 0..2_500 {
        grant(&store, number).await;
    }
    let mut found = Vec::new();
    let mut from = Some(Cursor::START);
    while let Some(cursor) = from {
        let page = store.scan(cursor, usize::MAX).await.unwrap();
        assert!(page.records.len() <= 1_000);
        found.extend(page.records.iter().map(|listed| listed.key));
        from = page.next;
    }
    assert_eq!(found, (0..2_500).map(key).collect::<Vec<_>>());
    assert_eq!(store.scan(Cursor::START, 3).await.unwrap().records.len(), 3);
    let zero = store.scan(Cursor::START, 0).await.unwrap();
    assert!(zero.next.is_some_and(|next| next != Cursor::START), "a scan has to get on");
    let foreign = Cursor::from_bytes(Bytes::from_static(b"of another store"));
    assert!(store.scan(foreign, 3).await.unwrap_err().is_refused());
}

#[tokio::test]
async fn many_tasks_and_one_grant() {
    let store = MemoryStore::new();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..64 {
        let store = store.clone();
        tasks.spawn(async move { store.claim(ask(key(0))).await.unwrap() });
    }
    let answers = tasks.join_all().await;
    let granted = answers.iter().filter(|answer| matches!(answer, Claimed::Granted(_)));
    assert_eq!(granted.count(), 1);
    let busy = answers.iter().filter(|answer| matches!(answer, Claimed::InProgress(_)));
    assert_eq!(busy.count(), 63);
}

#[tokio::test(start_paused = true)]
async fn debug_shows_counts_and_no_payload() {
    let store = MemoryStore::new();
    let held = grant(&store, 0).await;
    let secret = Kept::new(Bytes::from_static(b"card 4111"), HOLD);
    store.complete(&held, secret).await.unwrap();
    let shown = format!("{store:?}");
    assert!(shown.contains("records: 1"), "{shown}");
    assert!(!shown.contains("4111"), "{shown}");
}
