//! The hazards that trying the API found, H1 to H9.

use std::{
    sync::{Arc, atomic::AtomicUsize},
    time::Duration,
};

use http::StatusCode;
use http_body_util::BodyExt;
use tokio::time::{Instant, sleep, timeout};
use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
use tower_idempotency::{
    IdempotencyLayer, MemoryStore, Policy, RefusalKind, Rule, json,
    test_util::{Fault, Gate, Transition},
};

use crate::house::{
    Asked, Chunks, House, SECOND, api, leave, request, request_of, respond, settle, text,
};

fn webhook() -> Policy {
    Policy::webhook(json("/id"))
}

#[tokio::test(start_paused = true)]
async fn h1_a_client_that_leaves_during_the_claim_does_not_lose_its_key() {
    let house = House::new(api());
    let gate = Gate::new();
    house.faults.next(Transition::Claim, Fault::HoldAnswer(gate.clone()));
    let client = house.client("k");
    gate.arrived(1).await;
    leave(client).await;
    gate.open();
    sleep(3600 * SECOND).await;
    house.send("k").await.is_executed();
    assert_eq!(house.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn h2_two_routes_over_one_store_never_answer_for_each_other() {
    let memory = MemoryStore::new();
    let of =
        |name: &'static str, answer: &'static str| {
            House::of(memory.clone(), Rule::new(name, webhook()), move |_| async move {
                text(200, answer)
            })
        };
    let (paid, shipped) = (of("paid", "paid"), of("shipped", "shipped"));
    let body = r#"{"id":"n-1"}"#;
    assert_eq!(paid.call(request("", body)).await.is_executed().text(), "paid");
    assert_eq!(shipped.call(request("", body)).await.is_executed().text(), "shipped");
    // The same name is the same operation: that is what the name is for.
    assert_eq!(of("paid", "again").call(request("", body)).await.is_replayed().text(), "paid");
}

#[tokio::test(start_paused = true)]
async fn h3_an_answer_that_says_fail_with_200_is_not_kept_where_the_sender_reads_it() {
    let answers = Arc::new(AtomicUsize::new(0));
    let handler = move |_: Asked| {
        let first = answers.fetch_add(1, std::sync::atomic::Ordering::SeqCst) == 0;
        async move { text(200, if first { "fail" } else { "success" }) }
    };
    let policy = webhook().keep_if(|answer| answer.body().is_some_and(|body| body == "success"));
    let house = House::with(policy, handler.clone());
    let deliver = || house.call(request("", r#"{"id":"n-1"}"#));
    assert_eq!(deliver().await.is_executed().text(), "fail");
    assert_eq!(deliver().await.is_executed().text(), "success");
    assert_eq!(deliver().await.is_replayed().text(), "success");

    let house = House::with(webhook(), |_| async { text(200, "fail") });
    let deliver = || house.call(request("", r#"{"id":"n-1"}"#));
    deliver().await.is_executed();
    assert_eq!(deliver().await.is_replayed().text(), "fail", "by its status alone it is kept");
}

/// A body that goes on for ever, a line a second.
fn endless() -> Chunks {
    let (sender, body) = Chunks::new();
    tokio::spawn(async move {
        while sender.send(Ok("{}\n".into())).await.is_ok() {
            sleep(SECOND).await;
        }
    });
    body
}

#[tokio::test(start_paused = true)]
async fn h4_an_answer_without_an_end_is_sent_after_five_seconds_and_never_run_again() {
    let house = House::with(api(), |_| async { respond(200, endless()) });
    let begun = Instant::now();
    let response = house.service.clone().oneshot(request("k", "body")).await.unwrap();
    assert_eq!(begun.elapsed(), 5 * SECOND);
    let mut body = response.into_body();
    for _ in 0..8 {
        let line = timeout(2 * SECOND, body.frame()).await.unwrap().unwrap().unwrap();
        assert_eq!(line.into_data().unwrap(), "{}\n");
    }
    house.send("k").await.is_refused(RefusalKind::AnswerNotKept);
    assert_eq!(house.runs(), 1);

    let house = House::new(api());
    let begun = Instant::now();
    house.send("k").await.is_executed();
    assert_eq!(begun.elapsed(), Duration::ZERO, "an answer with an end is not held back");
}

#[tokio::test(start_paused = true)]
async fn h5_the_layer_twice_around_one_handler_grants_once() {
    let layer = IdempotencyLayer::new(MemoryStore::new(), Rule::new("pay", api()));
    let inner = service_fn(|_| async { text(200, "done") });
    let twice = ServiceBuilder::new().layer(layer.clone()).layer(layer.clone()).service(inner);
    let send = || async {
        let answer = twice.clone().oneshot(request("k", "body")).await.unwrap();
        let replayed = answer.headers().contains_key("idempotent-replayed");
        (answer.status(), replayed)
    };
    assert_eq!(send().await, (StatusCode::OK, false));
    assert_eq!(send().await, (StatusCode::OK, true));
}

#[tokio::test(start_paused = true)]
async fn h5_another_rule_inside_claims_its_own_key() {
    let memory = MemoryStore::new();
    let inner = service_fn(|_| async { text(200, "done") });
    let layer = |name| IdempotencyLayer::new(memory.clone(), Rule::new(name, api()));
    let nested = ServiceBuilder::new().layer(layer("outer")).layer(layer("inner")).service(inner);
    nested.oneshot(request("k", "body")).await.unwrap();
    assert_eq!(memory.len(), 2);
}

/// Cuts the inner service off after a second, and answers with this status.
fn cut_off_with(status: u16) -> House {
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = runs.clone();
    let inner = service_fn(move |_: Asked| {
        counted.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        async move {
            match timeout(SECOND, sleep(60 * SECOND)).await {
                Ok(()) => text(200, "done"),
                Err(_) => text(status, "cut off"),
            }
        }
    });
    House::around(MemoryStore::new(), Rule::new("pay", api()), inner, runs)
}

#[tokio::test(start_paused = true)]
async fn h6_a_time_out_inside_must_say_408_or_504_and_never_503() {
    // Documented: 503 says that nothing happened, so each delivery starts the effect again.
    let house = cut_off_with(503);
    for _ in 0..3 {
        house.send("k").await.is_executed();
    }
    assert_eq!(house.runs(), 3);
    // The right way: nobody knows, so it is not run again.
    for status in [408, 504] {
        let house = cut_off_with(status);
        assert_eq!(house.send("k").await.is_executed().status, status);
        house.send("k").await.is_refused(RefusalKind::OutcomeUnknown);
        assert_eq!(house.runs(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn h7_neither_a_slow_upload_nor_a_waiter_holds_the_place_of_a_handler() {
    // One place in the handler.
    let place = Arc::new(tokio::sync::Semaphore::new(1));
    let runs = Arc::new(AtomicUsize::new(0));
    let inner = OnePlace { place: place.clone(), held: None, wanted: None };
    let house = House::around(
        MemoryStore::new(),
        Rule::new("pay", api().wait(30 * SECOND).call_within(20 * SECOND)),
        inner,
        runs,
    );
    // A slow upload: its service was ready before it was called.
    let (_sender, body) = Chunks::new();
    let mut service = house.service.clone();
    service.ready().await.unwrap();
    assert_eq!(place.available_permits(), 0, "ready means reserved");
    let upload = tokio::spawn(service.call(request_of("slow", body)));
    settle().await;
    assert_eq!(place.available_permits(), 1, "given back while the body is read");
    // A waiter for a run that is in progress.
    let gate = Gate::new();
    house.faults.next(Transition::Complete, Fault::Hold(gate.clone()));
    let first = house.client("k");
    gate.arrived(1).await;
    let waiter = house.client("k");
    settle().await;
    house.send("other").await.is_executed();
    assert!(!waiter.is_finished());
    gate.open();
    first.await.unwrap().is_executed();
    waiter.await.unwrap().is_replayed();
    upload.abort();
}

/// A service with one place, reserved when it is ready and given back when it is dropped or done.
struct OnePlace {
    place: Arc<tokio::sync::Semaphore>,
    held: Option<tokio::sync::OwnedSemaphorePermit>,
    wanted:
        Option<std::pin::Pin<Box<dyn Future<Output = tokio::sync::OwnedSemaphorePermit> + Send>>>,
}

impl Clone for OnePlace {
    fn clone(&self) -> Self {
        Self { place: self.place.clone(), held: None, wanted: None }
    }
}

impl Service<Asked> for OnePlace {
    type Response = http::Response<crate::house::Body>;
    type Error = String;
    type Future = std::pin::Pin<Box<dyn Future<Output = crate::house::Answered> + Send>>;

    fn poll_ready(
        &mut self,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Result<(), String>> {
        if self.held.is_none() {
            let place = self.place.clone();
            let wanted = self
                .wanted
                .get_or_insert_with(|| Box::pin(async { place.acquire_owned().await.unwrap() }));
            self.held = Some(std::task::ready!(wanted.as_mut().poll(cx)));
            self.wanted = None;
        }
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Asked) -> Self::Future {
        let held = self.held.take().expect("it was ready");
        Box::pin(async move {
            sleep(SECOND).await;
            drop(held);
            text(200, "done")
        })
    }
}

#[tokio::test(start_paused = true)]
async fn h8_a_panic_is_uncertain_and_catching_it_belongs_outside() {
    // Outside: the panic passes the layer, and nobody knows what happened.
    let house = House::with(api(), |request: Asked| async move {
        drop(request);
        panic!("half done")
    });
    let panicked = house.client("k").await.unwrap_err();
    assert_eq!(panicked.into_panic().downcast_ref::<&str>(), Some(&"half done"));
    house.send("k").await.is_refused(RefusalKind::OutcomeUnknown);
    // Inside, documented as wrong: the layer sees an answer like any other, and keeps the 500.
    let house = House::with(api(), |_| async { text(500, "a panic was caught") });
    house.send("k").await.is_executed();
    assert_eq!(house.send("k").await.is_replayed().status, 500);
}

#[tokio::test(start_paused = true)]
async fn h9_what_a_cors_layer_inside_says_to_the_first_caller_is_not_replayed() {
    let house = House::with(api(), |_| async {
        let mut answer = text(200, "done")?;
        let headers = answer.headers_mut();
        headers.insert("access-control-allow-origin", "https://first.example".parse().unwrap());
        headers.insert("x-kept", "yes".parse().unwrap());
        Ok(answer)
    });
    let first = house.send("k").await;
    assert_eq!(first.header("access-control-allow-origin"), Some("https://first.example"));
    let second = house.send("k").await;
    assert_eq!(second.is_replayed().header("access-control-allow-origin"), None);
    assert_eq!(second.header("x-kept"), Some("yes"));
}
