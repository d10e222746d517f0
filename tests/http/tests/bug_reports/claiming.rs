//! Section A of the reports: who is granted the right to run.

use std::time::Duration;

use axum::{extract::Request, response::IntoResponse};
use http::{HeaderValue, StatusCode};
use tower_idempotency::{MemoryStore, Policy, json};
use tower_idempotency_test_support::Log;

use crate::support::{
    Runs, Shop, all_at_once, api, around, ask, assert_fresh, assert_refused, assert_replay, keyed,
    layer, notify, pay, post, retry_after, send_aside, serve, start, store_on, two_instances,
    webhook,
};

#[tokio::test]
async fn b01_of_requests_at_once_one_runs_and_the_others_are_told_to_come_again() {
    let shop = Shop::open();
    let server = serve(MemoryStore::new(), api(), shop.handler()).await;
    let servers = [server.clone()];
    for (i, copies) in [2, 10, 100].into_iter().enumerate() {
        let key = format!("k-{copies}");
        let (refused, answer) = all_at_once(&servers, &shop, copies, || pay(&key)).await;
        for refusal in refused {
            assert_refused(&refusal, 409, "in-progress");
            assert!(retry_after(&refusal) >= 1);
        }
        let run = format!("run {}", i + 1);
        assert_fresh(&answer, &run);
        assert_replay(&server.send(pay(&key)).await, &run);
    }
}

#[tokio::test]
async fn b01_of_requests_at_once_on_two_instances_one_runs() {
    let shop = Shop::open();
    let (_redis, servers) = two_instances(api(), &shop).await;
    for (i, copies) in [2, 10, 50].into_iter().enumerate() {
        let key = format!("k-{copies}");
        let (refused, answer) = all_at_once(&servers, &shop, copies, || pay(&key)).await;
        for refusal in refused {
            assert_refused(&refusal, 409, "in-progress");
        }
        let run = format!("run {}", i + 1);
        assert_fresh(&answer, &run);
        for server in &servers {
            assert_replay(&server.send(pay(&key)).await, &run);
        }
    }
}

#[tokio::test]
async fn b02_a_double_submit_ends_with_one_post_and_the_same_answer_for_both() {
    let shop = Shop::held();
    let policy = api().wait(Duration::from_secs(15));
    let (_redis, [one, two]) = two_instances(policy, &shop).await;
    let first = send_aside(&one, pay("k"));
    shop.started.wait_for(1).await;
    let (log, _guard) = Log::listen();
    let second = send_aside(&two, pay("k"));
    let third = send_aside(&one, pay("k"));
    // They wait for the first one's run, and do not run themselves.
    log.said("waiting", 2).await;
    assert!(!second.is_finished() && !third.is_finished());
    shop.let_go();
    assert_fresh(&first.await.unwrap(), "run 1");
    assert_replay(&second.await.unwrap(), "run 1");
    assert_replay(&third.await.unwrap(), "run 1");
    assert_eq!(shop.runs(), 1);
}

#[tokio::test]
async fn b03_a_claim_never_overwrites_the_claim_of_another_instance() {
    let shop = Shop::open();
    let (_redis, [one, two]) = two_instances(api(), &shop).await;
    for i in 0..30 {
        let key = format!("k-{i}");
        let answers = [send_aside(&one, pay(&key)), send_aside(&two, pay(&key))];
        let mut ran = 0;
        for answer in answers {
            let answer = answer.await.unwrap();
            match answer.status() {
                StatusCode::OK if crate::support::is_replay(&answer) => {}
                StatusCode::OK => ran += 1,
                _ => assert_refused(&answer, 409, "in-progress"),
            }
        }
        assert_eq!((ran, shop.runs()), (1, i + 1));
    }
}

#[tokio::test]
async fn b05_who_loses_a_race_is_in_conflict_and_never_told_that_the_store_is_down() {
    let shop = Shop::open();
    let server = serve(MemoryStore::new(), api(), shop.handler()).await;
    let (refused, _) = all_at_once(&[server], &shop, 50, || pay("k")).await;
    assert_eq!(refused.len(), 49);
    for refusal in refused {
        assert_refused(&refusal, 409, "in-progress");
        // At least a second, and no longer than the lease.
        assert!((1..=30).contains(&retry_after(&refusal)));
    }
}

