//! The hook that decides whether a delivery may go on.

use std::{
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::Poll,
    time::Duration,
};

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderName, HeaderValue, StatusCode};
use tower::ServiceExt;
use tower_idempotency::{
    Answer, Delivery, MemoryStore, Policy, Refusal, RefusalKind, Rule, Verified, header, json,
    sent,
    store::StoreErrorKind,
    test_util::{Faults, FaultyStore, Transition},
};

use crate::receiver::{self, Receiver, hear, post, with_header};

/// A receiver whose store counts.
fn counted(policy: Policy) -> (Receiver, Faults) {
    let store = FaultyStore::new(MemoryStore::new());
    let faults = store.faults();
    (Receiver::with(store, Rule::new("notify", policy), Answer::text("done")), faults)
}

fn assert_store_was_not_asked(faults: &Faults) {
    use Transition::{Claim, Complete, Issue, Release, Renew, Resolve, Scan};
    for transition in [Claim, Renew, Complete, Release, Resolve, Issue, Scan] {
        assert_eq!(faults.calls(transition), 0, "{transition:?}");
    }
}

fn is_signed(delivery: &Delivery) -> bool {
    delivery.head().headers.get("x-signature").is_some_and(|value| value == "good")
}

async fn check(delivery: Delivery) -> Result<Verified, Refusal> {
    match is_signed(&delivery) {
        true => Ok(Verified::as_sent()),
        false => Err(Refusal::not_verified("the signature is wrong")),
    }
}

