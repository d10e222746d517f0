//! What a request hears that has a known identity and is another request, and who else is told.

use std::borrow::Cow;

use super::subject::Subject;
use crate::{
    ledger::Differs,
    policy::{Mismatch, Policy},
    refusal::{Refusal, RefusalKind},
    telemetry,
};

/// The refusal of a request whose identity has a row in a ledger that is another request's: the same as if the
/// store's record had said so.
pub(super) fn refuse_other(subject: &Subject, differs: &Differs) -> Refusal {
    match differs {
        Differs::Caller => token_unknown(subject.rule.policy()),
        Differs::Request(then) => {
            let compared = &subject.rule.policy().compared;
            refuse(subject, compared.differing(&subject.print.fields, then))
        }
        Differs::Business => refuse_business(subject),
    }
}

/// The same identity, but something else: somebody should see that. `fields` are the names of those that
/// differ, where they are known.
pub(super) fn refuse(subject: &Subject, fields: Option<Vec<String>>) -> Refusal {
    tell(subject, fields);
    let policy = subject.rule.policy();
    let what = policy.compared.describe();
    let detail = match &policy.token {
        Some(demand) => format!(
            "this one-time token was issued or used for something else; what must be the same is: \
             {what}; for something new get a new token from {}",
            demand.from()
        ),
        None => format!(
            "this identity was used for another request; the same on a retry must be: {what}; a \
             new operation needs a new identity"
        ),
    };
    Refusal::new(RefusalKind::Mismatch, detail)
}

/// The delivery id is another name of another operation.
pub(super) fn refuse_business(subject: &Subject) -> Refusal {
    let key = subject.rule.policy().business_key.as_ref();
    tell(subject, key.map(|key| vec![key.describe()]));
    Refusal::new(
        RefusalKind::Mismatch,
        "this delivery id was used for another operation: its business key must be the same \
         whenever it is sent; a new operation needs a new delivery id",
    )
}

pub(super) fn token_unknown(policy: &Policy) -> Refusal {
    match &policy.token {
        Some(demand) => demand.unknown(),
        None => Refusal::new(
            RefusalKind::TokenUnknown,
            "this operation is waiting for the one-time token that was issued for it",
        ),
    }
}

fn tell(subject: &Subject, fields: Option<Vec<String>>) {
    telemetry::mismatch(subject, fields.as_deref());
    subject.rule.policy().tell_mismatch(&Mismatch {
        rule: subject.rule.name().to_owned(),
        scope: subject.scope_text().into_owned(),
        key: subject.identity_text().into_owned(),
        delivery_id: subject.delivery_text().map(Cow::into_owned),
        fields,
    });
}
