//! What a request does that met an abandoned operation.

use std::{borrow::Cow, sync::Arc, time::SystemTime};

use tokio::time::timeout;

use super::{
    Shared,
    mismatch::refuse_other,
    replay::{stored_headers, stored_trailers},
    seal::{find_row, seal_row},
    subject::Subject,
    wait::outcome_unknown,
};
use crate::{
    ledger::{
        Abandoned, Differs, DynResolver, LedgerError, LedgerRow, RESOLVER_WITHIN, Resolution,
        Sealed,
    },
    policy::OnAbandoned,
    record::{Answer, ClaimToken, Mark, encode},
    refusal::Refusal,
    store::{AbandonedRecord, Kept, Resolve, StoreError, Takeover, Verdict, in_time},
    telemetry,
};

/// Asks what became of the abandoned operation, if the policy has somebody to ask; the answer is
/// what to claim next.
///
/// A verdict names the grant exactly as it was seen, fence and stamp: a sign of life of its owner
/// voids it, and of two recoveries at once only one is granted.
///
/// # Cancel safety
///
/// May be dropped; a verdict that was sent then stands, if it arrives.
pub(super) async fn recover(
    shared: &Shared,
    subject: &Subject,
    record: &AbandonedRecord,
) -> Result<Takeover, Refusal> {
    let policy = subject.rule.policy();
    let said = match &policy.on_abandoned {
        OnAbandoned::Rerun => return Ok(Takeover::Any),
        OnAbandoned::Refuse => Said::Unknown,
        OnAbandoned::Resolve(resolver) => match ask(resolver, subject, record).await {
            Resolution::Done(answer) => sealed(subject, answer).await,
            Resolution::NotDone => Said::NotDone,
            Resolution::Unknown => Said::Unknown,
        },
        OnAbandoned::Ledger => find(subject).await,
    };
    match said {
        // It ran under a business key that this request does not say, and perhaps by another delivery: who
        // was asked about this one knows nothing of that.
        Said::NotDone if subject.is_by_alias() => unknown(subject, record),
        Said::Other(differs) if subject.is_by_alias() => Err(refuse_other(subject, &differs)),
        Said::Unknown => unknown(subject, record),
        Said::NotDone => Ok(Takeover::Only(record.mark)),
        // The operation that it is about may have a row of its own, under another delivery's id.
        Said::Other(Differs::Business) => Err(refuse_other(subject, &Differs::Business)),
        Said::Other(differs) => {
            // What it was for has no row of its own, and the request whose row this is must find the
            // key free.
            let not_done = Verdict::NotDone { hold: policy.hold };
            settle(shared, subject, record.mark, not_done).await?;
            Err(refuse_other(subject, &differs))
        }
        Said::Done(answer) => {
            let payload = encode(
                &subject.record,
                &storable(answer, policy.keep_cookies),
                &subject.print.fields,
            );
            let done = Verdict::Done(Kept::new(payload, policy.retention));
            settle(shared, subject, record.mark, done).await?;
            Ok(Takeover::Refuse)
        }
    }
}

fn unknown(subject: &Subject, record: &AbandonedRecord) -> Result<Takeover, Refusal> {
    telemetry::abandoned(subject, record);
    Err(outcome_unknown(subject.rule.policy().profile))
}

/// What the resolver says of the abandoned operation, by each name that it may know it by.
///
/// The record of a delivery's own is of a run that was told no business key: whoever wrote down what it
/// did may know it by the delivery id alone. So it is asked about that run as the run was told of itself,
/// and, in case it was found by what the delivery is about, as this request names it. What one of the
/// answers says was done was done; what was not done is so by both.
async fn ask(
    resolver: &Arc<dyn DynResolver>,
    subject: &Subject,
    record: &AbandonedRecord,
) -> Resolution {
    let asked = async |subject: &Subject| {
        let verdict = resolver.clone().resolve(describe(subject, record));
        timeout(RESOLVER_WITHIN, verdict).await.unwrap_or(Resolution::Unknown)
    };
    let Some(own) = subject.of_its_delivery() else { return asked(subject).await };
    let as_it_ran = asked(&own).await;
    if matches!(as_it_ran, Resolution::Done(_)) {
        return as_it_ran;
    }
    match (as_it_ran, asked(subject).await) {
        (_, Resolution::Done(answer)) => Resolution::Done(answer),
        (Resolution::NotDone, Resolution::NotDone) => Resolution::NotDone,
        _ => Resolution::Unknown,
    }
}

