//! What a table says when an operation is entered, and the row that is to be committed.

use std::fmt;

use sqlx::Transaction;
use tower_idempotency::{Answer, Operation};

use crate::{
    dialect::{Dialect, depth},
    error::{Error, Kind},
    stored,
    table::DedupTable,
};

/// What [`DedupTable::enter`](crate::DedupTable::enter) found.
#[must_use = "a handler that does not look does the operation again"]
pub enum Entry<DB> {
    /// It was not done: do it now, in this transaction, and end with [`DedupRow::commit`].
    New(DedupRow<DB>),
    /// It was done, and this was answered. Answer so, and drop the transaction.
    Done(Answer),
    /// The row is another request's: what the policy compares differs, the one-time token was issued to
    /// another caller, or this delivery id belongs to an operation with another business key. Nothing may
    /// be done: drop the transaction, and answer anything. The layer refuses the request, with 422 or 403, as
    /// if its own record had said so, whatever the handler answers, and keeps nothing of it.
    Mismatch,
}

/// The row of an operation that is being done. It is seen by nobody else before it is committed.
#[must_use = "effect, row and answer are committed together: row.commit(tx, answer)"]
pub struct DedupRow<DB> {
    table: DedupTable<DB>,
    id: i64,
    operation: Operation,
}

impl<DB: Dialect> DedupRow<DB> {
    pub(crate) fn new(table: DedupTable<DB>, id: i64, operation: Operation) -> Self {
        Self { table, id, operation }
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
        let table = self.table.table();
        let gone = || Error::new(Kind::RowGone { table, id: self.id });
        if DB::IDS_COME_AGAIN && !self.table.holds(&mut tx, self.id, &self.operation).await? {
            return Err(gone());
        }
        if !stored::write::<DB>(&mut tx, table, self.id, &answer).await? {
            return Err(gone());
        }
        // A savepoint's end commits nothing yet: then the layer looks for itself.
        let outermost = depth::<DB>(&tx) == 1;
        tx.commit().await.map_err(Error::database::<DB>)?;
        if outermost {
            self.operation.left_row(&answer);
        }
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

impl<DB: Dialect> fmt::Debug for Entry<DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::New(row) => f.debug_tuple("New").field(row).finish(),
            Self::Done(answer) => f.debug_tuple("Done").field(answer).finish(),
            Self::Mismatch => f.write_str("Mismatch"),
        }
    }
}

impl<DB: Dialect> fmt::Debug for DedupRow<DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DedupRow")
            .field("table", &self.table.table())
            .field("id", &self.id)
            .finish()
    }
}
