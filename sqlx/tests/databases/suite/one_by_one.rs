//! What one transaction after the other finds.

use std::time::Duration;

use http::{HeaderValue, Request, Response, StatusCode};
use tower::{ServiceBuilder, ServiceExt, service_fn};
use tower_idempotency::{
    Answer, IdempotencyLayer, MemoryStore, Operation, Previous, RequestBody, Rule,
};
use tower_idempotency_sqlx::DedupTable;

use super::{DEDUP, Db, Handled, charge, count, kill, new, open, run, run_in};
use crate::operation::Delivery;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

#[tokio::test]
async fn the_answer_comes_back_whole_whatever_the_layers_store_has_forgotten() {
    let (pool, _held) = open().await;
    let mut response = Response::new("success".into());
    *response.status_mut() = StatusCode::CREATED;
    response.headers_mut().append("x-a", HeaderValue::from_static("1"));
    response.headers_mut().append("x-a", HeaderValue::from_bytes(b"\xff").unwrap());
    let answer = Answer::from_http(response);

    let first = charge(&pool, &Delivery::new("N-1").operation().await, answer.clone()).await;
    assert_eq!(first, Handled::Charged(answer.clone()));
    for _ in 0..3 {
        let operation = Delivery::new("N-1").operation().await;
        assert_eq!(operation.previous(), Previous::Nothing, "the layer's store knows of nothing");
        let again = charge(&pool, &operation, Answer::text("other")).await;
        assert_eq!(again, Handled::Done(answer.clone()));
        assert_eq!(DEDUP.find(&pool, &operation).await.unwrap(), Some(answer.clone()));
    }
    assert_eq!(count(&pool, "charges").await, 1);

    let other = Delivery::new("N-2").operation().await;
    assert_eq!(DEDUP.find(&pool, &other).await.unwrap(), None);
    assert!(matches!(charge(&pool, &other, answer).await, Handled::Charged(_)));
    assert_eq!(count(&pool, "charges").await, 2);
}

#[tokio::test]
async fn a_release_leaves_nothing_and_the_next_is_new() {
    let (pool, _held) = open().await;
    let operation = Delivery::new("N-1").operation().await;
    let mut tx = pool.begin().await.unwrap();
    let row = new(DEDUP.enter(&mut tx, &operation).await.unwrap());
    run_in(&mut tx, "INSERT INTO charges VALUES ('U-7')").await;
    row.release(tx).await.unwrap();
    assert_eq!((count(&pool, "charges").await, count(&pool, "dedup").await), (0, 0));
    let next = charge(&pool, &operation, Answer::text("success")).await;
    assert_eq!(next, Handled::Charged(Answer::text("success")));
}

#[tokio::test]
async fn a_connection_that_is_killed_in_the_middle_leaves_nothing_and_the_next_is_new() {
    let (pool, _held) = open().await;
    let operation = Delivery::new("N-1").operation().await;
    let mut tx = pool.begin().await.unwrap();
    let _row = new(DEDUP.enter(&mut tx, &operation).await.unwrap());
    run_in(&mut tx, "INSERT INTO charges VALUES ('U-7')").await;
    kill(&pool, tx).await;
    let next = charge(&pool, &operation, Answer::text("success")).await;
    assert_eq!(next, Handled::Charged(Answer::text("success")));
    assert_eq!(count(&pool, "charges").await, 1);
}

#[tokio::test]
async fn a_transaction_that_was_committed_without_its_answer_is_not_done_again() {
    let (pool, _held) = open().await;
    let operation = Delivery::new("N-1").operation().await;
    let mut tx = pool.begin().await.unwrap();
    let _row = new(DEDUP.enter(&mut tx, &operation).await.unwrap());
    tx.commit().await.unwrap();
    let mut tx = pool.begin().await.unwrap();
    let error = DEDUP.enter(&mut tx, &operation).await.unwrap_err();
    assert!(error.is_unanswered() && !error.is_retryable(), "{error}");
    drop(tx);
    assert!(DEDUP.find(&pool, &operation).await.unwrap_err().is_unanswered());
}

#[tokio::test]
async fn a_row_is_not_committed_by_another_transaction() {
    let (pool, _held) = open().await;
    let operation = Delivery::new("N-1").operation().await;
    let mut tx = pool.begin().await.unwrap();
    let row = new(DEDUP.enter(&mut tx, &operation).await.unwrap());
    tx.rollback().await.unwrap();
    let mut other = pool.begin().await.unwrap();
    run_in(&mut other, "INSERT INTO charges VALUES ('U-7')").await;
    let error = row.commit(other, Answer::text("success")).await.unwrap_err();
    assert!(error.to_string().contains("not open in this transaction"), "{error}");
    assert_eq!(count(&pool, "charges").await, 0);
}

