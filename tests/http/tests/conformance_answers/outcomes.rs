//! Cases 62 to 67: which outcomes are kept, and which let the key run again.

use axum::{
    extract::Request as AxumRequest,
    middleware::{Next, from_fn},
    response::{IntoResponse, Response},
};
use http::{Request, StatusCode};
use tower_idempotency::{MemoryStore, Policy, json};
use tower_idempotency_test_support::{Runs, Server};

use crate::{Case, Heard, Protocol, api, app, post, raw_post, text};

const HTTP1: Protocol = Protocol::Http1;

/// A handler that answers with this status, and how it went in the body.
async fn answering(policy: Policy, status: u16) -> Case {
    let status = StatusCode::from_u16(status).unwrap();
    Case::answering(policy, move |run| (status, format!("run {run}")).into_response()).await
}

fn webhook() -> Policy {
    Policy::webhook(json("/id"))
}

async fn deliver(case: &Case) -> Heard {
    case.send(HTTP1, Request::post("/pay").body(r#"{"id":"n-1"}"#).unwrap()).await
}

#[tokio::test]
async fn case_62_a_success_is_stored() {
    for status in [200, 201, 202, 204, 206, 303] {
        let case = answering(api(), status).await;
        let (first, _) = case.first_and_replay("k").await;
        assert_eq!(first.status, status);
        assert_eq!(case.runs.count(), 1);
        case.post(HTTP1, "another").await;
        assert_eq!(case.runs.count(), 2, "another key is another operation");
    }
}

#[tokio::test]
async fn case_63_an_error_of_the_request_is_stored_for_an_api() {
    for status in [400, 402, 404, 410, 415, 422] {
        let case = answering(api(), status).await;
        let (first, _) = case.first_and_replay("k").await;
        assert_eq!((first.status.as_u16(), case.runs.count()), (status, 1));
    }
}

#[tokio::test]
async fn case_63_for_a_webhook_it_is_released() {
    for status in [400, 422] {
        let case = answering(webhook(), status).await;
        for run in 1..=2 {
            let heard = deliver(&case).await;
            assert_eq!(heard.body, format!("run {run}"));
            assert!(!heard.is_replay());
        }
    }
}

#[tokio::test]
async fn case_64_an_internal_error_is_stored_for_an_api() {
    for status in [500, 501, 505] {
        let case = answering(api(), status).await;
        let (first, _) = case.first_and_replay("k").await;
        assert_eq!((first.status.as_u16(), case.runs.count()), (status, 1));
    }
}

#[tokio::test]
async fn case_64_for_a_webhook_and_where_the_policy_says_so_it_runs_again() {
    let case = answering(webhook(), 500).await;
    deliver(&case).await;
    assert_eq!(deliver(&case).await.body, "run 2");

    let case = answering(api().release([StatusCode::INTERNAL_SERVER_ERROR]), 500).await;
    case.post(HTTP1, "k").await;
    let second = case.post(HTTP1, "k").await;
    assert_eq!((&second.body[..], second.is_replay()), (&b"run 2"[..], false));
}

#[tokio::test]
async fn case_65_what_did_not_happen_is_never_stored() {
    for status in [401, 403, 409, 423, 425, 429, 503] {
        let case = answering(api(), status).await;
        for run in 1..=2 {
            let heard = case.post(HTTP1, "k").await;
            assert_eq!(heard.status, status);
            assert_eq!(heard.body, format!("run {run}"));
            assert!(!heard.is_replay());
        }
        // The released key may even carry another request.
        case.send(HTTP1, post("k", "another payment")).await;
        assert_eq!(case.runs.count(), 3);
    }
}

/// DESIGN section 4 differs from the case: these statuses do not say that nothing happened.
#[tokio::test]
async fn case_65_what_nobody_knows_is_neither_stored_nor_run_again() {
    for (policy, status) in [(api(), 408), (api(), 502), (api(), 504), (webhook(), 504)] {
        let refused =
            if status == 504 { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::CONFLICT };
        let is_webhook = format!("{policy:?}").contains("Webhook");
        let case = answering(policy, status).await;
        let deliver = async || match is_webhook {
            true => deliver(&case).await,
            false => case.post(HTTP1, "k").await,
        };
        let first = deliver().await;
        assert_eq!((first.status.as_u16(), &first.body[..]), (status, &b"run 1"[..]));
        let second = deliver().await;
        assert_eq!(second.problem(), "outcome-unknown");
        assert_eq!(second.status, if is_webhook { refused } else { StatusCode::CONFLICT });
        assert_eq!(case.runs.count(), 1);
    }
}

#[tokio::test]
async fn case_65_a_keep_if_that_panics_leaves_the_key_abandoned() {
    let policy = webhook().keep_if(|answer| match answer.body() {
        Some(body) if body == "run 1" => panic!("keep_if was told to"),
        _ => true,
    });
    let case = answering(policy, 200).await;
    let mut client = case.server.connect().await;
    let body = r#"{"id":"n-1"}"#;
    client.send(raw_post("k", &[], body)).await;
    assert_eq!(client.rest().await, "", "the connection ends, as after a panic of the handler");
    let second = deliver(&case).await;
    assert_eq!(second.problem(), "outcome-unknown");
    assert_eq!(case.runs.count(), 1);
}

async fn validating(request: AxumRequest, next: Next) -> Response {
    if request.headers().contains_key("x-invalid") {
        return (StatusCode::UNPROCESSABLE_ENTITY, "invalid").into_response();
    }
    next.run(request).await
}

#[tokio::test]
async fn case_66_what_is_turned_away_outside_leaves_the_key_free() {
    let runs = Runs::new();
    let app = app(MemoryStore::new(), api(), &runs, |_| text("paid")).layer(from_fn(validating));
    let case = Case { server: Server::start(app).await, runs };
    let mut invalid = post("k", "a payment with a typo");
    invalid.headers_mut().insert("x-invalid", "1".parse().unwrap());
    let first = case.send(HTTP1, invalid).await;
    assert_eq!(
        (first.status, &first.body[..]),
        (StatusCode::UNPROCESSABLE_ENTITY, &b"invalid"[..])
    );
    assert_eq!(case.runs.count(), 0);
    let second = case.post(HTTP1, "k").await;
    assert_eq!((&second.body[..], second.is_replay()), (&b"paid"[..], false));
    assert_eq!(case.runs.count(), 1);
}

/// Over HTTP/2 hyper sends no interim answers.
#[tokio::test]
async fn case_67_an_interim_answer_is_no_part_of_what_is_stored() {
    let case = Case::answering(api(), |_| text("paid")).await;
    let mut client = case.server.connect().await;
    client.send(raw_post("k", &["expect: 100-continue", "content-length: 4"], "")).await;
    assert_eq!(client.any_answer().await.status, StatusCode::CONTINUE);
    client.send("1000").await;
    let first = client.any_answer().await;
    assert_eq!((first.status, &first.body[..]), (StatusCode::OK, &b"paid"[..]));

    client.send(raw_post("k", &[], "1000")).await;
    let second = client.any_answer().await;
    assert_eq!(second.status, StatusCode::OK, "no 100 comes before it");
    assert_eq!(second.headers["idempotent-replayed"], "true");
    assert_eq!(second.body, "paid");
    assert_eq!(case.runs.count(), 1);
}
