//! What a request does that met an abandoned operation.

use std::{borrow::Cow, time::SystemTime};

use tokio::time::timeout;

use super::{
    Shared,
    handle::Subject,
    replay::{stored_headers, stored_trailers},
    wait::outcome_unknown,
};
use crate::{
    ledger::{Abandoned, RESOLVER_WITHIN, Resolution},
    policy::OnAbandoned,
    record::{Answer, ClaimToken, Mark, encode},
    refusal::Refusal,
    store::{AbandonedRecord, Kept, Resolve, StoreError, Takeover, Verdict},
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
    let resolver = match &policy.on_abandoned {
        OnAbandoned::Rerun => return Ok(Takeover::Any),
        OnAbandoned::Refuse => {
            telemetry::abandoned(subject, record);
            return Err(outcome_unknown(policy.profile));
        }
        OnAbandoned::Resolve(resolver) => resolver.clone(),
    };
    let resolution = timeout(RESOLVER_WITHIN, resolver.resolve(describe(subject, record))).await;
    match resolution.unwrap_or(Resolution::Unknown) {
        Resolution::Unknown => {
            telemetry::abandoned(subject, record);
            Err(outcome_unknown(policy.profile))
        }
        Resolution::NotDone => Ok(Takeover::Only(record.mark)),
        Resolution::Done(answer) => {
            let payload =
                encode(&subject.record, &storable(answer, policy.keep_cookies), &subject.fields);
            let done = Verdict::Done(Kept::new(payload, policy.retention));
            settle(shared, subject, record.mark, done).await?;
            Ok(Takeover::Refuse)
        }
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
    let verdict = Resolve::new(subject.record, mark, verdict, ClaimToken::random());
    let within = subject.rule.policy().call_within;
    match timeout(within, shared.store.clone().resolve(verdict)).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(unsettled(subject, &error)),
        Err(_) => Err(unsettled(subject, &StoreError::too_slow())),
    }
}

fn unsettled(subject: &Subject, error: &StoreError) -> Refusal {
    telemetry::store_unavailable(subject, &error.to_string());
    Refusal::store_unavailable()
}

/// What is stored of a resolver's answer is what would be stored of a handler's.
fn storable(answer: Answer, keep_cookies: bool) -> Answer {
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
