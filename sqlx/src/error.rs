//! What can go wrong between a handler and its database.

use std::fmt;

use crate::dialect::Dialect;

/// Why a row could not be entered, read or committed, or a state not moved.
///
/// Whatever it is, the transaction is of no more use: drop it, and answer that nothing happened
/// (503). Only where [`DedupRow::commit`](crate::DedupRow::commit) failed, nobody knows; the next
/// delivery finds out, since it finds the row or finds none.
pub struct Error(Kind);

pub(crate) enum Kind {
    Database { error: sqlx::Error, retryable: bool },
    Unanswered { table: &'static str, id: i64 },
    Unreadable { table: &'static str, id: i64, what: String },
    TooLong { what: &'static str, length: usize, at_most: usize },
    Foreign { table: &'static str },
    Other { table: &'static str, id: i64 },
    Old { table: &'static str, bytes: &'static str, error: sqlx::Error },
    RowGone { table: &'static str, id: i64 },
    UnknownState { table: &'static str, column: &'static str, found: String },
    ManyRows { table: &'static str, id_column: &'static str, rows: u64 },
    Unsteady { table: &'static str, column: &'static str, state: &'static str },
}

impl Error {
    pub(crate) fn new(kind: Kind) -> Self {
        Self(kind)
    }

    pub(crate) fn database<DB: Dialect>(error: sqlx::Error) -> Self {
        let retryable = error.as_database_error().is_some_and(DB::lost_to_another);
        Self(Kind::Database { error, retryable })
    }

    /// Whether the database gave this transaction up for the sake of another one: a deadlock, a
    /// serialization failure, a lock that was waited for too long. It did not happen, and the same
    /// delivery may simply be tried again.
    pub fn is_retryable(&self) -> bool {
        matches!(self.0, Kind::Database { retryable: true, .. })
    }

    /// Whether the row is there without an answer: somebody committed the transaction by
    /// `tx.commit()` rather than [`DedupRow::commit`](crate::DedupRow::commit). The effect happened;
    /// what was answered is not known. Or it was entered twice in this transaction, which has happened
    /// only if that is committed.
    pub fn is_unanswered(&self) -> bool {
        matches!(self.0, Kind::Unanswered { .. })
    }

    pub(crate) fn is_foreign(&self) -> bool {
        matches!(self.0, Kind::Foreign { .. })
    }

    /// Whether the state that the column holds is none of the state machine's.
    pub fn is_unknown_state(&self) -> bool {
        matches!(self.0, Kind::UnknownState { .. })
    }
}

impl fmt::Debug for Error {
    /// In words, with what the database said: what is printed where `main` returns it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")?;
        match std::error::Error::source(self) {
            Some(cause) => write!(f, ": {cause}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Database { retryable: true, .. } => {
                f.write_str("the database gave the transaction up for another one; try again")
            }
            Kind::Database { .. } => f.write_str("the database refused or could not be reached"),
            Kind::Unanswered { table, id } => write!(
                f,
                "row {id} of {table} has no answer: its transaction was ended by tx.commit(), and must \
                 be by row.commit(tx, answer); or it is open, and was entered twice"
            ),
            Kind::Unreadable { table, id, what } => {
                write!(f, "the answer in row {id} of {table} is none: {what}")
            }
            Kind::TooLong { what, length, at_most } => {
                write!(f, "the {what} has {length} bytes; a row holds {at_most} at most")
            }
            Kind::Foreign { table } => {
                write!(f, "the row of this delivery id in {table} is for another business key")
            }
            Kind::Other { table, id } => write!(
                f,
                "row {id} of {table} is another request's: what must match differs, or the caller"
            ),
            Kind::Old { table, bytes, .. } => write!(
                f,
                "{table} was made before its rows had a fingerprint; add it: ALTER TABLE {table} ADD \
                 COLUMN fingerprint {bytes}"
            ),
            Kind::RowGone { table, id } => write!(
                f,
                "row {id} of {table} is not open in this transaction: commit it with the \
                 transaction it was entered in"
            ),
            Kind::UnknownState { table, column, found } => {
                write!(f, "{table}.{column} is {found:?}, which is no state of its state machine")
            }
            Kind::ManyRows { table, id_column, rows } => {
                write!(f, "{rows} rows of {table} have the same {id_column}; it must be unique")
            }
            Kind::Unsteady { table, column, state } => write!(
                f,
                "{table}.{column} is {state:?} when it is read, and not when it is compared; it \
                 must be a text without padding"
            ),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.0 {
            Kind::Database { error, .. } | Kind::Old { error, .. } => Some(error),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_main_prints_of_an_error_is_its_message_and_what_the_database_said() {
        let said = sqlx::Error::PoolClosed.to_string();
        let closed =
            Error::new(Kind::Database { error: sqlx::Error::PoolClosed, retryable: false });
        assert_eq!(
            format!("{closed:?}"),
            format!("the database refused or could not be reached: {said}")
        );
        let open = Error::new(Kind::Unanswered { table: "dedup", id: 7 });
        assert_eq!(format!("{open:?}"), open.to_string());
    }
}
