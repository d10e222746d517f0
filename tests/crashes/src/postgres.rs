//! The shop on PostgreSQL.

use sqlx::{Pool, postgres::PgPoolOptions};

#[path = "shop.rs"]
mod shop;

pub(crate) use shop::open;

pub(crate) type Db = sqlx::Postgres;

async fn pool(url: &str) -> Result<Pool<Db>, sqlx::Error> {
    PgPoolOptions::new().max_connections(crate::CONNECTIONS).connect(url).await
}
