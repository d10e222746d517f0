//! The end of section I of the reports: many requests for one key, and many keys at once.

use std::time::Duration;

use axum::response::IntoResponse;
use http::StatusCode;
use tokio::task::JoinSet;
use tower_idempotency::{
    MemoryStore, State, Store,
    store::Cursor,
    test_util::{FaultyStore, Transition},
};
use tower_idempotency_test_support::Log;

use crate::support::{
    Shop, api, around, ask, assert_fresh, assert_refused, assert_replay, is_replay, layer, pay,
    refusal, send_aside, serve,
};

#[tokio::test]
async fn b120_one_key_does_not_hold_up_another() {
    let shop = Shop::held();
    let server = serve(MemoryStore::new(), api(), shop.handler()).await;
    let first = send_aside(&server, pay("k1"));
    shop.started.wait_for(1).await;
    let second = send_aside(&server, pay("k2"));
    // It runs although the first one does not end.
    shop.started.wait_for(2).await;
    shop.let_go();
    assert_fresh(&first.await.unwrap(), "run 1");
    assert_fresh(&second.await.unwrap(), "run 2");
}

#[tokio::test]
async fn b121_a_copy_of_a_hot_key_costs_two_trips_to_the_store_at_most() {
    let shop = Shop::held();
    let store = FaultyStore::new(MemoryStore::new());
    let calls = store.faults();
    let server = serve(store, api(), shop.handler()).await;
    let first = send_aside(&server, pay("hot"));
    shop.started.wait_for(1).await;
    let copies = 200;
    let mut sending = JoinSet::new();
    for _ in 0..copies {
        let server = server.clone();
        sending.spawn(async move { server.send(pay("hot")).await });
    }
    while let Some(answer) = sending.join_next().await {
        assert_refused(&answer.unwrap(), 409, "in-progress");
    }
    let trips = calls.calls(Transition::Claim) - 1;
    assert!(trips <= 2 * copies, "{trips}");
    for writes in [Transition::Complete, Transition::Release] {
        assert_eq!(calls.calls(writes), 0, "{writes:?}");
    }
    shop.let_go();
    first.await.unwrap();
}

#[tokio::test]
async fn b122_waiting_is_bounded_in_number_and_starves_nobody() {
    let shop = Shop::held();
    let store = FaultyStore::new(MemoryStore::new());
    let calls = store.faults();
    let policy = api().wait(Duration::from_secs(60));
    let router = around(layer(store, policy), shop.handler());
    let ask_aside = |sending: &mut JoinSet<_>, key: &'static str| {
        let router = router.clone();
        sending.spawn(async move { ask(&router, pay(key)).await });
    };
    let mut first = JoinSet::new();
    ask_aside(&mut first, "k");
    shop.started.wait_for(1).await;
    let (log, _guard) = Log::listen();
    let mut waiting = JoinSet::new();
    for _ in 0..1100 {
        ask_aside(&mut waiting, "k");
    }
    // Past the 1,024 that may wait, the others are told at once.
    for _ in 0..1100 - 1024 {
        assert_refused(&waiting.join_next().await.unwrap().unwrap(), 409, "in-progress");
    }
    log.said("waiting", 1024).await;
    assert_eq!((waiting.len(), log.of("waiting").len()), (1024, 1024));
    // Another key runs and is stored meanwhile.
    let mut other = JoinSet::new();
    ask_aside(&mut other, "other");
    shop.started.wait_for(2).await;
    shop.let_go();
    assert_fresh(&other.join_next().await.unwrap().unwrap(), "run 2");
    assert_fresh(&first.join_next().await.unwrap().unwrap(), "run 1");
    while let Some(answer) = waiting.join_next().await {
        assert_replay(&answer.unwrap(), "run 1");
    }
    assert_eq!(shop.runs(), 2);
    // They looked now and then, not as often as they could.
    let looks = calls.calls(Transition::Claim);
    assert!(looks < 1100 * 60, "{looks}");
}

#[tokio::test(start_paused = true)]
async fn b122_who_has_waited_for_long_enough_is_refused() {
    let shop = Shop::held();
    let router =
        around(layer(MemoryStore::new(), api().wait(Duration::from_secs(5))), shop.handler());
    let first = tokio::spawn({
        let router = router.clone();
        async move { ask(&router, pay("k")).await }
    });
    shop.started.wait_for(1).await;
    let asked = tokio::time::Instant::now();
    assert_refused(&ask(&router, pay("k")).await, 409, "in-progress");
    let waited = asked.elapsed();
    assert!((5.0..5.6).contains(&waited.as_secs_f32()), "{waited:?}");
    shop.let_go();
    assert_fresh(&first.await.unwrap(), "run 1");
}

#[tokio::test(start_paused = true)]
async fn b123_after_a_storm_of_panics_and_cancellations_no_key_is_held() {
    let store = MemoryStore::new();
    let handler = || async {
        let luck = rand::random_range(0..10);
        tokio::time::sleep(Duration::from_millis(rand::random_range(0..50))).await;
        match luck {
            0 => panic!("the handler of this test panics"),
            1 => StatusCode::SERVICE_UNAVAILABLE.into_response(),
            2 => StatusCode::GATEWAY_TIMEOUT.into_response(),
            _ => "done".into_response(),
        }
    };
    let policy = api().lease(Duration::from_secs(2)).wait(Duration::from_millis(20));
    let layer = layer(store.clone(), policy.rerun_abandoned());
    let router = around(layer.clone(), handler);
    let mut storm = JoinSet::new();
    for _ in 0..2000 {
        let router = router.clone();
        let key = format!("k-{}", rand::random_range(0..100));
        let request = storm.spawn(async move { ask(&router, pay(&key)).await });
        tokio::time::sleep(Duration::from_millis(rand::random_range(0..4))).await;
        if rand::random_range(0..4) == 0 {
            request.abort();
        }
    }
    while storm.join_next().await.is_some() {}
    // Runs whose client has gone end by themselves.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let page = store.scan(Cursor::START, 1000).await.unwrap();
    assert!(page.records.len() > 50, "there was a storm");
    for record in &page.records {
        assert_eq!(record.leased, None, "nobody runs it: {record:?}");
        assert_ne!(record.state, State::Issued);
    }
    for key in 0..100 {
        let mut answer = None;
        // A handler that panics again says nothing about the key.
        for _ in 0..50 {
            let router = router.clone();
            let key = format!("k-{key}");
            let asked = tokio::spawn(async move { ask(&router, pay(&key)).await }).await;
            if let Ok(asked) = asked {
                assert_eq!(refusal(&asked), None, "{asked:?}");
                answer = Some(asked);
                break;
            }
        }
        assert!(answer.is_some_and(|answer| is_replay(&answer) || answer.status() != 409));
    }
    assert!(layer.drain(Duration::from_secs(5)).await.is_clean());
}