fn notification(signature: &str) -> receiver::Delivery {
    let delivery = post("/hooks", "application/json", r#"{"id": "n-1", "amount": 960}"#);
    with_header(delivery, "x-signature", signature)
}

#[tokio::test]
async fn case_84_a_bad_signature_claims_nothing_and_the_genuine_delivery_runs() {
    let (receiver, faults) = counted(Policy::webhook(json("/id")).verify(check));
    for _ in 0..3 {
        let heard = receiver.deliver(notification("bad")).await;
        assert_eq!(heard.status, StatusCode::UNAUTHORIZED);
        assert_eq!(heard.header("content-type"), "application/problem+json");
        assert!(heard.body.contains("the signature is wrong"), "{}", heard.body);
    }
    assert_store_was_not_asked(&faults);
    let genuine = receiver.deliver(notification("good")).await;
    assert_eq!((genuine.body.as_str(), genuine.is_replay()), ("done", false));
    assert!(faults.calls(Transition::Claim) > 0, "the counter counts");
    assert_eq!(receiver.runs.count(), 1);
}

#[tokio::test]
async fn case_84_a_bad_signature_does_not_learn_whether_the_identity_is_known() {
    let (receiver, _) = counted(Policy::webhook(json("/id")).verify(check));
    let unknown = receiver.deliver(notification("bad")).await;
    receiver.deliver(notification("good")).await;
    let known = receiver.deliver(notification("bad")).await;
    let other = |signature| {
        let delivery = post("/hooks", "application/json", r#"{"id": "n-2"}"#);
        with_header(delivery, "x-signature", signature)
    };
    let begun = receiver.begin(other("good")).await;
    let running = receiver.deliver(other("bad")).await;
    receiver.finish(begun).await;
    for other in [&known, &running] {
        assert_eq!(other.status, unknown.status);
        assert_eq!(other.body, unknown.body);
        assert_eq!(other.headers, unknown.headers);
    }
}

#[tokio::test]
async fn the_hook_comes_before_the_store_even_when_that_is_down() {
    let (receiver, faults) = counted(Policy::webhook(json("/id")).verify(check));
    faults.down(StoreErrorKind::Timeout);
    let forged = receiver.deliver(notification("bad")).await;
    assert_eq!(forged.status, StatusCode::UNAUTHORIZED);
    assert_store_was_not_asked(&faults);
    let genuine = receiver.deliver(notification("good")).await;
    assert_eq!(genuine.status, StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test]
async fn the_hook_sees_head_and_body_as_they_were_sent() {
    let seen = Arc::new(AtomicUsize::new(0));
    let hook = {
        let seen = seen.clone();
        move |delivery: Delivery| {
            let seen = seen.clone();
            async move {
                assert_eq!(delivery.head().method, "POST");
                assert_eq!(delivery.head().uri.path(), "/hooks");
                assert_eq!(delivery.body(), r#"{"id": "n-1", "amount": 960}"#);
                seen.fetch_add(1, Ordering::Relaxed);
                check(delivery).await
            }
        }
    };
    let (receiver, _) = counted(Policy::webhook(json("/id")).verify(hook));
    for _ in 0..2 {
        assert_eq!(receiver.deliver(notification("good")).await.status, StatusCode::OK);
    }
    assert_eq!(seen.load(Ordering::Relaxed), 2, "a replay is verified too");
}

#[tokio::test]
async fn a_refusal_with_an_answer_of_its_own_arrives_as_it_is() {
    let hook = |_: Delivery| async {
        let answer = Answer::text("try the other door")
            .with_status(StatusCode::SERVICE_UNAVAILABLE)
            .with_header(HeaderName::from_static("x-door"), HeaderValue::from_static("other"));
        Err::<Verified, _>(Refusal::not_verified("the certificate is away").with_answer(answer))
    };
    // It counts over what the policy says to everything else.
    let policy =
        Policy::webhook(json("/id")).verify(hook).refuse_with(|_| Some(Answer::text("no")));
    let (receiver, faults) = counted(policy);
    let request = notification("good").map(Body::from);
    let response = receiver.app().oneshot(request).await.unwrap();
    let refusal = response.extensions().get::<Refusal>().expect("for layers further out").clone();
    assert_eq!(refusal.kind(), RefusalKind::NotVerified);
    assert_eq!(refusal.status(), StatusCode::SERVICE_UNAVAILABLE);
    let heard = hear(response).await;
    assert_eq!(heard.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!((heard.body.as_str(), heard.header("x-door")), ("try the other door", "other"));
    assert_store_was_not_asked(&faults);
    assert_eq!(receiver.runs.count(), 0);
}

/// Undoes the cipher of these tests: capitals.
fn decipher(body: &Bytes) -> Bytes {
    body.iter().map(|byte| if byte.is_ascii_uppercase() { byte + 32 } else { *byte }).collect()
}

async fn open(delivery: Delivery) -> Result<Verified, Refusal> {
    check(delivery.clone()).await?;
    Ok(Verified::deciphered(decipher(delivery.body())))
}

#[tokio::test]
async fn sources_read_what_was_deciphered_and_sent_reads_what_came() {
    let policy = Policy::webhook(sent(json("/ID")))
        .verify(open)
        .business_key(json("/order"))
        .compare([json("/amount")]);
    let (receiver, _) = counted(policy);
    let body = r#"{"ID": "N-1", "ORDER": "O-1", "AMOUNT": 960}"#;
    let of =
        |body: &str| with_header(post("/hooks", "x/y", body.to_owned()), "x-signature", "good");
    assert!(!receiver.deliver(of(body)).await.is_replay());
    let seen = receiver.seen(0);
    assert_eq!((seen.key.as_str(), seen.delivery_id.as_deref()), ("o-1", Some("N-1")));
    assert_eq!(seen.body, body, "the handler's body is the one that was sent");
    assert_eq!(seen.deciphered.unwrap(), r#"{"id": "n-1", "order": "o-1", "amount": 960}"#);

    assert!(receiver.deliver(of(&body.replace("N-1", "N-2"))).await.is_replay());
    let tampered = receiver.deliver(of(&body.replace("960", "1"))).await;
    assert_eq!(tampered.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(receiver.runs.count(), 1);
}

#[tokio::test]
async fn a_delivery_that_passes_without_an_identity_is_deciphered_too() {
    let (receiver, faults) = counted(Policy::webhook(json("/id")).verify(open).optional());
    let of =
        |signature| with_header(post("/hooks", "x/y", r#"{"X": 1}"#), "x-signature", signature);
    assert_eq!(receiver.deliver(of("bad")).await.status, StatusCode::UNAUTHORIZED);
    assert_eq!(receiver.deliver(of("good")).await.status, StatusCode::OK);
    assert_eq!(receiver.seen(0).deciphered.unwrap(), r#"{"x": 1}"#);
    assert_store_was_not_asked(&faults);
}

#[tokio::test]
async fn what_passes_without_an_identity_in_its_head_is_verified_too() {
    let policy = Policy::webhook(header("x-id")).verify(check).optional();
    let (receiver, _) = counted(policy);
    assert_eq!(receiver.deliver(notification("bad")).await.status, StatusCode::UNAUTHORIZED);
    assert_eq!(receiver.deliver(notification("good")).await.status, StatusCode::OK);
    assert_eq!(receiver.runs.count(), 1);
}

#[tokio::test]
async fn a_hook_that_panics_claims_nothing() {
    let hook = |delivery: Delivery| async move {
        assert!(is_signed(&delivery), "a test that panics");
        Ok(Verified::as_sent())
    };
    let (receiver, faults) = counted(Policy::webhook(json("/id")).verify(hook));
    let panicking = receiver.clone();
    let task = tokio::spawn(async move { panicking.deliver(notification("bad")).await });
    assert!(task.await.unwrap_err().is_panic(), "it goes on to the server");
    assert_store_was_not_asked(&faults);
    assert_eq!(receiver.runs.count(), 0);
    let genuine = receiver.deliver(notification("good")).await;
    assert_eq!((genuine.status, genuine.is_replay()), (StatusCode::OK, false));
}

#[tokio::test(start_paused = true)]
async fn while_a_hook_takes_its_time_nothing_is_claimed_and_a_client_may_leave() {
    let asked = Arc::new(AtomicUsize::new(0));
    let hook = {
        let asked = asked.clone();
        move |delivery: Delivery| {
            let asked = asked.clone();
            async move {
                asked.fetch_add(1, Ordering::Relaxed);
                if !is_signed(&delivery) {
                    pending::<()>().await;
                }
                Ok(Verified::as_sent())
            }
        }
    };
    let (receiver, faults) = counted(Policy::webhook(json("/id")).verify(hook));
    let mut slow = Box::pin(receiver.deliver(notification("slow")));
    assert!(matches!(poll_once(&mut slow).await, Poll::Pending));
    tokio::time::advance(Duration::from_secs(3600)).await;
    assert!(matches!(poll_once(&mut slow).await, Poll::Pending));
    assert_eq!(asked.load(Ordering::Relaxed), 1);
    assert_store_was_not_asked(&faults);

    // The genuine one does not meet it, and it leaves nothing behind.
    assert!(!receiver.deliver(notification("good")).await.is_replay());
    drop(slow);
    assert!(receiver.deliver(notification("good")).await.is_replay());
    assert_eq!(receiver.runs.count(), 1);
}

async fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    std::future::poll_fn(|cx| Poll::Ready(std::pin::Pin::new(&mut *future).poll(cx))).await
}
