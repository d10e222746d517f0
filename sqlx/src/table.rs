//! The de-duplication table in the handler's own database.

use std::{fmt, marker::PhantomData, time::Duration};

use sqlx::{Database, Pool, Transaction};
use sqlx_core::transaction::TransactionManager;
use tower_idempotency::{Abandoned, Answer, Operation};

use crate::{
    dialect::{Dialect, sql},
    entry::{DedupRow, Entry},
    error::Error,
    ids::Ids,
    name,
    stored::{self, COLUMNS, Columns},
};

/// The name that the schema files give the table.
const NAME_IN_SCHEMA: &str = "dedup";
/// A row that is purged between the insert and the read leaves its place to an insert anew.
const TRIES: u32 = 3;
const WEEK: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// A table with a row for each operation that was done, written in the transaction that does it:
/// effect, row and answer are committed together, or none of them.
///
/// It makes the effect happen exactly once, whatever the layer's store loses and whenever a process
/// dies, as far as the effect is in the same database. An effect outside of it needs
/// [`Operation::downstream_key`] as well.
///
/// Make it a constant. The rows are the truth: two tables, or a table that is emptied, are two
/// truths.
///
/// # Example: a charge in the handler's own database
///
/// ```
/// # #[cfg(feature = "sqlite")]
/// # mod example {
/// use sqlx::{Sqlite, SqlitePool};
/// use tower_idempotency::{Answer, Operation};
/// use tower_idempotency_sqlx::{DedupTable, Entry};
///
/// const DEDUP: DedupTable<Sqlite> = DedupTable::new("dedup");
///
/// async fn fulfil(db: &SqlitePool, op: &Operation, user: &str) -> Result<Answer, Box<dyn std::error::Error>> {
///     let mut tx = db.begin().await?;
///     let row = match DEDUP.enter(&mut tx, op).await? {
///         Entry::New(row) => row,
///         Entry::Done(answer) => return Ok(answer),
///         Entry::Mismatch => return Err("this delivery id belongs to another order".into()),
///     };
///     sqlx::query("UPDATE accounts SET balance = balance - 960 WHERE user = ?")
///         .bind(user)
///         .execute(&mut *tx)
///         .await?;
///     Ok(row.commit(tx, Answer::text("success")).await?)
/// }
/// # }
/// ```
pub struct DedupTable<DB> {
    table: &'static str,
    rule: Option<&'static str>,
    hold: Duration,
    database: PhantomData<fn() -> DB>,
}

impl<DB> DedupTable<DB> {
    /// The table of this name. Its rows are held for 7 days at least.
    ///
    /// # Panics
    ///
    /// When the name is not made of `a-z`, `A-Z`, `0-9` and `_`, begins with a digit, or has more than
    /// 48 bytes: at compile time, where the table is a constant.
    ///
    /// ```compile_fail,E0080
    /// # use tower_idempotency_sqlx::DedupTable;
    /// const DEDUP: DedupTable<()> = DedupTable::new("dedup; DROP TABLE accounts");
    /// ```
    pub const fn new(table: &'static str) -> Self {
        name::check(table);
        Self { table, rule: None, hold: WEEK, database: PhantomData }
    }

    /// The same whose rows stand under this name in place of the rule's. Give it before a rule is
    /// renamed, the old name: otherwise its rows are not found any more, and what they did is done
    /// again.
    ///
    /// Danger: two rules under one name answer for each other.
    #[must_use]
    pub const fn under(self, rule: &'static str) -> Self {
        Self { rule: Some(rule), ..self }
    }

    /// The same whose rows are held at least so long, whatever [`DedupTable::purge`] is told. It has
    /// to be as long as a delivery may come again: the sender's retries, the policy's `hold`.
    /// Default: 7 days.
    #[must_use]
    pub const fn hold(self, hold: Duration) -> Self {
        Self { hold, ..self }
    }
}

impl<DB: Dialect> DedupTable<DB> {
    /// Enters this operation into the table, in this transaction, or says what it was answered.
    ///
    /// Call it first, right after `begin`. While another transaction is doing the same operation
    /// this waits for it: it is [`Entry::Done`] when that one commits, [`Entry::New`] when it rolls
    /// back. How long it waits is the database's `lock_timeout` (PostgreSQL: no limit),
    /// `innodb_lock_wait_timeout` (50 s) or `busy_timeout` (5 s).
    ///
    /// It works under every isolation level. From REPEATABLE READ on, PostgreSQL gives up a
    /// transaction that has met a row it cannot see; then the row is read in a new transaction,
    /// which `tx` is from then on.
    ///
    /// # Errors
    ///
    /// [`Error::is_retryable`] where the database gave this transaction up for another one;
    /// [`Error::is_unanswered`]; an identity that no row can hold (a scope of more than 1,024 bytes,
    /// a rule's name of more than 255); whatever else the database says.
    ///
    /// # Cancel safety
    ///
    /// If it is dropped, the transaction has to be dropped too.
    pub async fn enter(
        &self,
        tx: &mut Transaction<'_, DB>,
        operation: &Operation,
    ) -> Result<Entry<DB>, Error> {
        let ids = Ids::of(self.rule, operation)?;
        let mut tries = 1;
        loop {
            match DB::insert(&mut *tx, self.table, ids).await {
                Ok(Some(id)) => return Ok(Entry::New(DedupRow::new(self.table, id))),
                Ok(None) => match self.seen(&mut *tx, ids, DB::AFTER_DUPLICATE).await? {
                    Seen::Row(columns) => return self.done(columns),
                    Seen::Foreign => return Ok(Entry::Mismatch),
                    Seen::Nothing if tries < TRIES => tries += 1,
                    Seen::Nothing => return Err(Error::database::<DB>(sqlx::Error::RowNotFound)),
                },
                // A savepoint would not survive the new transaction.
                Err(error) if DB::out_of_sight(&error) && depth::<DB>(tx) == 1 => {
                    DB::run(&mut *tx, "ROLLBACK".to_owned())
                        .await
                        .map_err(Error::database::<DB>)?;
                    DB::run(&mut *tx, "BEGIN".to_owned()).await.map_err(Error::database::<DB>)?;
                    return match self.seen(&mut *tx, ids, "").await? {
                        Seen::Row(columns) => self.done(columns),
                        Seen::Foreign => Ok(Entry::Mismatch),
                        // What the handler had done before is rolled back, so it cannot go on.
                        Seen::Nothing => Err(Error::database::<DB>(error)),
                    };
                }
                Err(error) => return Err(Error::database::<DB>(error)),
            }
        }
    }

