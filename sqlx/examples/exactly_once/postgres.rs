//! The shop on PostgreSQL.

use sqlx::{Pool, Postgres, postgres::PgPoolOptions};

#[path = "shop/mod.rs"]
pub(crate) mod shop;

pub(crate) type Db = Postgres;

pub(crate) async fn open(url: &str) -> Result<Pool<Db>, sqlx::Error> {
    PgPoolOptions::new().connect(url).await
}

/// A statement as this database reads it.
pub(crate) fn sql(text: &'static str) -> &'static str {
    text
}
