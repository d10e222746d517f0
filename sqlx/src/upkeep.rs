//! What is done with a table as a whole: it is made, looked at, and its old rows are deleted.

use std::time::Duration;

use sqlx::Pool;

use crate::{
    dialect::{Dialect, sql},
    error::{Error, Kind},
    table::DedupTable,
};

/// The name that the schema files give the table.
const NAME_IN_SCHEMA: &str = "dedup";
/// Fails where the table is an older one.
const PROBE: &str = "SELECT fingerprint FROM {table} WHERE 1 = 0";
/// Longer than a handler runs between its row and the last sign of life in the layer's store.
const RUN: Duration = Duration::from_secs(60 * 60);

impl<DB: Dialect> DedupTable<DB> {
    /// Creates the table where it is not there yet. The same as plain SQL, for migrations of one's
    /// own, is in this crate's directory `schema`.
    ///
    /// # Errors
    ///
    /// What the database says; and where the table is there, and was made before rows had a fingerprint,
    /// the statement that adds the column.
    ///
    /// # Cancel safety
    ///
    /// May be dropped and called again.
    pub async fn migrate(&self, pool: &Pool<DB>) -> Result<(), Error> {
        let migrate = async {
            let mut tx = pool.begin().await?;
            if let Some(before) = DB::BEFORE_SCHEMA {
                DB::run(&mut *tx, before.to_owned()).await?;
            }
            DB::run(&mut *tx, DB::SCHEMA.replace(NAME_IN_SCHEMA, self.table())).await?;
            DB::run(&mut *tx, sql::<DB>(PROBE, self.table())).await?;
            tx.commit().await
        };
        migrate.await.map_err(|error| match error.as_database_error() {
            Some(cause) if DB::lacks_column(cause) => {
                Error::new(Kind::Old { table: self.table(), bytes: DB::BYTES, error })
            }
            _ => Error::database::<DB>(error),
        })
    }

    /// Deletes rows that are older than this, by the database's clock in whole seconds, `at_most` so
    /// many, the oldest first; how many it was. Rows younger than [`DedupTable::hold`] and one hour stay:
    /// the layer's record of a run that died counts from its last sign of life, its row from its beginning.
    ///
    /// An operation whose row was deleted is new when it comes again. Call it now and then with a
    /// bound that keeps the transaction short, such as 1,000, and again while it deletes so many.
    ///
    /// # Errors
    ///
    /// What the database says.
    ///
    /// # Cancel safety
    ///
    /// If it is dropped, the rows may be deleted or not.
    pub async fn purge(
        &self,
        pool: &Pool<DB>,
        older_than: Duration,
        at_most: u32,
    ) -> Result<u64, Error> {
        let kept = self.held().saturating_add(RUN);
        let seconds = older_than.max(kept).as_secs_f64().ceil() as i64;
        let purge = async {
            // In a transaction, for a pool whose connections commit nothing by themselves.
            let mut tx = pool.begin().await?;
            let purge = sql::<DB>(DB::PURGE, self.table());
            let rows = DB::purge(&mut tx, purge, seconds, at_most.into()).await?;
            tx.commit().await.map(|()| rows)
        };
        purge.await.map_err(Error::database::<DB>)
    }
}
