//! MySQL and MariaDB.

use sqlx::{
    Arguments as _, AssertSqlSafe, Encode, MySql, MySqlConnection, Type, error::DatabaseError,
    mysql::MySqlDatabaseError,
};

use super::{Answered, Dialect, Primitives, alike, sql};
use crate::{
    ids::Ids,
    stored::{Columns, Selected},
};

/// The record has changed since the snapshot (MariaDB, `innodb_snapshot_isolation`).
const CHECKREAD: u16 = 1020;
const BAD_FIELD: u16 = 1054;
const LOCK_WAIT_TIMEOUT: u16 = 1205;
const LOCK_DEADLOCK: u16 = 1213;

impl Dialect for MySql {}

impl Primitives for MySql {
    const SCHEMA: &'static str = include_str!("../../schema/mysql.sql");
    const BEFORE_SCHEMA: Option<&'static str> = None;
    const BYTES: &'static str = "BLOB";
    // Under READ UNCOMMITTED an open transaction's row would pass for done.
    const BEGIN_TO_LOOK: Option<&'static str> =
        Some("SET TRANSACTION ISOLATION LEVEL READ COMMITTED; START TRANSACTION READ ONLY");
    const PURGE: &'static str = "DELETE FROM {table} WHERE created_at < UNIX_TIMESTAMP() - ? \
         ORDER BY created_at LIMIT ?";
    const LOCKED: &'static str = " FOR UPDATE";
    // A plain read under REPEATABLE READ shows the snapshot, in which the row is not there yet.
    const AFTER_DUPLICATE: &'static str = " FOR UPDATE";

    fn lost_to_another(error: &(dyn DatabaseError + 'static)) -> bool {
        let number = error.try_downcast_ref::<MySqlDatabaseError>().map(MySqlDatabaseError::number);
        matches!(number, Some(CHECKREAD | LOCK_WAIT_TIMEOUT | LOCK_DEADLOCK))
    }

    fn lacks_column(error: &(dyn DatabaseError + 'static)) -> bool {
        let number = error.try_downcast_ref::<MySqlDatabaseError>().map(MySqlDatabaseError::number);
        number == Some(BAD_FIELD)
    }

    async fn insert(
        on: &mut MySqlConnection,
        table: &'static str,
        ids: &Ids<'_>,
    ) -> Answered<Option<i64>> {
        // Not `INSERT IGNORE`, which makes warnings of other errors too. The row must change: sqlx
        // asks for the rows that were found, so one that was found as it is counts 1, as an
        // inserted one does. A changed one counts 2.
        let insert = "INSERT INTO {table} (rule, scope, business_key, delivery_id, fingerprint) \
             VALUES (?, ?, ?, ?, ?) ON DUPLICATE KEY UPDATE touched = 1 - touched";
        let result = sqlx::query(AssertSqlSafe(sql::<Self>(insert, table)))
            .bind(ids.rule.as_bytes())
            .bind(ids.scope)
            .bind(ids.business_key)
            .bind(ids.delivery_id)
            .bind(ids.fingerprint.as_deref())
            .execute(on)
            .await?;
        // Ids count up from 1 and never come near the end of an i64.
        Ok((result.rows_affected() == 1).then(|| result.last_insert_id().cast_signed()))
    }

    alike!();
}
