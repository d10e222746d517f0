//! The de-duplication table as the ledger of a policy.

use std::{error::Error as _, fmt, time::Duration};

use sqlx::Pool;
use tower_idempotency::{Ledger, LedgerEntry, LedgerError, LedgerRow, Sealed};

use crate::{
    dialect::Dialect,
    error::{Error, Kind},
    ids::Ids,
    stored,
    table::{DedupTable, Met},
};

/// How often the database may give a seal up for another transaction.
const TRIES: u32 = 3;

/// A [`DedupTable`] in its database, for [`Policy::ledger`](tower_idempotency::Policy::ledger). Made
/// by [`DedupTable::ledger`]. Clones are the same table.
///
/// * What is abandoned was done if it has a row, and runs again if it has none. Its transaction may be
///   open still, in a process that stalls: then the next run's [`enter`](DedupTable::enter) waits for
///   it, and finds its answer if it commits.
/// * Where the handler left no row for an answer that is kept, this writes one. A row that is there
///   wins, unless it is another request's, which is refused. One without an answer, whose transaction was
///   ended by `tx.commit()`, gets this one.
/// * A row without an answer whose process died before that is an error: what it did is never done
///   again, and somebody has to say what was answered
///   ([`Settle::in_ledger`](tower_idempotency::operations::Settle::in_ledger)).
pub struct DedupLedger<DB: Dialect> {
    table: DedupTable<DB>,
    pool: Pool<DB>,
}

impl<DB: Dialect> DedupLedger<DB> {
    pub(crate) fn new(table: DedupTable<DB>, pool: Pool<DB>) -> Self {
        Self { table, pool }
    }

    async fn find_row(&self, entry: &LedgerEntry) -> Result<Option<LedgerRow>, Error> {
        let ids = Ids::of_entry(self.table.rule(), entry, None)?;
        match self.table.committed(&self.pool, &ids).await? {
            Some(Met::Row(columns)) => stored::row(self.table.table(), columns).map(Some),
            Some(Met::Foreign) => Err(self.foreign()),
            Some(Met::New(_)) | None => Ok(None),
        }
    }

    /// Seals in one transaction; `None` where another one has answered the row meanwhile.
    async fn try_seal(
        &self,
        entry: &LedgerEntry,
        row: &LedgerRow,
    ) -> Result<Option<Sealed>, Error> {
        let ids = Ids::of_entry(self.table.rule(), entry, row.print.as_ref())?;
        let table = self.table.table();
        let mut tx = self.pool.begin().await.map_err(Error::database::<DB>)?;
        if let Some(before) = DB::BEFORE_SEAL {
            DB::run(&mut tx, before.to_owned()).await.map_err(Error::database::<DB>)?;
        }
        let id = match self.table.insert(&mut tx, &ids).await? {
            Met::New(id) => id,
            Met::Row(columns) if columns.is_unanswered() => {
                let there = columns.print(table)?;
                if let (Some(there), Some(print)) = (&there, &row.print)
                    && !there.is_same_request(print)
                {
                    return Err(Error::new(Kind::Other { table, id: columns.id }));
                }
                columns.id
            }
            Met::Row(columns) => {
                return stored::row(table, columns).map(|row| Some(Sealed::Existing(row)));
            }
            Met::Foreign => return Err(self.foreign()),
        };
        if !stored::write::<DB>(&mut tx, table, id, &row.answer).await? {
            return Ok(None);
        }
        tx.commit().await.map_err(Error::database::<DB>)?;
        Ok(Some(Sealed::Written))
    }

    async fn seal_row(&self, entry: &LedgerEntry, row: &LedgerRow) -> Result<Sealed, Error> {
        let mut tries = 1;
        loop {
            match self.try_seal(entry, row).await {
                Ok(Some(sealed)) => return Ok(sealed),
                Ok(None) if tries < TRIES => {}
                Ok(None) => return Err(Error::database::<DB>(sqlx::Error::RowNotFound)),
                Err(error) if error.is_retryable() && tries < TRIES => {}
                Err(error) => return Err(error),
            }
            tries += 1;
        }
    }

    fn foreign(&self) -> Error {
        Error::new(Kind::Foreign { table: self.table.table() })
    }
}

impl<DB: Dialect> Ledger for DedupLedger<DB> {
    async fn find(&self, entry: &LedgerEntry) -> Result<Option<LedgerRow>, LedgerError> {
        self.find_row(entry).await.map_err(unknown)
    }

    async fn seal(&self, entry: &LedgerEntry, row: &LedgerRow) -> Result<Sealed, LedgerError> {
        self.seal_row(entry, row).await.map_err(unknown)
    }

    fn hold(&self) -> Option<Duration> {
        Some(self.table.held())
    }
}

/// With what the database said: the layer's events have this text alone.
fn unknown(error: Error) -> LedgerError {
    let text = match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    };
    let told = if error.is_foreign() { LedgerError::foreign(text) } else { LedgerError::new(text) };
    told.caused_by(error)
}

// Derived ones would ask the same of `DB`.
impl<DB: Dialect> Clone for DedupLedger<DB> {
    fn clone(&self) -> Self {
        Self { table: self.table, pool: self.pool.clone() }
    }
}

impl<DB: Dialect> fmt::Debug for DedupLedger<DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DedupLedger").field("table", &self.table).finish_non_exhaustive()
    }
}
