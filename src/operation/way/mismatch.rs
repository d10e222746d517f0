//! What is known of the request that a mismatch differs from.

use super::{Way, wait};
use crate::{
    operation::mismatch::refuse,
    record::{FieldDigest, decode},
    refusal::Refusal,
    store::Claimed,
};

impl Way {
    /// The same identity, but something else.
    pub(super) async fn mismatch(&mut self) -> Refusal {
        let fields = self.differing_fields().await;
        refuse(&self.subject, fields)
    }

    /// The names of the fields that differ, where they are known.
    pub(super) async fn differing_fields(&mut self) -> Option<Vec<String>> {
        let then = self.stored_fields().await?;
        self.subject.rule.policy().compared.differing(&self.subject.print.fields, &then)
    }

    /// The digests of the fields of the operation that has this identity, if it is completed.
    async fn stored_fields(&mut self) -> Option<Vec<FieldDigest>> {
        if self.subject.print.fields.is_empty() {
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
}
