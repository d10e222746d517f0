//! Section C of the reports: which outcome is recorded.

use std::time::Duration;

use axum::{http::StatusCode, response::IntoResponse};
use tower_idempotency::{
    MemoryStore, Operation, Outcome, State, Store,
    store::Cursor,
    test_util::{FaultyStore, Transition},
};

use crate::support::{
    Instance, RedisServer, Runs, Shop, api, around, assert_fresh, assert_refused, assert_replay,
    bare, keyed, layer, map_answers, notify, pay, retry_after, send_aside, serve, start, store_on,
    two_instances, webhook, when_ended,
};

/// Answers each run with the next of these statuses, then 200; the body is the number of the run.
fn statuses<const N: usize>(
    runs: &Runs,
    statuses: [u16; N],
) -> impl axum::handler::Handler<((),), ()> + use<N> {
    let runs = runs.clone();
    move || {
        let run = runs.add();
        let status = statuses.get(run - 1).copied().unwrap_or(200);
        async move { (StatusCode::from_u16(status).unwrap(), run.to_string()) }
    }
}

#[tokio::test]
async fn b29_a_failure_that_passes_is_not_replayed_to_a_sender_that_tries_again() {
    let runs = Runs::new();
    let server = serve(MemoryStore::new(), webhook(), statuses(&runs, [500])).await;
    assert_eq!(server.send(notify("n1")).await.status(), 500);
    assert_fresh(&server.send(notify("n1")).await, "2");
    // Here the design differs from the report: to an API's client a 500 is an answer like another,
    // which is kept; only the policy knows that it stands for "it did not happen".
    let runs = Runs::new();
    let server = serve(MemoryStore::new(), api(), statuses(&runs, [500])).await;
    assert_eq!(server.send(pay("k")).await.status(), 500);
    let kept = server.send(pay("k")).await;
    assert_eq!(kept.status(), 500);
    assert_replay(&kept, "1");
    let runs = Runs::new();
    let policy = api().release([StatusCode::INTERNAL_SERVER_ERROR]);
    let server = serve(MemoryStore::new(), policy, statuses(&runs, [500])).await;
    assert_eq!(server.send(pay("k")).await.status(), 500);
    assert_fresh(&server.send(pay("k")).await, "2");
}

#[tokio::test]
async fn b30_answers_from_before_any_effect_do_not_use_up_the_key() {
    for status in [401, 403, 423, 425, 429, 503] {
        let runs = Runs::new();
        let server = serve(MemoryStore::new(), api(), statuses(&runs, [status])).await;
        assert_eq!(server.send(pay("k")).await.status(), status);
        assert_fresh(&server.send(pay("k")).await, "2");
        assert_replay(&server.send(pay("k")).await, "2");
    }
    // A time-out (408) is not stored either, but it is no word about what happened.
    let runs = Runs::new();
    let server = serve(MemoryStore::new(), api(), statuses(&runs, [408])).await;
    assert_eq!(server.send(pay("k")).await.status(), 408);
    assert_refused(&server.send(pay("k")).await, 409, "outcome-unknown");
    // A failed validation is not stored where the policy says so; nor is its body held against the
    // corrected one.
    let runs = Runs::new();
    let policy = api().release([StatusCode::BAD_REQUEST]);
    let server = serve(MemoryStore::new(), policy, statuses(&runs, [400])).await;
    assert_eq!(server.send(keyed("/pay", "k", "amount=x")).await.status(), 400);
    assert_fresh(&server.send(keyed("/pay", "k", "amount=20")).await, "2");
    assert_refused(&server.send(keyed("/pay", "k", "amount=x")).await, 422, "mismatch");
}

#[tokio::test]
async fn b31_the_answer_to_a_wrong_code_is_not_the_answer_to_the_right_one() {
    let check = |body: String| async move {
        match body.as_str() {
            "code=222" => (StatusCode::OK, "welcome"),
            _ => (StatusCode::BAD_REQUEST, "wrong code"),
        }
    };
    let server = serve(MemoryStore::new(), api(), check).await;
    assert_eq!(server.send(keyed("/pay", "k", "code=111")).await.status(), 400);
    assert_refused(&server.send(keyed("/pay", "k", "code=222")).await, 422, "mismatch");
    let policy = api().release([StatusCode::BAD_REQUEST]);
    let server = serve(MemoryStore::new(), policy, check).await;
    assert_eq!(server.send(keyed("/pay", "k", "code=111")).await.status(), 400);
    assert_fresh(&server.send(keyed("/pay", "k", "code=222")).await, "welcome");
}

