//! Answers from the process's own memory: they cost no round trip, and are never another answer than the
//! store's.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use http::Request;
use tokio::time::sleep;
use tower::service_fn;
use tower_idempotency::{
    Answer, Delivery, MemoryStore, Policy, Refusal, RefusalKind, Rule, Scope, Verified, header,
    json,
    operations::{Operations, Settle},
    store::{Cursor, StoreErrorKind},
    test_util::{Fault, Transition, contract::World},
};

use crate::{
    house::{Asked, Body, House, SECOND, Sent, api, request, text},
    token_house::{asked, for_an_order, free, issue, of_order, paying},
};

const ROOM: usize = 1024 * 1024;

/// A house on this store that keeps answers; its handler answers with this status.
fn keeping(memory: &MemoryStore, policy: Policy, status: u16) -> House {
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = runs.clone();
    let inner = service_fn(move |_: Asked| {
        counted.fetch_add(1, Ordering::SeqCst);
        async move { text(status, "done") }
    });
    let rule = Rule::new("pay", policy);
    House::layered(memory.clone(), rule, inner, runs, |layer| layer.recent(ROOM))
}

fn house(policy: Policy) -> House {
    keeping(&MemoryStore::new(), policy, 200)
}

/// How often the store was asked.
fn asks(house: &House) -> usize {
    house.sent().len()
}

async fn forget(house: &House) {
    house.memory.forget(&house.record().await.key).await;
}

#[tokio::test(start_paused = true)]
async fn a_duplicate_of_what_ran_here_is_replayed_without_asking_the_store() {
    let house = house(api());
    let first = house.send("k").await;
    first.is_executed();
    for _ in 0..5 {
        let again = house.send("k").await;
        assert_eq!((again.is_replayed().status, again.text()), (first.status, first.text()));
    }
    assert_eq!(house.sent(), [Sent::Claim, Sent::Complete]);
    // Another key is another operation.
    house.send("l").await.is_executed();
    assert_eq!((house.runs(), asks(&house)), (2, 4));
}

#[tokio::test(start_paused = true)]
async fn without_the_choice_nothing_is_kept() {
    let house = House::new(api());
    house.send("k").await.is_executed();
    house.send("k").await.is_replayed();
    assert_eq!(house.sent(), [Sent::Claim, Sent::Complete, Sent::Claim]);
}

#[tokio::test(start_paused = true)]
async fn what_another_process_ran_is_kept_once_the_store_has_told_it_and_layers_share_nothing() {
    let memory = MemoryStore::new();
    let (there, here) = (keeping(&memory, api(), 200), keeping(&memory, api(), 200));
    there.send("k").await.is_executed();
    for _ in 0..3 {
        here.send("k").await.is_replayed();
    }
    assert_eq!(here.sent(), [Sent::Claim]);
}

