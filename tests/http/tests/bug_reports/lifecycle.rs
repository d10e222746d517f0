//! Section B of the reports: how a claim lives and ends.

use std::time::Duration;

use axum::response::IntoResponse;
use bytes::Bytes;
use http::StatusCode;
use tower_idempotency::{
    ClaimToken, MemoryStore, Operation, Policy, Previous, RecordKey, Store,
    store::{Claim, Claimed, Kept},
    test_util::{Fault, FaultyStore, Gate, Transition},
};
use tower_idempotency_test_support::{Log, Proxy};

use crate::support::{
    Instance, RedisServer, Runs, Shop, all_at_once, api, around, ask, assert_fresh, assert_refused,
    assert_replay, layer, notice_gone, notify, only_key, pay, refusal, retry_after, send_aside,
    send_until, serve, start, store_on, streamed, two_instances, webhook, when_ended,
};

/// Long enough that a busy machine renews it in time, short enough to wait for its end.
const LEASE: Duration = Duration::from_millis(600);

/// An instance that dies in the middle of a run of `/pay` with key `k`.
async fn dies_while_running(store: impl Store, policy: Policy) {
    let shop = Shop::held();
    let mut instance = Instance::start(around(layer(store, policy), shop.handler())).await;
    let mut client = instance.server.connect().await;
    client.send("POST /pay HTTP/1.1\r\nhost: shop\r\nidempotency-key: k\r\n").await;
    client.send("content-length: 9\r\n\r\namount=20").await;
    shop.started.wait_for(1).await;
    instance.kill();
    assert_eq!(shop.finished.count(), 0);
}

#[tokio::test]
async fn b10_a_crash_blocks_its_key_for_a_lease_and_not_for_the_retention() {
    // Here the design differs from the report: the run that died may have happened, so that after
    // its lease it is refused as unknown. With `rerun_abandoned` it runs, which is the report's wish.
    let store = MemoryStore::new();
    dies_while_running(store.clone(), api().lease(LEASE)).await;
    let shop = Shop::open();
    let server = serve(store.clone(), api().lease(LEASE), shop.handler()).await;
    let unknown = send_until(
        &server,
        || pay("k"),
        |answer| refusal(answer).as_deref() == Some("outcome-unknown"),
        |answer| {
            assert_refused(answer, 409, "in-progress");
            assert_eq!(retry_after(answer), 1, "no more than the lease that is left");
        },
    )
    .await;
    assert_eq!(unknown.status(), 409);
    assert_eq!(shop.runs(), 0);

    let again = serve(store, api().lease(LEASE).rerun_abandoned(), shop.handler()).await;
    assert_fresh(&again.send(pay("k")).await, "run 1");
    assert_replay(&server.send(pay("k")).await, "run 1");
}

#[tokio::test]
async fn b11_a_client_that_backs_off_as_it_is_told_gets_through_after_a_crash() {
    // By the design's default it would be told that the outcome is unknown: see b10.
    let redis = RedisServer::start().await;
    let policy = api().lease(LEASE).rerun_abandoned();
    dies_while_running(store_on(&redis).await, policy.clone()).await;
    let shop = Shop::open();
    let server = serve(store_on(&redis).await, policy, shop.handler()).await;
    let mut told = 0;
    let answer = loop {
        let answer = server.send(pay("k")).await;
        if answer.status() == StatusCode::OK {
            break answer;
        }
        assert_refused(&answer, 409, "in-progress");
        told += 1;
        assert!(told <= 5, "still: {answer:?}");
        tokio::time::sleep(Duration::from_secs(retry_after(&answer))).await;
    };
    assert_fresh(&answer, "run 1");
    assert!(told <= 2, "a second is longer than its lease");
}