#[tokio::test]
async fn b32_a_conflict_that_is_final_is_replayed_where_the_policy_says_so() {
    let runs = Runs::new();
    let policy = api().keep([StatusCode::CONFLICT]);
    let server = serve(MemoryStore::new(), policy, statuses(&runs, [409])).await;
    assert_eq!(server.send(pay("seat")).await.status(), 409);
    let again = server.send(pay("seat")).await;
    assert_eq!(again.status(), 409);
    assert_replay(&again, "1");
    let runs = Runs::new();
    let server = serve(MemoryStore::new(), api(), statuses(&runs, [409])).await;
    assert_eq!(server.send(pay("seat")).await.status(), 409);
    assert_fresh(&server.send(pay("seat")).await, "2");
}

#[tokio::test]
async fn b33_what_a_status_from_behind_means_can_be_chosen_for_each() {
    for status in [StatusCode::GATEWAY_TIMEOUT, StatusCode::INTERNAL_SERVER_ERROR] {
        let of = |policy| async move {
            let runs = Runs::new();
            let server =
                serve(MemoryStore::new(), policy, statuses(&runs, [status.as_u16()])).await;
            assert_eq!(server.send(pay("k")).await.status(), status);
            server.send(pay("k")).await
        };
        assert_replay(&of(api().keep([status])).await, "1");
        assert_fresh(&of(api().release([status])).await, "2");
        assert_refused(&of(api().uncertain([status])).await, 409, "outcome-unknown");
    }
    let runs = Runs::new();
    let server = serve(MemoryStore::new(), api(), statuses(&runs, [504])).await;
    assert_eq!(server.send(pay("k")).await.status(), 504);
    // The default is the careful one, as long as nobody settles it.
    for _ in 0..3 {
        assert_refused(&server.send(pay("k")).await, 409, "outcome-unknown");
    }
    assert_eq!(runs.count(), 1);
}

#[tokio::test]
async fn b34_an_error_mapper_outside_does_not_hide_the_answer_from_the_record() {
    let breaks = |mut response: axum::response::Response| {
        if !response.headers().contains_key("idempotent-replayed") {
            *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        }
        response
    };
    let shop = Shop::open();
    let router = around(layer(MemoryStore::new(), api()), shop.handler());
    let server = start(map_answers(router, breaks)).await;
    assert_eq!(server.send(pay("k")).await.status(), 503);
    let again = server.send(pay("k")).await;
    assert_eq!(again.status(), 200);
    assert_replay(&again, "run 1");
    assert_eq!(shop.runs(), 1);
    // Inside, it is the mapper's answer that counts: the documents say so. A time-out that cuts a
    // run off there is at least never taken for "it did not happen".
    let cuts = |mut response: axum::response::Response| {
        *response.status_mut() = StatusCode::GATEWAY_TIMEOUT;
        response
    };
    let shop = Shop::open();
    let inside = map_answers(bare(shop.handler()), cuts);
    let server = start(inside.layer(layer(MemoryStore::new(), api()))).await;
    assert_eq!(server.send(pay("k")).await.status(), 504);
    assert_refused(&server.send(pay("k")).await, 409, "outcome-unknown");
    assert_eq!(shop.runs(), 1);
}

#[tokio::test]
async fn b37_a_failed_run_is_never_acknowledged() {
    let runs = Runs::new();
    let server = serve(MemoryStore::new(), webhook(), statuses(&runs, [500, 502, 500])).await;
    assert_eq!(server.send(notify("n1")).await.status(), 500);
    assert_eq!(server.send(notify("n1")).await.status(), 502);
    // A bad gateway tells nobody what happened, so that this notification is settled by hand.
    assert_refused(&server.send(notify("n1")).await, 503, "outcome-unknown");
    let runs = Runs::new();
    let server = serve(MemoryStore::new(), webhook(), statuses(&runs, [500, 400, 500])).await;
    let mut seen = Vec::new();
    for _ in 0..5 {
        seen.push(server.send(notify("n1")).await.status().as_u16());
    }
    assert_eq!((seen, runs.count()), (vec![500, 400, 500, 200, 200], 4));
}

