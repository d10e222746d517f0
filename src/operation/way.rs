//! What a request is told about its operation, and what it does about it, until it is granted,
//! answered or refused.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use tokio::time::Instant;

use super::{
    Shared, claimant::Claimant, handle::Subject, prepare::shutting_down, recovery::recover, wait,
};
use crate::{
    policy::OnAbandoned,
    record::{ClaimToken, Fence, Fingerprint, Grant, Previous},
    refusal::{Refusal, RefusalKind},
    store::{Claim, Claimed, StoreError, Takeover},
    telemetry,
};

/// The most bytes of a label.
const LABEL_AT_MOST: usize = 256;
/// How often the state of an operation may change under a request before it is refused for now.
const ROUNDS_AT_MOST: u32 = 16;

const TOO_LATE: &str = "the claim arrived too late each time";

/// A request on its way to a grant.
pub(super) struct Way {
    shared: Arc<Shared>,
    subject: Subject,
    claimant: Claimant,
    takeover: Takeover,
    /// The claim has followed an alias.
    followed: bool,
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
    pub(super) fn new(shared: Arc<Shared>, subject: Subject, print: Option<Fingerprint>) -> Self {
        let policy = subject.rule.policy();
        let takeover = match policy.on_abandoned {
            OnAbandoned::Rerun => Takeover::Any,
            OnAbandoned::Refuse | OnAbandoned::Resolve(_) => Takeover::Refuse,
        };
        let mut claim = Claim::new(
            subject.record,
            ClaimToken::random(),
            print,
            policy.lease,
            policy.hold,
            policy.claim_within,
        );
        claim.label = label(&subject);
        let claimant = Claimant::new(shared.clone(), claim, policy.call_within);
        Self { shared, subject, claimant, takeover, followed: false, rounds: 0, wait_until: None }
    }

    pub(super) fn subject(&self) -> &Subject {
        &self.subject
    }

    /// The handler is started: from now on the execution answers for the grant.
    pub(super) fn started(self) -> (Arc<Shared>, Subject) {
        self.claimant.started();
        (self.shared, self.subject)
    }

    pub(super) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Asks for the right to execute.
    ///
    /// # Cancel safety
    ///
    /// What was sent is called off when the way is dropped.
    pub(super) async fn claim(&mut self) -> Met {
        if !self.claimant.announce() {
            return Met::Draining;
        }
        match self.claimant.claim(self.takeover).await {
            Ok(Claimed::Granted(grant)) => {
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
            Met::Other(Err(error)) => return Err(self.unavailable(&error.to_string())),
        };
        if let Claimed::InProgress(met) = claimed {
            let policy = self.subject.rule.policy();
            let until = *self.wait_until.get_or_insert_with(|| Instant::now() + policy.wait);
            claimed = wait::watch(&self.shared, self.claimant.asks(), policy, met, until).await;
        } else if matches!(claimed, Claimed::Free) {
            return Err(self.unavailable(TOO_LATE));
        }
        self.rounds += 1;
        match claimed {
            Claimed::Completed(completed) => Ok(Some(completed.payload)),
            Claimed::InProgress(met) => Err(wait::busy(self.subject.rule.policy().profile, &met)),
            Claimed::Mismatch => Err(mismatch()),
            Claimed::TokenUnknown => Err(Refusal::new(
                RefusalKind::TokenUnknown,
                "this operation is waiting for the one-time token that was issued for it",
            )),
            Claimed::Foreign => Err(self.unreadable("it is no record of ours")),
            _ if self.rounds >= ROUNDS_AT_MOST => {
                Err(self.unavailable("the operation's state changed too often"))
            }
            // Free now: whoever held it has given it back.
            Claimed::Free => Ok(None),
            Claimed::Abandoned(record) => {
                self.takeover = recover(&self.shared, &self.subject, &record).await?;
                Ok(None)
            }
            Claimed::AliasOf(_) if self.followed => {
                Err(self.unreadable("it is an alias of an alias"))
            }
            Claimed::AliasOf(target) => {
                self.follow(target);
                Ok(None)
            }
            // Granted: not by a look. Dead: this token was never given up.
            _ => Err(self.unavailable("the store's answer does not fit the question")),
        }
    }

    /// Claims another key, with another token.
    fn follow(&mut self, target: crate::record::RecordKey) {
        self.followed = true;
        self.subject.record = target;
        let mut claim = self.claimant.asks().clone();
        claim.key = target;
        claim.token = ClaimToken::random();
        let call_within = self.subject.rule.policy().call_within;
        self.claimant = Claimant::new(self.shared.clone(), claim, call_within);
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
            Takeover::Refuse => Previous::Nothing,
            Takeover::Any => Previous::AbandonedUnknown,
            Takeover::Only(_) => Previous::AbandonedNotDone,
        };
        let grant = self.claimant.asks().granted(Fence::NONE, 1, previous);
        Granted { grant, since: Instant::now() }
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

fn mismatch() -> Refusal {
    Refusal::new(
        RefusalKind::Mismatch,
        "this identity was used for another request: method, path, query and body must be the \
         same on a retry; a new operation needs a new identity",
    )
}

/// What an operator reads of the operation while it is unfinished.
fn label(subject: &Subject) -> Bytes {
    let mut label = BytesMut::with_capacity(64);
    label.put_slice(subject.rule.name().as_bytes());
    label.put_u8(b' ');
    if subject.rule.policy().private_label {
        label.put_slice(subject.record.digest().as_bytes());
    } else {
        label.put_slice(subject.identity.as_bytes());
    }
    label.truncate(LABEL_AT_MOST);
    label.freeze()
}
