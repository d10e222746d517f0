//! The same after it enters the table.

use axum::{Json, extract::State};
use sqlx::{PgPool, Postgres};
use tower_idempotency::{Answer, Operation, Policy, json};
use tower_idempotency_sqlx::{DedupTable, Entry};

use super::shop::{App, AppError, Notify, charge};

#[rustfmt::skip]
pub(crate)
const DEDUP: DedupTable<Postgres> = DedupTable::new("dedup");

#[rustfmt::skip]
#[expect(clippy::let_and_return, reason = "it is the README's text")]
pub(crate) fn policy(db: &PgPool) -> Policy {
    let db = db.clone();
    let policy = Policy::webhook(json("/notifyId"))
        .business_key((json("/orderId"), json("/event")))
        .ledger(DEDUP.ledger(&db));
    policy
}

#[rustfmt::skip]
pub(crate)
async fn notify(State(app): State<App>, op: Operation, Json(n): Json<Notify>) -> Result<Answer, AppError> {
    let mut tx = app.db.begin().await?;
    let row = match DEDUP.enter(&mut tx, &op).await? {
        Entry::New(row) => row,
        Entry::Done(answer) => return Ok(answer), // done before: this is what was answered
        Entry::Mismatch => return Err(AppError::AnotherRequest),
    };
    charge(&mut tx, &n).await?;
    Ok(row.commit(tx, Answer::text("success")).await?) // effect, row and answer: one commit
}
