//! What a request meets that is only observed: nothing is waited for, settled or taken over for it.

use super::{Granted, Met, TOO_LATE, Way, led::Led};
use crate::{
    operation::{Would, observe::Why, replay::replay},
    policy::OnAbandoned,
    record::State,
    refusal::RefusalKind,
    store::Claimed,
};

/// What would have become of a request that was not granted.
type NotGranted = (Would, Why);

impl Way {
    /// Claims until it is granted or it is known what would have become of the request.
    ///
    /// # Cancel safety
    ///
    /// What was sent is called off when the way is dropped.
    pub(in crate::operation) async fn observe(&mut self) -> Result<Granted, NotGranted> {
        for _ in 0..super::ROUNDS_AT_MOST {
            match self.claim().await {
                Met::Granted(granted) => return Ok(granted),
                Met::Draining => return Err(refuse(RefusalKind::ShuttingDown)),
                Met::Other(Ok(claimed)) => match self.observed(claimed).await {
                    None => {}
                    Some(not_granted) => return Err(not_granted),
                },
                Met::Other(Err(error)) => return Err(unavailable(&error.to_string())),
            }
        }
        Err(unavailable("the operation's state changed too often"))
    }

    /// What would become of a request that is told this; `None` if it would claim again.
    async fn observed(&mut self, claimed: Claimed) -> Option<NotGranted> {
        let only_answers = self.led.is_some_and(Led::only_answers);
        match claimed {
            Claimed::Completed(completed) => {
                Some(match replay::<()>(&self.subject, completed.payload) {
                    Ok(_) => (Would::Replay, Why::default()),
                    Err(refusal) => (Would::Refuse(refusal.kind()), Why::of(&refusal)),
                })
            }
            Claimed::InProgress(_) if self.subject.rule.policy().wait.is_zero() => {
                Some(refuse(RefusalKind::InProgress))
            }
            Claimed::InProgress(_) => Some((Would::Wait, Why::default())),
            Claimed::Mismatch => {
                let fields = self.differing_fields().await;
                let kind = RefusalKind::Mismatch;
                Some((Would::Refuse(kind), Why { detail: None, fields }))
            }
            Claimed::DeliveryTaken(State::Alias) => Some(refuse(RefusalKind::Mismatch)),
            Claimed::TokenUnknown => Some(refuse(RefusalKind::TokenUnknown)),
            Claimed::Foreign => Some(refuse(RefusalKind::RecordUnreadable)),
            // Nobody is asked what became of it: that may take longer than a call of the store, and have
            // effects of its own.
            Claimed::Abandoned(_) if !self.reruns() => Some(refuse(RefusalKind::OutcomeUnknown)),
            over @ (Claimed::Free | Claimed::AliasOf(_) | Claimed::Abandoned(_))
                if self.led == Some(Led::ToDelivery) =>
            {
                // Of what is rerun nobody is asked.
                match self.settle_delivery(over).await {
                    Ok(()) => None,
                    Err(refusal) => Some((Would::Refuse(refusal.kind()), Why::of(&refusal))),
                }
            }
            Claimed::Abandoned(_) => Some(refuse(RefusalKind::OutcomeUnknown)),
            Claimed::Free if only_answers => Some(refuse(RefusalKind::BusinessKeyMissing)),
            Claimed::Free => Some(unavailable(TOO_LATE)),
            Claimed::AliasOf(_) if self.led.is_some() => {
                Some(refuse(RefusalKind::RecordUnreadable))
            }
            Claimed::AliasOf(target) => {
                self.follow_alias(target);
                None
            }
            Claimed::DeliveryTaken(_) => {
                // The business key may have been granted all the same, and is somebody else's to claim.
                self.claimant.call_off().await;
                let refusal = self.follow_delivery().err()?;
                Some((Would::Refuse(refusal.kind()), Why::of(&refusal)))
            }
            // Granted: not by a look. Dead: this token was never given up. Forgotten: nobody asked.
            _ => Some(unavailable("the store's answer does not fit the question")),
        }
    }

    fn reruns(&self) -> bool {
        matches!(self.subject.rule.policy().on_abandoned, OnAbandoned::Rerun)
    }
}

fn refuse(kind: RefusalKind) -> NotGranted {
    (Would::Refuse(kind), Why::default())
}

fn unavailable(why: &str) -> NotGranted {
    (Would::Refuse(RefusalKind::StoreUnavailable), Why::detail(why))
}
