//! Two names of one operation, and what stands in their way.

use std::{sync::Arc, time::Duration};

use tokio::time::sleep;
use tower_idempotency::{
    Abandoned, MemoryStore, Operation, Policy, RedisStore, RefusalKind, Resolution, State, Store,
    json,
    store::StoreErrorKind,
    test_util::{Fault, FaultyStore, Gate, Transition},
};
use tower_idempotency_test_support::RedisServer;

use crate::shop::{Answered, Asked, Shop, notification, records, text};

fn policy() -> Policy {
    Policy::webhook(json("/id")).business_key(json("/order"))
}

async fn fulfil(request: Asked) -> Answered {
    let operation = request.extensions().get::<Operation>().expect("a run has its operation");
    text(200, format!("{} by {:?}", operation.key(), operation.delivery_id()))
}

#[tokio::test]
async fn a_delivery_id_whose_record_is_not_ours_leaves_its_business_key_free() {
    let server = RedisServer::start().await;
    let store = RedisStore::connect(&server.url()).await.expect("it runs");
    let shop = Shop::new(store.clone(), policy(), fulfil);
    shop.send(notification(r#"{"id":"D-1","order":"O-1"}"#))
        .await
        .assert_text("O-1 by Some(\"D-1\")");
    // The record of the delivery id becomes one of a newer version, that of the order is gone.
    for record in records(&store).await {
        let name = format!("idempotency:{}", record.key);
        match record.state {
            State::Alias => server.command(&["SET", &name, "I2 of the next version"]).await,
            _ => server.command(&["DEL", &name]).await,
        };
    }
    let refused = shop.send(notification(r#"{"id":"D-1","order":"O-1"}"#)).await;
    assert_eq!(refused.refusal(), Some(RefusalKind::RecordUnreadable));
    assert_eq!(shop.runs.count(), 1, "nothing was run");
    assert!(shop.layer.drain(Duration::from_secs(5)).await.is_clean());
    let left = records(&store).await;
    assert!(left.iter().all(|record| record.leased.is_none()), "{left:?}");
    assert_eq!(server.names().await.len(), 2, "and the foreign record is as it was");

    let shop = Shop::new(store, policy(), fulfil);
    shop.send(notification(r#"{"id":"D-2","order":"O-1"}"#))
        .await
        .assert_text("O-1 by Some(\"D-2\")");
}

#[tokio::test(start_paused = true)]
async fn a_delivery_that_waited_for_its_ids_own_run_runs_under_its_business_key() {
    let gate = Arc::new(tokio::sync::Notify::new());
    let hold = gate.clone();
    let shop =
        Shop::new(MemoryStore::new(), policy().wait(Duration::from_secs(10)), move |asked| {
            let hold = hold.clone();
            async move {
                let operation = asked.extensions().get::<Operation>().cloned();
                if operation.is_some_and(|operation| operation.delivery_id().is_none()) {
                    hold.notified().await;
                    return text(500, "not yet");
                }
                fulfil(asked).await
            }
        });
    let without = tokio::spawn({
        let shop = shop.clone();
        async move { shop.send(notification(r#"{"id":"D-1"}"#)).await }
    });
    shop.runs.wait_for(1).await;
    let with = tokio::spawn({
        let shop = shop.clone();
        async move { shop.send(notification(r#"{"id":"D-1","order":"O-1"}"#)).await }
    });
    sleep(Duration::from_secs(1)).await;
    gate.notify_one();
    without.await.expect("no panic").assert_text("not yet");
    // It names its business key, so that nobody can ask it to.
    with.await.expect("no panic").assert_text("O-1 by Some(\"D-1\")");
    assert_eq!(shop.runs.count(), 2);
    let again = shop.send(notification(r#"{"id":"D-1"}"#)).await;
    assert!(again.is_replay());
    assert!(shop.layer.drain(Duration::ZERO).await.is_clean());
}

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_while_its_delivery_id_turns_out_to_be_anothers_leaves_no_claim() {
    let store = Arc::new(FaultyStore::new(MemoryStore::new()));
    let faults = store.faults();
    let shop = Shop::new(store.clone(), policy(), fulfil);
    shop.send(notification(r#"{"id":"D-1","order":"O-1"}"#))
        .await
        .assert_text("O-1 by Some(\"D-1\")");
    for transition in [Transition::Claim, Transition::Release] {
        // It leaves before it knows, or while it calls off what it was granted.
        let gate = Gate::new();
        faults.next(transition, Fault::HoldAnswer(gate.clone()));
        let client = tokio::spawn({
            let shop = shop.clone();
            async move { shop.send(notification(r#"{"id":"D-1","order":"O-2"}"#)).await }
        });
        gate.arrived(1).await;
        client.abort();
        gate.open();
        sleep(Duration::from_secs(5)).await;
        let left = records(&store).await;
        assert!(left.iter().all(|record| record.leased.is_none()), "{transition:?}: {left:?}");
        assert!(left.iter().all(|record| !record.is_abandoned()), "{transition:?}: {left:?}");
    }
    shop.send(notification(r#"{"id":"D-2","order":"O-2"}"#))
        .await
        .assert_text("O-2 by Some(\"D-2\")");
    assert_eq!(shop.runs.count(), 2);
    assert!(shop.layer.drain(Duration::ZERO).await.is_clean());
}

#[tokio::test]
async fn a_business_key_with_the_text_of_a_delivery_id_is_another_name() {
    let shop = Shop::new(MemoryStore::new(), policy(), fulfil);
    shop.send(notification(r#"{"id":"X","order":"Y"}"#)).await.assert_text("Y by Some(\"X\")");
    shop.send(notification(r#"{"id":"Y","order":"X"}"#)).await.assert_text("X by Some(\"Y\")");
    shop.send(notification(r#"{"id":"Z","order":"Z"}"#)).await.assert_text("Z by Some(\"Z\")");
    assert_eq!(shop.runs.count(), 3);
    let mixed = shop.send(notification(r#"{"id":"X","order":"X"}"#)).await;
    assert_eq!(mixed.refusal(), Some(RefusalKind::Mismatch));
    assert!(shop.send(notification(r#"{"id":"Z"}"#)).await.is_replay());
}

/// A shop in which a delivery has run before there was a business key, and nobody knows what became of
/// it; then each run says what it found, and ends with this status.
async fn after_an_unknown_run(store: impl Store + Clone, status: u16) -> Shop {
    let before = Policy::webhook(json("/id"));
    let ended = Shop::new(store.clone(), before, |_| async { text(504, "nobody knows") });
    ended.send(notification(r#"{"id":"D-1","order":"O-1"}"#)).await.assert_text("nobody knows");
    Shop::new(store, policy().rerun_abandoned(), move |request: Asked| async move {
        let operation = request.extensions().get::<Operation>().expect("it runs");
        text(status, format!("{:?}", operation.previous()))
    })
}

#[tokio::test(start_paused = true)]
async fn an_unknown_run_of_a_delivery_stays_unknown_whatever_becomes_of_the_request_that_may_rerun_it()
 {
    for (transition, skip) in [
        (Transition::Claim, 2),
        (Transition::Renew, 0),
        (Transition::Resolve, 0),
        (Transition::Claim, 1),
    ] {
        let store = Arc::new(FaultyStore::new(MemoryStore::new()));
        let faults = store.faults();
        let shop = after_an_unknown_run(store.clone(), 200).await;
        let gate = Gate::new();
        for _ in 0..skip {
            faults.next(transition, Fault::None);
        }
        faults.next(transition, Fault::HoldAnswer(gate.clone()));
        let client = tokio::spawn(shop.send(notification(r#"{"id":"D-1","order":"O-1"}"#)));
        sleep(Duration::from_millis(100)).await;
        client.abort();
        gate.open();
        sleep(Duration::from_secs(10)).await;
        let again = shop.send(notification(r#"{"id":"D-1","order":"O-1"}"#)).await;
        again.assert_text("AbandonedUnknown");
        assert!(shop.layer.drain(Duration::from_secs(5)).await.is_clean());
    }
}

#[tokio::test]
async fn an_unknown_run_of_a_delivery_is_unknown_to_the_next_though_a_rerun_gave_back() {
    let store = MemoryStore::new();
    let shop = after_an_unknown_run(store, 503).await;
    for delivery in [
        r#"{"id":"D-1","order":"O-1"}"#,
        r#"{"id":"D-1","order":"O-1"}"#,
        r#"{"id":"D-2","order":"O-1"}"#,
        r#"{"id":"D-1"}"#,
    ] {
        shop.send(notification(delivery)).await.assert_text("AbandonedUnknown");
    }
    // The twin: another event's run is the first.
    shop.send(notification(r#"{"id":"D-3","order":"O-3"}"#)).await.assert_text("Nothing");
}

#[tokio::test(start_paused = true)]
async fn an_answer_for_a_delivery_id_that_became_another_name_is_told_and_not_kept_for_ever() {
    let store = Arc::new(FaultyStore::new(MemoryStore::new()));
    let faults = store.faults();
    // Somebody is wrong about a run whose answer could not be stored.
    let wrong = |_: Abandoned| async { Resolution::NotDone };
    let shop = Shop::new(store, policy().resolve_abandoned(wrong), |_| async { text(200, "paid") });
    faults.always(Transition::Complete, Fault::Fail(StoreErrorKind::Unreachable));
    shop.send(notification(r#"{"id":"D-1"}"#)).await.assert_text("paid");
    sleep(Duration::from_secs(60)).await;
    shop.send(notification(r#"{"id":"D-1","order":"O-1"}"#)).await.assert_text("paid");
    faults.heal();
    assert!(shop.layer.drain(Duration::from_secs(60)).await.is_clean());
    assert_eq!(shop.runs.count(), 2);
}