    /// What this operation was answered, if it was done.
    ///
    /// # Errors
    ///
    /// As [`DedupTable::enter`].
    ///
    /// # Cancel safety
    ///
    /// May be dropped and asked again.
    pub async fn find(
        &self,
        pool: &Pool<DB>,
        operation: &Operation,
    ) -> Result<Option<Answer>, Error> {
        self.find_ids(pool, Ids::of(self.rule, operation)?).await
    }

    /// What an abandoned operation was answered, if it was done. "No" may be too early where its
    /// transaction is still open; if it commits after all, the next [`DedupTable::enter`] finds
    /// it.
    ///
    /// # Errors
    ///
    /// As [`DedupTable::enter`], and where the identity is no UTF-8: then it is only known as a text
    /// with replacements, which may be another operation's too.
    ///
    /// # Cancel safety
    ///
    /// May be dropped and asked again.
    pub async fn find_abandoned(
        &self,
        pool: &Pool<DB>,
        abandoned: &Abandoned,
    ) -> Result<Option<Answer>, Error> {
        self.find_ids(pool, Ids::of_abandoned(self.rule, abandoned)?).await
    }

    /// Creates the table where it is not there yet. The same as plain SQL, for migrations of one's
    /// own, is in this crate's directory `schema`.
    ///
    /// # Errors
    ///
    /// What the database says.
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
            DB::run(&mut *tx, DB::SCHEMA.replace(NAME_IN_SCHEMA, self.table)).await?;
            tx.commit().await
        };
        migrate.await.map_err(Error::database::<DB>)
    }

    /// Deletes rows that are older than this, by the database's clock in whole seconds, `at_most` so
    /// many, the oldest first; how many it was. Rows younger than [`DedupTable::hold`] stay.
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
        let seconds = older_than.max(self.hold).as_secs_f64().ceil() as i64;
        let purge = async {
            let mut on = pool.acquire().await?;
            DB::purge(&mut on, sql::<DB>(DB::PURGE, self.table), seconds, at_most.into()).await
        };
        purge.await.map_err(Error::database::<DB>)
    }

    async fn find_ids(&self, pool: &Pool<DB>, ids: Ids<'_>) -> Result<Option<Answer>, Error> {
        let mut on = pool.acquire().await.map_err(Error::database::<DB>)?;
        match self.seen(&mut on, ids, "").await? {
            Seen::Row(columns) => stored::answer(self.table, columns).map(Some),
            Seen::Foreign | Seen::Nothing => Ok(None),
        }
    }

    fn done(&self, columns: Columns) -> Result<Entry<DB>, Error> {
        stored::answer(self.table, columns).map(Entry::Done)
    }

    /// The row of this operation, or that its delivery id belongs to another one.
    async fn seen(
        &self,
        on: &mut DB::Connection,
        ids: Ids<'_>,
        locked: &str,
    ) -> Result<Seen, Error> {
        let delivery = self.row(on, "delivery_id", ids, ids.delivery_id, locked).await?;
        let Some(business_key) = ids.business_key else {
            return Ok(delivery.map_or(Seen::Nothing, Seen::Row));
        };
        match delivery {
            // Done before the policy had a business key, or under this very one.
            Some(row) if row.1.as_deref().is_none_or(|key| key == business_key) => {
                Ok(Seen::Row(row))
            }
            Some(_) => Ok(Seen::Foreign),
            None => {
                let row = self.row(on, "business_key", ids, business_key, locked).await?;
                Ok(row.map_or(Seen::Nothing, Seen::Row))
            }
        }
    }

    async fn row(
        &self,
        on: &mut DB::Connection,
        column: &str,
        ids: Ids<'_>,
        id: &[u8],
        locked: &str,
    ) -> Result<Option<Columns>, Error> {
        let select = format!(
            "SELECT {COLUMNS} FROM {{table}} WHERE rule = ? AND scope = ? AND {column} = ?{locked}"
        );
        let row = DB::row(on, sql::<DB>(&select, self.table), ids, id).await;
        row.map_err(Error::database::<DB>)
    }
}

/// What the table says of an operation.
enum Seen {
    Row(Columns),
    Foreign,
    Nothing,
}

fn depth<DB: Dialect>(tx: &Transaction<'_, DB>) -> usize {
    <DB as Database>::TransactionManager::get_transaction_depth(tx)
}

// Derived ones would ask the same of `DB`.
impl<DB> Clone for DedupTable<DB> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<DB> Copy for DedupTable<DB> {}

impl<DB> fmt::Debug for DedupTable<DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DedupTable")
            .field("table", &self.table)
            .field("rule", &self.rule)
            .field("hold", &self.hold)
            .finish()
    }
}
