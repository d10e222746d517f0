//! MySQL, or rather MariaDB.

use std::sync::{
    Arc, Weak,
    atomic::{AtomicU32, Ordering},
};

use sqlx::{
    AssertSqlSafe, Connection, MySqlConnection, Pool, Transaction, mysql::MySqlPoolOptions,
};
use tokio::sync::Mutex;
use tower_idempotency::Answer;
use tower_idempotency_sqlx::{DedupTable, Entry};
use tower_idempotency_test_support::MariadbServer;

use crate::operation::Delivery;

#[path = "suite/mod.rs"]
mod suite;

pub(crate) type Db = sqlx::MySql;

/// How transactions begin, by their isolation.
pub(crate) const LEVELS: &[&str] = &[
    "SET TRANSACTION ISOLATION LEVEL READ COMMITTED; START TRANSACTION",
    "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; START TRANSACTION",
    "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE; START TRANSACTION",
];
/// What makes each isolation the default of a connection.
pub(crate) const DEFAULTS: &[&str] = &[
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
    "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
    "SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE",
];
/// What a pool may be set to that the layer asks through.
pub(crate) const ASKED: &[&str] = &[
    DEFAULTS[0],
    DEFAULTS[1],
    DEFAULTS[2],
    "SET SESSION TRANSACTION ISOLATION LEVEL READ UNCOMMITTED",
    "SET SESSION autocommit = 0",
];
/// Those whose snapshot may be older than what they meet. Under SERIALIZABLE a read is a lock.
const ISOLATED: &[&str] = &["START TRANSACTION WITH CONSISTENT SNAPSHOT", LEVELS[1]];

/// One server for all tests that run at the same time; it ends with the last of them.
static SERVER: Mutex<Weak<MariadbServer>> = Mutex::const_new(Weak::new());

/// A database of its own, and what keeps its server alive.
pub(crate) async fn open() -> (Pool<Db>, Arc<MariadbServer>) {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let mut shared = SERVER.lock().await;
    let server = match shared.upgrade() {
        Some(server) => server,
        None => {
            let server = Arc::new(MariadbServer::start().await);
            *shared = Arc::downgrade(&server);
            server
        }
    };
    drop(shared);
    let name = format!("test_{}", COUNT.fetch_add(1, Ordering::Relaxed));
    let mut admin = MySqlConnection::connect(&server.url()).await.unwrap();
    let create = AssertSqlSafe(format!("CREATE DATABASE {name}"));
    sqlx::raw_sql(create).execute(&mut admin).await.unwrap();
    let url = format!("mysql://root@{}/{name}", server.address());
    let pool = MySqlPoolOptions::new().max_connections(52).connect(&url).await.unwrap();
    (pool, server)
}

/// Kills the connection of this transaction from outside.
pub(crate) async fn kill(pool: &Pool<Db>, mut tx: Transaction<'static, Db>) {
    let id: u64 = sqlx::query_scalar("SELECT CONNECTION_ID()").fetch_one(&mut *tx).await.unwrap();
    let kill = AssertSqlSafe(format!("KILL {id}"));
    sqlx::raw_sql(kill).execute(pool).await.unwrap();
    let gone = sqlx::raw_sql("SELECT 1").execute(&mut *tx).await;
    assert!(gone.is_err(), "the connection is still there");
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
