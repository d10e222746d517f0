//! CloudEvents.

use http::StatusCode;
use serde_json::{Value, json};
use tower_idempotency::{Answer, sender};

use crate::{
    common::{DAY, Sender},
    receiver::{Delivery, post, with_header},
};

fn binary(source: &str, id: &str, time: &str) -> Delivery {
    let delivery = post("/events", "application/json; charset=utf-8", r#"{"orderId":"O-1"}"#);
    let delivery = with_header(delivery, "ce-specversion", "1.0");
    let delivery = with_header(delivery, "ce-type", "com.example.order.paid");
    let delivery = with_header(delivery, "ce-time", time);
    let delivery = with_header(delivery, "ce-source", source);
    with_header(delivery, "ce-id", id)
}

fn event(source: &str, id: &str) -> Value {
    json!({
        "specversion": "1.0",
        "type": "com.example.order.paid",
        "source": source,
        "id": id,
        "datacontenttype": "application/json",
        "data": { "orderId": "O-1" },
    })
}

fn structured(source: &str, id: &str) -> Delivery {
    let body = event(source, id).to_string();
    post("/events", "application/cloudevents+json; charset=utf-8", body)
}

fn batch(events: &[Value]) -> Delivery {
    let body = Value::from(events).to_string();
    post("/events", "application/cloudevents-batch+json; charset=utf-8", body)
}

fn sender_of(first: Delivery, redelivered: Delivery, other: Delivery) -> Sender {
    Sender {
        policy: sender::cloudevents,
        done: Answer::new(StatusCode::OK),
        failed: Answer::new(StatusCode::INTERNAL_SERVER_ERROR),
        first,
        redelivered,
        other,
    }
}

pub(crate) fn cloudevents() -> Sender {
    sender_of(
        binary("/shop/orders", "A234-1234-1234", "2026-11-30T10:15:09Z"),
        binary("/shop/orders", "A234-1234-1234", "2026-11-30T10:16:09Z"),
        binary("/shop/orders", "A234-1234-1235", "2026-11-30T10:15:09Z"),
    )
}

#[tokio::test]
async fn an_event_runs_once_in_each_mode() {
    cloudevents().keeps_its_promises().await;
    sender_of(structured("/s", "1"), structured("/s", "1"), structured("/s", "2"))
        .keeps_its_promises()
        .await;
    let (one, two) = (event("/s", "1"), event("/s", "2"));
    sender_of(batch(&[one.clone(), two.clone()]), batch(&[one.clone(), two]), batch(&[one]))
        .keeps_its_promises()
        .await;
}

#[tokio::test]
async fn case_89_an_event_is_the_same_in_binary_and_structured_mode() {
    let receiver = cloudevents().receiver();
    for (delivery, runs) in [
        (binary("/s", "A%20B", "t"), 1),
        (structured("/s", "A B"), 1),
        (binary("/s", "\"A B\"", "t"), 1),
        (binary("%2Fs", "\"A%20B\"", "t"), 1),
        (structured("/s", "A%20B"), 2),
        (binary("/s", "A%2520B", "t"), 2),
    ] {
        assert_eq!(receiver.deliver(delivery).await.status, StatusCode::OK);
        assert_eq!(receiver.runs.count(), runs);
    }
}

#[tokio::test]
async fn case_89_the_same_id_of_another_source_runs_and_a_batch_is_told_from_an_event() {
    let receiver = cloudevents().receiver();
    for (delivery, runs) in [
        (structured("/s", "1"), 1),
        (structured("/t", "1"), 2),
        (binary("/u", "1", "t"), 3),
        (batch(&[event("/s", "1"), event("/t", "1")]), 4),
        (batch(&[event("/s", "1"), event("/t", "1")]), 4),
        (batch(&[event("/t", "1"), event("/s", "1")]), 5),
    ] {
        assert_eq!(receiver.deliver(delivery).await.status, StatusCode::OK);
        assert_eq!(receiver.runs.count(), runs);
    }
}

#[tokio::test]
async fn what_is_no_event_is_refused_and_runs_nothing() {
    let receiver = cloudevents().receiver();
    let avro = post("/events", "application/cloudevents+avro", "x");
    assert_eq!(receiver.deliver(avro).await.status, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    let mut twice = structured("/s", "1");
    twice.headers_mut().append("content-type", "application/json".parse().unwrap());
    for delivery in [
        batch(&[]),
        batch(&[event("/s", "1"), json!({"source": "/s"})]),
        post("/events", "application/cloudevents+json", "[]"),
        post("/events", "application/cloudevents+json", "{}"),
        post("/events", "application/json", r#"{"source": "/s", "id": "1"}"#),
        binary("/s", "%ff", "t"),
        binary("", "1", "t"),
        twice,
    ] {
        assert_eq!(receiver.deliver(delivery).await.status, StatusCode::BAD_REQUEST);
    }
    assert_eq!(receiver.runs.count(), 0);
}

#[tokio::test(start_paused = true)]
async fn case_93_an_event_is_known_for_seven_days() {
    cloudevents().remembers(&[3 * DAY], 7 * DAY).await;
}