#[tokio::test(start_paused = true)]
async fn a_replay_from_memory_needs_no_store_and_no_inner_service() {
    let house = house(api());
    house.send("k").await.is_executed();
    house.faults.down(StoreErrorKind::Unreachable);
    house.send("k").await.is_replayed();
    house.send("l").await.is_refused(RefusalKind::StoreUnavailable);
    assert_eq!(house.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn after_a_minute_the_store_is_asked_again() {
    let house = house(api());
    house.send("k").await.is_executed();
    sleep(59 * SECOND).await;
    house.send("k").await.is_replayed();
    assert_eq!(asks(&house), 2);
    sleep(SECOND).await;
    house.send("k").await.is_replayed();
    assert_eq!(asks(&house), 3);
    // What the store has told is kept for a minute from then on.
    sleep(59 * SECOND).await;
    house.send("k").await.is_replayed();
    assert_eq!(asks(&house), 3);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_replayed_that_the_store_would_not_replay_any_more() {
    let policy = || api().lease(5 * SECOND).retention(10 * SECOND);
    let memory = MemoryStore::new();
    let (there, here) = (keeping(&memory, policy(), 200), keeping(&memory, policy(), 200));
    there.send("k").await.is_executed();
    sleep(6 * SECOND).await;
    // Of the retention 4 s are left, and no more, though this one learns of it now.
    here.send("k").await.is_replayed();
    sleep(3 * SECOND).await;
    for house in [&here, &there] {
        house.send("k").await.is_replayed();
    }
    assert_eq!((asks(&here), asks(&there)), (1, 2));
    sleep(SECOND + SECOND / 100).await;
    here.send("k").await.is_executed();
    there.send("k").await.is_replayed();
    assert_eq!(asks(&there), 3);
}

#[tokio::test(start_paused = true)]
async fn what_is_not_completed_is_never_kept() {
    // Given back: each delivery runs.
    let failing = keeping(&MemoryStore::new(), api(), 503);
    for runs in 1..=3 {
        failing.send("k").await.is_executed();
        assert_eq!(failing.runs(), runs);
    }
    // Unknown: each delivery is refused, until somebody has settled it, and that counts at once.
    let unknown = keeping(&MemoryStore::new(), api(), 504);
    unknown.send("k").await.is_executed();
    for _ in 0..2 {
        unknown.send("k").await.is_refused(RefusalKind::OutcomeUnknown);
    }
    let operations = Operations::new(unknown.store.clone());
    let page = operations.list(Cursor::START, 10).await.unwrap();
    let settled = Settle::done(Answer::text("settled"), "a test");
    operations.settle(&page.operations[0], settled).await.unwrap();
    assert_eq!(unknown.send("k").await.is_replayed().text(), "settled");
    assert_eq!(unknown.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_completion_that_the_store_has_not_confirmed_is_not_kept() {
    let house = house(api());
    house.faults.next(Transition::Complete, Fault::LoseAnswer(StoreErrorKind::Timeout));
    house.send("k").await.is_executed();
    let before = house.times(Sent::Claim).len();
    house.send("k").await.is_replayed();
    assert_eq!(house.times(Sent::Claim).len(), before + 1);
    // Full: what is stored in the end is not this answer.
    house.faults.next(Transition::Complete, Fault::Fail(StoreErrorKind::Full));
    house.send("l").await.is_executed();
    house.send("l").await.is_refused(RefusalKind::AnswerNotKept);
}

#[tokio::test(start_paused = true)]
async fn another_body_is_a_mismatch_and_the_same_one_is_replayed_still() {
    let house = house(api());
    house.send("k").await.is_executed();
    house.call(request("k", "another body")).await.is_refused(RefusalKind::Mismatch);
    house.send("k").await.is_replayed();
    assert_eq!(house.sent(), [Sent::Claim, Sent::Complete, Sent::Claim]);
}

#[tokio::test(start_paused = true)]
async fn another_body_than_the_one_that_is_kept_hears_what_the_store_says_now() {
    let house = house(api());
    house.send("k").await.is_executed();
    forget(&house).await;
    // Nothing is known of it any more: no mismatch with what is only remembered here.
    house.call(request("k", "another body")).await.is_executed();
    house.call(request("k", "another body")).await.is_replayed();
    house.send("k").await.is_refused(RefusalKind::Mismatch);
}

#[tokio::test(start_paused = true)]
async fn another_principal_never_gets_it() {
    let house = house(Policy::api(Scope::header("x-user")));
    let of = |user: &'static str| {
        let mut request = request("k", "body");
        request.headers_mut().insert("x-user", http::HeaderValue::from_static(user));
        request
    };
    house.call(of("ann")).await.is_executed();
    house.call(of("ann")).await.is_replayed();
    house.call(of("bob")).await.is_executed();
    assert_eq!((house.runs(), asks(&house)), (2, 4));
    house.call(request("k", "body")).await.is_refused(RefusalKind::ScopeMissing);
}

#[tokio::test(start_paused = true)]
async fn a_deleted_record_runs_again_after_a_minute_and_not_before() {
    let house = house(api());
    house.send("k").await.is_executed();
    forget(&house).await;
    sleep(59 * SECOND).await;
    house.send("k").await.is_replayed();
    sleep(SECOND).await;
    house.send("k").await.is_executed();
    assert_eq!(house.runs(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_large_answer_is_left_to_the_store() {
    let large = |size: usize| {
        let inner = service_fn(move |_: Asked| async move {
            crate::house::respond(200, http_body_util::Full::from(vec![b'a'; size]))
        });
        let (memory, rule) = (MemoryStore::new(), Rule::new("pay", api()));
        House::layered(memory, rule, inner, Arc::default(), |layer| layer.recent(ROOM))
    };
    for (size, asked) in [(ROOM / 64, 2), (ROOM / 16, 3)] {
        let house = large(size);
        house.send("k").await.is_executed();
        assert_eq!(house.send("k").await.is_replayed().text().len(), size);
        assert_eq!(asks(&house), asked, "{size}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_to_be_verified_is_verified_before_it_is_replayed() {
    let valid = Arc::new(AtomicUsize::new(2));
    let left = valid.clone();
    let hook = move |_: Delivery| {
        let valid = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
        async move { valid.map(|_| Verified::as_sent()).map_err(|_| Refusal::not_verified("forged")) }
    };
    let house = house(Policy::webhook(header("idempotency-key")).verify(hook));
    house.send("k").await.is_executed();
    house.send("k").await.is_replayed();
    house.send("k").await.is_refused(RefusalKind::NotVerified);
    assert_eq!((asks(&house), valid.load(Ordering::SeqCst)), (2, 0));
}

/// A delivery with this id of this order.
fn delivery(id: &str, order: &str) -> Request<Body> {
    request(id, &format!(r#"{{"order": "{order}"}}"#))
}

#[tokio::test(start_paused = true)]
async fn another_delivery_of_a_known_business_key_is_replayed_and_binds_nothing() {
    let policy = || Policy::webhook(header("idempotency-key")).business_key(json("/order"));
    let house = house(policy());
    house.call(delivery("d-1", "o-1")).await.is_executed();
    house.call(delivery("d-2", "o-1")).await.is_replayed();
    assert_eq!(asks(&house), 2);
    assert_eq!(house.records().await.len(), 2, "the operation, and its first delivery id");
    // d-2 stands for nothing, and a first delivery of another operation may have it: nothing ran twice.
    house.call(delivery("d-2", "o-2")).await.is_executed();
    // d-1 is bound, and the store says so as long as nothing is known here.
    house.call(delivery("d-1", "o-3")).await.is_refused(RefusalKind::Mismatch);
    assert_eq!(house.runs(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_led_to_another_record_keeps_it_under_the_name_it_has() {
    let memory = MemoryStore::new();
    let with_key = Policy::webhook(header("idempotency-key")).business_key(json("/order"));
    keeping(&memory, with_key, 200).call(delivery("d-1", "o-1")).await.is_executed();
    // A version without business keys: its delivery id is another name of the operation.
    let older = keeping(&memory, Policy::webhook(header("idempotency-key")), 200);
    for asked in [2, 4] {
        older.call(delivery("d-1", "o-1")).await.is_replayed();
        assert_eq!(asks(&older), asked);
    }
    assert_eq!(older.runs(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_one_time_token_is_replayed_to_whoever_brings_it_and_no_other_token_is() {
    let house = house(for_an_order());
    let token = issue(&house, of_order("o-1")).await;
    house.pay(&token, "o-1", 5).await.is_executed();
    let asked_before = asks(&house);
    house.pay(&token, "o-1", 5).await.is_replayed();
    assert_eq!(asks(&house), asked_before);
    house.pay(&token, "o-1", 6).await.is_refused(RefusalKind::Mismatch);
    let other = tower_idempotency::OneTimeToken::random();
    house.pay(&other, "o-1", 5).await.is_refused(RefusalKind::TokenUnknown);
    house.pay(&token, "o-2", 5).await.is_refused(RefusalKind::TokenUnknown);
    assert_eq!(house.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_token_that_is_bound_to_its_owner_is_replayed_to_nobody_else() {
    let house = house(free().token_bound_to(Scope::header("x-user")));
    let token = issue(&house, asked().bound_to("ann")).await;
    let by = |user: &'static str| {
        let mut request = paying(&token, "o-1", 5);
        request.headers_mut().insert("x-user", http::HeaderValue::from_static(user));
        request
    };
    house.call(by("ann")).await.is_executed();
    house.call(by("ann")).await.is_replayed();
    house.call(by("eve")).await.is_refused(RefusalKind::TokenUnknown);
    assert_eq!(house.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_is_only_observed_is_not_replayed_from_memory_either() {
    let house = house(api().observe());
    for runs in 1..=3 {
        house.send("k").await;
        assert_eq!(house.runs(), runs);
    }
}

#[tokio::test(start_paused = true)]
async fn a_layer_that_is_told_to_end_replays_nothing_more_from_memory_either() {
    let house = house(api());
    house.send("k").await.is_executed();
    house.drained().await;
    house.send("k").await.is_refused(RefusalKind::ShuttingDown);
}

#[tokio::test(start_paused = true)]
async fn a_secret_that_is_set_later_makes_other_operations_of_all_of_them() {
    let house = house(api());
    house.send("k").await.is_executed();
    let other = house.layer.clone().secret(&[7; 32]);
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = runs.clone();
    let service = tower::ServiceBuilder::new().layer(other).service_fn(move |_: Asked| {
        counted.fetch_add(1, Ordering::SeqCst);
        async { text(200, "done") }
    });
    use tower::ServiceExt;
    for _ in 0..2 {
        service.clone().oneshot(request("k", "body")).await.unwrap();
    }
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}
