//! Accounts, orders and charges, and the handlers that charge: compiled once for each database, whose
//! module gives the pool.
#![expect(clippy::duplicate_mod, reason = "one shop, once for each database")]

use std::{collections::BTreeMap, sync::atomic::Ordering};

use axum::{
    Json, Router,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use serde::{Deserialize, Serialize};
use sqlx::{AssertSqlSafe, Pool, Transaction};
use tower_idempotency::{Answer, Operation, RedisStore, test_util::FaultyStore};
use tower_idempotency_sqlx::{DedupTable, Entry};

use super::{Db, pool};
use crate::{
    Notification, Process, Receipt,
    arguments::{Bank, Without},
    points::Point,
    protect,
};

const DEDUP: DedupTable<Db> = DedupTable::new("dedup");

/// No order is unique among the charges: a second one has to be seen, not refused.
const TABLES: &[&str] = &[
    "CREATE TABLE IF NOT EXISTS accounts (name VARCHAR(40) PRIMARY KEY, balance BIGINT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS orders (id VARCHAR(40) PRIMARY KEY, charged BIGINT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS charges (id VARCHAR(40) PRIMARY KEY, order_id VARCHAR(40) NOT NULL, \
     account VARCHAR(40) NOT NULL, amount BIGINT NOT NULL)",
];

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[derive(Clone)]
struct Shop {
    db: Pool<Db>,
    process: Process,
}

/// What the shop begins with.
#[derive(Deserialize)]
struct Stock {
    accounts: BTreeMap<String, i64>,
    orders: Vec<String>,
}

/// All that is in the database, for whoever checks it.
#[derive(Serialize)]
struct Books {
    accounts: BTreeMap<String, i64>,
    /// How often each order says that it was charged.
    orders: BTreeMap<String, i64>,
    charges: Vec<Charge>,
    rows: i64,
}

#[derive(Serialize)]
struct Charge {
    id: String,
    order: String,
    account: String,
    amount: i64,
}

/// Creates the tables where they are not there yet; the routes of the shop.
pub(crate) async fn open(
    process: &Process,
    store: FaultyStore<RedisStore>,
) -> Result<Router, Failure> {
    let db = pool(&process.arguments.database).await?;
    DEDUP.migrate(&db).await?;
    for table in TABLES {
        sqlx::raw_sql(*table).execute(&db).await?;
    }
    let shop = Shop { db: db.clone(), process: process.clone() };
    let routes = Router::new().route("/notify", post(notify)).route("/pay", post(pay));
    let routes = protect(routes, process, store, DEDUP.ledger(&db));
    let own = Router::new().route("/stock", post(stock)).route("/books", get(books));
    Ok(routes.merge(own).with_state(shop))
}

async fn notify(
    State(shop): State<Shop>,
    operation: Operation,
    Json(notification): Json<Notification>,
) -> Response {
    shop.process.runs.fetch_add(1, Ordering::SeqCst);
    shop.process.points.pass(Point::Handler).await;
    said(shop.charge(&operation, &notification, &Receipt::new()).await)
}

/// The same after a bank was asked, whose refusal is an answer that has no row of the handler's.
async fn pay(
    State(shop): State<Shop>,
    operation: Operation,
    Json(notification): Json<Notification>,
) -> Response {
    shop.process.runs.fetch_add(1, Ordering::SeqCst);
    shop.process.points.pass(Point::Handler).await;
    let receipt = Receipt::new();
    let refuses = match shop.process.arguments.bank {
        Bank::Pays => false,
        Bank::Refuses => true,
        Bank::Fickle => rand::random::<u8>() < 80,
    };
    if refuses {
        return receipt.refused().into_response();
    }
    said(shop.charge(&operation, &notification, &receipt).await)
}

/// Whatever went wrong, the transaction is gone, or nobody knows whether it was committed: the next
/// delivery finds out.
fn said(answer: Result<Answer, Failure>) -> Response {
    match answer {
        Ok(answer) => answer.into_response(),
        Err(error) => {
            let why = error.source().map_or(String::new(), |source| format!(": {source}"));
            (StatusCode::SERVICE_UNAVAILABLE, format!("{error}{why}")).into_response()
        }
    }
}

impl Shop {
    async fn charge(
        &self,
        operation: &Operation,
        notification: &Notification,
        receipt: &Receipt,
    ) -> Result<Answer, Failure> {
        let points = &self.process.points;
        match self.process.arguments.without {
            Some(Without::Table) => return self.charge_alone(notification, receipt).await,
            Some(Without::OneCommit) => {
                if let Some(answer) = DEDUP.find(&self.db, operation).await? {
                    return Ok(answer);
                }
                self.charge_alone(notification, receipt).await?;
            }
            Some(Without::Ledger) | None => {}
        }
        let mut tx = self.db.begin().await?;
        let row = match DEDUP.enter(&mut tx, operation).await? {
            Entry::New(row) => row,
            Entry::Done(answer) => return Ok(answer),
            Entry::Mismatch => return Err("this row is another request's".into()),
        };
        if self.process.arguments.without != Some(Without::OneCommit) {
            points.pass(Point::Entered).await;
            transfer(&mut tx, notification, receipt).await?;
            points.pass(Point::Charged).await;
        }
        let answer = row.commit(tx, receipt.paid()).await?;
        points.pass(Point::Committed).await;
        Ok(answer)
    }

    /// The effect in a transaction of its own.
    async fn charge_alone(
        &self,
        notification: &Notification,
        receipt: &Receipt,
    ) -> Result<Answer, Failure> {
        let mut tx = self.db.begin().await?;
        transfer(&mut tx, notification, receipt).await?;
        tx.commit().await?;
        self.process.points.pass(Point::Committed).await;
        Ok(receipt.paid())
    }
}

/// From the account to a till of the merchant, and written down in the order and among the charges.
async fn transfer(
    tx: &mut Transaction<'_, Db>,
    notification: &Notification,
    receipt: &Receipt,
) -> Result<(), Failure> {
    let Notification { order_id, account, till, amount } = notification;
    let charge = &receipt.charge;
    for name in [order_id, account, till] {
        quotable(name)?;
    }
    let statements = [
        format!("UPDATE accounts SET balance = balance - {amount} WHERE name = '{account}'"),
        format!("INSERT INTO charges VALUES ('{charge}', '{order_id}', '{account}', {amount})"),
        format!("UPDATE orders SET charged = charged + 1 WHERE id = '{order_id}'"),
        // Last, since many wait for it.
        format!("UPDATE accounts SET balance = balance + {amount} WHERE name = '{till}'"),
    ];
    for statement in statements {
        let changed = sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut **tx).await?;
        if changed.rows_affected() != 1 {
            return Err(format!("there is no {account}, no {till} or no {order_id}").into());
        }
    }
    Ok(())
}

