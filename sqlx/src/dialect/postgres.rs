//! PostgreSQL.

use sqlx::{
    Arguments as _, AssertSqlSafe, Encode, PgConnection, Postgres, Type, error::DatabaseError,
};

use super::{Answered, Dialect, Primitives, alike, sql};
use crate::{
    ids::Ids,
    stored::{Columns, Selected},
};

const UNDEFINED_COLUMN: &str = "42703";
const SERIALIZATION_FAILURE: &str = "40001";
const DEADLOCK_DETECTED: &str = "40P01";
const LOCK_NOT_AVAILABLE: &str = "55P03";

impl Dialect for Postgres {}

impl Primitives for Postgres {
    const SCHEMA: &'static str = include_str!("../../schema/postgres.sql");
    // `IF NOT EXISTS` alone fails where two create the same table at once. The number is this
    // crate's own.
    const BEFORE_SCHEMA: Option<&'static str> =
        Some("SELECT pg_advisory_xact_lock(7236834201775529)");
    const BYTES: &'static str = "BYTEA";
    // The others have limits of their own, and no way to set one for a transaction.
    const BEFORE_SEAL: Option<&'static str> = Some("SET LOCAL lock_timeout = '4s'");
    const PURGE: &'static str = "DELETE FROM {table} WHERE id IN (SELECT id FROM {table} \
         WHERE created_at < extract(epoch FROM now())::BIGINT - ? \
         ORDER BY created_at LIMIT ? FOR UPDATE SKIP LOCKED)";
    const LOCKED: &'static str = " FOR UPDATE";

    fn placeholders(sql: &str) -> String {
        let mut numbered = String::with_capacity(sql.len() + 8);
        for (number, part) in sql.split('?').enumerate() {
            if number > 0 {
                numbered.push_str(&format!("${number}"));
            }
            numbered.push_str(part);
        }
        numbered
    }

    fn lost_to_another(error: &(dyn DatabaseError + 'static)) -> bool {
        let lost = [SERIALIZATION_FAILURE, DEADLOCK_DETECTED, LOCK_NOT_AVAILABLE];
        error.code().is_some_and(|code| lost.contains(&code.as_ref()))
    }

    fn lacks_column(error: &(dyn DatabaseError + 'static)) -> bool {
        error.code().is_some_and(|code| code == UNDEFINED_COLUMN)
    }

    fn out_of_sight(error: &sqlx::Error) -> bool {
        // From REPEATABLE READ on, a row that was committed after the snapshot fails the insert.
        let code = error.as_database_error().and_then(DatabaseError::code);
        code.is_some_and(|code| code == SERIALIZATION_FAILURE)
    }

    async fn insert(
        on: &mut PgConnection,
        table: &'static str,
        ids: &Ids<'_>,
    ) -> Answered<Option<i64>> {
        // Not by the error of a duplicate, which would end the transaction.
        let insert = "INSERT INTO {table} (rule, scope, business_key, delivery_id, fingerprint) \
             VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING RETURNING id";
        sqlx::query_scalar(AssertSqlSafe(sql::<Self>(insert, table)))
            .bind(ids.rule.as_bytes())
            .bind(ids.scope)
            .bind(ids.business_key)
            .bind(ids.delivery_id)
            .bind(ids.fingerprint.as_deref())
            .fetch_optional(on)
            .await
    }

    alike!();
}
