//! The shop on SQLite.

use std::{str::FromStr, time::Duration};

use sqlx::{
    Pool, Sqlite,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions},
};

#[path = "shop/mod.rs"]
pub(crate) mod shop;

pub(crate) type Db = Sqlite;

pub(crate) async fn open(url: &str) -> Result<Pool<Db>, sqlx::Error> {
    let options = SqliteConnectOptions::from_str(url)?
        .journal_mode(SqliteJournalMode::Wal)
        // There is one writer at a time: the others wait for it.
        .busy_timeout(Duration::from_secs(10));
    SqlitePoolOptions::new().connect_with(options).await
}

/// A statement as this database reads it.
pub(crate) fn sql(text: &'static str) -> &'static str {
    text
}
