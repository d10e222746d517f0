//! Stripe.

use http::StatusCode;
use serde_json::{Value, json};
use tower_idempotency::{Answer, Policy, sender};

use crate::{
    common::{DAY, Sender},
    receiver::{Delivery, Receiver, post, with_header},
};

fn event(id: &str, kind: &str, object: &Value, signed_at: u64) -> Delivery {
    let body = json!({
        "id": id,
        "object": "event",
        "api_version": "2026-09-30",
        "created": 1_796_000_000,
        "data": { "object": object },
        "livemode": true,
        "pending_webhooks": 1,
        "type": kind,
    });
    let delivery = post("/stripe", "application/json; charset=utf-8", body.to_string());
    with_header(delivery, "stripe-signature", &format!("t={signed_at},v1=5257a869e7ecebeda32affa6"))
}

fn succeeded(id: &str, intent: &str) -> Delivery {
    let object = json!({ "id": intent, "object": "payment_intent", "amount": 96000 });
    event(id, "payment_intent.succeeded", &object, 1_796_000_001)
}

/// A charge of which so much has been given back so far.
fn refunded(id: &str, so_far: u32) -> Delivery {
    let object = json!({ "id": "ch_1", "object": "charge", "amount_refunded": so_far });
    event(id, "charge.refunded", &object, 1_796_000_001)
}

pub(crate) fn stripe() -> Sender {
    let object = json!({ "id": "pi_1", "object": "payment_intent", "amount": 96000 });
    let at = |time| event("evt_1", "payment_intent.succeeded", &object, time);
    Sender {
        policy: sender::stripe,
        done: Answer::new(StatusCode::OK),
        failed: Answer::new(StatusCode::INTERNAL_SERVER_ERROR),
        first: at(1_796_000_001),
        redelivered: at(1_796_003_601),
        other: succeeded("evt_2", "pi_2"),
    }
}

fn with_business_key() -> Policy {
    let once = sender::stripe_once(["payment_intent.succeeded", "checkout.session.completed"]);
    sender::stripe().business_key(once)
}

#[tokio::test]
async fn an_event_runs_once_signed_anew_or_not() {
    let meanwhile = stripe().keeps_its_promises().await;
    assert_eq!(meanwhile.header("content-type"), "application/problem+json");
    Sender { policy: with_business_key, ..stripe() }.keeps_its_promises().await;
}

#[tokio::test]
async fn case_83_two_events_for_one_payment_are_one_run_only_with_the_business_key() {
    for (policy, runs) in [(sender::stripe(), 2), (with_business_key(), 1)] {
        let receiver = Receiver::new(policy, Answer::new(StatusCode::OK));
        for id in ["evt_1", "evt_2", "evt_1", "evt_2"] {
            assert_eq!(receiver.deliver(succeeded(id, "pi_1")).await.status, StatusCode::OK);
        }
        assert_eq!(receiver.runs.count(), runs);
        receiver.deliver(succeeded("evt_3", "pi_3")).await;
        assert_eq!(receiver.runs.count(), runs + 1);
    }
}

#[tokio::test]
async fn case_83_two_partial_refunds_of_one_charge_stay_two() {
    for policy in [sender::stripe(), with_business_key()] {
        let receiver = Receiver::new(policy, Answer::new(StatusCode::OK));
        for (id, so_far, runs) in [("evt_1", 10, 1), ("evt_2", 20, 2), ("evt_1", 10, 2)] {
            assert_eq!(receiver.deliver(refunded(id, so_far)).await.status, StatusCode::OK);
            assert_eq!(receiver.runs.count(), runs, "{id}");
        }
    }
}

#[tokio::test]
async fn an_object_without_an_id_goes_by_the_event() {
    let receiver = Receiver::new(
        sender::stripe().business_key(sender::stripe_once(["balance.available"])),
        Answer::new(StatusCode::OK),
    );
    let balance = |id: &str| event(id, "balance.available", &json!({"object": "balance"}), 1);
    for (id, runs) in [("evt_1", 1), ("evt_1", 1), ("evt_2", 2)] {
        assert_eq!(receiver.deliver(balance(id)).await.status, StatusCode::OK);
        assert_eq!(receiver.runs.count(), runs);
    }
}

#[test]
#[should_panic(expected = "stripe_once(..) names no type")]
fn a_business_key_for_no_type_panics_where_it_is_made() {
    let _ = sender::stripe_once(Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn case_93_the_last_redelivery_of_stripe_is_still_known_by_hand_too() {
    stripe().remembers(&[3 * DAY, 6 * DAY, 15 * DAY, 30 * DAY], 31 * DAY).await;
}
