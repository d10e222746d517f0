//! What stands around the handler of the READMEs.

use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde::Deserialize;
use sqlx::{PgPool, Postgres, Transaction};

#[derive(Clone)]
pub(crate) struct App {
    pub(crate) db: PgPool,
}

impl App {
    pub(crate) async fn open(db: &PgPool) -> Self {
        let table = "CREATE TABLE charges (order_id TEXT, amount BIGINT)";
        sqlx::raw_sql(table).execute(db).await.unwrap();
        Self { db: db.clone() }
    }

    pub(crate) async fn charges(&self) -> i64 {
        sqlx::query_scalar("SELECT COUNT(*) FROM charges").fetch_one(&self.db).await.unwrap()
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Notify {
    order_id: String,
    amount: i64,
}

pub(crate) async fn charge(
    tx: &mut Transaction<'_, Postgres>,
    n: &Notify,
) -> Result<(), sqlx::Error> {
    let charge = sqlx::query("INSERT INTO charges VALUES ($1, $2)");
    charge.bind(&n.order_id).bind(n.amount).execute(&mut **tx).await.map(drop)
}

pub(crate) enum AppError {
    AnotherRequest,
    DidNotHappen,
}

impl From<sqlx::Error> for AppError {
    fn from(_: sqlx::Error) -> Self {
        Self::DidNotHappen
    }
}

impl From<tower_idempotency_sqlx::Error> for AppError {
    fn from(_: tower_idempotency_sqlx::Error) -> Self {
        Self::DidNotHappen
    }
}

impl IntoResponse for AppError {
    fn into_response(self) -> Response {
        match self {
            Self::AnotherRequest => StatusCode::CONFLICT.into_response(),
            Self::DidNotHappen => StatusCode::SERVICE_UNAVAILABLE.into_response(),
        }
    }
}
