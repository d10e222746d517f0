//! What a request does whose record the store may have lost, where a ledger knows.

use bytes::Bytes;

use super::Way;
use crate::{
    operation::recovery::{recall, storable},
    record::encode,
    refusal::Refusal,
    store::{Claimed, IfForgotten, Kept, Takeover},
    telemetry,
};

impl Way {
    /// Asks the ledger. What it does not know may run: the next claim says that somebody was asked.
    /// What it knows is the answer, and is stored again, unless it is another request's.
    ///
    /// # Cancel safety
    ///
    /// What was claimed is called off when the way is dropped.
    pub(super) async fn remember(&mut self) -> Result<Option<Bytes>, Refusal> {
        let row = recall(&self.subject).await?;
        self.claimant.if_forgotten(IfForgotten::Grant);
        let Some(row) = row else { return Ok(None) };
        let policy = self.subject.rule.policy();
        let answer = storable(row, policy.keep_cookies);
        let payload = encode(&self.subject.record, &answer, &self.subject.print.fields);
        if self.claimant.announce()
            && let Ok(Claimed::Granted(grant)) = self.claimant.claim(Takeover::Refuse).await
        {
            let kept = Kept::new(payload.clone(), policy.retention);
            let bare = encode(&self.subject.record, &answer.bare(), &[]);
            let marker = Kept::new(bare, policy.retention);
            telemetry::data_lost(&grant, "asking the ledger");
            // In the background: the row is the truth, and the record a copy of it.
            self.shared.keeper.complete_later(grant, kept, marker);
            self.renew_claimant().started();
        }
        Ok(Some(payload))
    }
}
