//! A delivery id that has a record of its own, since it was delivered before there was a business key:
//! it is answered from that, and what may run again runs under the business key.

use std::{sync::Arc, time::Duration};

use axum::Router;
use http::StatusCode;
use tokio::task::yield_now;
use tower_idempotency::{
    Abandoned, Answer as Stored, MemoryStore, Outcome, Policy, Previous, Resolution, Store, json,
    test_util::{Fault, FaultyStore, Gate, Transition},
};

use super::{Answer, Shop, assert_refused, deliver, notification};

/// Delivers before there is a business key; the run says this of itself.
async fn deliver_before(shop: &Shop, store: impl Store, outcome: Outcome) {
    *shop.next.lock().unwrap() = Some(outcome);
    let before = shop.app(store, Policy::webhook(json("/notifyId")));
    deliver(&before, notification("n-1", "o-1", "960")).await;
    assert_eq!(shop.runs("n-1"), 1, "it ran under its delivery id");
}

/// Starts a delivery that is in its handler when this returns.
async fn started(shop: &Shop, app: Router) -> tokio::task::JoinHandle<Answer> {
    let running =
        tokio::spawn(async move { deliver(&app, notification("n-1", "o-1", "960")).await });
    while shop.seen.lock().unwrap().is_empty() {
        yield_now().await;
    }
    running
}

#[tokio::test(start_paused = true)]
async fn a_delivery_whose_own_run_is_given_back_meanwhile_runs_under_the_business_key() {
    let shop = Shop::default();
    let store = MemoryStore::new();
    *shop.next.lock().unwrap() = Some(Outcome::Release);
    let running = started(&shop, shop.app(store.clone(), Policy::webhook(json("/notifyId")))).await;
    let app = shop.app(store, shop.policy().wait(Duration::from_secs(5)));
    // It waits for the run under the delivery id, which says that it did not happen.
    let waited = deliver(&app, notification("n-1", "o-1", "960")).await;
    assert_eq!((waited.status, waited.replayed), (StatusCode::OK, false), "{}", waited.body);
    assert!(!running.await.unwrap().replayed);
    assert_eq!((shop.runs("n-1"), shop.runs("o-1")), (1, 1));
    let other = deliver(&app, notification("n-2", "o-1", "960")).await;
    assert_eq!((other.replayed, other.body), (true, waited.body));
}

#[tokio::test(start_paused = true)]
async fn a_delivery_id_that_becomes_another_name_meanwhile_leads_to_the_operation() {
    let shop = Shop::default();
    let store = Arc::new(FaultyStore::new(MemoryStore::new()));
    let faults = store.faults();
    *shop.next.lock().unwrap() = Some(Outcome::Release);
    let running = started(&shop, shop.app(store.clone(), Policy::webhook(json("/notifyId")))).await;
    // The next claim meets that run; its look stays at the gate until the run has ended and another
    // delivery of the event has run.
    let gate = Gate::new();
    faults.next(Transition::Claim, Fault::None);
    faults.next(Transition::Claim, Fault::Hold(gate.clone()));
    let app = shop.app(store, shop.policy().call_within(Duration::from_secs(60)));
    let late = {
        let app = app.clone();
        tokio::spawn(async move { deliver(&app, notification("n-1", "o-1", "960")).await })
    };
    gate.arrived(1).await;
    running.await.unwrap();
    let first = deliver(&app, notification("n-1", "o-1", "960")).await;
    assert_eq!((first.status, first.replayed), (StatusCode::OK, false));
    gate.open();
    let late = late.await.unwrap();
    assert_eq!((late.status, late.replayed, late.body), (StatusCode::OK, true, first.body));
    assert_eq!(shop.runs("o-1"), 1);
}

#[tokio::test]
async fn an_abandoned_delivery_is_refused_and_stays_so() {
    let shop = Shop::default();
    let store = MemoryStore::new();
    deliver_before(&shop, store.clone(), Outcome::Uncertain).await;
    let app = shop.app(store, shop.policy());
    for _ in 0..2 {
        let refused = deliver(&app, notification("n-1", "o-1", "960")).await;
        assert_refused(&refused, "outcome_unknown");
    }
    assert_eq!(shop.runs("o-1"), 0);
}

#[tokio::test]
async fn an_abandoned_delivery_is_run_again_once_where_the_policy_says_so() {
    let shop = Shop::default();
    let store = MemoryStore::new();
    deliver_before(&shop, store.clone(), Outcome::Uncertain).await;
    let app = shop.app(store, shop.policy().rerun_abandoned());
    let first = deliver(&app, notification("n-1", "o-1", "960")).await;
    assert_eq!((first.status, first.replayed), (StatusCode::OK, false), "{}", first.body);
    for id in ["n-1", "n-2"] {
        let again = deliver(&app, notification(id, "o-1", "960")).await;
        assert_eq!((again.replayed, &again.body), (true, &first.body), "{id}");
    }
    assert_eq!(shop.runs("o-1"), 1);
    assert_eq!(shop.found(), [Previous::Nothing, Previous::AbandonedUnknown]);
}

#[tokio::test]
async fn a_resolver_settles_an_abandoned_delivery() {
    for done in [true, false] {
        let shop = Shop::default();
        let store = MemoryStore::new();
        deliver_before(&shop, store.clone(), Outcome::Uncertain).await;
        let resolver = move |abandoned: Abandoned| async move {
            assert_eq!(abandoned.key, "o-1");
            assert_eq!(abandoned.delivery_id.as_deref(), Some("n-1"));
            if done { Resolution::Done(Stored::text("found")) } else { Resolution::NotDone }
        };
        let app = shop.app(store, shop.policy().resolve_abandoned(resolver));
        let first = deliver(&app, notification("n-1", "o-1", "960")).await;
        assert_eq!((first.status, first.replayed), (StatusCode::OK, done), "{}", first.body);
        let again = deliver(&app, notification("n-1", "o-1", "960")).await;
        assert_eq!((again.replayed, &again.body), (true, &first.body));
        assert_eq!((first.body == "found", shop.runs("o-1")), (done, u32::from(!done)));
        let found: &[_] = match done {
            true => &[Previous::Nothing],
            false => &[Previous::Nothing, Previous::AbandonedNotDone],
        };
        assert_eq!(shop.found(), found);
    }
}
