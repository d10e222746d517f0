//! SQLite, in a file.

use std::time::Duration;

use sqlx::{
    Pool, Transaction,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions},
};
use tower_idempotency::Answer;
use tower_idempotency_sqlx::{DedupTable, Entry};
use tower_idempotency_test_support::Directory;

use crate::operation::Delivery;

#[path = "suite/mod.rs"]
mod suite;

pub(crate) type Db = sqlx::Sqlite;

/// How transactions begin.
pub(crate) const LEVELS: &[&str] = &["BEGIN", "BEGIN IMMEDIATE"];
/// There is one isolation.
pub(crate) const DEFAULTS: &[&str] = &["SELECT 1"];

/// What a pool may be set to that the layer asks through.
pub(crate) const ASKED: &[&str] = &["PRAGMA read_uncommitted = ON"];

/// A database of its own, and the directory that it is in.
pub(crate) async fn open() -> (Pool<Db>, Directory) {
    let directory = Directory::new();
    let options = SqliteConnectOptions::new()
        .filename(directory.path().join("test.db"))
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        // Many at once take turns on a slow disk.
        .busy_timeout(Duration::from_secs(30));
    let pool = SqlitePoolOptions::new().max_connections(52).connect_with(options).await.unwrap();
    (pool, directory)
}

/// There is no connection to kill, only one that is given up.
pub(crate) async fn kill(_: &Pool<Db>, tx: Transaction<'static, Db>) {
    drop(tx);
}

/// SQLite cannot write behind a snapshot. It is said that this transaction may be tried again.
#[tokio::test]
async fn a_snapshot_that_is_out_of_date_is_an_error_to_retry() {
    const DEDUP: DedupTable<Db> = DedupTable::new("dedup");
    let (pool, _held) = open().await;
    DEDUP.migrate(&pool).await.unwrap();
    let operation = Delivery::new("N-1").operation().await;

    let mut late = pool.begin().await.unwrap();
    sqlx::raw_sql("SELECT * FROM dedup").execute(&mut *late).await.unwrap();
    let mut tx = pool.begin().await.unwrap();
    let Entry::New(row) = DEDUP.enter(&mut tx, &operation).await.unwrap() else { panic!() };
    let answer = row.commit(tx, Answer::text("success")).await.unwrap();

    let error = DEDUP.enter(&mut late, &operation).await.unwrap_err();
    assert!(error.is_retryable(), "{error}");
    drop(late);
    let mut again = pool.begin().await.unwrap();
    let Entry::Done(found) = DEDUP.enter(&mut again, &operation).await.unwrap() else { panic!() };
    assert_eq!(found, answer);
}