/// Dies the first time: before its transaction, where the order is `O-before`, or after it.
async fn dies(pool: sqlx::Pool<Db>, operation: Operation) -> std::io::Result<Response<String>> {
    let first = operation.attempt() == 1;
    if first && operation.key() == "O-before" {
        return Err(std::io::Error::other("died before"));
    }
    charge(&pool, &operation, Answer::text("success")).await;
    if first {
        Err(std::io::Error::other("died after"))
    } else {
        Ok(Response::new("success".into()))
    }
}

#[tokio::test]
async fn an_abandoned_operation_is_settled_by_its_row() {
    let (pool, _held) = open().await;
    let database = pool.clone();
    let policy = Delivery::new("N-1").order("O-1").policy().ledger(DEDUP.ledger(&pool));
    let handler = service_fn(move |request: Request<RequestBody<String>>| {
        let operation = request.extensions().get::<Operation>().cloned().unwrap();
        dies(database.clone(), operation)
    });
    let layer = IdempotencyLayer::new(MemoryStore::new(), Rule::new("fulfil", policy));
    let service = ServiceBuilder::new().layer(layer).service(handler);
    let send = |delivery: Delivery| service.clone().oneshot(delivery.request());

    assert!(send(Delivery::new("N-1").order("O-1")).await.is_err());
    let answer = send(Delivery::new("N-2").order("O-1")).await.unwrap();
    assert_eq!(answer.headers()["idempotent-replayed"], "true");
    assert_eq!(count(&pool, "charges").await, 1);

    let before = Delivery::new("N-3").order("O-before");
    assert!(send(before).await.is_err());
    assert_eq!(count(&pool, "charges").await, 1);
    let answer = send(before).await.unwrap();
    assert!(!answer.headers().contains_key("idempotent-replayed"));
    assert_eq!(count(&pool, "charges").await, 2);
}

/// Bytes as a literal of this database.
fn hex(text: &str) -> String {
    let digits: String = text.bytes().map(|byte| format!("{byte:02x}")).collect();
    match <Db as sqlx::Database>::NAME {
        "PostgreSQL" => format!("'\\x{digits}'"),
        _ => format!("x'{digits}'"),
    }
}

#[tokio::test]
async fn a_purge_is_bounded_and_keeps_what_is_younger_than_hold() {
    let (pool, _held) = open().await;
    for id in ["N-1", "N-2", "N-3", "N-4"] {
        charge(&pool, &Delivery::new(id).operation().await, Answer::text("success")).await;
    }
    let young = Delivery::new("N-4").operation().await;
    let aged = |days: u64| {
        let (seconds, young) = (DAY.as_secs() * days, hex("N-4"));
        format!("UPDATE dedup SET created_at = created_at - {seconds} WHERE delivery_id <> {young}")
    };
    // Three of them are six days old, and nothing may be purged before seven.
    run(&pool, &aged(6)).await;
    assert_eq!(DEDUP.purge(&pool, Duration::ZERO, 100).await.unwrap(), 0);
    assert_eq!(DEDUP.purge(&pool, 8 * DAY, 100).await.unwrap(), 0);

    run(&pool, &aged(2)).await;
    assert_eq!(DEDUP.purge(&pool, 9 * DAY, 100).await.unwrap(), 0);
    assert_eq!(DEDUP.purge(&pool, Duration::ZERO, 2).await.unwrap(), 2);
    assert_eq!(DEDUP.purge(&pool, Duration::ZERO, 2).await.unwrap(), 1);
    assert_eq!(DEDUP.purge(&pool, Duration::ZERO, 2).await.unwrap(), 0);
    assert!(DEDUP.find(&pool, &young).await.unwrap().is_some());

    run(&pool, &format!("UPDATE dedup SET created_at = created_at - {}", 2 * DAY.as_secs())).await;
    let brief: DedupTable<Db> = DEDUP.hold(DAY);
    assert_eq!(brief.purge(&pool, DAY, 100).await.unwrap(), 1);
}

#[tokio::test]
async fn migrating_again_and_at_once_changes_nothing() {
    const OTHER: DedupTable<Db> = DedupTable::new("other_table");
    let (pool, _held) = open().await;
    charge(&pool, &Delivery::new("N-1").operation().await, Answer::text("success")).await;
    DEDUP.migrate(&pool).await.unwrap();
    assert_eq!(count(&pool, "dedup").await, 1);
    let at_once: Vec<_> = (0..8)
        .map(|_| {
            let pool = pool.clone();
            tokio::spawn(async move { OTHER.migrate(&pool).await })
        })
        .collect();
    for one in at_once {
        one.await.unwrap().unwrap();
    }
    assert_eq!(count(&pool, "other_table").await, 0);
}
