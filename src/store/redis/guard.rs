//! What a store that may have lost records may still grant.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use super::own::Own;
use crate::store::{Claim, Claimed, IfForgotten, StoreError, StoreErrorKind, Takeover};

/// More than an owner that is alive needs to renew its lease, which it does each third of it.
const RENEWALS_MAY_LAG: Duration = Duration::from_secs(1);
/// For how long a change is thought of: longer than any lease.
const REMEMBERED_FOR: Duration = Duration::from_secs(24 * 60 * 60);
/// When whoever is refused for a loss should ask again.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(60);

/// What a [`RedisStore`](crate::RedisStore) does when it notices that records were lost: the key that
/// it keeps for that is gone, after a flush, an eviction, or a restart without persistence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnDataLoss {
    /// Says so (event *records lost*), writes again what this process has, waits for the others to do
    /// the same, and then goes on: what was lost for good may run again.
    #[default]
    Observe,
    /// The same, but nothing new is granted until somebody has called
    /// [`RedisStore::accept_data_loss`](crate::RedisStore::accept_data_loss), in whichever process.
    /// What is stored is answered all the while.
    Refuse,
}

/// Since when the server may not have what it was told, if that is so.
#[derive(Default)]
pub(super) struct Uneasy {
    /// Read without the lock, since nearly always all is well.
    is: AtomicBool,
    since: Mutex<Option<Instant>>,
}

impl Uneasy {
    pub(super) fn begin(&self) {
        *self.since.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        self.is.store(true, Relaxed);
    }

    #[cfg(feature = "redis-cluster")]
    pub(super) fn has_begun(&self) -> bool {
        self.since().is_some()
    }

    fn since(&self) -> Option<Instant> {
        if !self.is.load(Relaxed) {
            return None;
        }
        let since = *self.since.lock().unwrap_or_else(PoisonError::into_inner);
        since.filter(|since| since.elapsed() < REMEMBERED_FOR)
    }

    /// How long of `pause` is left.
    fn left(&self, pause: Duration) -> Option<Duration> {
        pause.checked_sub(self.since()?.elapsed())
    }
}

/// The records of one prefix: what this process has there, and whether others were lost.
pub(super) struct Guard {
    prefix: Arc<str>,
    pub(super) own: Own,
    lost: Uneasy,
    /// In a cluster, where each node would need one, and a name that stays with it.
    has_no_canary: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    on_data_loss: OnDataLoss,
    /// The canary as it was last seen or written.
    canary: Option<String>,
    /// Nothing is granted until the loss is accepted.
    refusing: bool,
}

/// What a look at the canary found.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// All is well.
    Known,
    /// Records were lost, and that is new.
    Lost,
    /// The same as before: nobody has accepted it.
    StillLost,
    /// Somebody has accepted that records were lost.
    Accepted,
}

/// A value that somebody wrote who accepts what was lost.
const ACCEPTED: char = '+';

impl Guard {
    pub(super) fn new(prefix: Arc<str>) -> Arc<Self> {
        Arc::new(Self {
            prefix,
            own: Own::default(),
            lost: Uneasy::default(),
            has_no_canary: AtomicBool::new(false),
            state: Mutex::default(),
        })
    }

    /// With the colon that ends it.
    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// There is no canary to look after.
    #[cfg(feature = "redis-cluster")]
    pub(super) fn has_no_canary(&self) {
        self.has_no_canary.store(true, Relaxed);
    }

