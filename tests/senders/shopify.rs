//! Shopify.

use http::StatusCode;
use serde_json::json;
use tower_idempotency::{Answer, sender};

use crate::{
    common::{DAY, HOUR, Sender},
    receiver::{Delivery, post, with_header},
};

fn webhook(path: &str, id: &str, event: &str, topic: &str, hmac: &str) -> Delivery {
    let body = json!({ "id": 820_982_911_946_154_508_u64, "total_price": "960.00" });
    let delivery = post(path, "application/json", body.to_string());
    let delivery = with_header(delivery, "x-shopify-topic", topic);
    let delivery = with_header(delivery, "x-shopify-hmac-sha256", hmac);
    let delivery = with_header(delivery, "x-shopify-triggered-at", "2026-11-30T10:15:09.000000Z");
    let delivery = with_header(delivery, "x-shopify-event-id", event);
    with_header(delivery, "x-shopify-webhook-id", id)
}

fn paid(id: &str, event: &str) -> Delivery {
    webhook("/shopify", id, event, "orders/paid", "XWmrwMey6OsLMeiZKwP4FppHH3cmAiiJJAweH5Jo4bM=")
}

pub(crate) fn shopify() -> Sender {
    Sender {
        policy: sender::shopify,
        done: Answer::new(StatusCode::OK),
        failed: Answer::new(StatusCode::SERVICE_UNAVAILABLE),
        first: paid("b54557e4-bdd9-4b37-8a5f-bf7d70bcd043", "98880550-7158-44d4-b7cd-2c97c8a091b5"),
        redelivered: webhook(
            "/shopify",
            "b54557e4-bdd9-4b37-8a5f-bf7d70bcd043",
            "98880550-7158-44d4-b7cd-2c97c8a091b5",
            "orders/paid",
            "signed-with-the-new-secret",
        ),
        other: paid("b54557e4-bdd9-4b37-8a5f-bf7d70bcd044", "98880550-7158-44d4-b7cd-2c97c8a091b6"),
    }
}

#[tokio::test]
async fn a_webhook_runs_once() {
    shopify().keeps_its_promises().await;
}

#[tokio::test]
async fn case_88_one_event_runs_once_for_each_topic_and_endpoint() {
    let receiver = shopify().receiver();
    let deliveries = [
        (webhook("/shopify", "w-1", "e-1", "orders/paid", "x"), 1),
        (webhook("/shopify", "w-1", "e-1", "orders/paid", "x"), 1),
        (webhook("/shopify", "w-2", "e-1", "orders/updated", "x"), 2),
        (webhook("/other", "w-3", "e-1", "orders/paid", "x"), 3),
        // A second subscription to the topic at the same endpoint.
        (webhook("/shopify", "w-4", "e-1", "orders/paid", "x"), 3),
        (webhook("/shopify", "w-5", "e-2", "orders/paid", "x"), 4),
    ];
    for (delivery, runs) in deliveries {
        let id = delivery.headers()["x-shopify-webhook-id"].clone();
        assert_eq!(receiver.deliver(delivery).await.status, StatusCode::OK);
        assert_eq!(receiver.runs.count(), runs, "{id:?}");
    }
}

#[tokio::test]
async fn without_an_event_id_a_delivery_goes_by_its_webhook_id() {
    let receiver = shopify().receiver();
    for (id, runs) in [("w-1", 1), ("w-1", 1), ("w-2", 2)] {
        let mut delivery = paid(id, "e-1");
        delivery.headers_mut().remove("x-shopify-event-id");
        assert_eq!(receiver.deliver(delivery).await.status, StatusCode::OK);
        assert_eq!(receiver.runs.count(), runs);
    }
    let mut nameless = paid("w-1", "e-1");
    nameless.headers_mut().remove("x-shopify-webhook-id");
    assert_eq!(receiver.deliver(nameless).await.status, StatusCode::BAD_REQUEST);
}

#[tokio::test(start_paused = true)]
async fn case_93_the_last_redelivery_of_shopify_is_still_known() {
    shopify().remembers(&[4 * HOUR, DAY + 4 * HOUR], 7 * DAY).await;
}
