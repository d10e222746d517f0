//! What a table says when an operation is entered, and the row that is to be committed.

use std::{fmt, marker::PhantomData};

use sqlx::Transaction;
use tower_idempotency::Answer;

use crate::{
    dialect::{Dialect, sql},
    error::{Error, Kind},
    stored::lines,
};

/// What [`DedupTable::enter`](crate::DedupTable::enter) found.
#[must_use = "a handler that does not look does the operation again"]
pub enum Entry<DB> {
    /// It was not done: do it now, in this transaction, and end with [`DedupRow::commit`].
    New(DedupRow<DB>),
    /// It was done, and this was answered. Answer so, and drop the transaction.
    Done(Answer),
    /// This delivery id belongs to an operation with another business key. Nothing may be done; the
    /// layer answers 422 in such a case.
    Mismatch,
}

/// The row of an operation that is being done. It is seen by nobody else before it is committed.
#[must_use = "effect, row and answer are committed together: row.commit(tx, answer)"]
pub struct DedupRow<DB> {
    table: &'static str,
    id: i64,
    database: PhantomData<fn() -> DB>,
}

impl<DB: Dialect> DedupRow<DB> {
    pub(crate) fn new(table: &'static str, id: i64) -> Self {
        Self { table, id, database: PhantomData }
    }

    /// Writes the answer into the row and commits the transaction: what the handler did, the row and
    /// the answer at once. Gives the answer back.
    ///
    /// All headers are stored and given again; those that belong to one delivery, such as `Date` or
    /// `Set-Cookie`, are better added afterwards.
    ///
    /// # Errors
    ///
    /// Where the row is not open in this transaction, nothing is committed. Where the database
    /// cannot be asked whether it has committed, nobody knows until the operation is entered again.
    ///
    /// # Cancel safety
    ///
    /// If it is dropped, it may be committed or not; the next delivery finds out.
    pub async fn commit(
        self,
        mut tx: Transaction<'_, DB>,
        answer: Answer,
    ) -> Result<Answer, Error> {
        let columns = (
            self.id,
            None,
            Some(i32::from(answer.status().as_u16())),
            Some(lines(answer.headers())),
            answer.body().map(|body| body.to_vec()),
            answer.trailers().map(lines),
        );
        let write = "UPDATE {table} SET status = ?, headers = ?, body = ?, trailers = ? \
             WHERE id = ? AND status IS NULL";
        let written = DB::write(&mut tx, sql::<DB>(write, self.table), columns).await;
        if written.map_err(Error::database::<DB>)? != 1 {
            return Err(Error::new(Kind::RowGone { table: self.table, id: self.id }));
        }
        tx.commit().await.map_err(Error::database::<DB>)?;
        Ok(answer)
    }

    /// Rolls the transaction back: nothing happened, no row, and the next delivery is new. To be
    /// answered with what the policy releases, or `Outcome::Release`. Dropping the transaction does
    /// the same, a moment later.
    ///
    /// # Errors
    ///
    /// Where the database cannot be reached, which rolls back too.
    ///
    /// # Cancel safety
    ///
    /// If it is dropped, the transaction is rolled back all the same.
    pub async fn release(self, tx: Transaction<'_, DB>) -> Result<(), Error> {
        tx.rollback().await.map_err(Error::database::<DB>)
    }
}

impl<DB> fmt::Debug for Entry<DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::New(row) => f.debug_tuple("New").field(row).finish(),
            Self::Done(answer) => f.debug_tuple("Done").field(answer).finish(),
            Self::Mismatch => f.write_str("Mismatch"),
        }
    }
}

impl<DB> fmt::Debug for DedupRow<DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DedupRow").field("table", &self.table).field("id", &self.id).finish()
    }
}
