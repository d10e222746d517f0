//! The shop on MariaDB.

use sqlx::{Pool, mysql::MySqlPoolOptions};

#[path = "shop.rs"]
mod shop;

pub(crate) use shop::open;

pub(crate) type Db = sqlx::MySql;

async fn pool(url: &str) -> Result<Pool<Db>, sqlx::Error> {
    MySqlPoolOptions::new().max_connections(crate::CONNECTIONS).connect(url).await
}
