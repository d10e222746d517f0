//! GitHub.

use axum::body::Body;
use http::StatusCode;
use serde_json::json;
use tower::ServiceExt;
use tower_idempotency::{Answer, Identity, Input, Refusal, Source, extension, header, sender};

use crate::{
    common::{DAY, Sender},
    receiver::{Delivery, Heard, Receiver, again, hear, post, with_header},
};

fn push(guid: &str) -> Delivery {
    let body = json!({
        "ref": "refs/heads/main",
        "before": "6113728f27ae82c7b1a177c8d03f9e96e0adf246",
        "after": "4544205a385319fd846d5df4ed2e3b8173529d78",
        "repository": { "id": 186_853_002, "full_name": "shop/storefront" },
    });
    let delivery = post("/github", "application/json", body.to_string());
    let delivery = with_header(delivery, "user-agent", "GitHub-Hookshot/044aadd");
    let delivery = with_header(delivery, "x-github-event", "push");
    let delivery = with_header(delivery, "x-hub-signature-256", "sha256=d57c68ca6f92289e6987");
    with_header(delivery, "x-github-delivery", guid)
}

const GUID: &str = "72d3162e-cc78-11e3-81ab-4c9367dc0958";

pub(crate) fn github() -> Sender {
    Sender {
        policy: sender::github,
        done: Answer::text("deployed"),
        failed: Answer::new(StatusCode::INTERNAL_SERVER_ERROR),
        first: push(GUID),
        redelivered: push(GUID),
        other: push("0b989ba4-242f-11e5-81e1-c7b6966d2516"),
    }
}

#[tokio::test]
async fn a_delivery_runs_once() {
    github().keeps_its_promises().await;
}

#[tokio::test]
async fn case_87_a_redelivery_by_hand_runs_after_a_failure_and_is_replayed_after_a_success() {
    let receiver = github().receiver();
    receiver.next(Answer::new(StatusCode::INTERNAL_SERVER_ERROR));
    let failed = receiver.deliver(push(GUID)).await;
    assert_eq!(failed.status, StatusCode::INTERNAL_SERVER_ERROR);
    let by_hand = receiver.deliver(push(GUID)).await;
    assert_eq!((by_hand.body.as_str(), by_hand.is_replay()), ("deployed", false));
    let once_more = receiver.deliver(push(GUID)).await;
    assert_eq!((once_more.body.as_str(), once_more.is_replay()), ("deployed", true));
    assert_eq!(receiver.runs.count(), 2);
}

/// An operator's wish, which a layer further out puts on the request.
#[derive(Clone)]
struct Again(String);

impl AsRef<str> for Again {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

async fn with_ticket(receiver: &Receiver, ticket: &str) -> Heard {
    let mut request = push(GUID).map(Body::from);
    request.extensions_mut().insert(Again(ticket.to_owned()));
    hear(receiver.app().oneshot(request).await.unwrap()).await
}

#[tokio::test]
async fn case_87_an_operator_can_have_a_delivery_run_once_more() {
    let delivery = |from: &Input<'_>| -> Result<Option<Identity>, Refusal> {
        let id = header("X-GitHub-Delivery");
        match from.head().extensions.get::<Again>() {
            Some(_) => (id, extension::<Again>()).read(from),
            None => id.read(from),
        }
    };
    let policy = sender::github().identity(delivery);
    let receiver = Receiver::new(policy, Answer::text("deployed"));
    receiver.deliver(push(GUID)).await;
    assert!(receiver.deliver(push(GUID)).await.is_replay());
    for (ticket, replayed, runs) in [("T-1", false, 2), ("T-1", true, 2), ("T-2", false, 3)] {
        assert_eq!(with_ticket(&receiver, ticket).await.is_replay(), replayed);
        assert_eq!(receiver.runs.count(), runs);
    }
    assert!(receiver.deliver(push(GUID)).await.is_replay(), "without a ticket nothing changes");
}

#[tokio::test]
async fn a_body_as_large_as_github_sends_them_is_taken_and_a_larger_one_is_not() {
    let receiver = github().receiver();
    let of = |bytes: usize| {
        let mut delivery = again(&push(GUID));
        *delivery.body_mut() = vec![b' '; bytes].into();
        delivery
    };
    let heard = receiver.deliver(of(25 * 1024 * 1024 + 1)).await;
    assert_eq!(heard.status, StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(receiver.deliver(of(25 * 1024 * 1024)).await.status, StatusCode::OK);
    assert_eq!(receiver.runs.count(), 1);
}

#[tokio::test]
async fn a_delivery_without_its_guid_is_refused() {
    let receiver = github().receiver();
    let mut nameless = push(GUID);
    nameless.headers_mut().remove("x-github-delivery");
    assert_eq!(receiver.deliver(nameless).await.status, StatusCode::BAD_REQUEST);
    assert_eq!(receiver.runs.count(), 0);
}

#[tokio::test(start_paused = true)]
async fn case_93_the_last_redelivery_of_github_is_still_known() {
    github().remembers(&[3 * DAY, 6 * DAY], 7 * DAY).await;
}
