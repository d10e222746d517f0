//! A database of its own for each test, in one server of each kind for the whole binary.

use std::sync::{
    Arc, Weak,
    atomic::{AtomicU32, Ordering},
};

use sqlx::{AssertSqlSafe, Connection, MySqlConnection, PgConnection};
use tokio::sync::Mutex;
use tower_idempotency_test_support::{Directory, MariadbServer, PostgresServer};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Postgres,
    Mariadb,
    Sqlite,
}

/// An empty database, and what keeps it alive.
pub(crate) struct Database {
    pub(crate) url: String,
    _held: Held,
}

#[expect(dead_code, reason = "they are held until they are dropped")]
enum Held {
    Postgres(Arc<PostgresServer>),
    Mariadb(Arc<MariadbServer>),
    Sqlite(Directory),
}

impl Database {
    pub(crate) async fn open(kind: Kind) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("test_{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let create = AssertSqlSafe(format!("CREATE DATABASE {name}"));
        let (url, held) = match kind {
            Kind::Postgres => {
                static SERVER: Mutex<Weak<PostgresServer>> = Mutex::const_new(Weak::new());
                let server = shared(&SERVER, PostgresServer::start).await;
                let mut admin = PgConnection::connect(&server.url()).await.unwrap();
                sqlx::raw_sql(create).execute(&mut admin).await.unwrap();
                let url = format!("postgres://postgres@{}/{name}", server.address());
                (url, Held::Postgres(server))
            }
            Kind::Mariadb => {
                static SERVER: Mutex<Weak<MariadbServer>> = Mutex::const_new(Weak::new());
                let server = shared(&SERVER, MariadbServer::start).await;
                let mut admin = MySqlConnection::connect(&server.url()).await.unwrap();
                sqlx::raw_sql(create).execute(&mut admin).await.unwrap();
                (format!("mysql://root@{}/{name}", server.address()), Held::Mariadb(server))
            }
            Kind::Sqlite => {
                let directory = Directory::new();
                let path = directory.path().join("shop.db");
                (format!("sqlite://{}", path.display()), Held::Sqlite(directory))
            }
        };
        Self { url, _held: held }
    }
}

/// One server for all tests that run at the same time; it ends with the last of them.
async fn shared<T>(server: &Mutex<Weak<T>>, start: impl AsyncFnOnce() -> T) -> Arc<T> {
    let mut shared = server.lock().await;
    if let Some(server) = shared.upgrade() {
        return server;
    }
    let started = Arc::new(start().await);
    *shared = Arc::downgrade(&started);
    started
}
