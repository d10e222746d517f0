//! Sees to it that an answer that is kept has its row, where the policy has a ledger.
//!
//! Without that a stalled execution could commit its row later, and the row and the stored answer
//! would say different things of one operation.

use std::sync::{Arc, atomic::Ordering};

use tokio::time::timeout;

use super::{Operation, detach::CatchPanic};
use crate::{
    ledger::{Differs, DynLedger, LEDGER_WITHIN, LedgerEntry, LedgerError, LedgerRow, Sealed},
    policy::is_success,
    record::Answer,
    telemetry,
};

/// What an answer is after its row was looked after.
pub(super) enum Truth {
    /// The row has it, or there is no ledger.
    Own(Answer),
    /// The row has another, and that is the one that everybody gets.
    Row(Answer),
    /// The row is another request's: this one did not happen.
    Other(Differs),
    /// Nobody knows what the row has.
    Unknown {
        why: String,
        /// Whether the client is better told that nobody knows than given the answer.
        withheld: bool,
    },
}

/// Looks after the row of an answer that is to be kept.
pub(super) async fn seal(operation: &Operation, answer: Answer) -> Truth {
    let subject = operation.subject();
    let policy = subject.rule.policy();
    let Some(ledger) = &policy.ledger else { return Truth::Own(answer) };
    if let Some(row) = operation.row() {
        return truth(answer, row.clone(), policy.answer_limit);
    }
    if policy.observe {
        // It would change what the handler does with the next delivery.
        return Truth::Own(answer);
    }
    let has_happened = is_success(&answer) && !operation.has_entered();
    if has_happened && !subject.rule.not_entered.swap(true, Ordering::Relaxed) {
        telemetry::row_missing(subject);
    }
    let row = LedgerRow::new(answer.clone(), subject.row_print());
    match seal_row(ledger.clone(), subject.ledger_entry(), row).await {
        Ok(Sealed::Written) => Truth::Own(answer),
        Ok(Sealed::Existing(row)) => match subject.differs_from(row.print.as_ref()) {
            None => truth(answer, row.answer, policy.answer_limit),
            Some(_) if has_happened => Truth::Unknown {
                why: "its row is there, and another request's".to_owned(),
                withheld: false,
            },
            Some(differs) => Truth::Other(differs),
        },
        Err(error) if error.is_foreign() && !has_happened => Truth::Other(Differs::Business),
        // What has happened without a row would happen again if its client came again.
        Err(error) => Truth::Unknown {
            why: format!("its row could not be written: {error}"),
            withheld: !has_happened,
        },
    }
}

/// Writes this row, unless there is one.
pub(crate) async fn seal_row(
    ledger: Arc<dyn DynLedger>,
    entry: LedgerEntry,
    row: LedgerRow,
) -> Result<Sealed, LedgerError> {
    let sealed = CatchPanic::new(ledger.seal(entry, row));
    match timeout(LEDGER_WITHIN, sealed).await {
        Ok(Ok(sealed)) => sealed,
        Ok(Err(_)) => Err(LedgerError::new("the ledger panicked")),
        Err(_) => Err(too_slow()),
    }
}

/// Reads this row.
pub(crate) async fn find_row(
    ledger: Arc<dyn DynLedger>,
    entry: LedgerEntry,
) -> Result<Option<LedgerRow>, LedgerError> {
    timeout(LEDGER_WITHIN, ledger.find(entry)).await.unwrap_or_else(|_| Err(too_slow()))
}

fn too_slow() -> LedgerError {
    LedgerError::new("the ledger did not answer within five seconds")
}

fn truth(answer: Answer, row: Answer, limit: usize) -> Truth {
    if says_the_same(&answer, &row, limit) { Truth::Own(answer) } else { Truth::Row(row) }
}

/// Whether a client would read the same. Headers are not compared: what stands around the handler
/// adds some; nor are trailers, where the row was written without them.
fn says_the_same(answer: &Answer, row: &Answer, limit: usize) -> bool {
    let same_body = answer.body() == row.body()
        // It was too large to be kept, as the row's is.
        || answer.body().is_none() && row.body().is_some_and(|body| body.len() > limit);
    let same_trailers = row.trailers().is_none() || row.trailers() == answer.trailers();
    answer.status() == row.status() && same_body && same_trailers
}