#[tokio::test(start_paused = true)]
async fn b12_a_lease_ends_to_the_millisecond_whether_it_is_a_whole_second_or_not() {
    // Here the design differs from the report: a lease is judged by the store's clock, and the
    // record outlives it, so that a crash leaves abandoned and never absent.
    for lease_ms in [999, 1000, 1001] {
        let store = MemoryStore::new();
        let key = RecordKey::from_bytes([7; 32]);
        let lease = Duration::from_millis(lease_ms);
        let claim = || {
            let hold = Duration::from_secs(60);
            Claim::new(key, ClaimToken::random(), None, lease, hold, Duration::from_secs(1))
        };
        assert!(matches!(store.claim(claim()).await, Ok(Claimed::Granted(_))));
        tokio::time::advance(lease - Duration::from_millis(2)).await;
        let held = store.claim(claim()).await;
        assert!(matches!(held, Ok(Claimed::InProgress(_))), "{lease:?}: {held:?}");
        tokio::time::advance(Duration::from_millis(3)).await;
        let lapsed = store.claim(claim()).await;
        assert!(matches!(lapsed, Ok(Claimed::Abandoned(_))), "{lease:?}: {lapsed:?}");
    }
}

#[test]
fn b13_a_lease_of_nothing_is_refused_where_the_policy_is_built() {
    for nothing in [Duration::ZERO, Duration::from_micros(999)] {
        let error = api().lease(nothing).check().unwrap_err().to_string();
        assert!(error.contains("lease") && error.contains("1 ms"), "{error}");
    }
    api().lease(Duration::from_millis(1)).check().unwrap();
}

#[tokio::test]
async fn b14_whatever_kind_of_answer_ends_a_run_the_next_request_is_no_conflict() {
    let runs = Runs::new();
    let counted = runs.clone();
    let handler = move |body: Bytes| {
        counted.add();
        async move {
            match &body[..] {
                b"204" => StatusCode::NO_CONTENT.into_response(),
                b"302" => (StatusCode::FOUND, [("location", "/done")]).into_response(),
                b"text" => "done".into_response(),
                b"404" => (StatusCode::NOT_FOUND, "no such order").into_response(),
                b"empty" => ().into_response(),
                _ => streamed(["do", "ne"]).into_response(),
            }
        }
    };
    let server = serve(MemoryStore::new(), api(), handler).await;
    for (i, kind) in ["204", "302", "text", "404", "empty", "stream"].into_iter().enumerate() {
        let request = || crate::support::keyed("/pay", kind, kind);
        let first = server.send(request()).await;
        let second = server.send(request()).await;
        assert_eq!(second.status(), first.status(), "{kind}");
        assert_replay(&second, std::str::from_utf8(first.body()).unwrap());
        assert_eq!(runs.count(), i + 1);
    }
}

#[tokio::test]
async fn b16_a_run_whose_client_hung_up_is_stored() {
    let (shop, gone) = (Shop::held(), Runs::new());
    let router = around(layer(MemoryStore::new(), api()), shop.handler());
    let server = start(notice_gone(router, &gone)).await;
    let first = send_aside(&server, pay("k"));
    shop.started.wait_for(1).await;
    first.abort();
    gone.wait_for(1).await;
    assert_eq!(shop.finished.count(), 0);
    shop.let_go();
    assert_replay(&when_ended(&server, || pay("k")).await, "run 1");
    assert_eq!((shop.runs(), shop.finished.count()), (1, 1));
}

#[tokio::test]
async fn b17_a_key_is_given_back_although_its_client_has_left() {
    let (started, gone, gate) = (Runs::new(), Runs::new(), Runs::new());
    let handler = {
        let (started, gate) = (started.clone(), gate.clone());
        move || {
            let (run, gate) = (started.add(), gate.clone());
            async move {
                gate.wait_for(1).await;
                if run == 1 { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK }
            }
        }
    };
    let redis = RedisServer::start().await;
    let router = around(layer(store_on(&redis).await, api()), handler);
    let server = start(notice_gone(router, &gone)).await;
    let first = send_aside(&server, pay("k"));
    started.wait_for(1).await;
    first.abort();
    gone.wait_for(1).await;
    assert_refused(&server.send(pay("k")).await, 409, "in-progress");
    gate.add();
    // Not after the 30 s of its lease, and not as unknown.
    let answer = when_ended(&server, || pay("k")).await;
    assert_eq!((answer.status(), started.count()), (StatusCode::OK, 2));
}