    /// Whether the canary is to be looked at, at a time when those that are known are, or another.
    pub(super) fn is_due(&self, known_are: bool) -> bool {
        !self.has_no_canary.load(Relaxed) && (known_are || self.state().canary.is_none())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing under the lock can leave it half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn on_data_loss(&self, choice: OnDataLoss) {
        self.state().on_data_loss = choice;
    }

    pub(super) fn choice(&self) -> OnDataLoss {
        self.state().on_data_loss
    }

    /// The canary that should be there, if one is known.
    pub(super) fn canary(&self) -> Option<String> {
        self.state().canary.clone()
    }

    /// This canary was found, or none.
    pub(super) fn found(&self, there: &str) -> Found {
        let mut state = self.state();
        let Some(known) = &state.canary else {
            state.canary = (!there.is_empty()).then(|| there.to_owned());
            return Found::Known;
        };
        if there == known {
            return Found::Known;
        }
        if there.starts_with(ACCEPTED) && state.refusing {
            *state = State { canary: Some(there.to_owned()), refusing: false, ..*state };
            return Found::Accepted;
        }
        if state.refusing {
            return Found::StillLost;
        }
        state.refusing = state.on_data_loss == OnDataLoss::Refuse;
        if !state.refusing {
            // The next look makes a new one, if nobody else has.
            state.canary = (!there.is_empty()).then(|| there.to_owned());
        }
        drop(state);
        self.lost.begin();
        Found::Lost
    }

    /// Whoever looks after the server has accepted what was lost, and has written this canary.
    pub(super) fn accepted(&self, canary: String) {
        let mut state = self.state();
        *state = State { canary: Some(canary), refusing: false, ..*state };
    }

    /// What may be answered to this claim. `server` is about the server as such.
    pub(super) fn gate(&self, server: &Uneasy, claim: &Claim) -> Gate {
        if (!server.is.load(Relaxed) && !self.lost.is.load(Relaxed)) || claim.is_look() {
            return Gate::Open;
        }
        let left = |pause| server.left(pause).max(self.lost.left(pause));
        if let Some(left) = left(claim.lease / 3 + RENEWALS_MAY_LAG) {
            return Gate::Held(left);
        }
        if claim.takeover != Takeover::Refuse
            && let Some(left) = left(claim.lease)
        {
            return Gate::NoTakeover(left);
        }
        let lost = self.lost.since().is_some();
        match claim.if_forgotten {
            // After a failover the last records may be lost though the canary lives.
            IfForgotten::Tell if lost || server.since().is_some() => Gate::Told,
            IfForgotten::AsTheStoreSays if lost && self.state().refusing => Gate::Refused,
            _ => Gate::Open,
        }
    }
}

/// What may be answered to a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gate {
    Open,
    /// No grant before this is over: owners that are alive are to write theirs again first.
    Held(Duration),
    /// Nothing that is abandoned may be taken over before this is over.
    NoTakeover(Duration),
    /// Whoever claims wants to ask somebody who knows.
    Told,
    /// No grant before the loss is accepted.
    Refused,
}

impl Gate {
    /// The claim as it may be sent, where it may not as it is.
    pub(super) fn narrowed(self, claim: &Claim) -> Option<Claim> {
        if self == Self::Open {
            return None;
        }
        let mut narrowed = claim.clone();
        match self {
            Self::Open => {}
            Self::NoTakeover(_) => narrowed.takeover = Takeover::Refuse,
            Self::Held(_) | Self::Told | Self::Refused => narrowed.within = Duration::ZERO,
        }
        Some(narrowed)
    }

    /// What is made of the answer.
    pub(super) fn judge(self, claimed: Claimed) -> Result<Claimed, StoreError> {
        match (self, claimed) {
            // A token may be one that an owner has used up, who is to write that again first.
            (Self::Held(left), Claimed::Free | Claimed::TokenUnknown) => Err(changed(left)),
            (Self::NoTakeover(left), Claimed::Abandoned(_)) => Err(changed(left)),
            (Self::Told, Claimed::Free) => Ok(Claimed::Forgotten),
            (Self::Refused, Claimed::Free) => {
                let message = "the Redis has lost records, and nothing is granted until somebody calls \
                               RedisStore::accept_data_loss: look for a flush, an eviction or a restart \
                               without persistence, and what may have run";
                let error = StoreError::new(StoreErrorKind::Suspended, message);
                Err(error.with_retry_after(ASK_AGAIN_AFTER))
            }
            (_, claimed) => Ok(claimed),
        }
    }
}

