//! The program of `docs/operations.md` that settles an abandoned key, and that the two are one text.

use std::error::Error;

use tower_idempotency::{
    Answer, Store,
    operations::{Operations, Settle},
};

/// Settles the operation with this digest: as done, with this answer, or as not done. Says whether
/// there is one.
async fn settle(
    store: impl Store,
    digest: &str,
    done: Option<Answer>,
    reason: &str,
) -> Result<bool, Box<dyn Error>> {
    let operations = Operations::new(store);
    let Some(found) = operations.find(digest).await? else { return Ok(false) };
    let verdict = match done {
        // Every delivery from now on gets this answer.
        Some(answer) => Settle::done(answer, reason),
        // The next delivery runs.
        None => Settle::not_done(reason),
    };
    operations.settle(&found, verdict).await?;
    Ok(true)
}

use std::sync::{
    Arc,
    atomic::{AtomicU16, Ordering::Relaxed},
};

use http::StatusCode;
use tower_idempotency::{MemoryStore, Policy, Rule, json, store::Cursor};
use tower_idempotency_test_support::Log;

use crate::app::{App, answering, post};

fn rule() -> Rule {
    Rule::new("fulfil", Policy::webhook(json("/id")))
}

/// Sends what is abandoned at once, and returns the digest by which an operator knows it.
async fn abandon(store: &MemoryStore, app: &App) -> String {
    assert_eq!(app.send(post("N-1")).await.0.status, StatusCode::GATEWAY_TIMEOUT);
    assert_eq!(app.send(post("N-1")).await.0.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(app.runs(), 1);
    let page = store.scan(Cursor::START, 10).await.unwrap();
    assert!(page.records[0].is_abandoned());
    assert_eq!(page.records[0].label, "fulfil N-1");
    page.records[0].key.digest()
}

#[tokio::test]
async fn an_operation_that_happened_is_answered_as_settled_and_never_runs() {
    let (store, status) = (MemoryStore::new(), Arc::new(AtomicU16::new(504)));
    let app = answering(&store, rule(), &status);
    let digest = abandon(&store, &app).await;
    let (log, _guard) = Log::listen();
    let answer = Some(Answer::text("success"));
    assert!(settle(store.clone(), &digest, answer, "the provider has it").await.unwrap());
    let [settled] = &log.of("settled by hand")[..] else { panic!("one event") };
    for part in ["INFO ", "the provider has it", "fulfil N-1", "done"] {
        assert!(settled.contains(part), "{settled}");
    }

    status.store(200, Relaxed);
    let (head, body) = app.send(post("N-1")).await;
    assert_eq!((head.status, &body[..]), (StatusCode::OK, &b"success"[..]));
    assert_eq!(app.runs(), 1);
    let again = settle(store, &digest, None, "by mistake").await.unwrap_err();
    assert!(again.to_string().contains("Completed"), "{again}");
}

#[tokio::test]
async fn an_operation_that_did_not_happen_runs_once_it_is_settled() {
    let (store, status) = (MemoryStore::new(), Arc::new(AtomicU16::new(504)));
    let app = answering(&store, rule(), &status);
    let digest = abandon(&store, &app).await;
    assert!(!settle(store.clone(), "0000000000000000", None, "a test").await.unwrap());
    assert_eq!(app.send(post("N-1")).await.0.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(settle(store, &digest, None, "the provider does not know it").await.unwrap());

    status.store(200, Relaxed);
    assert_eq!(app.send(post("N-1")).await.0.status, StatusCode::OK);
    assert_eq!(app.runs(), 2);
}

#[test]
fn the_program_is_the_one_of_the_document() {
    let document = include_str!("../../docs/operations.md");
    let this = include_str!("settling.rs");
    let program = document.split("```rust\n").nth(1).unwrap().split("```").next().unwrap();
    assert!(program.contains("fn settle("));
    assert!(this.contains(program), "they differ");
}
