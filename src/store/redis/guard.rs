//! What a store that may have lost records may still grant.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use super::{command::Name, own::Own};
use crate::{
    record::RecordKey,
    store::{Claim, Claimed, IfForgotten, StoreError, StoreErrorKind, Takeover},
};

/// More than an owner that is alive needs to renew its lease, which it does each third of it.
const RENEWALS_MAY_LAG: Duration = Duration::from_secs(1);
/// For how long a change is thought of: longer than any lease.
const REMEMBERED_FOR: Duration = Duration::from_secs(24 * 60 * 60);
/// When whoever is refused for a loss should ask again.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(60);

/// What a [`RedisStore`](crate::RedisStore) does when it notices that records were lost: the key that
/// it keeps for that is gone, after a flush, an eviction, or a restart without persistence. In a cluster
/// there is such a key on each primary, and a loss on one of them counts for all.
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
        self.begin_at(Instant::now());
    }

    /// It is so since then, or since later.
    pub(super) fn begin_at(&self, at: Instant) {
        let mut since = self.since.lock().unwrap_or_else(PoisonError::into_inner);
        *since = (*since).max(Some(at));
        self.is.store(true, Relaxed);
    }

    #[cfg(feature = "redis-cluster")]
    pub(super) fn has_begun(&self) -> bool {
        self.since().is_some()
    }

    /// Ever.
    fn has_been(&self) -> bool {
        self.is.load(Relaxed)
    }

    pub(super) fn since(&self) -> Option<Instant> {
        if !self.has_been() {
            return None;
        }
        let since = *self.since.lock().unwrap_or_else(PoisonError::into_inner);
        since.filter(|since| since.elapsed() < REMEMBERED_FOR)
    }
}

/// The records of one prefix: what this process has there, and whether others were lost.
pub(super) struct Guard {
    prefix: Arc<str>,
    pub(super) own: Own,
    /// Of all servers, where they are several: what one has lost may be in slots that are another's by
    /// the time it is asked for, and nobody can tell which those are.
    lost: Uneasy,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    on_data_loss: OnDataLoss,
    /// The canaries by their names, each as it was last seen or written.
    canaries: BTreeMap<String, String>,
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
            state: Mutex::default(),
        })
    }

    /// With the colon that ends it.
    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The name of a record.
    pub(super) fn name<'a>(&'a self, key: &'a RecordKey) -> Name<'a> {
        Name { prefix: &self.prefix, key }
    }

    /// Whether the canary of this name is to be looked at, at a time when those that are known are, or
    /// another.
    pub(super) fn is_due(&self, canary: &str, known_are: bool) -> bool {
        known_are || !self.state().canaries.contains_key(canary)
    }

    /// Canaries that are not looked at any more are forgotten: they may expire.
    #[cfg(feature = "redis-cluster")]
    pub(super) fn forget(&self, is_over: impl Fn(&str) -> bool) {
        self.state().canaries.retain(|name, _| !is_over(name));
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

    /// What the canary of this name should be, if that is known.
    pub(super) fn canary(&self, name: &str) -> Option<String> {
        self.state().canaries.get(name).cloned()
    }

    /// Under this name this canary was found, or none.
    pub(super) fn found(&self, name: &str, there: &str) -> Found {
        let mut state = self.state();
        let Some(known) = state.canaries.get(name) else {
            state.saw(name, there);
            return Found::Known;
        };
        if there == known {
            return Found::Known;
        }
        if there.starts_with(ACCEPTED) && state.refusing {
            state.accept(name, there);
            return Found::Accepted;
        }
        if state.refusing {
            return Found::StillLost;
        }
        state.refusing = state.on_data_loss == OnDataLoss::Refuse;
        if !state.refusing {
            state.saw(name, there);
        }
        drop(state);
        self.lost.begin();
        Found::Lost
    }

    /// Whoever looks after the server has accepted what was lost, and has written this canary.
    pub(super) fn accepted(&self, name: &str, canary: &str) {
        self.state().accept(name, canary);
    }

    /// How long a verdict of *not done* is no use yet: what looks abandoned may be renewed, as far as the
    /// renewals were lost. `changed` says since when the server is another one.
    pub(super) fn holds_back(&self, changed: Option<Instant>, lease: Duration) -> Option<Duration> {
        let since = changed.max(self.lost.since())?;
        lease.checked_sub(since.elapsed())
    }

    /// What may be answered to this claim. `changed` says since when the server is another one.
    pub(super) fn gate(&self, changed: Option<Instant>, claim: &Claim) -> Gate {
        // A look that would take over asks whether it might.
        if claim.is_look() && claim.takeover == Takeover::Refuse {
            return Gate::Open;
        }
        let since = changed.max(self.lost.since());
        let left = |pause: Duration| pause.checked_sub(since?.elapsed());
        if let Some(left) = left(claim.lease / 3 + RENEWALS_MAY_LAG) {
            return Gate::Held(left);
        }
        if claim.takeover != Takeover::Refuse
            && let Some(left) = left(claim.lease)
        {
            return Gate::NoTakeover(left);
        }
        // However long ago the loss is.
        let refusing = || self.lost.has_been() && self.state().refusing;
        match claim.if_forgotten {
            // After a failover the last records may be lost though the canary lives.
            IfForgotten::Tell if since.is_some() || refusing() => Gate::Told,
            IfForgotten::AsTheStoreSays if refusing() => Gate::Refused,
            _ => Gate::Open,
        }
    }
}

impl State {
    /// The next look makes one where there is none, if nobody else has.
    fn saw(&mut self, name: &str, canary: &str) {
        match canary {
            "" => drop(self.canaries.remove(name)),
            _ => drop(self.canaries.insert(name.to_owned(), canary.to_owned())),
        }
    }

    /// What was lost is accepted: the other canaries may be among it, and are met anew.
    fn accept(&mut self, name: &str, canary: &str) {
        self.canaries.clear();
        self.saw(name, canary);
        self.refusing = false;
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
                   so that owners that are alive can write theirs again; OnDataLoss::Refuse after a loss \
                   waits for RedisStore::accept_data_loss besides";
    StoreError::new(StoreErrorKind::Suspended, message).with_retry_after(left)
}

#[cfg(test)]
mod tests;
