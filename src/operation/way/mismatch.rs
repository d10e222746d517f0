//! What a request hears that has a known identity and is another request, and who else is told.

use std::borrow::Cow;

use super::{Way, wait};
use crate::{
    policy::Mismatch,
    record::{FieldDigest, decode},
    refusal::{Refusal, RefusalKind},
    store::Claimed,
    telemetry,
};

impl Way {
    /// The same identity, but something else: somebody should see that.
    pub(super) async fn mismatch(&mut self) -> Refusal {
        let rule = self.subject.rule.clone();
        let fields = self.differing_fields().await;
        self.tell_mismatch(fields);
        let what = rule.policy().compared.describe();
        let detail = match &rule.policy().token {
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

    /// The names of the fields that differ, where they are known.
    pub(super) async fn differing_fields(&mut self) -> Option<Vec<String>> {
        let then = self.stored_fields().await?;
        self.subject.rule.policy().compared.differing(&self.subject.fields, &then)
    }

    /// The digests of the fields of the operation that has this identity, if it is completed.
    async fn stored_fields(&mut self) -> Option<Vec<FieldDigest>> {
        if self.subject.fields.is_empty() {
            return None;
        }
        let mut anything = self.claimant.asks().clone();
        anything.print = None;
        // With a token there is no look that compares nothing; that it is right is known already.
        anything.one_time = None;
        match wait::look_once(&self.shared, &anything, self.call_within()).await {
            Ok(Claimed::Completed(completed)) => {
                Some(decode(&self.subject.record, completed.payload).ok()?.fields)
            }
            _ => None,
        }
    }

    /// The delivery id is another name of another operation.
    pub(super) fn other_business(&self) -> Refusal {
        let key = self.subject.rule.policy().business_key.as_ref();
        self.tell_mismatch(key.map(|key| vec![key.describe()]));
        Refusal::new(
            RefusalKind::Mismatch,
            "this delivery id was used for another operation: its business key must be the same \
             whenever it is sent; a new operation needs a new delivery id",
        )
    }

    fn tell_mismatch(&self, fields: Option<Vec<String>>) {
        telemetry::mismatch(&self.subject, fields.as_deref());
        let subject = &self.subject;
        subject.rule.policy().tell_mismatch(&Mismatch {
            rule: subject.rule.name().to_owned(),
            scope: subject.scope_text().into_owned(),
            key: subject.identity_text().into_owned(),
            delivery_id: subject.delivery_text().map(Cow::into_owned),
            fields,
        });
    }
}
