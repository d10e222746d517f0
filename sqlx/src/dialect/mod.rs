//! What differs between the databases, and what sqlx can only say about one of them at a time.

#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "sqlite")]
mod sqlite;

use std::future::Future;

use sqlx::{Database, Encode, Transaction, Type, error::DatabaseError};
use sqlx_core::transaction::TransactionManager;

use crate::{ids::Ids, stored::Columns};

/// A database that this crate speaks to: `sqlx::Postgres`, `sqlx::MySql`, `sqlx::Sqlite`, each with
/// the feature of its name. It cannot be implemented elsewhere.
pub trait Dialect: Primitives {}

type Answered<T> = Result<T, sqlx::Error>;

/// The statements, one by one. In their text `{table}` is the table and each `?` a value.
#[doc(hidden)]
pub trait Primitives: Database<Arguments: Clone> {
    /// Creates a table called `dedup`.
    const SCHEMA: &'static str;
    /// Run in the same transaction before [`Self::SCHEMA`], so that two migrations at once wait for
    /// each other.
    const BEFORE_SCHEMA: Option<&'static str>;
    /// The type of what has to be added to a table that was made before rows had a fingerprint.
    const BYTES: &'static str;
    /// Run in a transaction of the layer's own, before it may have to wait for a handler's: it must not
    /// hold a connection for long after nobody listens any more.
    const BEFORE_SEAL: Option<&'static str> = None;
    /// Begins a transaction for one look at what others have committed, where a default isolation could
    /// show what may still be rolled back.
    const BEGIN_TO_LOOK: Option<&'static str> = None;
    /// Whether the id of a row that was rolled back is given to the next one.
    const IDS_COME_AGAIN: bool = false;
    /// Deletes rows older than so many seconds, and so many at most.
    const PURGE: &'static str;
    /// After a `SELECT`: locks the row until the transaction ends.
    const LOCKED: &'static str;
    /// After the `SELECT` that follows a duplicate: makes it see what the insert has met.
    const AFTER_DUPLICATE: &'static str = "";

    /// This database's placeholders in place of each `?`.
    fn placeholders(sql: &str) -> String {
        sql.to_owned()
    }

