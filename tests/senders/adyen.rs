//! Adyen.

use http::StatusCode;
use serde_json::{Value, json};
use tower_idempotency::{Answer, sender};

use crate::{
    common::{DAY, Sender},
    receiver::{Delivery, post},
};

fn item(code: &str, reference: &str, success: &Value, date: &str) -> Value {
    json!({ "NotificationRequestItem": {
        "additionalData": { "hmacSignature": "coqCmt/IZ4E3CzPvMY8zTjQVL5hYJUiBRg8UU+iCWo0=" },
        "amount": { "value": 96000, "currency": "EUR" },
        "eventCode": code,
        "eventDate": date,
        "merchantAccountCode": "ShopECOM",
        "merchantReference": "O-20261130-0017",
        "pspReference": reference,
        "success": success,
    }})
}

fn body(items: &[Value]) -> Delivery {
    let body = json!({ "live": "false", "notificationItems": items });
    post("/adyen", "application/json", body.to_string())
}

fn authorised(reference: &str, date: &str) -> Delivery {
    body(&[item("AUTHORISATION", reference, &json!("true"), date)])
}

pub(crate) fn adyen() -> Sender {
    Sender {
        policy: sender::adyen,
        done: Answer::text("[accepted]").with_status(StatusCode::ACCEPTED),
        failed: Answer::new(StatusCode::INTERNAL_SERVER_ERROR),
        first: authorised("7914073381342284", "2026-11-30T10:15:09+01:00"),
        redelivered: authorised("7914073381342284", "2026-11-30T10:15:18+01:00"),
        other: authorised("7914073381342285", "2026-11-30T10:15:09+01:00"),
    }
}

#[tokio::test]
async fn a_notification_runs_once_though_its_event_date_changes() {
    let meanwhile = adyen().keeps_its_promises().await;
    assert!(!meanwhile.body.contains("[accepted]"));
}

#[tokio::test]
async fn case_86_one_reference_has_several_events_and_success_is_one_of_them() {
    let receiver = adyen().receiver();
    let events = [
        item("AUTHORISATION", "P-1", &json!("false"), "a"),
        item("AUTHORISATION", "P-1", &json!("true"), "a"),
        item("CAPTURE", "P-1", &json!("true"), "a"),
    ];
    for (number, event) in events.iter().enumerate() {
        for _ in 0..2 {
            let heard = receiver.deliver(body(std::slice::from_ref(event))).await;
            assert_eq!(heard.status, StatusCode::ACCEPTED);
            assert_eq!(receiver.runs.count(), number + 1);
        }
    }
    // As a boolean it is the same.
    let boolean = item("CAPTURE", "P-1", &json!(true), "b");
    assert!(receiver.deliver(body(&[boolean])).await.is_replay());
}

#[tokio::test]
async fn case_86_a_body_with_two_items_is_one_operation_made_of_both() {
    let receiver = adyen().receiver();
    let one = item("CAPTURE", "P-1", &json!("true"), "a");
    let two = item("REFUND", "P-2", &json!("true"), "a");
    let three = item("REFUND", "P-3", &json!("true"), "a");
    for (items, runs) in [
        (vec![one.clone(), two.clone()], 1),
        (vec![one.clone(), two.clone()], 1),
        (vec![one.clone(), three], 2),
        (vec![one], 3),
        (vec![two], 4),
    ] {
        assert_eq!(receiver.deliver(body(&items)).await.status, StatusCode::ACCEPTED);
        assert_eq!(receiver.runs.count(), runs);
    }
    assert_eq!(
        receiver.seen(0).key,
        r"CAPTURE\,P-1\,true,REFUND\,P-2\,true",
        "each item is named by all of its fields"
    );
}

#[tokio::test]
async fn what_names_no_event_is_refused_and_runs_nothing() {
    let receiver = adyen().receiver();
    let nameless =
        json!({ "NotificationRequestItem": { "eventCode": "CAPTURE", "success": "true" }});
    let complete = item("CAPTURE", "P-1", &json!("true"), "a");
    for items in [vec![], vec![nameless.clone()], vec![complete.clone(), nameless]] {
        let heard = receiver.deliver(body(&items)).await;
        assert_eq!(heard.status, StatusCode::BAD_REQUEST, "{heard:?}");
    }
    let odd = item("CAPTURE", "P-1", &json!(null), "a");
    assert_eq!(receiver.deliver(body(&[odd])).await.status, StatusCode::BAD_REQUEST);
    assert_eq!(receiver.runs.count(), 0);
    assert!(!receiver.deliver(body(&[complete])).await.is_replay());
}

#[tokio::test(start_paused = true)]
async fn case_93_the_last_redelivery_of_adyen_is_still_known() {
    adyen().remembers(&[30 * DAY, 45 * DAY], 60 * DAY).await;
}
