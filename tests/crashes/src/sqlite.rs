//! The shop on SQLite, in a file that all its processes open.

use std::{str::FromStr, time::Duration};

use sqlx::{
    Pool,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous},
};

#[path = "shop.rs"]
mod shop;

pub(crate) use shop::open;

pub(crate) type Db = sqlx::Sqlite;

async fn pool(url: &str) -> Result<Pool<Db>, sqlx::Error> {
    let options = SqliteConnectOptions::from_str(url)?
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        // What is committed outlives the process, which is what is killed; the machine is not.
        .synchronous(SqliteSynchronous::Off)
        .busy_timeout(Duration::from_secs(3));
    SqlitePoolOptions::new().max_connections(8).connect_with(options).await
}
