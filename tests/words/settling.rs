//! The program of `docs/operations.md` that settles an abandoned key, and that the two are one text.

use std::time::Duration;

use tower_idempotency::{
    Answer, ClaimToken,
    store::{Cursor, Kept, Resolve, Resolved, Store, StoreError, Verdict},
};

/// Settles what is abandoned under this digest: as done, with this answer, or as not done. `None`
/// where nothing is.
async fn settle(
    store: &impl Store,
    digest: &str,
    done: Option<Answer>,
) -> Result<Option<Resolved>, StoreError> {
    let week = Duration::from_secs(7 * 24 * 60 * 60);
    let mut from = Cursor::START;
    loop {
        let page = store.scan(from, 500).await?;
        let mut abandoned = page.records.iter().filter(|record| record.is_abandoned());
        if let Some(found) = abandoned.find(|record| record.key.digest() == digest) {
            let verdict = match done {
                // Every delivery from now on gets this answer.
                Some(answer) => Verdict::Done(Kept::new(answer.to_payload(&found.key), week)),
                // The next delivery runs.
                None => Verdict::NotDone { hold: week },
            };
            let resolve = Resolve::new(found.key, found.mark, verdict, ClaimToken::random());
            return store.resolve(resolve).await.map(Some);
        }
        match page.next {
            Some(next) => from = next,
            None => return Ok(None),
        }
    }
}

use std::sync::{
    Arc,
    atomic::{AtomicU16, Ordering::Relaxed},
};

use http::StatusCode;
use tower_idempotency::{MemoryStore, Policy, Rule, json};

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
    let settled = settle(&store, &digest, Some(Answer::text("success"))).await.unwrap();
    assert_eq!(settled, Some(Resolved::Settled));

    status.store(200, Relaxed);
    let (head, body) = app.send(post("N-1")).await;
    assert_eq!((head.status, &body[..]), (StatusCode::OK, &b"success"[..]));
    assert_eq!(app.runs(), 1);
    assert_eq!(settle(&store, &digest, None).await.unwrap(), None);
}

#[tokio::test]
async fn an_operation_that_did_not_happen_runs_once_it_is_settled() {
    let (store, status) = (MemoryStore::new(), Arc::new(AtomicU16::new(504)));
    let app = answering(&store, rule(), &status);
    let digest = abandon(&store, &app).await;
    assert_eq!(settle(&store, "0000000000000000", None).await.unwrap(), None);
    assert_eq!(app.send(post("N-1")).await.0.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(settle(&store, &digest, None).await.unwrap(), Some(Resolved::Settled));

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