#[tokio::test]
async fn b17_a_claim_whose_client_has_left_before_its_answer_is_called_off() {
    let (shop, gone) = (Shop::open(), Runs::new());
    let store = FaultyStore::new(MemoryStore::new());
    let faults = store.faults();
    let router = around(layer(store, api()), shop.handler());
    let server = start(notice_gone(router, &gone)).await;
    let gate = Gate::new();
    faults.next(Transition::Claim, Fault::HoldAnswer(gate.clone()));
    let first = send_aside(&server, pay("k"));
    gate.arrived(1).await;
    first.abort();
    gone.wait_for(1).await;
    gate.open();
    assert_fresh(&when_ended(&server, || pay("k")).await, "run 1");
    assert_eq!(shop.runs(), 1);
}

#[tokio::test]
async fn b18_a_client_that_leaves_after_the_bank_was_called_frees_nothing() {
    let (shop, gone) = (Shop::held(), Runs::new());
    let router = around(layer(MemoryStore::new(), api()), shop.handler());
    let server = start(notice_gone(router, &gone)).await;
    let first = send_aside(&server, pay("k"));
    shop.started.wait_for(1).await;
    first.abort();
    gone.wait_for(1).await;
    for _ in 0..5 {
        assert_refused(&server.send(pay("k")).await, 409, "in-progress");
    }
    assert_eq!(shop.runs(), 1);
    shop.let_go();
    assert_replay(&when_ended(&server, || pay("k")).await, "run 1");
}

#[tokio::test]
async fn b19_after_an_end_that_tells_nothing_the_policy_says_what_happens() {
    let handler = |operation: Operation| async move {
        match operation.attempt() {
            1 => (StatusCode::GATEWAY_TIMEOUT, "the bank did not answer".to_owned()),
            _ => (StatusCode::OK, format!("{:?}", operation.previous())),
        }
    };
    let redis = RedisServer::start().await;
    let keeps = serve(store_on(&redis).await, api(), handler).await;
    assert_eq!(keeps.send(pay("k")).await.status(), 504);
    for _ in 0..3 {
        assert_refused(&keeps.send(pay("k")).await, 409, "outcome-unknown");
    }
    let reruns = serve(store_on(&redis).await, api().rerun_abandoned(), handler).await;
    let unknown = format!("{:?}", Previous::AbandonedUnknown);
    assert_fresh(&reruns.send(pay("k")).await, &unknown);
    assert_replay(&keeps.send(pay("k")).await, &unknown);
}

#[tokio::test]
async fn b20_a_record_with_unknown_fields_is_not_free() {
    // Here the design differs from the report: such a record is no claim that is held, but one that
    // cannot be read. It is refused, left as it is, and an operator is told.
    let shop = Shop::held();
    let (redis, [one, two]) = two_instances(api(), &shop).await;
    let first = send_aside(&one, pay("k"));
    shop.started.wait_for(1).await;
    let store = store_on(&redis).await;
    let name = format!("idempotency:{}", only_key(&store).await);
    let newer = "9 in-progress by=somebody";
    redis.command(&["SET", &name, newer, "PX", "60000"]).await;
    for server in [&one, &two] {
        assert_refused(&server.send(pay("k")).await, 503, "record-unreadable");
    }
    shop.let_go();
    // Its owner has an answer for its client, and does not overwrite it either.
    assert_fresh(&first.await.unwrap(), "run 1");
    assert_refused(&two.send(pay("k")).await, 503, "record-unreadable");
    let stored = redis.command(&["GET", &name]).await;
    assert_eq!(stored, tower_idempotency_test_support::redis::Value::BulkString(newer.into()));
    assert_eq!(shop.runs(), 1);
}

