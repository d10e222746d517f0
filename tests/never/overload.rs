//! Much that is late must not make later what is not.

use std::{sync::Arc, time::Duration};

use tokio::{sync::Notify, task::JoinSet, time::sleep};
use tower_idempotency::{
    MemoryStore, Operation,
    store::StoreErrorKind,
    test_util::{Fault, FaultyStore, Transition},
};

use crate::shop::{Shop, api, keyed, text};

#[tokio::test(start_paused = true)]
async fn a_lease_is_renewed_though_thousands_of_late_writes_wait_for_a_slow_store() {
    let store = FaultyStore::new(MemoryStore::new());
    let faults = store.faults();
    let held = Arc::new(Notify::new());
    let hold = held.clone();
    let policy = api().lease(Duration::from_secs(3));
    let shop = Shop::new(store, policy, move |request| {
        let hold = hold.clone();
        async move {
            if request.headers()["idempotency-key"] != "held" {
                return text(503, "not yet");
            }
            let operation = request.extensions().get::<Operation>().cloned().expect("it runs");
            tokio::select! {
                () = operation.lease_lost() => text(200, "lost"),
                () = hold.notified() => text(200, "held"),
            }
        }
    });
    let runs = tokio::spawn(shop.send(keyed("held")));
    shop.runs.wait_for(1).await;
    // An outage leaves thousands of releases to be sent.
    faults.always(Transition::Release, Fault::Fail(StoreErrorKind::Unreachable));
    let mut clients = JoinSet::new();
    for key in 0..8000 {
        clients.spawn(shop.send(keyed(&key.to_string())));
    }
    clients.join_all().await;
    // The store comes back, and takes so long for each that they take longer than a lease.
    faults.always(Transition::Release, Fault::Delay(Duration::from_millis(400)));
    sleep(Duration::from_secs(20)).await;
    assert!(faults.calls(Transition::Renew) > 15, "{faults:?}");
    held.notify_one();
    runs.await.expect("no panic").assert_text("held");
    assert!(shop.layer.drain(Duration::from_secs(60)).await.is_clean());
}
