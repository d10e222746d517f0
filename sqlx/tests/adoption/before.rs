//! The handler before.

use axum::{Json, extract::State};
use tower_idempotency::{Policy, json};

use super::shop::{App, AppError, Notify, charge};

#[rustfmt::skip]
#[expect(clippy::let_and_return, reason = "it is the README's text")]
pub(crate) fn policy() -> Policy {
    let policy = Policy::webhook(json("/notifyId"))
        .business_key((json("/orderId"), json("/event")));
    policy
}

#[rustfmt::skip]
pub(crate)
async fn notify(State(app): State<App>, Json(n): Json<Notify>) -> Result<&'static str, AppError> {
    let mut tx = app.db.begin().await?;
    charge(&mut tx, &n).await?;
    tx.commit().await?;
    Ok("success")
}
