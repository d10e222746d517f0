//! The shop on MySQL or MariaDB.

use sqlx::{AssertSqlSafe, MySql, Pool, mysql::MySqlPoolOptions};

#[path = "shop/mod.rs"]
pub(crate) mod shop;

pub(crate) type Db = MySql;

pub(crate) async fn open(url: &str) -> Result<Pool<Db>, sqlx::Error> {
    MySqlPoolOptions::new().connect(url).await
}

/// A statement as this database reads it: its placeholders have no numbers.
pub(crate) fn sql(text: &'static str) -> AssertSqlSafe<String> {
    let mut plain = text.to_owned();
    for number in 1..=4 {
        plain = plain.replace(&format!("${number}"), "?");
    }
    AssertSqlSafe(plain)
}
