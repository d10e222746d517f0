//! The service as a poll sees it: readiness is the inner service's, and what passes is not wrapped.

use std::{
    future::{Ready, ready},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
};

use http::{Method, Request};
use tower::{Service, ServiceExt};
use tower_idempotency::{MemoryStore, RefusalKind, ResponseFuture, Rule};

use crate::house::{Answered, Asked, Body, House, api, request, text};

/// Is ready as often as it is allowed to, and then says this.
#[derive(Clone)]
struct Allowed {
    times: Arc<AtomicUsize>,
    then: Poll<Result<(), String>>,
}

impl Service<Asked> for Allowed {
    type Response = http::Response<Body>;
    type Error = String;
    type Future = Ready<Answered>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), String>> {
        let left =
            self.times.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
        if left.is_ok() { Poll::Ready(Ok(())) } else { self.then.clone() }
    }

    fn call(&mut self, _: Asked) -> Ready<Answered> {
        ready(text(200, "done"))
    }
}

fn allowed(times: usize, then: Poll<Result<(), String>>) -> House {
    let inner = Allowed { times: Arc::new(AtomicUsize::new(times)), then };
    House::around(MemoryStore::new(), Rule::new("pay", api()), inner, Arc::default())
}

fn poll_ready(house: &House) -> Poll<Result<(), String>> {
    house.service.clone().poll_ready(&mut Context::from_waker(Waker::noop()))
}

#[tokio::test(start_paused = true)]
async fn readiness_is_the_inner_services() {
    let broken = Poll::Ready(Err("broken".to_owned()));
    assert_eq!(poll_ready(&allowed(1, Poll::Pending)), Poll::Ready(Ok(())));
    assert_eq!(poll_ready(&allowed(0, Poll::Pending)), Poll::Pending);
    assert_eq!(poll_ready(&allowed(0, broken.clone())), broken);
}

#[tokio::test(start_paused = true)]
async fn an_inner_service_that_is_overloaded_before_the_claim_claims_nothing() {
    let house = allowed(1, Poll::Ready(Err("overloaded".to_owned())));
    assert_eq!(house.send("k").await.error.as_deref(), Some("overloaded"));
    assert_eq!(house.sent(), []);
    let house = allowed(2, Poll::Pending);
    house.send("k").await.is_executed();
}

#[tokio::test(start_paused = true)]
async fn a_refusal_before_the_claim_does_not_ask_the_inner_service() {
    let house = allowed(1, Poll::Pending);
    house.send("a b").await.is_refused(RefusalKind::IdentityMalformed);
}

#[tokio::test(start_paused = true)]
async fn what_passes_has_the_inner_services_own_future() {
    let house = allowed(1, Poll::Pending);
    let mut get = request("k", "body");
    *get.method_mut() = Method::GET;
    let mut call = house.service.clone();
    let mut response = call.ready().await.unwrap().call(get);
    let mut cx = Context::from_waker(Waker::noop());
    assert!(response.as_mut().poll(&mut cx).is_ready(), "at the first poll");
    assert_eq!(house.sent(), []);

    type Inner = Ready<Answered>;
    let wrapped = size_of::<ResponseFuture<Inner, Body, String>>();
    assert!(wrapped <= size_of::<Inner>() + 2 * size_of::<usize>(), "{wrapped}");
    let _: fn(Request<Body>) = drop;
}
