//! SQLite.

use sqlx::{
    Arguments as _, AssertSqlSafe, Encode, Sqlite, SqliteConnection, Type, error::DatabaseError,
};

use super::{Answered, Dialect, Primitives, alike, sql};
use crate::{
    ids::Ids,
    stored::{Columns, Selected},
};

const BUSY: i32 = 5;
const LOCKED: i32 = 6;

impl Dialect for Sqlite {}

impl Primitives for Sqlite {
    const SCHEMA: &'static str = include_str!("../../schema/sqlite.sql");
    const BEFORE_SCHEMA: Option<&'static str> = None;
    const BYTES: &'static str = "BLOB";
    const IDS_COME_AGAIN: bool = true;
    const PURGE: &'static str = "DELETE FROM {table} WHERE id IN (SELECT id FROM {table} \
         WHERE created_at < unixepoch() - ? ORDER BY created_at LIMIT ?)";
    // There is one writer at a time, and whoever has tried to write is it.
    const LOCKED: &'static str = "";

    fn lost_to_another(error: &(dyn DatabaseError + 'static)) -> bool {
        // The low byte of an extended code is the code.
        let code = error.code().and_then(|code| code.parse::<i32>().ok());
        code.is_some_and(|code| [BUSY, LOCKED].contains(&(code & 0xff)))
    }

    fn lacks_column(error: &(dyn DatabaseError + 'static)) -> bool {
        // Its code is that of every error in a statement.
        error.message().contains("no such column")
    }

    async fn insert(
        on: &mut SqliteConnection,
        table: &'static str,
        ids: &Ids<'_>,
    ) -> Answered<Option<i64>> {
        let insert = "INSERT INTO {table} (rule, scope, business_key, delivery_id, fingerprint) \
             VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING";
        let result = sqlx::query(AssertSqlSafe(sql::<Self>(insert, table)))
            .bind(ids.rule.as_bytes())
            .bind(ids.scope)
            .bind(ids.business_key)
            .bind(ids.delivery_id)
            .bind(ids.fingerprint.as_deref())
            .execute(on)
            .await?;
        Ok((result.rows_affected() == 1).then(|| result.last_insert_rowid()))
    }

    alike!();
}