#[tokio::test(start_paused = true)]
async fn b05_when_to_come_again_follows_the_run_and_not_a_constant() {
    let shop = Shop::held();
    let router = around(layer(MemoryStore::new(), api()), shop.handler());
    let first = tokio::spawn({
        let router = router.clone();
        async move { ask(&router, pay("k")).await }
    });
    shop.started.wait_for(1).await;
    let mut said = Vec::new();
    for _ in 0..3 {
        said.push(retry_after(&ask(&router, pay("k")).await));
        tokio::time::sleep(Duration::from_millis(7_500)).await;
    }
    assert_eq!(said, [1, 8, 15]);
    shop.let_go();
    assert_fresh(&first.await.unwrap(), "run 1");
}

#[tokio::test]
async fn b06_a_checkout_and_a_notification_of_one_payment_complete_it_once() {
    // One rule around both routes, and an identity that both of them carry.
    let policy = Policy::webhook(json("/payment"));
    let shop = Shop::held();
    let (_redis, [one, two]) = two_instances(policy, &shop).await;
    let payment = || r#"{"payment":"p1"}"#;
    let confirmed = send_aside(&one, post("/pay", payment()));
    shop.started.wait_for(1).await;
    assert_refused(&two.send(post("/notify", payment())).await, 503, "in-progress");
    shop.let_go();
    assert_fresh(&confirmed.await.unwrap(), "run 1");
    assert_replay(&two.send(post("/notify", payment())).await, "run 1");
    assert_fresh(&two.send(post("/notify", r#"{"payment":"p2"}"#)).await, "run 2");
}

#[tokio::test]
async fn b07_copies_of_a_notification_within_a_moment_run_once_and_are_acknowledged_after_it() {
    let shop = Shop::open();
    let (_redis, servers) = two_instances(webhook(), &shop).await;
    let (refused, answer) = all_at_once(&servers, &shop, 3, || notify("n1")).await;
    for refusal in refused {
        assert_refused(&refusal, 503, "in-progress");
        assert!(retry_after(&refusal) >= 1);
    }
    assert_fresh(&answer, "run 1");
    for server in &servers {
        assert_replay(&server.send(notify("n1")).await, "run 1");
    }
}

#[tokio::test]
async fn b07_a_run_that_fails_in_whatever_way_gives_the_notification_back() {
    let redis = crate::support::RedisServer::start().await;
    let runs = Runs::new();
    let counted = runs.clone();
    let ways = move || {
        let run = counted.add();
        async move {
            match run {
                1 => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
                2 => StatusCode::BAD_REQUEST.into_response(),
                3 => (StatusCode::FOUND, [("location", "/")]).into_response(),
                _ => "success".into_response(),
            }
        }
    };
    let one = serve(store_on(&redis).await, webhook(), ways.clone()).await;
    let two = serve(store_on(&redis).await, webhook(), ways).await;
    let mut statuses = Vec::new();
    for delivery in 0..6 {
        let server = if delivery % 2 == 0 { &one } else { &two };
        statuses.push(server.send(notify("n1")).await.status().as_u16());
    }
    assert_eq!(statuses, [500, 400, 302, 200, 200, 200]);
    assert_eq!(runs.count(), 4);
}

#[tokio::test]
async fn b08_what_differs_with_each_delivery_is_no_part_of_the_identity() {
    let shop = Shop::open();
    let router = around(layer(MemoryStore::new(), webhook()), shop.handler());
    // Also where a layer outside of ours adds something to each request.
    let server = start(router.layer(axum::middleware::from_fn({
        let requests = Runs::new();
        move |mut request: Request, next: axum::middleware::Next| {
            let id = HeaderValue::from(requests.add());
            request.headers_mut().insert("x-request-id", id);
            next.run(request)
        }
    })))
    .await;
    for delivery in 0..4 {
        let mut request = notify("n1");
        let value = HeaderValue::from(delivery);
        for name in ["traceparent", "x-forwarded-for", "date", "x-delivery-id", "user-agent"] {
            request.headers_mut().insert(name, value.clone());
        }
        server.send(request).await;
    }
    assert_eq!(shop.runs(), 1);
    // For an API the same: a key is one operation, over whatever connection it comes.
    let shop = Shop::open();
    let server = serve(MemoryStore::new(), api(), shop.handler()).await;
    for delivery in 0..4 {
        let mut request = keyed("/pay", "k", "amount=20");
        request.headers_mut().insert("traceparent", HeaderValue::from(delivery));
        server.send(request).await;
    }
    assert_eq!(shop.runs(), 1);
}