/// Nothing is granted for now.
pub(super) fn changed(left: Duration) -> StoreError {
    let message = "the Redis is another one or has lost records, and for some seconds nothing is granted, \
                   so that owners that are alive can write theirs again";
    StoreError::new(StoreErrorKind::Suspended, message).with_retry_after(left)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{ClaimToken, RecordKey};

    const SECOND: Duration = Duration::from_secs(1);

    fn claim(lease: Duration) -> Claim {
        let key = RecordKey::from_bytes([1; 32]);
        Claim::new(key, ClaimToken::random(), None, lease, 60 * SECOND, SECOND)
    }

    fn changed_ago(ago: Duration) -> Uneasy {
        let uneasy = Uneasy::default();
        uneasy.begin();
        *uneasy.since.lock().unwrap() = Instant::now().checked_sub(ago);
        uneasy
    }

    #[test]
    fn f7_a_new_server_grants_nothing_for_a_third_of_the_lease_and_takes_over_nothing_for_one() {
        let guard = Guard::new("p:".into());
        let lease = 30 * SECOND;
        let gate = |ago, takeover| {
            let mut claim = claim(lease);
            claim.takeover = takeover;
            guard.gate(&changed_ago(ago), &claim)
        };
        for takeover in [Takeover::Refuse, Takeover::Any] {
            assert!(matches!(gate(SECOND, takeover), Gate::Held(left) if left <= 10 * SECOND));
            assert!(matches!(gate(10 * SECOND, takeover), Gate::Held(_)));
        }
        assert_eq!(gate(12 * SECOND, Takeover::Refuse), Gate::Open);
        assert!(
            matches!(gate(29 * SECOND, Takeover::Any), Gate::NoTakeover(left) if left <= SECOND)
        );
        assert_eq!(gate(31 * SECOND, Takeover::Any), Gate::Open);
        let mut look = claim(lease);
        look.within = Duration::ZERO;
        assert_eq!(guard.gate(&changed_ago(SECOND), &look), Gate::Open);
        assert_eq!(guard.gate(&Uneasy::default(), &claim(lease)), Gate::Open);
    }

    #[test]
    fn a_new_server_does_not_call_a_token_unknown_before_owners_could_write_again() {
        let left = 10 * SECOND;
        let held = Gate::Held(left).judge(Claimed::TokenUnknown).unwrap_err();
        assert_eq!((held.kind(), held.retry_after()), (StoreErrorKind::Suspended, Some(left)));
        for gate in [Gate::Open, Gate::NoTakeover(left), Gate::Told, Gate::Refused] {
            assert!(matches!(gate.judge(Claimed::TokenUnknown), Ok(Claimed::TokenUnknown)));
        }
        // What is known is told all the while.
        assert!(matches!(Gate::Held(left).judge(Claimed::Mismatch), Ok(Claimed::Mismatch)));
    }

    #[test]
    fn a_canary_that_is_gone_or_another_is_a_loss_once() {
        let guard = Guard::new("p:".into());
        assert_eq!(guard.found("one"), Found::Known, "the first that is seen");
        assert_eq!(guard.found("one"), Found::Known);
        assert_eq!(guard.found(""), Found::Lost);
        assert_eq!(guard.canary(), None, "the next look makes one");
        assert_eq!(guard.found("two"), Found::Known);
        assert_eq!(guard.found("three"), Found::Lost);
        assert_eq!(guard.canary().as_deref(), Some("three"));
    }

    #[test]
    fn a_loss_that_is_not_to_be_gone_over_is_refused_until_it_is_accepted() {
        let guard = Guard::new("p:".into());
        guard.on_data_loss(OnDataLoss::Refuse);
        guard.found("one");
        assert_eq!(guard.found(""), Found::Lost);
        *guard.lost.since.lock().unwrap() = Instant::now().checked_sub(60 * SECOND);
        let well = Uneasy::default();
        let mut asked = claim(SECOND);
        assert_eq!(guard.gate(&well, &asked), Gate::Refused);
        assert_eq!(guard.found(""), Found::StillLost);
        assert_eq!(guard.found("two"), Found::StillLost, "a process that has just started");
        asked.if_forgotten = IfForgotten::Tell;
        assert_eq!(guard.gate(&well, &asked), Gate::Told);
        asked.if_forgotten = IfForgotten::Grant;
        assert_eq!(guard.gate(&well, &asked), Gate::Open);
        asked.if_forgotten = IfForgotten::AsTheStoreSays;
        assert_eq!(guard.found("+three"), Found::Accepted);
        assert_eq!(guard.gate(&well, &asked), Gate::Open);
        asked.if_forgotten = IfForgotten::Tell;
        assert_eq!(guard.gate(&well, &asked), Gate::Told, "what was lost is lost");
    }
}
