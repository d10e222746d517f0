//! A store that is down when a delivery with a business key comes.

use http::StatusCode;
use tower_idempotency::{
    MemoryStore,
    store::StoreErrorKind::Timeout,
    test_util::{Fault, FaultyStore, Transition},
};

use super::{Shop, assert_refused, deliver, notification};

/// What the store does with the claims of the first delivery, none of which is answered.
const LOST: [Fault; 2] = [Fault::Fail(Timeout), Fault::LoseAnswer(Timeout)];

#[tokio::test(start_paused = true)]
async fn an_order_that_ran_without_a_grant_is_known_under_every_id_once_the_store_is_back() {
    for lost in LOST {
        let shop = Shop::default();
        let store = FaultyStore::new(MemoryStore::new());
        let faults = store.faults();
        let app = shop.app(store, shop.policy().run_unprotected());
        faults.always(Transition::Claim, lost.clone());
        let first = deliver(&app, notification("n-1", "o-1", "960")).await;
        assert_eq!((first.status, first.replayed), (StatusCode::OK, false), "{}", first.body);
        faults.heal();
        for id in ["n-1", "n-2"] {
            let again = deliver(&app, notification(id, "o-1", "960")).await;
            assert_eq!((again.replayed, &again.body), (true, &first.body), "{id}, {lost:?}");
        }
        // An id of the one is still no id of another.
        let other = deliver(&app, notification("n-1", "o-2", "960")).await;
        assert_eq!(other.status, StatusCode::UNPROCESSABLE_ENTITY);
        assert_eq!((shop.runs("o-1"), shop.runs("o-2")), (1, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn an_order_whose_claim_was_lost_is_free_once_the_store_is_back() {
    for lost in LOST {
        let shop = Shop::default();
        let store = FaultyStore::new(MemoryStore::new());
        let faults = store.faults();
        let app = shop.app(store, shop.policy());
        faults.always(Transition::Claim, lost.clone());
        let refused = deliver(&app, notification("n-1", "o-1", "960")).await;
        assert_refused(&refused, "store_unavailable");
        let before = faults.calls(Transition::Release);
        // The id may be another name by now; the order must be free all the same.
        faults.called(Transition::Release, before + 1).await;
        faults.heal();
        let next = deliver(&app, notification("n-2", "o-1", "960")).await;
        assert_eq!((next.status, next.replayed), (StatusCode::OK, false), "{}", next.body);
        let again = deliver(&app, notification("n-1", "o-1", "960")).await;
        assert_eq!((again.replayed, again.body), (true, next.body));
        assert_eq!(shop.runs("o-1"), 1);
    }
}

/// Which order a delivery id stands for is not known while the store is down.
#[tokio::test(start_paused = true)]
async fn a_delivery_that_was_led_to_its_operation_is_not_run_when_the_store_goes_down() {
    let shop = Shop::default();
    let store = FaultyStore::new(MemoryStore::new());
    let faults = store.faults();
    let app = shop.app(store, shop.policy().no_fingerprint().run_unprotected());
    let first = deliver(&app, notification("n-1", "o-1", "960")).await;
    // It is told of the other name, and nothing more.
    faults.next(Transition::Claim, Fault::None);
    faults.always(Transition::Claim, Fault::Fail(Timeout));
    let refused = deliver(&app, r#"{"notifyId":"n-1"}"#.to_owned()).await;
    assert_refused(&refused, "store_unavailable");
    faults.heal();
    let alone = deliver(&app, r#"{"notifyId":"n-1"}"#.to_owned()).await;
    assert_eq!((alone.replayed, alone.body), (true, first.body));
    assert_eq!(shop.runs.lock().unwrap().len(), 1);
}
