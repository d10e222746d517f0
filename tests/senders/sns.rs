//! Amazon SNS.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::StatusCode;
use http_body::{Body, Frame};
use serde_json::json;
use tower::ServiceExt;
use tower_idempotency::{
    Answer, MemoryStore, Rule, Scope, header, sender, store::StoreErrorKind, test_util::FaultyStore,
};

use crate::{
    common::{DAY, HOUR, MINUTE, Sender},
    receiver::{Delivery, Receiver, hear, post, with_header},
};

fn message(kind: &str, id: &str, text: &str) -> Delivery {
    let body = json!({
        "Type": kind,
        "MessageId": id,
        "TopicArn": "arn:aws:sns:eu-west-1:123456789012:orders",
        "Subject": "paid",
        "Message": text,
        "Timestamp": "2026-11-30T10:15:09.000Z",
        "SignatureVersion": "1",
        "Signature": "EXAMPLEpH+DcEwjAPg8O9mY8dReBSwksfg2S7WKQcikcNKWLQjwu6A4VbeS0QHVCkhRS7fUQvi2egU3N858fiTDN6bkkOxYDVrY0Ad8L10Hs3zH81mtnPk5uvvolIC1CXGu43obcgFxeL3khZl8IKvO61GWB6jI9b5+gLPoBc1Q=",
    });
    let delivery = post("/sns", "text/plain; charset=UTF-8", body.to_string());
    let delivery = with_header(delivery, "x-amz-sns-message-type", kind);
    with_header(delivery, "x-amz-sns-message-id", id)
}

fn notification(id: &str) -> Delivery {
    message("Notification", id, r#"{"orderId":"O-1"}"#)
}

pub(crate) fn sns() -> Sender {
    Sender {
        policy: sender::sns,
        done: Answer::new(StatusCode::OK),
        failed: Answer::new(StatusCode::INTERNAL_SERVER_ERROR),
        first: notification("22b80b92-fdea-4c2c-8f9d-bdfb0c7bf324"),
        redelivered: notification("22b80b92-fdea-4c2c-8f9d-bdfb0c7bf324"),
        other: notification("22b80b92-fdea-4c2c-8f9d-bdfb0c7bf325"),
    }
}

#[tokio::test]
async fn case_85_a_message_labelled_as_text_runs_once_and_is_told_503_meanwhile() {
    let meanwhile = sns().keeps_its_promises().await;
    assert_eq!(meanwhile.status, StatusCode::SERVICE_UNAVAILABLE);
    let problem: serde_json::Value = serde_json::from_str(&meanwhile.body).unwrap();
    assert_eq!(problem["status"], 503);
}

#[tokio::test]
async fn a_confirmation_of_a_subscription_runs_once_too() {
    let receiver = sns().receiver();
    let confirmation = || message("SubscriptionConfirmation", "165545c9", "You have chosen ..");
    for replayed in [false, true] {
        assert_eq!(receiver.deliver(confirmation()).await.is_replay(), replayed);
    }
}

#[tokio::test]
async fn a_store_that_is_down_is_no_reason_to_give_up() {
    let store = FaultyStore::new(MemoryStore::new());
    let faults = store.faults();
    let receiver =
        Receiver::with(store, Rule::new("sns", sender::sns()), Answer::new(StatusCode::OK));
    faults.down(StoreErrorKind::Timeout);
    let heard = receiver.deliver(notification("m-1")).await;
    assert_eq!(heard.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(receiver.runs.count(), 0);
    faults.heal();
    assert!(!receiver.deliver(notification("m-1")).await.is_replay());
    assert_eq!(receiver.runs.count(), 1);
}

/// A body that does not come to its end.
enum Unfinished {
    Breaks,
    Stalls,
}

impl Body for Unfinished {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        match *self {
            Self::Breaks => Poll::Ready(Some(Err(io::Error::other("the connection was reset")))),
            Self::Stalls => Poll::Pending,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_breaks_off_or_stalls_is_no_reason_to_give_up() {
    let policy = sender::sns().body_within(Duration::from_secs(1));
    let receiver = Receiver::new(policy, Answer::new(StatusCode::OK));
    for (body, problem) in
        [(Unfinished::Breaks, "body_cut_short"), (Unfinished::Stalls, "body_too_slow")]
    {
        let request = http::Request::post("/sns").body(axum::body::Body::new(body)).unwrap();
        let heard = hear(receiver.app().oneshot(request).await.unwrap()).await;
        assert_eq!(heard.status, StatusCode::SERVICE_UNAVAILABLE, "{heard:?}");
        assert!(heard.body.contains(problem), "{heard:?}");
    }
    assert_eq!(receiver.runs.count(), 0);
}

#[tokio::test]
async fn a_scope_that_a_proxy_forgot_is_no_reason_to_give_up() {
    let policy = sender::sns().scope(Scope::header("x-tenant"));
    let receiver = Receiver::new(policy, Answer::new(StatusCode::OK));
    let heard = receiver.deliver(notification("m-1")).await;
    assert_eq!(heard.status, StatusCode::SERVICE_UNAVAILABLE, "{heard:?}");
}

#[tokio::test]
async fn what_can_never_go_through_is_a_4xx_so_that_it_does_not_come_again() {
    let receiver = sns().receiver();
    let too_large = "x".repeat(1024 * 1024 + 1);
    for (body, status) in [
        (r#"{"Message": "no id"}"#, StatusCode::BAD_REQUEST),
        (r#"{"MessageId": null}"#, StatusCode::BAD_REQUEST),
        ("not JSON", StatusCode::BAD_REQUEST),
        (&*too_large, StatusCode::PAYLOAD_TOO_LARGE),
    ] {
        let heard = receiver.deliver(post("/sns", "text/plain", body.to_owned())).await;
        assert_eq!(heard.status, status);
    }
    let policy = sender::sns().compare([tower_idempotency::json("/Message")]);
    let receiver = Receiver::new(policy, Answer::new(StatusCode::OK));
    receiver.deliver(message("Notification", "m-1", "960")).await;
    let heard = receiver.deliver(message("Notification", "m-1", "9600")).await;
    assert_eq!(heard.status, StatusCode::UNPROCESSABLE_ENTITY);
}

#[tokio::test]
async fn raw_delivery_goes_by_the_header() {
    let policy = sender::sns().identity(header("x-amz-sns-message-id"));
    let receiver = Receiver::new(policy, Answer::new(StatusCode::OK));
    let raw = |id: &str| with_header(post("/sns", "text/plain", "O-1"), "x-amz-sns-message-id", id);
    for (id, runs) in [("m-1", 1), ("m-1", 1), ("m-2", 2)] {
        assert_eq!(receiver.deliver(raw(id)).await.status, StatusCode::OK);
        assert_eq!(receiver.runs.count(), runs);
    }
}

#[tokio::test(start_paused = true)]
async fn case_93_the_last_retry_of_sns_is_still_known() {
    sns().remembers(&[MINUTE, HOUR, 2 * HOUR], 7 * DAY).await;
}
