//! What the shop keeps in its database: accounts, orders, charges.

use sqlx::{Pool, Transaction};

use super::{Db, sql};
use crate::{
    Error,
    notification::{Books, Notification},
};

const SCHEMA: [&str; 3] = [
    "CREATE TABLE IF NOT EXISTS accounts (id VARCHAR(64) PRIMARY KEY, balance BIGINT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS orders (id VARCHAR(64) PRIMARY KEY, account_id VARCHAR(64) NOT NULL, \
     status VARCHAR(16) NOT NULL)",
    "CREATE TABLE IF NOT EXISTS charges (order_id VARCHAR(64) NOT NULL, amount BIGINT NOT NULL)",
];

pub(super) async fn migrate(db: &Pool<Db>) -> Result<(), Error> {
    for table in SCHEMA {
        sqlx::raw_sql(table).execute(db).await?;
    }
    Ok(())
}

/// An account with so many yuan, and an order of it.
pub(super) async fn open(db: &Pool<Db>, order: &Notification, yuan: i64) -> Result<(), Error> {
    let mut tx = db.begin().await?;
    sqlx::query(sql("INSERT INTO accounts (id, balance) VALUES ($1, $2)"))
        .bind(&order.user_id)
        .bind(yuan)
        .execute(&mut *tx)
        .await?;
    sqlx::query(sql("INSERT INTO orders (id, account_id, status) VALUES ($1, $2, 'PENDING')"))
        .bind(&order.order_id)
        .bind(&order.user_id)
        .execute(&mut *tx)
        .await?;
    Ok(tx.commit().await?)
}

/// Charges an order, in the caller's transaction.
pub(super) async fn charge(
    tx: &mut Transaction<'_, Db>,
    notification: &Notification,
) -> Result<(), sqlx::Error> {
    sqlx::query(sql("UPDATE accounts SET balance = balance - $1 WHERE id = $2"))
        .bind(notification.amount)
        .bind(&notification.user_id)
        .execute(&mut **tx)
        .await?;
    sqlx::query(sql("INSERT INTO charges (order_id, amount) VALUES ($1, $2)"))
        .bind(&notification.order_id)
        .bind(notification.amount)
        .execute(&mut **tx)
        .await?;
    Ok(())
}

/// What the books say of an order.
pub(super) async fn books(db: &Pool<Db>, order: &str) -> Result<Books, Error> {
    let charges = sqlx::query_scalar(sql("SELECT amount FROM charges WHERE order_id = $1"))
        .bind(order)
        .fetch_all(db)
        .await?;
    let balance = sql(
        "SELECT balance FROM accounts JOIN orders ON account_id = accounts.id WHERE orders.id = $1",
    );
    let balance = sqlx::query_scalar(balance).bind(order).fetch_one(db).await?;
    let charged = charges.iter().sum();
    Ok(Books { charges: i64::try_from(charges.len())?, charged, balance })
}
