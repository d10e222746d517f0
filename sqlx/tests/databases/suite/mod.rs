//! The suite that runs once for each database: its module gives the pool, the ways to begin and the
//! way to kill a connection.
#![expect(clippy::duplicate_mod, reason = "one suite, once for each database")]

mod at_once;
mod hostile;
mod identities;
mod jobs;
mod ledger;
mod lost;
mod one_by_one;
mod requests;
mod states;

use sqlx::{AssertSqlSafe, Pool, Transaction};
use tower_idempotency::{Answer, Operation};
use tower_idempotency_sqlx::{DedupRow, DedupTable, Entry};

use super::{Db, LEVELS, kill};

const DEDUP: DedupTable<Db> = DedupTable::new("dedup");

/// A database with the table, and one of charges.
async fn open() -> (Pool<Db>, impl Sized) {
    let (pool, held) = super::open().await;
    DEDUP.migrate(&pool).await.unwrap();
    run(&pool, "CREATE TABLE charges (who VARCHAR(40) NOT NULL)").await;
    (pool, held)
}

async fn run(pool: &Pool<Db>, sql: &str) {
    sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(pool).await.unwrap();
}

async fn run_in(tx: &mut Transaction<'_, Db>, sql: &str) {
    sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&mut **tx).await.unwrap();
}

async fn count(pool: &Pool<Db>, table: &str) -> i64 {
    let count = AssertSqlSafe(format!("SELECT COUNT(*) FROM {table}"));
    sqlx::query_scalar(count).fetch_one(pool).await.unwrap()
}

/// What a handler does: enter, charge, commit with this answer.
async fn charge(pool: &Pool<Db>, operation: &Operation, answer: Answer) -> Handled {
    let mut tx = pool.begin().await.unwrap();
    match DEDUP.enter(&mut tx, operation).await.unwrap() {
        Entry::New(row) => {
            run_in(&mut tx, "INSERT INTO charges VALUES ('U-7')").await;
            Handled::Charged(row.commit(tx, answer).await.unwrap())
        }
        Entry::Done(answer) => Handled::Done(answer),
        Entry::Mismatch => Handled::Mismatch,
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Handled {
    Charged(Answer),
    Done(Answer),
    Mismatch,
}

/// Enters an operation that must be new.
#[track_caller]
fn new(entry: Entry<Db>) -> DedupRow<Db> {
    match entry {
        Entry::New(row) => row,
        Entry::Done(_) | Entry::Mismatch => panic!("it should be new, and is {entry:?}"),
    }
}