/// What became of an operation, by a resolver or by its row.
enum Said {
    Done(Answer),
    NotDone,
    Unknown,
    /// Its row is another request's.
    Other(Differs),
}

impl Said {
    fn of_row(subject: &Subject, row: LedgerRow) -> Self {
        match subject.differs_from(row.print.as_ref()) {
            None => Self::Done(row.answer),
            Some(differs) => Self::Other(differs),
        }
    }

    fn of_error(subject: &Subject, error: &LedgerError) -> Self {
        if error.is_foreign() {
            return Self::Other(Differs::Business);
        }
        telemetry::ledger_unavailable(subject, error);
        Self::Unknown
    }
}

/// What the ledger says: what has a row was done, and what has none was not.
async fn find(subject: &Subject) -> Said {
    let Some(ledger) = &subject.rule.policy().ledger else { return Said::Unknown };
    match find_row(ledger.clone(), subject.ledger_entry()).await {
        Ok(Some(row)) => Said::of_row(subject, row),
        Ok(None) => Said::NotDone,
        Err(error) => Said::of_error(subject, &error),
    }
}

/// What the ledger says of an operation that the store may have forgotten: its answer, if it was done.
pub(super) async fn recall(subject: &Subject) -> Result<Option<Answer>, Refusal> {
    match find(subject).await {
        Said::Done(answer) => Ok(Some(answer)),
        Said::NotDone => Ok(None),
        Said::Other(differs) => Err(refuse_other(subject, &differs)),
        Said::Unknown => {
            telemetry::store_unavailable(
                subject,
                "it has lost records, and the ledger cannot say whether this one is among them",
            );
            Err(Refusal::store_unavailable())
        }
    }
}

/// A resolver's answer with its row, where there is a ledger: no answer is kept without one.
async fn sealed(subject: &Subject, answer: Answer) -> Said {
    let Some(ledger) = &subject.rule.policy().ledger else { return Said::Done(answer) };
    let row = LedgerRow::new(answer.clone(), subject.row_print());
    match seal_row(ledger.clone(), subject.ledger_entry(), row).await {
        Ok(Sealed::Written) => Said::Done(answer),
        Ok(Sealed::Existing(row)) => Said::of_row(subject, row),
        Err(error) => Said::of_error(subject, &error),
    }
}

/// Writes a verdict about the abandoned operation that has this record.
///
/// Settled or changed meanwhile: either way the next claim is told what is true now.
pub(super) async fn settle(
    shared: &Shared,
    subject: &Subject,
    mark: Mark,
    verdict: Verdict,
) -> Result<(), Refusal> {
    let policy = subject.rule.policy();
    let verdict = Resolve::new(subject.record, mark, verdict, ClaimToken::random());
    let verdict = verdict.lease(policy.lease);
    let resolving = shared.store.clone().resolve(verdict);
    match in_time(&*shared.store, policy.call_within, resolving).await {
        Ok(_) => {
            shared.run_ended(&subject.record);
            Ok(())
        }
        Err(error) => Err(unsettled(subject, &error)),
    }
}

fn unsettled(subject: &Subject, error: &StoreError) -> Refusal {
    telemetry::store_unavailable(subject, &error.to_string());
    Refusal::store_unavailable().not_before(error.retry_after())
}

/// What is stored of a resolver's or a row's answer is what would be stored of a handler's.
pub(crate) fn storable(answer: Answer, keep_cookies: bool) -> Answer {
    let (status, headers, body, trailers) = answer.into_parts();
    let headers = stored_headers(&headers, keep_cookies);
    let trailers = trailers.and_then(|trailers| stored_trailers(&trailers, keep_cookies));
    Answer::from_parts(status, headers, body, trailers)
}

fn describe(subject: &Subject, record: &AbandonedRecord) -> Abandoned {
    Abandoned {
        rule: subject.rule.name().to_owned(),
        scope: subject.scope_text().into_owned(),
        key: subject.identity_text().into_owned(),
        delivery_id: subject.delivery_text().map(Cow::into_owned),
        record: subject.record,
        attempt: record.attempt,
        fence: record.mark.fence,
        since: SystemTime::now().checked_sub(record.granted).unwrap_or(SystemTime::UNIX_EPOCH),
    }
}
