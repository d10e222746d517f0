//! The de-duplication table in the handler's own database.

use std::{fmt, marker::PhantomData, time::Duration};

use sqlx::{Pool, Transaction};
use tower_idempotency::{Answer, Operation};

use crate::{
    dialect::{Dialect, depth, sql},
    entry::{DedupRow, Entry},
    error::{Error, Kind},
    ids::Ids,
    ledger::DedupLedger,
    name,
    stored::{self, COLUMNS, Columns},
};

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
///         Entry::Mismatch => return Err("this row is another request's".into()),
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
    /// It tells the layer: what was found, or is committed later, is the answer that everybody gets, and
    /// the layer need not look for it ([`Operation::left_row`]). Of a [mismatch](Entry::Mismatch) it says so,
    /// and the layer refuses the request as it would have by its own record ([`Operation::met_row`]).
    ///
    /// The row has the request's fingerprint from its first moment: what the policy compares
    /// ([`Policy::compare`](tower_idempotency::Policy::compare)), and the caller that a one-time token is bound
    /// to. Whatever the layer's store has lost, its answer is given to the same request alone.
    ///
    /// It works under every isolation level. From REPEATABLE READ on, PostgreSQL gives up a
    /// transaction that has met a row it cannot see; then the row is read in a new transaction,
    /// which `tx` is from then on.
    ///
    /// # Errors
    ///
    /// [`Error::is_retryable`] where the database gave this transaction up for another one;
    /// [`Error::is_unanswered`], which also marks the operation uncertain; an identity that no row can hold
    /// (a scope over 1,024 bytes, a rule's name over 255); whatever else the database says.
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
        match self.insert(tx, &ids).await? {
            Met::New(id) => {
                operation.entered();
                Ok(Entry::New(DedupRow::new(*self, id, operation.clone())))
            }
            Met::Row(columns) => {
                let answer = self
                    .answer(columns, operation)
                    // It has happened, and nobody knows what was answered.
                    .inspect_err(|_| operation.mark_uncertain())?;
                Ok(answer.map_or(Entry::Mismatch, Entry::Done))
            }
            Met::Foreign => {
                operation.met_foreign_row();
                Ok(Entry::Mismatch)
            }
        }
    }

    /// The answer of this row; `None` if it is another request's. The layer is told either way.
    fn answer(&self, columns: Columns, operation: &Operation) -> Result<Option<Answer>, Error> {
        if !operation.met_row(columns.print(self.table)?.as_ref()) {
            return Ok(None);
        }
        let answer = stored::answer(self.table, columns)?;
        operation.left_row(&answer);
        Ok(Some(answer))
    }

    /// This table as the [`Ledger`](tower_idempotency::Ledger) of a policy: an abandoned operation is
    /// settled by its row, and every answer that is kept has one.
    ///
    /// The layer asks it seldom: about what is abandoned, and where a handler left no row. Give it the
    /// handlers' own pool. A seal that waits for a handler's transaction is given up after five seconds;
    /// its connection comes back when the database's own limit is over (see [`DedupTable::enter`], but
    /// on PostgreSQL after 4 s).
    ///
    /// A policy that holds for longer than this table ([`DedupTable::hold`]), as some senders' presets do,
    /// is refused where it is built.
    ///
    /// # Example: the policy of a handler that enters
    ///
    /// ```
    /// # #[cfg(feature = "sqlite")]
    /// # fn example(db: &sqlx::SqlitePool) {
    /// use sqlx::Sqlite;
    /// use tower_idempotency::{Policy, json};
    /// use tower_idempotency_sqlx::DedupTable;
    ///
    /// const DEDUP: DedupTable<Sqlite> = DedupTable::new("dedup");
    ///
    /// let policy = Policy::webhook(json("/notifyId"))
    ///     .business_key(json("/orderId"))
    ///     .ledger(DEDUP.ledger(db));
    /// # }
    /// ```
    pub fn ledger(&self, pool: &Pool<DB>) -> DedupLedger<DB> {
        DedupLedger::new(*self, pool.clone())
    }

    /// What this operation was answered, if it was done. For a handler that has to know before it
    /// begins a transaction: *no* is only known in one that has [entered](DedupTable::enter).
    ///
    /// # Errors
    ///
    /// As [`DedupTable::enter`]; and where the row is another request's ([`Entry::Mismatch`]). The layer
    /// refuses this one then, whatever the handler answers.
    ///
    /// # Cancel safety
    ///
    /// May be dropped and asked again.
    pub async fn find(
        &self,
        pool: &Pool<DB>,
        operation: &Operation,
    ) -> Result<Option<Answer>, Error> {
        match self.committed(pool, &Ids::of(self.rule, operation)?).await? {
            Some(Met::Row(columns)) => {
                let other = Kind::Other { table: self.table, id: columns.id };
                self.answer(columns, operation)?.map(Some).ok_or_else(|| Error::new(other))
            }
            _ => Ok(None),
        }
    }

    pub(crate) fn table(&self) -> &'static str {
        self.table
    }

    pub(crate) fn rule(&self) -> Option<&'static str> {
        self.rule
    }

    pub(crate) fn held(&self) -> Duration {
        self.hold
    }

    /// What is committed of this operation, whatever isolation is the pool's default.
    pub(crate) async fn committed(
        &self,
        pool: &Pool<DB>,
        ids: &Ids<'_>,
    ) -> Result<Option<Met>, Error> {
        let Some(begin) = DB::BEGIN_TO_LOOK else {
            let mut on = pool.acquire().await.map_err(Error::database::<DB>)?;
            return self.seen(&mut on, ids, "").await;
        };
        let mut tx = pool.begin_with(begin).await.map_err(Error::database::<DB>)?;
        let met = self.seen(&mut tx, ids, "").await?;
        tx.rollback().await.map_err(Error::database::<DB>)?;
        Ok(met)
    }

    /// Inserts a row in this transaction, or finds the one that is there.
    pub(crate) async fn insert(
        &self,
        tx: &mut Transaction<'_, DB>,
        ids: &Ids<'_>,
    ) -> Result<Met, Error> {
        for _ in 0..TRIES {
            match DB::insert(&mut *tx, self.table, ids).await {
                Ok(Some(id)) => return Ok(Met::New(id)),
                Ok(None) => {
                    if let Some(met) = self.seen(&mut *tx, ids, DB::AFTER_DUPLICATE).await? {
                        return Ok(met);
                    }
                }
                // A savepoint would not survive the new transaction.
                Err(error) if DB::out_of_sight(&error) && depth::<DB>(tx) == 1 => {
                    DB::run(&mut *tx, "ROLLBACK".to_owned())
                        .await
                        .map_err(Error::database::<DB>)?;
                    DB::run(&mut *tx, "BEGIN".to_owned()).await.map_err(Error::database::<DB>)?;
                    let met = self.seen(&mut *tx, ids, "").await?;
                    // What the handler had done before is rolled back, so it cannot go on.
                    return met.ok_or_else(|| Error::database::<DB>(error));
                }
                Err(error) => return Err(Error::database::<DB>(error)),
            }
        }
        Err(Error::database::<DB>(sqlx::Error::RowNotFound))
    }

    /// The row of this operation, or that its delivery id belongs to another one.
    pub(crate) async fn seen(
        &self,
        on: &mut DB::Connection,
        ids: &Ids<'_>,
        locked: &str,
    ) -> Result<Option<Met>, Error> {
        let delivery = self.row(on, "delivery_id", ids, ids.delivery_id, locked).await?;
        let Some(business_key) = ids.business_key else {
            return Ok(delivery.map(Met::Row));
        };
        match delivery {
            // Done before the policy had a business key, or under this very one.
            Some(row) if row.business_key.as_deref().is_none_or(|key| key == business_key) => {
                Ok(Some(Met::Row(row)))
            }
            Some(_) => Ok(Some(Met::Foreign)),
            None => {
                let row = self.row(on, "business_key", ids, business_key, locked).await?;
                Ok(row.map(Met::Row))
            }
        }
    }

    /// Whether the row with this id is this operation's.
    pub(crate) async fn holds(
        &self,
        on: &mut DB::Connection,
        id: i64,
        operation: &Operation,
    ) -> Result<bool, Error> {
        let ids = Ids::of(self.rule, operation)?;
        let row = self.row(on, "delivery_id", &ids, ids.delivery_id, "").await?;
        Ok(row.is_some_and(|row| row.id == id))
    }

    async fn row(
        &self,
        on: &mut DB::Connection,
        column: &str,
        ids: &Ids<'_>,
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
pub(crate) enum Met {
    /// It had no row, and has this one now, in this transaction.
    New(i64),
    Row(Columns),
    /// Its delivery id belongs to another operation.
    Foreign,
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
