//! Where a request goes whose delivery id leads to another record than the one it named, and what it brings
//! back from there.

use super::{Way, unasked};
use crate::{
    operation::{
        claimant::Claimant,
        recovery::{recover, settle},
        wait::look_whether_free,
    },
    record::{ClaimToken, Grant, Previous, RecordKey},
    refusal::Refusal,
    store::{Alias, Claimed, IfForgotten, StoreError, StoreErrorKind, Takeover, Verdict, in_time},
};

/// How a request came to another record than the one it named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Led {
    /// Its delivery id is another name of an operation; it may claim that one.
    ByAlias,
    /// It may be answered from that record, but never be run under it: it does not say under which
    /// business key.
    ToAnswers,
    /// Its delivery id has a record of its own, from before it had a business key. It is answered
    /// from that one, and what is to run runs under the business key.
    ToDelivery,
}

impl Led {
    pub(super) fn only_answers(self) -> bool {
        self != Self::ByAlias
    }
}

impl Way {
    /// This delivery id has a record of its own, from before it had a business key.
    pub(super) fn follow_delivery(&mut self) -> Result<(), Refusal> {
        let Some(alias) = self.claimant.asks().alias else {
            return Err(self.unavailable("the store speaks of a delivery id it was not told"));
        };
        self.follow(alias.key, Led::ToDelivery);
        Ok(())
    }

    /// The delivery id has no record of its own any more, or an abandoned one, which is settled as the
    /// policy says. What may run runs under the business key, where every delivery of the event
    /// meets it.
    pub(super) async fn settle_delivery(&mut self, over: Claimed) -> Result<(), Refusal> {
        let Claimed::Abandoned(record) = over else {
            self.lead_back(Some(self.subject.record));
            return Ok(());
        };
        let takeover = recover(&self.shared, &self.subject, &record).await?;
        // After a failover its owner may be alive: its last renewals may be lost, or the clock have jumped. A
        // resolver or a ledger knows nothing of a run that goes on. What tells is its next renewal, within a
        // third of its lease, if that is waited for; a verdict before it would fence it off, and the business
        // key be granted beside it. This record is not claimed itself, so that nobody else asks the store.
        if takeover != Takeover::Refuse && !self.may_be_taken_over(takeover).await? {
            return Ok(());
        }
        match takeover {
            // Settled as done, or changed meanwhile: it is looked at again.
            Takeover::Refuse => {}
            // Its record stays as it is, and is met by each delivery of it: nobody has said that it
            // did not happen.
            Takeover::Any => {
                self.before = Previous::AbandonedUnknown;
                self.lead_back(None);
            }
            Takeover::Only(_) => {
                self.before = Previous::AbandonedNotDone;
                let hold = self.subject.rule.policy().hold;
                settle(&self.shared, &self.subject, record.mark, Verdict::NotDone { hold }).await?;
                self.lead_back(Some(self.subject.record));
            }
        }
        Ok(())
    }

    /// Whether the store would let the abandoned record be taken over now.
    async fn may_be_taken_over(&mut self, takeover: Takeover) -> Result<bool, Refusal> {
        let (asks, within) = (self.claimant.asks(), self.call_within());
        match look_whether_free(&self.shared, asks, takeover, within).await {
            Ok(found) => Ok(matches!(found, Claimed::Free)),
            Err(error) => Err(self.unavailable(&error.to_string()).not_before(error.retry_after())),
        }
    }

    /// The identity is another name of this record.
    pub(super) fn follow_alias(&mut self, target: RecordKey) {
        // Where the policy has a business key, only a request that names it may run.
        let names_it = self.subject.rule.policy().business_key.is_none();
        self.follow(target, if names_it { Led::ByAlias } else { Led::ToAnswers });
    }

    /// Claims another key. What was claimed before is called off.
    fn follow(&mut self, target: RecordKey, led: Led) {
        self.led = Some(led);
        self.ask_for(target, None);
    }

    /// Claims the key that the request named, with its delivery id as another name where that may be.
    fn lead_back(&mut self, delivery: Option<RecordKey>) {
        let policy = self.subject.rule.policy();
        let alias = delivery.map(|key| Alias::new(key, policy.hold + policy.retention));
        self.takeover = unasked(policy);
        self.led = None;
        self.ask_for(self.subject.named, alias);
    }

    /// Another key is claimed with another token.
    fn ask_for(&mut self, key: RecordKey, alias: Option<Alias>) {
        self.subject.record = key;
        let mut claim = self.claimant.asks().clone();
        claim.key = key;
        claim.alias = alias;
        claim.token = ClaimToken::random();
        if claim.if_forgotten == IfForgotten::Grant {
            // That was about the other key.
            claim.if_forgotten = IfForgotten::Tell;
        }
        let call_within = self.subject.rule.policy().call_within;
        self.claimant = Claimant::new(self.shared.clone(), claim, call_within);
    }

    /// Whether nobody knows what became of the delivery's own run before this grant, and the grant does
    /// not say so.
    pub(super) fn is_after_an_unknown(&self, grant: &Grant) -> bool {
        self.before == Previous::AbandonedUnknown && grant.previous != Previous::AbandonedUnknown
    }

    /// The grant with that, which is written down before anything runs: where this run gives back, it
    /// must be found unknown still.
    pub(super) async fn after_an_unknown(&mut self, mut grant: Grant) -> Result<Grant, StoreError> {
        grant.previous = self.before;
        let store = &self.shared.store;
        let renewal = store.clone().renew(grant.clone());
        if in_time(&**store, self.call_within(), renewal).await?.is_stored() {
            return Ok(grant);
        }
        let message = "the store has lost what it granted a moment ago";
        Err(StoreError::new(StoreErrorKind::Garbled, message))
    }
}
