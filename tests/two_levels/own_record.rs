//! A delivery id that has a record of its own, since it was delivered before there was a business key:
//! it is answered from that, and what may run again runs under the business key.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::Router;
use http::StatusCode;
use tokio::task::yield_now;
use tower_idempotency::{
    Abandoned, Answer as Stored, Ledger, LedgerEntry, LedgerError, LedgerRow, MemoryStore, Outcome,
    Policy, Previous, Resolution, Resolver, Sealed, Store, json,
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

/// What a resolver was asked about: key and delivery id.
type Asked = Arc<Mutex<Vec<(String, Option<String>)>>>;

/// A resolver that says of each key what it was told to say of it, and writes down what it was asked.
fn resolver(
    says: impl Fn(&str) -> Resolution + Clone + Send + Sync + 'static,
) -> (impl Resolver, Asked) {
    let asked = Asked::default();
    let written = asked.clone();
    let resolver = move |abandoned: Abandoned| {
        let resolution = says(&abandoned.key);
        written.lock().unwrap().push((abandoned.key, abandoned.delivery_id));
        async move { resolution }
    };
    (resolver, asked)
}

fn by_delivery() -> (String, Option<String>) {
    ("n-1".to_owned(), None)
}

fn by_order() -> (String, Option<String>) {
    ("o-1".to_owned(), Some("n-1".to_owned()))
}

#[tokio::test]
async fn what_a_delivery_did_under_its_own_id_is_asked_by_that_and_never_done_again() {
    let shop = Shop::default();
    let store = MemoryStore::new();
    deliver_before(&shop, store.clone(), Outcome::Uncertain).await;
    // Whoever wrote down what was done wrote down the key that the handler was told.
    let (resolver, asked) = resolver(|key| match key {
        "n-1" => Resolution::Done(Stored::text("found")),
        _ => Resolution::NotDone,
    });
    let app = shop.app(store, shop.policy().resolve_abandoned(resolver));
    for body in [notification("n-1", "o-1", "960"), r#"{"notifyId":"n-1","amount":960}"#.to_owned()]
    {
        let told = deliver(&app, body).await;
        assert_eq!((told.status, told.replayed), (StatusCode::OK, true), "{}", told.body);
        assert_eq!(told.body, "found");
    }
    assert_eq!(*asked.lock().unwrap(), [by_delivery()]);
    assert_eq!((shop.runs("n-1"), shop.runs("o-1")), (1, 0), "it happened once");
}

#[tokio::test]
async fn what_a_delivery_did_under_its_own_id_is_found_by_its_order_too() {
    let shop = Shop::default();
    let store = MemoryStore::new();
    deliver_before(&shop, store.clone(), Outcome::Uncertain).await;
    for unknown in [Resolution::Unknown, Resolution::NotDone] {
        // A provider that knows orders alone.
        let by_id = unknown.clone();
        let (resolver, asked) = resolver(move |key| match key {
            "o-1" => Resolution::Unknown,
            _ => by_id.clone(),
        });
        let app = shop.app(store.clone(), shop.policy().resolve_abandoned(resolver));
        assert_refused(&deliver(&app, notification("n-1", "o-1", "960")).await, "outcome_unknown");
        assert_eq!(*asked.lock().unwrap(), [by_delivery(), by_order()], "{unknown:?}");
    }
    let (resolver, _) = resolver(|key| match key {
        "o-1" => Resolution::Done(Stored::text("found")),
        _ => Resolution::NotDone,
    });
    let app = shop.app(store, shop.policy().resolve_abandoned(resolver));
    let told = deliver(&app, notification("n-1", "o-1", "960")).await;
    assert_eq!((told.replayed, told.body.as_str()), (true, "found"));
    assert_eq!((shop.runs("n-1"), shop.runs("o-1")), (1, 0), "it happened once");
}

#[tokio::test]
async fn what_a_delivery_did_not_do_by_either_name_runs_once_under_its_order() {
    let shop = Shop::default();
    let store = MemoryStore::new();
    deliver_before(&shop, store.clone(), Outcome::Uncertain).await;
    let (resolver, asked) = resolver(|_| Resolution::NotDone);
    let app = shop.app(store, shop.policy().resolve_abandoned(resolver));
    let first = deliver(&app, notification("n-1", "o-1", "960")).await;
    assert_eq!((first.status, first.replayed), (StatusCode::OK, false), "{}", first.body);
    let again = deliver(&app, notification("n-1", "o-1", "960")).await;
    assert_eq!((again.replayed, &again.body), (true, &first.body));
    assert_eq!(*asked.lock().unwrap(), [by_delivery(), by_order()]);
    assert_eq!(shop.runs("o-1"), 1);
    assert_eq!(shop.found(), [Previous::Nothing, Previous::AbandonedNotDone]);
}

/// The orders that deliveries are about are forgotten: their ids lead to the operation still, but a
/// request does not say any more what that was called.
#[tokio::test]
async fn what_ran_under_an_order_is_not_called_not_done_by_the_id_of_another_delivery() {
    for done in [false, true] {
        let shop = Shop::default();
        let store = MemoryStore::new();
        *shop.next.lock().unwrap() = Some(Outcome::Uncertain);
        let before = shop.app(store.clone(), shop.policy());
        deliver(&before, notification("n-1", "o-1", "960")).await;
        assert_refused(
            &deliver(&before, notification("n-2", "o-1", "960")).await,
            "outcome_unknown",
        );

        let (resolver, asked) = resolver(move |key| match (done, key) {
            (true, "n-2") => Resolution::Done(Stored::text("found")),
            _ => Resolution::NotDone,
        });
        let policy = Policy::webhook(json("/notifyId")).compare([json("/amount")]);
        let app = shop.app(store, policy.resolve_abandoned(resolver));
        let told = deliver(&app, notification("n-2", "o-1", "960")).await;
        match done {
            true => assert_eq!((told.replayed, told.body.as_str()), (true, "found")),
            false => assert_refused(&told, "outcome_unknown"),
        }
        assert_eq!(*asked.lock().unwrap(), [("n-2".to_owned(), None)]);
        assert_eq!((shop.runs("o-1"), shop.runs("n-2")), (1, 0), "it is not run again");
    }
}

/// A table that has no row of whom it is asked about.
struct Empty;

impl Ledger for Empty {
    async fn find(&self, _: &LedgerEntry) -> Result<Option<LedgerRow>, LedgerError> {
        Ok(None)
    }

    async fn seal(&self, _: &LedgerEntry, _: &LedgerRow) -> Result<Sealed, LedgerError> {
        Ok(Sealed::Written)
    }
}

#[tokio::test]
async fn what_ran_under_an_order_is_not_called_not_done_because_another_delivery_has_no_row() {
    let shop = Shop::default();
    let store = MemoryStore::new();
    *shop.next.lock().unwrap() = Some(Outcome::Uncertain);
    let before = shop.app(store.clone(), shop.policy());
    for id in ["n-1", "n-2"] {
        deliver(&before, notification(id, "o-1", "960")).await;
    }
    let policy = Policy::webhook(json("/notifyId")).compare([json("/amount")]);
    let app = shop.app(store.clone(), policy.ledger(Empty));
    assert_refused(&deliver(&app, notification("n-2", "o-1", "960")).await, "outcome_unknown");
    assert_eq!((shop.runs("o-1"), shop.runs("n-2")), (1, 0), "it is not run again");
    // Asked about the order itself, the same table says that it was not done.
    let app = shop.app(store, shop.policy().ledger(Empty));
    let told = deliver(&app, notification("n-2", "o-1", "960")).await;
    assert_eq!((told.status, shop.runs("o-1")), (StatusCode::OK, 2), "{}", told.body);
}
