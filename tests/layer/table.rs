//! A ledger in memory.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use tokio::time::sleep;
use tower_idempotency::{Answer, Ledger, LedgerEntry, LedgerError, LedgerRow, Operation, Sealed};

/// A table in memory, which counts what it is asked and fails on demand.
#[derive(Clone, Default)]
pub(crate) struct Table(Arc<Inner>);

#[derive(Default)]
struct Inner {
    rows: Mutex<HashMap<Id, LedgerRow>>,
    finds: AtomicUsize,
    seals: AtomicUsize,
    trouble: Mutex<Option<Trouble>>,
}

pub(crate) type Id = (String, Bytes, Bytes, bool, bool);

/// What a handler is told that enters.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Entered {
    New,
    Done(Answer),
    /// The row is another request's.
    Other,
}

#[derive(Clone, Copy)]
pub(crate) enum Trouble {
    Fails,
    Panics,
    /// The id of the delivery belongs to another business key.
    Foreign,
    Takes(Duration),
}

pub(crate) fn id(entry: &LedgerEntry) -> Id {
    let (scope, key) = (entry.scope.clone(), entry.key.clone());
    (entry.rule.clone(), scope, key, entry.delivery_id.is_some(), entry.job)
}

impl Table {
    /// What a handler does first.
    pub(crate) fn meet(&self, operation: &Operation) -> Entered {
        operation.entered();
        let Some(found) = self.whole(&operation.ledger_entry()) else { return Entered::New };
        if !operation.met_row(found.print.as_ref()) {
            return Entered::Other;
        }
        operation.left_row(&found.answer);
        Entered::Done(found.answer)
    }

    /// The same, where a row can be no other's: the answer of whoever was before it.
    pub(crate) fn enter(&self, operation: &Operation) -> Option<Answer> {
        match self.meet(operation) {
            Entered::New => None,
            Entered::Done(answer) => Some(answer),
            Entered::Other => panic!("nobody has sent anything else"),
        }
    }

    /// What it does last.
    pub(crate) fn commit(&self, operation: &Operation, answer: &Answer) {
        let row = LedgerRow::new(answer.clone(), operation.ledger_print());
        let before = self.0.rows.lock().unwrap().insert(id(&operation.ledger_entry()), row);
        assert_eq!(before, None, "the unique index refuses this");
        operation.left_row(answer);
    }

    /// A row that somebody else has committed.
    pub(crate) fn put(&self, entry: &LedgerEntry, text: &'static str) {
        self.0.rows.lock().unwrap().insert(id(entry), Answer::text(text).into());
    }

    /// By the key, or by the delivery's id where that alone was known then.
    pub(crate) fn whole(&self, entry: &LedgerEntry) -> Option<LedgerRow> {
        let rows = self.0.rows.lock().unwrap();
        let by_delivery = entry.delivery_id.as_ref().map(|delivery| {
            id(&LedgerEntry::new(&*entry.rule, entry.scope.clone(), delivery.clone(), None))
        });
        rows.get(&id(entry)).or_else(|| rows.get(&by_delivery?)).cloned()
    }

    /// Its answer.
    pub(crate) fn row(&self, entry: &LedgerEntry) -> Option<Answer> {
        self.whole(entry).map(|row| row.answer)
    }

    pub(crate) fn finds(&self) -> usize {
        self.0.finds.load(Ordering::SeqCst)
    }

    /// The status and body of the row of `k`.
    pub(crate) fn of_k(&self) -> Option<(u16, Bytes)> {
        let row = self.row(&LedgerEntry::new("pay", "", "k", None))?;
        Some((row.status().as_u16(), row.body().unwrap().clone()))
    }

    pub(crate) fn rows(&self) -> usize {
        self.0.rows.lock().unwrap().len()
    }

    pub(crate) fn seals(&self) -> usize {
        self.0.seals.load(Ordering::SeqCst)
    }

    pub(crate) fn trouble(&self, trouble: impl Into<Option<Trouble>>) {
        *self.0.trouble.lock().unwrap() = trouble.into();
    }

    async fn endure(&self) -> Result<(), LedgerError> {
        let trouble = *self.0.trouble.lock().unwrap();
        match trouble {
            None => Ok(()),
            Some(Trouble::Fails) => {
                Err(LedgerError::new("the table is locked").caused_by("pq: 55P03"))
            }
            Some(Trouble::Foreign) => Err(LedgerError::foreign("another business key's")),
            Some(Trouble::Panics) => panic!("a bug in the ledger"),
            Some(Trouble::Takes(time)) => {
                sleep(time).await;
                Ok(())
            }
        }
    }
}

impl Ledger for Table {
    async fn find(&self, entry: &LedgerEntry) -> Result<Option<LedgerRow>, LedgerError> {
        self.0.finds.fetch_add(1, Ordering::SeqCst);
        self.endure().await?;
        Ok(self.whole(entry))
    }

    async fn seal(&self, entry: &LedgerEntry, row: &LedgerRow) -> Result<Sealed, LedgerError> {
        self.0.seals.fetch_add(1, Ordering::SeqCst);
        self.endure().await?;
        if let Some(row) = self.whole(entry) {
            return Ok(Sealed::Existing(row));
        }
        self.0.rows.lock().unwrap().insert(id(entry), row.clone());
        Ok(Sealed::Written)
    }
}