#[tokio::test]
async fn b23_who_has_lost_its_lease_cannot_give_away_the_claim_of_the_next() {
    let redis = RedisServer::start().await;
    let proxy = Proxy::to(redis.address()).await;
    let policy = api().lease(LEASE).rerun_abandoned();
    let slow = Shop::held();
    let fails = {
        let slow = slow.clone();
        move || {
            let slow = slow.clone();
            async move { (StatusCode::SERVICE_UNAVAILABLE, slow.run().await) }
        }
    };
    let store = tower_idempotency::RedisStore::connect(&proxy.redis_url()).await.unwrap();
    let slow_layer = layer(store, policy.clone());
    let a = start(around(slow_layer.clone(), fails)).await;
    let shop = Shop::held();
    let b = serve(store_on(&redis).await, policy, shop.handler()).await;

    let at_a = send_aside(&a, pay("k"));
    slow.started.wait_for(1).await;
    proxy.black_hole();
    let at_b = loop {
        // It is in conflict until the lease of the first is over.
        let sent = send_aside(&b, pay("k"));
        tokio::select! {
            () = shop.started.wait_for(1) => break sent,
            () = async { while !sent.is_finished() { tokio::task::yield_now().await } } => {}
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    proxy.heal();
    slow.let_go();
    assert_eq!(at_a.await.unwrap().status(), 503);
    // Whatever it had to give back has reached the store.
    assert!(slow_layer.drain(Duration::from_secs(10)).await.is_clean());
    assert_refused(&b.send(pay("k")).await, 409, "in-progress");
    assert_eq!(shop.runs(), 1);
    shop.let_go();
    assert_fresh(&at_b.await.unwrap(), "run 1");
    assert_replay(&b.send(pay("k")).await, "run 1");
}

#[tokio::test(start_paused = true)]
async fn b24_after_the_retention_a_key_is_new_and_nothing_of_it_is_left() {
    let shop = Shop::open();
    let store = MemoryStore::new();
    let router = around(layer(store.clone(), api()), shop.handler());
    let day = Duration::from_secs(24 * 60 * 60);
    assert_fresh(&ask(&router, pay("k")).await, "run 1");
    tokio::time::advance(day - Duration::from_secs(1)).await;
    assert_replay(&ask(&router, pay("k")).await, "run 1");
    tokio::time::advance(Duration::from_secs(2)).await;
    assert_fresh(&ask(&router, pay("k")).await, "run 2");
    assert_eq!(store.len(), 1);
    // Nothing else remembers keys, however many there were.
    for i in 0..100 {
        ask(&router, pay(&format!("k-{i}"))).await;
    }
    tokio::time::advance(8 * day).await;
    for i in 0..200 {
        ask(&router, pay(&format!("other-{i}"))).await;
    }
    assert_eq!(store.len(), 200);
}

#[tokio::test]
async fn b25_a_claim_is_never_read_as_a_stored_response() {
    let shop = Shop::open();
    let server = serve(MemoryStore::new(), webhook(), shop.handler()).await;
    let (refused, _) = all_at_once(&[server], &shop, 20, || notify("n1")).await;
    for refusal in refused {
        assert_refused(&refusal, 503, "in-progress");
    }
    let shop = Shop::held();
    let policy = webhook().wait(Duration::from_secs(15));
    let (_redis, [one, two]) = two_instances(policy, &shop).await;
    let first = send_aside(&one, notify("n1"));
    shop.started.wait_for(1).await;
    let (log, _guard) = Log::listen();
    let polls = [send_aside(&two, notify("n1")), send_aside(&one, notify("n1"))];
    log.said("waiting", 2).await;
    shop.let_go();
    assert_fresh(&first.await.unwrap(), "run 1");
    for poll in polls {
        assert_replay(&poll.await.unwrap(), "run 1");
    }
}

/// Puts `payload` in place of the answer of the only record there is.
async fn replace_answer(store: &MemoryStore, payload: Bytes) {
    let key = only_key(store).await;
    let week = Duration::from_secs(7 * 24 * 60 * 60);
    let claim = Claim::new(key, ClaimToken::random(), None, LEASE, week, Duration::from_secs(1));
    let Ok(Claimed::Granted(grant)) = store.claim(claim).await else { panic!("not free") };
    assert!(store.complete(&grant, Kept::new(payload, week)).await.unwrap().is_stored());
}

#[tokio::test]
async fn b26_and_b27_a_completed_record_that_cannot_be_read_is_no_conflict_and_no_run() {
    // What a run stores, which the damaged ones are made of.
    let store = MemoryStore::new();
    let server = serve(store.clone(), webhook(), || async { "success" }).await;
    server.send(notify("n1")).await;
    let look = Claim::new(
        only_key(&store).await,
        ClaimToken::random(),
        None,
        LEASE,
        LEASE,
        Duration::ZERO,
    );
    let Ok(Claimed::Completed(whole)) = store.claim(look).await else { panic!("not completed") };
    let whole = whole.payload;

    let another_version = |position: usize, by: u8| {
        let mut payload = whole.to_vec();
        payload[position] = payload[position].wrapping_add(by);
        Bytes::from(payload)
    };
    let mut damaged = vec![
        Bytes::new(),
        Bytes::from_static(b"\0"),
        Bytes::from_static(b"{\"status\":200,\"body\":\"success\"}"),
        Bytes::from(vec![0xff; 300]),
        // Another key's, and the format's number, which stands behind the key.
        another_version(0, 1),
        another_version(32, 1),
        another_version(32, 100),
    ];
    damaged.extend((1..whole.len()).step_by(7).map(|length| whole.slice(..length)));
    for payload in damaged {
        let runs = Runs::new();
        let counted = runs.clone();
        let handler = move || {
            counted.add();
            async { StatusCode::SERVICE_UNAVAILABLE }
        };
        let store = MemoryStore::new();
        let server = serve(store.clone(), webhook(), handler).await;
        // Its first run is given back, so that there is a key to plant an answer under.
        server.send(notify("n1")).await;
        replace_answer(&store, payload.clone()).await;
        for _ in 0..3 {
            let answer = server.send(notify("n1")).await;
            assert_eq!(refusal(&answer).as_deref(), Some("record-unreadable"), "{payload:?}");
            assert_eq!(answer.status(), 503);
        }
        assert_eq!(runs.count(), 1, "{payload:?}");
    }
    // The way of planting is right: whole, it is replayed.
    let store = MemoryStore::new();
    let server = serve(store.clone(), webhook(), || async { StatusCode::BAD_REQUEST }).await;
    server.send(notify("n1")).await;
    replace_answer(&store, whole).await;
    assert_replay(&server.send(notify("n1")).await, "success");
}

#[tokio::test]
async fn b27_and_b28_what_is_no_record_of_ours_is_refused_and_left_as_it_is() {
    let shop = Shop::open();
    let redis = RedisServer::start().await;
    let server = serve(store_on(&redis).await, webhook(), shop.handler()).await;
    server.send(notify("n1")).await;
    let name = format!("idempotency:{}", only_key(&store_on(&redis).await).await);
    let plants: [&[&str]; 6] = [
        &["SET", &name, ""],
        &["SET", &name, "1"],
        &["SET", &name, "\u{1}\u{2}\u{3} junk of some length, as another program might write it"],
        &["SET", &name, "{\"status\":200}"],
        &["HSET", &name, "field", "value"],
        &["LPUSH", &name, "value"],
    ];
    for plant in plants {
        redis.command(&["DEL", &name]).await;
        redis.command(plant).await;
        let before = redis.command(&["DUMP", &name]).await;
        for _ in 0..2 {
            assert_refused(&server.send(notify("n1")).await, 503, "record-unreadable");
        }
        assert_eq!(redis.command(&["DUMP", &name]).await, before, "{plant:?}");
    }
    assert_eq!(shop.runs(), 1);
    redis.command(&["DEL", &name]).await;
    assert_fresh(&server.send(notify("n1")).await, "run 2");
}
