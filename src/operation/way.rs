//! What a request is told about its operation, and what it does about it, until it is granted,
//! answered or refused.

mod forgotten;
mod led;
mod mismatch;
mod observe;

use std::{mem, sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::time::Instant;

use self::led::Led;
use super::{
    Shared,
    claimant::Claimant,
    mismatch::{refuse_business, token_unknown},
    prepare::shutting_down,
    recovery::recover,
    subject::Subject,
    wait,
};
use crate::{
    policy::{OnAbandoned, Policy},
    record::{ClaimToken, Fence, Fingerprint, Grant, OneTimeToken, Previous, RecordKey, State},
    refusal::{Refusal, RefusalKind},
    store::{Alias, Claim, Claimed, Completed, IfForgotten, StoreError, Takeover},
    telemetry::{self, Timer},
};

/// The most bytes of a label.
const LABEL_AT_MOST: usize = 256;
/// How often the state of an operation may change under a request before it is refused for now.
const ROUNDS_AT_MOST: u32 = 16;

const TOO_LATE: &str = "the claim arrived too late each time";

/// A request on its way to a grant.
pub(super) struct Way {
    pub(super) shared: Arc<Shared>,
    pub(super) subject: Subject,
    /// Answers for the grant until it is told that its execution has started.
    pub(super) claimant: Claimant,
    takeover: Takeover,
    /// The record of another name, where the request was led from the one it gave.
    led: Option<Led>,
    /// What is known of a grant under the delivery id alone, if the request was led back from it.
    before: Previous,
    rounds: u32,
    /// When the policy's wait is over; it starts when the request meets another's run.
    wait_until: Option<Instant>,
}

/// The right to execute.
pub(super) struct Granted {
    pub(super) grant: Grant,
    /// The lease began no earlier.
    pub(super) since: Instant,
}

/// What a claim met.
pub(super) enum Met {
    Granted(Granted),
    /// The layer is told to end: nothing was claimed.
    Draining,
    /// Anything else that a store may say.
    Other(Result<Claimed, StoreError>),
}

impl Met {
    /// Whether more than a stored answer is needed to say what follows.
    pub(super) fn takes_time(&self) -> bool {
        !matches!(self, Self::Other(Ok(Claimed::Completed(_))))
    }
}

impl Way {
    /// `delivery` is the record of the delivery id, where the operation has a business key.
    pub(super) fn new(
        shared: Arc<Shared>,
        subject: Subject,
        delivery: Option<RecordKey>,
        print: Option<Fingerprint>,
        one_time: Option<OneTimeToken>,
    ) -> Self {
        let policy = subject.rule.policy();
        let takeover = unasked(policy);
        let mut claim = Claim::new(
            subject.record,
            ClaimToken::random(),
            print,
            policy.lease,
            policy.hold,
            // What is only observed is not to wait for resends.
            if policy.observe { policy.call_within } else { policy.claim_within },
        );
        claim.label = label(&subject);
        if policy.ledger.is_some() && !policy.observe {
            claim.if_forgotten = IfForgotten::Tell;
        }
        claim.one_time = one_time;
        claim.alias = delivery.map(|key| Alias::new(key, policy.hold + policy.retention));
        let claimant = Claimant::new(shared.clone(), claim, policy.call_within);
        let before = Previous::Nothing;
        Self { shared, subject, claimant, takeover, led: None, before, rounds: 0, wait_until: None }
    }

    /// What `read` makes of what the first claim would be answered, if that is known here to be a stored
    /// answer.
    pub(super) fn recent_answer<T>(
        &self,
        read: impl FnOnce(&Subject, Bytes) -> Result<T, Refusal>,
    ) -> Option<T> {
        self.shared.recent_answer(&self.subject, self.claimant.asks().print, read)
    }

    /// Asks for the right to execute.
    ///
    /// # Cancel safety
    ///
    /// What was sent is called off when the way is dropped.
    pub(super) async fn claim(&mut self) -> Met {
        if self.led.is_some_and(Led::only_answers) {
            let look = wait::look_once(&self.shared, self.claimant.asks(), self.call_within());
            return Met::Other(Box::pin(look).await);
        }
        if !self.claimant.announce() {
            return Met::Draining;
        }
        let timer = Timer::start();
        let claimed = self.claimant.claim(self.takeover).await;
        self.subject.rule.metrics().claimed(timer);
        match claimed {
            Ok(Claimed::Granted(grant)) if self.is_after_an_unknown(&grant) => {
                let since = self.claimant.last_sent();
                match Box::pin(self.after_an_unknown(grant)).await {
                    Ok(grant) => Met::Granted(Granted { grant, since }),
                    Err(error) => Met::Other(Err(error)),
                }
            }
            Ok(Claimed::Granted(mut grant)) => {
                if grant.previous == Previous::Nothing {
                    grant.previous = self.before;
                }
                Met::Granted(Granted { grant, since: self.claimant.last_sent() })
            }
            Err(error) if self.runs_unprotected(&error.to_string()) => {
                Met::Granted(self.without_a_grant())
            }
            Ok(Claimed::Free) if self.runs_unprotected(TOO_LATE) => {
                Met::Granted(self.without_a_grant())
            }
            other => Met::Other(other),
        }
    }

    /// The stored answer, if that is what a claim met.
    pub(super) fn answer(&self, met: &Met) -> Option<Bytes> {
        let Met::Other(Ok(Claimed::Completed(completed))) = met else { return None };
        self.keep_recent(completed);
        Some(completed.payload.clone())
    }

    /// What to do about an answer that was no grant: claim again (`None`), or replay what is stored.
    ///
    /// # Cancel safety
    ///
    /// May be dropped: a waiter that leaves is gone.
    pub(super) async fn after(&mut self, met: Met) -> Result<Option<Bytes>, Refusal> {
        let mut claimed = match met {
            Met::Granted(_) => return Ok(None),
            Met::Draining => return Err(shutting_down()),
            Met::Other(Ok(claimed)) => claimed,
            Met::Other(Err(error)) => {
                return Err(self.unavailable(&error.to_string()).not_before(error.retry_after()));
            }
        };
        let met_in_progress = matches!(claimed, Claimed::InProgress(_));
        if let Claimed::InProgress(met) = claimed {
            let policy = self.subject.rule.policy();
            let until = *self.wait_until.get_or_insert_with(|| Instant::now() + policy.wait);
            let _waiting = (!policy.wait.is_zero()).then(|| self.subject.rule.metrics().waiting());
            claimed = wait::watch(&self.shared, self.claimant.asks(), policy, met, until).await;
        }
        let only_answers = self.led.is_some_and(Led::only_answers);
        if matches!(claimed, Claimed::Free) && !met_in_progress && !only_answers {
            return Err(self.unavailable(TOO_LATE));
        }
        self.rounds += 1;
        if matches!(claimed, Claimed::DeliveryTaken(_) | Claimed::Foreign) {
            // The business key may have been granted all the same, and is somebody else's to claim.
            self.claimant.call_off().await;
        }
        match claimed {
            Claimed::Completed(completed) => {
                self.keep_recent(&completed);
                Ok(Some(completed.payload))
            }
            Claimed::InProgress(met) => Err(wait::busy(self.subject.rule.policy().profile, &met)),
            Claimed::Mismatch => Err(self.mismatch().await),
            // This delivery id is another name of another operation.
            Claimed::DeliveryTaken(State::Alias) => Err(refuse_business(&self.subject)),
            Claimed::TokenUnknown => Err(token_unknown(self.subject.rule.policy())),
            Claimed::Forgotten => self.remember().await,
            Claimed::Foreign => Err(self.unreadable("it is no record of ours")),
            _ if self.rounds >= ROUNDS_AT_MOST => {
                Err(self.unavailable("the operation's state changed too often"))
            }
            over @ (Claimed::Free | Claimed::AliasOf(_) | Claimed::Abandoned(_))
                if self.led == Some(Led::ToDelivery) =>
            {
                self.settle_delivery(over).await.map(|()| None)
            }
            Claimed::Free if only_answers => Err(business_key_missing()),
            // Free now: whoever held it has given it back.
            Claimed::Free => Ok(None),
            Claimed::Abandoned(record) if only_answers => {
                telemetry::abandoned(&self.subject, &record);
                Err(wait::outcome_unknown(self.subject.rule.policy().profile))
            }
            Claimed::Abandoned(record) => {
                self.takeover = recover(&self.shared, &self.subject, &record).await?;
                Ok(None)
            }
            Claimed::AliasOf(_) if self.led.is_some() => {
                Err(self.unreadable("it is an alias of an alias"))
            }
            Claimed::AliasOf(target) => {
                self.follow_alias(target);
                Ok(None)
            }
            Claimed::DeliveryTaken(_) => self.follow_delivery().map(|()| None),
            // Granted: not by a look. Dead: this token was never given up.
            _ => Err(self.unavailable("the store's answer does not fit the question")),
        }
    }

    /// A claim like this one has the same answer for some time: nothing comes after completed. Its age
    /// was told after the last send, and from then on as much is left of it as the age does not use up.
    fn keep_recent(&self, completed: &Completed) {
        let asks = self.claimant.asks();
        let left = self.subject.rule.policy().retention.saturating_sub(completed.age);
        let asked = self.claimant.last_sent();
        self.shared.keep_recent(asks.key, asks.print, &completed.payload, asked, left);
    }

    /// The claimant as it is; another one is in its place.
    fn renew_claimant(&mut self) -> Claimant {
        let call_within = self.subject.rule.policy().call_within;
        let claim = self.claimant.asks().clone();
        let next = Claimant::new(self.shared.clone(), claim, call_within);
        mem::replace(&mut self.claimant, next)
    }

    fn runs_unprotected(&self, why: &str) -> bool {
        let wanted = self.subject.rule.policy().run_unprotected;
        if wanted {
            telemetry::run_unprotected(&self.subject, why);
        }
        wanted
    }

    /// The policy wants to run rather than to refuse while the store is away. The answer is offered
    /// to the store under the token that was sent, which may have been granted after all.
    ///
    /// Its fence is smaller than any: whatever the store has meanwhile is not older than this run, so
    /// that it takes nothing over, and an unknown outcome it met stays unknown.
    fn without_a_grant(&self) -> Granted {
        // What the claim may have taken over must not be forgotten by a renewal.
        let previous = match self.takeover {
            _ if self.before == Previous::AbandonedUnknown => self.before,
            Takeover::Refuse => Previous::Nothing,
            Takeover::Any => Previous::AbandonedUnknown,
            Takeover::Only(_) => Previous::AbandonedNotDone,
        };
        Granted { grant: self.no_grant(previous), since: Instant::now() }
    }

    /// What stands for a grant where there is none.
    pub(super) fn no_grant(&self, previous: Previous) -> Grant {
        self.claimant.asks().granted(Fence::NONE, 1, previous)
    }

    fn call_within(&self) -> Duration {
        self.subject.rule.policy().call_within
    }

    fn unavailable(&self, why: &str) -> Refusal {
        telemetry::store_unavailable(&self.subject, why);
        Refusal::store_unavailable()
    }

    fn unreadable(&self, why: &str) -> Refusal {
        telemetry::record_unreadable(&self.subject.record, why);
        Refusal::unreadable()
    }
}

fn business_key_missing() -> Refusal {
    Refusal::new(
        RefusalKind::BusinessKeyMissing,
        "this delivery belongs to an operation that did not happen and may run again, but the \
         request does not say which operation that is; send it with its business key",
    )
}

/// What a claim may take over before anybody is asked what became of it.
fn unasked(policy: &Policy) -> Takeover {
    match policy.on_abandoned {
        OnAbandoned::Rerun => Takeover::Any,
        OnAbandoned::Refuse | OnAbandoned::Resolve(_) | OnAbandoned::Ledger => Takeover::Refuse,
    }
}

/// What an operator reads of the operation while it is unfinished.
fn label(subject: &Subject) -> Bytes {
    let (rule, identity) = (subject.rule.name().as_bytes(), subject.identity.as_bytes());
    let mut label = Vec::with_capacity(rule.len() + 1 + identity.len());
    label.extend_from_slice(rule);
    label.push(b' ');
    if subject.rule.policy().private_label {
        label.extend_from_slice(subject.record.digest().as_bytes());
    } else {
        label.extend_from_slice(identity);
    }
    label.truncate(LABEL_AT_MOST);
    label.into()
}
