//! Standard Webhooks.

use http::StatusCode;
use serde_json::json as value;
use tower_idempotency::{Answer, json, sender};

use crate::{
    common::{DAY, HOUR, MINUTE, Sender},
    receiver::{Delivery, Receiver, post, with_header},
};

fn paid(id: &str, timestamp: &str, signature: &str) -> Delivery {
    let body = value!({
        "type": "invoice.paid",
        "timestamp": "2026-11-30T10:15:09.344522Z",
        "data": { "order_id": "O-1", "amount": 96000 },
    });
    let delivery = post("/hooks", "application/json", body.to_string());
    let delivery = with_header(delivery, "webhook-id", id);
    let delivery = with_header(delivery, "webhook-timestamp", timestamp);
    with_header(delivery, "webhook-signature", signature)
}

pub(crate) fn standard() -> Sender {
    Sender {
        policy: sender::standard_webhooks,
        done: Answer::new(StatusCode::NO_CONTENT),
        failed: Answer::new(StatusCode::INTERNAL_SERVER_ERROR),
        first: paid(
            "msg_p5jXN8AQM9LWM0D4loKWxJek",
            "1796033709",
            "v1,K5oZfzN95Z9UVu1EsfQmfVNQhnk=",
        ),
        redelivered: paid(
            "msg_p5jXN8AQM9LWM0D4loKWxJek",
            "1796033714",
            "v1,0cmVlIHN5bnRoZXNpemVyIQ=",
        ),
        other: paid(
            "msg_p5jXN8AQM9LWM0D4loKWxJel",
            "1796033709",
            "v1,K5oZfzN95Z9UVu1EsfQmfVNQhnk=",
        ),
    }
}

#[tokio::test]
async fn a_message_runs_once_though_each_attempt_is_signed_anew() {
    standard().keeps_its_promises().await;
}

#[tokio::test]
async fn what_a_message_is_about_can_be_named() {
    let policy = sender::standard_webhooks().business_key((json("/type"), json("/data/order_id")));
    let receiver = Receiver::new(policy, Answer::new(StatusCode::NO_CONTENT));
    for (id, replayed) in [("msg_1", false), ("msg_2", true), ("msg_1", true)] {
        assert_eq!(receiver.deliver(paid(id, "1", "v1,x")).await.is_replay(), replayed);
    }
    assert_eq!(receiver.runs.count(), 1);
}

#[tokio::test]
async fn a_message_without_its_id_is_refused_and_never_with_410() {
    let receiver = standard().receiver();
    for id in [None, Some(""), Some("a, b")] {
        let mut delivery = paid("msg_1", "1", "v1,x");
        delivery.headers_mut().remove("webhook-id");
        if let Some(id) = id {
            delivery = with_header(delivery, "webhook-id", id);
        }
        assert_eq!(receiver.deliver(delivery).await.status, StatusCode::BAD_REQUEST);
    }
    assert_eq!(receiver.runs.count(), 0);
}

#[tokio::test(start_paused = true)]
async fn case_93_the_last_redelivery_of_standard_webhooks_is_still_known() {
    let last = 75 * HOUR + 35 * MINUTE;
    standard().remembers(&[6 * MINUTE, last, 2 * last], 7 * DAY).await;
}