    /// Whether this error says that the database gave the transaction up for another one.
    fn lost_to_another(error: &(dyn DatabaseError + 'static)) -> bool;

    /// Whether this error says that a table has no such column.
    fn lacks_column(error: &(dyn DatabaseError + 'static)) -> bool;

    /// Whether the row may be there and this transaction, which is over, could not see it.
    fn out_of_sight(_error: &sqlx::Error) -> bool {
        false
    }

    /// Inserts a row and gives its id; none if there is one already.
    fn insert(
        on: &mut Self::Connection,
        table: &'static str,
        ids: &Ids<'_>,
    ) -> impl Future<Output = Answered<Option<i64>>> + Send;

    /// The row that this statement finds by rule, scope and one identity more.
    fn row(
        on: &mut Self::Connection,
        sql: String,
        ids: &Ids<'_>,
        id: &[u8],
    ) -> impl Future<Output = Answered<Option<Columns>>> + Send;

    /// Writes `status, headers, body, trailers` of a row; how many it was.
    fn write(
        on: &mut Self::Connection,
        sql: String,
        columns: Columns,
    ) -> impl Future<Output = Answered<u64>> + Send;

    /// Runs a statement with these two values; how many rows it changed.
    fn purge(
        on: &mut Self::Connection,
        sql: String,
        seconds: i64,
        at_most: i64,
    ) -> impl Future<Output = Answered<u64>> + Send;

    /// Runs statements without values.
    fn run(on: &mut Self::Connection, sql: String) -> impl Future<Output = Answered<()>> + Send;

    /// An id, between two states where they are given, as values of a statement. Apart from the
    /// statement, so that its future does not depend on the type of the id: it would not be `Send`
    /// enough for a handler.
    fn values<'q, I>(
        to: Option<&'static str>,
        id: I,
        from: Option<&'static str>,
    ) -> Answered<Self::Arguments>
    where
        I: Encode<'q, Self> + Type<Self>;

    /// Sets a state; how many rows it changed.
    fn set_state(
        on: &mut Self::Connection,
        sql: String,
        values: Self::Arguments,
    ) -> impl Future<Output = Answered<u64>> + Send;

    /// Reads a state.
    fn state(
        on: &mut Self::Connection,
        sql: String,
        values: Self::Arguments,
    ) -> impl Future<Output = Answered<Option<String>>> + Send;
}

/// A statement for this table in this database.
pub(crate) fn sql<DB: Dialect>(text: &str, table: &str) -> String {
    DB::placeholders(&text.replace("{table}", table))
}

/// How deep a transaction is nested: 1 where no savepoint is open.
pub(crate) fn depth<DB: Dialect>(tx: &Transaction<'_, DB>) -> usize {
    <DB as Database>::TransactionManager::get_transaction_depth(tx)
}

/// What reads the same for every database, and that sqlx's bounds cannot say for all of them.
#[allow(unused_macros, reason = "without a feature there is no database")]
macro_rules! alike {
    () => {
        async fn row(
            on: &mut Self::Connection,
            sql: String,
            ids: &Ids<'_>,
            id: &[u8],
        ) -> Answered<Option<Columns>> {
            let row = sqlx::query_as::<Self, Selected>(AssertSqlSafe(sql))
                .bind(ids.rule.as_bytes())
                .bind(ids.scope)
                .bind(id)
                .fetch_optional(on)
                .await?;
            Ok(row.map(Columns::from))
        }

        async fn write(on: &mut Self::Connection, sql: String, columns: Columns) -> Answered<u64> {
            let Columns { id, status, headers, body, trailers, .. } = columns;
            let query = sqlx::query::<Self>(AssertSqlSafe(sql)).bind(status).bind(headers);
            let result = query.bind(body).bind(trailers).bind(id).execute(on).await?;
            Ok(result.rows_affected())
        }

        async fn purge(
            on: &mut Self::Connection,
            sql: String,
            seconds: i64,
            at_most: i64,
        ) -> Answered<u64> {
            let query = sqlx::query::<Self>(AssertSqlSafe(sql)).bind(seconds).bind(at_most);
            Ok(query.execute(on).await?.rows_affected())
        }

        async fn run(on: &mut Self::Connection, sql: String) -> Answered<()> {
            sqlx::raw_sql(AssertSqlSafe(sql)).execute(on).await.map(drop)
        }

        fn values<'q, I>(
            to: Option<&'static str>,
            id: I,
            from: Option<&'static str>,
        ) -> Answered<Self::Arguments>
        where
            I: Encode<'q, Self> + Type<Self>,
        {
            let mut values = Self::Arguments::default();
            if let Some(to) = to {
                values.add(to).map_err(sqlx::Error::Encode)?;
            }
            values.add(id).map_err(sqlx::Error::Encode)?;
            if let Some(from) = from {
                values.add(from).map_err(sqlx::Error::Encode)?;
            }
            Ok(values)
        }

        async fn set_state(
            on: &mut Self::Connection,
            sql: String,
            values: Self::Arguments,
        ) -> Answered<u64> {
            let query = sqlx::query_with::<Self, _>(AssertSqlSafe(sql), values);
            Ok(query.execute(on).await?.rows_affected())
        }

        async fn state(
            on: &mut Self::Connection,
            sql: String,
            values: Self::Arguments,
        ) -> Answered<Option<String>> {
            sqlx::query_scalar_with::<Self, String, _>(AssertSqlSafe(sql), values)
                .fetch_optional(on)
                .await
        }
    };
}
#[allow(unused_imports, reason = "without a feature there is no database")]
use alike;