/// The texts of a test need no quotes. They are in the statements, since the databases do not agree
/// on what stands for a value.
fn quotable(text: &str) -> Result<(), Failure> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    if text.bytes().all(plain) { Ok(()) } else { Err(format!("{text} needs quotes").into()) }
}

async fn stock(State(shop): State<Shop>, Json(stock): Json<Stock>) -> Response {
    let filled = async {
        let mut tx = shop.db.begin().await?;
        for (name, balance) in &stock.accounts {
            quotable(name)?;
            let insert = format!("INSERT INTO accounts VALUES ('{name}', {balance})");
            sqlx::raw_sql(AssertSqlSafe(insert)).execute(&mut *tx).await?;
        }
        for order in &stock.orders {
            quotable(order)?;
            let insert = format!("INSERT INTO orders VALUES ('{order}', 0)");
            sqlx::raw_sql(AssertSqlSafe(insert)).execute(&mut *tx).await?;
        }
        tx.commit().await?;
        Ok(Answer::text("filled"))
    };
    said(filled.await)
}

async fn books(State(shop): State<Shop>) -> Result<Json<Books>, String> {
    let read = async {
        // One snapshot, where the database has them; it is read when nobody charges.
        let pairs = async |table: &str| {
            let select = AssertSqlSafe(format!("SELECT * FROM {table}"));
            sqlx::query_as::<Db, (String, i64)>(select).fetch_all(&shop.db).await
        };
        let charges = sqlx::query_as::<Db, (String, String, String, i64)>("SELECT * FROM charges");
        let charges = charges.fetch_all(&shop.db).await?;
        let charge = |(id, order, account, amount)| Charge { id, order, account, amount };
        Ok(Json(Books {
            accounts: pairs("accounts").await?.into_iter().collect(),
            orders: pairs("orders").await?.into_iter().collect(),
            charges: charges.into_iter().map(charge).collect(),
            rows: sqlx::query_scalar("SELECT COUNT(*) FROM dedup").fetch_one(&shop.db).await?,
        }))
    };
    read.await.map_err(|error: sqlx::Error| error.to_string())
}