#[tokio::test]
async fn b38_nothing_is_stored_or_acknowledged_before_the_handler_has_answered() {
    let shop = Shop::held();
    let store = FaultyStore::new(MemoryStore::new());
    let calls = store.faults();
    let server = serve(store, webhook(), shop.handler()).await;
    let first = send_aside(&server, notify("n1"));
    shop.started.wait_for(1).await;
    assert_refused(&server.send(notify("n1")).await, 503, "in-progress");
    assert_eq!(calls.calls(Transition::Complete), 0);
    shop.let_go();
    assert_fresh(&first.await.unwrap(), "run 1");
    assert_eq!(calls.calls(Transition::Complete), 1, "before the client had its answer");
    // What a handler that acknowledges first does afterwards is beyond the record: unless it says so.
    let early = |operation: Operation| async move {
        match operation.attempt() {
            1 => axum::Extension(Outcome::Release).into_response(),
            _ => "done".into_response(),
        }
    };
    let server = serve(MemoryStore::new(), webhook(), early).await;
    assert_eq!(server.send(notify("n1")).await.status(), 200);
    assert_fresh(&server.send(notify("n1")).await, "done");
}

#[tokio::test]
async fn b39_what_is_completed_stays_so_whoever_comes() {
    let shop = Shop::open();
    let (redis, [one, two]) = two_instances(webhook(), &shop).await;
    assert_fresh(&one.send(notify("n1")).await, "run 1");
    drop(one);
    for _ in 0..3 {
        // An instance that has just started, and would run what is abandoned.
        let policy = webhook().lease(Duration::from_millis(100)).rerun_abandoned();
        let new = serve(store_on(&redis).await, policy, shop.handler()).await;
        assert_replay(&new.send(notify("n1")).await, "run 1");
        assert_replay(&two.send(notify("n1")).await, "run 1");
    }
    let page = store_on(&redis).await.scan(Cursor::START, 10).await.unwrap();
    assert_eq!(page.records.len(), 1);
    assert_eq!((page.records[0].state, page.records[0].attempt), (State::Completed, 1));
}

#[tokio::test]
async fn b40_a_copy_of_what_is_in_flight_is_never_told_that_it_worked() {
    let redis = RedisServer::start().await;
    let policy = webhook().lease(Duration::from_millis(600));
    let dying = Shop::held();
    let router = around(layer(store_on(&redis).await, policy.clone()), dying.handler());
    let mut claimer = Instance::start(router).await;
    let mut client = claimer.server.connect().await;
    client.send("POST /notify HTTP/1.1\r\nhost: shop\r\ncontent-length: 17\r\n\r\n").await;
    client.send(r#"{"notifyId":"n1"}"#).await;
    dying.started.wait_for(1).await;
    let shop = Shop::open();
    let other = serve(store_on(&redis).await, policy, shop.handler()).await;
    let refused = other.send(notify("n1")).await;
    assert_refused(&refused, 503, "in-progress");
    assert!(retry_after(&refused) >= 1);
    // Nor when the claimer has died.
    claimer.kill();
    let unknown = when_ended(&other, || notify("n1")).await;
    assert_refused(&unknown, 503, "outcome-unknown");
    assert_eq!(retry_after(&unknown), 60);
    assert_eq!(shop.runs(), 0);
}

#[tokio::test]
async fn b41_each_redelivery_gets_the_acknowledgement_again() {
    let shop = Shop::open();
    let (_redis, servers) = two_instances(webhook(), &shop).await;
    assert_fresh(&servers[0].send(notify("n1")).await, "run 1");
    for delivery in 0..50 {
        let answer = servers[delivery % 2].send(notify("n1")).await;
        assert_eq!(answer.status(), 200);
        assert_replay(&answer, "run 1");
    }
    assert_eq!(shop.runs(), 1);
}
