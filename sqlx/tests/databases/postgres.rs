//! PostgreSQL.

use std::sync::{
    Arc, Weak,
    atomic::{AtomicU32, Ordering},
};

use sqlx::{AssertSqlSafe, Connection, PgConnection, Pool, Transaction, postgres::PgPoolOptions};
use tokio::sync::Mutex;
use tower_idempotency::Answer;
use tower_idempotency_sqlx::{DedupTable, Entry};
use tower_idempotency_test_support::PostgresServer;

use crate::operation::Delivery;

#[path = "suite/mod.rs"]
mod suite;

pub(crate) type Db = sqlx::Postgres;

/// How transactions begin, by their isolation.
pub(crate) const LEVELS: &[&str] = &[
    "BEGIN ISOLATION LEVEL READ COMMITTED",
    "BEGIN ISOLATION LEVEL REPEATABLE READ",
    "BEGIN ISOLATION LEVEL SERIALIZABLE",
];
/// What makes each isolation the default of a connection.
pub(crate) const DEFAULTS: &[&str] = &[
    "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED",
    "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL REPEATABLE READ",
    "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL SERIALIZABLE",
];
/// What a pool may be set to that the layer asks through.
pub(crate) const ASKED: &[&str] =
    &[DEFAULTS[0], DEFAULTS[1], DEFAULTS[2], "SET default_transaction_read_only = on"];
/// Those whose snapshot may be older than what they meet.
const ISOLATED: &[&str] = &[LEVELS[1], LEVELS[2]];

/// One server for all tests that run at the same time; it ends with the last of them.
static SERVER: Mutex<Weak<PostgresServer>> = Mutex::const_new(Weak::new());

/// A database of its own, and what keeps its server alive.
pub(crate) async fn open() -> (Pool<Db>, Arc<PostgresServer>) {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let mut shared = SERVER.lock().await;
    let server = match shared.upgrade() {
        Some(server) => server,
        None => {
            let server = Arc::new(PostgresServer::start().await);
            *shared = Arc::downgrade(&server);
            server
        }
    };
    drop(shared);
    let name = format!("test_{}", COUNT.fetch_add(1, Ordering::Relaxed));
    let mut admin = PgConnection::connect(&server.url()).await.unwrap();
    let create = AssertSqlSafe(format!("CREATE DATABASE {name}"));
    sqlx::raw_sql(create).execute(&mut admin).await.unwrap();
    let url = format!("postgres://postgres@{}/{name}", server.address());
    let pool = PgPoolOptions::new().max_connections(52).connect(&url).await.unwrap();
    (pool, server)
}

/// Kills the connection of this transaction from outside.
pub(crate) async fn kill(pool: &Pool<Db>, mut tx: Transaction<'static, Db>) {
    let id: i32 = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut *tx).await.unwrap();
    let kill = AssertSqlSafe(format!("SELECT pg_terminate_backend({id})"));
    sqlx::raw_sql(kill).execute(pool).await.unwrap();
    let gone = sqlx::raw_sql("SELECT 1").execute(&mut *tx).await;
    assert!(gone.is_err(), "the connection is still there");
}

/// A new transaction would end the savepoint and what was done before it.
#[tokio::test]
async fn a_savepoint_with_an_old_snapshot_is_not_rolled_back_behind_the_handlers_back() {
    const DEDUP: DedupTable<Db> = DedupTable::new("dedup");
    let (pool, _server) = open().await;
    DEDUP.migrate(&pool).await.unwrap();
    sqlx::raw_sql("CREATE TABLE charges (who TEXT)").execute(&pool).await.unwrap();
    let operation = Delivery::new("N-1").operation().await;

    let mut outer = pool.begin_with(ISOLATED[0]).await.unwrap();
    sqlx::raw_sql("INSERT INTO charges VALUES ('before')").execute(&mut *outer).await.unwrap();
    let mut tx = pool.begin().await.unwrap();
    let Entry::New(row) = DEDUP.enter(&mut tx, &operation).await.unwrap() else { panic!() };
    let answer = row.commit(tx, Answer::text("success")).await.unwrap();

    let mut inner = outer.begin().await.unwrap();
    let error = DEDUP.enter(&mut inner, &operation).await.unwrap_err();
    assert!(error.is_retryable(), "{error}");
    inner.rollback().await.unwrap();
    outer.commit().await.unwrap();
    let kept: i64 =
        sqlx::query_scalar("SELECT COUNT(*) FROM charges").fetch_one(&pool).await.unwrap();
    assert_eq!(kept, 1);
    assert_eq!(DEDUP.find(&pool, &operation).await.unwrap(), Some(answer));
}

/// Its snapshot is older than the row that it meets.
#[tokio::test]
async fn a_transaction_with_an_older_snapshot_finds_the_answer() {
    const DEDUP: DedupTable<Db> = DedupTable::new("dedup");
    let (pool, _server) = open().await;
    DEDUP.migrate(&pool).await.unwrap();
    for (begin, id) in ISOLATED.iter().zip(["N-1", "N-2"]) {
        let operation = Delivery::new(id).order(id).operation().await;
        let mut late = pool.begin_with(*begin).await.unwrap();
        sqlx::raw_sql("SELECT * FROM dedup").execute(&mut *late).await.unwrap();

        let mut tx = pool.begin().await.unwrap();
        let Entry::New(row) = DEDUP.enter(&mut tx, &operation).await.unwrap() else { panic!() };
        let answer = row.commit(tx, Answer::text(id)).await.unwrap();

        match DEDUP.enter(&mut late, &operation).await.unwrap() {
            Entry::Done(found) => assert_eq!(found, answer, "{begin}"),
            other => panic!("{begin}: it should be done, and is {other:?}"),
        }
        late.commit().await.unwrap();
    }
}

/// Two that have read what the other writes cannot both commit.
#[tokio::test]
async fn a_commit_that_fails_for_another_one_is_an_error_to_retry_and_has_not_happened() {
    const DEDUP: DedupTable<Db> = DedupTable::new("dedup");
    let (pool, _server) = open().await;
    DEDUP.migrate(&pool).await.unwrap();
    sqlx::raw_sql("CREATE TABLE charges (who TEXT)").execute(&pool).await.unwrap();
    let enter = async |id: &'static str| {
        let operation = Delivery::new(id).operation().await;
        let mut tx = pool.begin_with(LEVELS[2]).await.unwrap();
        let Entry::New(row) = DEDUP.enter(&mut tx, &operation).await.unwrap() else { panic!() };
        sqlx::raw_sql("SELECT COUNT(*) FROM charges").execute(&mut *tx).await.unwrap();
        let charge = AssertSqlSafe(format!("INSERT INTO charges VALUES ('{id}')"));
        sqlx::raw_sql(charge).execute(&mut *tx).await.unwrap();
        (row, tx)
    };
    let (one, its) = enter("N-1").await;
    let (other, others) = enter("N-2").await;
    one.commit(its, Answer::text("N-1")).await.unwrap();
    let error = other.commit(others, Answer::text("N-2")).await.unwrap_err();
    assert!(error.is_retryable(), "{error}");
    let (again, tx) = enter("N-2").await;
    again.commit(tx, Answer::text("N-2")).await.unwrap();
    let charges: Vec<String> =
        sqlx::query_scalar("SELECT who FROM charges ORDER BY who").fetch_all(&pool).await.unwrap();
    assert_eq!(charges, ["N-1", "N-2"]);
}
