//! Asks for a grant, and answers for what it asked: no claim is left behind that nobody executes.
//!
//! A claim that was sent may be granted although its answer is lost. Whoever ends without running
//! the handler therefore calls it off: at once where it was granted, and, where a send of it is
//! unanswered, once it is too late for it to be granted.

use std::{mem, sync::Arc, time::Duration};

use tokio::{
    runtime::Handle,
    time::{Instant, sleep, timeout},
};

use super::{Keeper, Shared, keeper::Claiming};
use crate::{
    record::{ClaimToken, Grant},
    store::{
        BoxFuture, Claim, Claimed, IfForgotten, Release, StoreError, StoreErrorKind, Takeover,
        in_time,
    },
};

/// Between two sends of a claim that failed at once.
const RESEND_AFTER: Duration = Duration::from_millis(20);
const RESEND_AFTER_AT_MOST: Duration = Duration::from_millis(250);
/// Stores count in whole milliseconds, and a claim may be granted in the last of them.
const ROUNDING: Duration = Duration::from_millis(5);

type Answer = Result<Claimed, StoreError>;

/// One claim token, from its first send to its grant or its end.
pub(super) struct Claimant {
    shared: Arc<Shared>,
    claim: Claim,
    call_within: Duration,
    /// Not before the first send.
    last_sent: Option<Instant>,
    debt: Debt,
}

/// What was sent and must be called off if nothing runs.
#[derive(Default)]
struct Debt {
    /// The send whose answer is awaited.
    in_flight: Option<BoxFuture<Answer>>,
    /// How many sends have no answer, the one in flight among them.
    unanswered: u32,
    /// After this no send can be granted any more.
    too_late: Option<Instant>,
    /// How long a grant that nobody knows of keeps the key busy.
    lease: Duration,
    /// The store has granted, or may have.
    granted: bool,
    /// Each send asked for an alias as well.
    has_alias: bool,
    /// While something is owed, `drain` waits for it.
    counted: Option<Claiming>,
}

impl Claimant {
    /// `claim` is sent as often as it takes, within its time.
    pub(super) fn new(shared: Arc<Shared>, claim: Claim, call_within: Duration) -> Self {
        Self { shared, claim, call_within, last_sent: None, debt: Debt::default() }
    }

    /// What it asks for.
    pub(super) fn asks(&self) -> &Claim {
        &self.claim
    }

    /// What it is to be answered where the store may have lost the record.
    pub(super) fn if_forgotten(&mut self, choice: IfForgotten) {
        self.claim.if_forgotten = choice;
    }

    /// When the claim was last sent; now, if it was not.
    pub(super) fn last_sent(&self) -> Instant {
        self.last_sent.unwrap_or_else(Instant::now)
    }

    /// Whether a claim may be sent: not when the layer is told to end, for then nobody might be left
    /// to call it off.
    ///
    /// # Panics
    ///
    /// Outside of a Tokio runtime, where nothing could be run that is granted, nor be called off.
    pub(super) fn announce(&mut self) -> bool {
        if self.debt.counted.is_none() {
            drop(Handle::current());
            self.debt.counted = self.shared.keeper.begin_claim();
        }
        self.debt.counted.is_some()
    }

    /// Asks until there is an answer or the time for a claim is over. The answer is `Granted` only
    /// with a lease of which at least half is left.
    ///
    /// # Cancel safety
    ///
    /// What was sent is called off when the claimant is dropped.
    pub(super) async fn claim(&mut self, takeover: Takeover) -> Answer {
        let mut now = Instant::now();
        let until = now + self.claim.within;
        let mut pause = RESEND_AFTER;
        loop {
            let answer = self.send(takeover, now, until).await;
            let sent = mem::replace(&mut now, Instant::now());
            let end = match answer {
                Ok(Claimed::Granted(grant)) if !self.is_mine(&grant) => Err(not_asked_for()),
                // Each send that is granted starts the lease anew, so it began after this one.
                Ok(Claimed::Granted(grant)) if now - sent < grant.lease / 2 => {
                    return Ok(Claimed::Granted(grant));
                }
                // Stale, or too late by the store's clock: asked again, it may be granted in time.
                Ok(Claimed::Granted(_)) => Ok(Claimed::Free),
                Ok(Claimed::Free) => Ok(Claimed::Free),
                // The store knows that it is no use for now.
                Err(error) if error.is_suspended() => return Err(error),
                Err(error) => Err(error),
                Ok(answer) => return Ok(answer),
            };
            if now + pause >= until {
                return end;
            }
            sleep(pause.mul_f64(rand::random_range(0.5..1.0))).await;
            now = Instant::now();
            pause = (pause * 2).min(RESEND_AFTER_AT_MOST);
        }
    }

    /// Whether what was granted is what was asked for: a store may mix up its answers.
    fn is_mine(&self, grant: &Grant) -> bool {
        (grant.key, grant.token) == (self.claim.key, self.claim.token)
    }

    /// Calls off what was granted, now, so that whoever asks next finds the key free. What cannot be
    /// called off now is called off when the claimant is dropped. The token is dead afterwards.
    pub(super) async fn call_off(&mut self) {
        if !self.debt.granted {
            return;
        }
        let release = self.shared.store.clone().release(self.release());
        if let Ok(Ok(_)) = timeout(self.call_within, release).await {
            self.debt.granted = false;
        }
    }

    fn release(&self) -> Release {
        Release::called_off(self.claim.key, self.claim.token, self.claim.hold)
    }

    /// The handler is started: from now on the execution answers for the grant. Until the time it gives
    /// back, a send that has no answer may still arrive.
    pub(super) fn started(&mut self) -> Option<Instant> {
        let debt = mem::take(&mut self.debt);
        debt.too_late.filter(|_| debt.unanswered > 0)
    }

    /// Sends the claim once.
    async fn send(&mut self, takeover: Takeover, now: Instant, until: Instant) -> Answer {
        let within = until.saturating_duration_since(now);
        let Some(call) = self.begin_send(takeover, now, within) else {
            return Err(StoreError::too_slow());
        };
        let call = self.debt.in_flight.insert(call);
        let answer = in_time(&*self.shared.store, self.call_within.min(within), call).await;
        self.debt.in_flight = None;
        match &answer {
            Ok(claimed) => self.debt.answered(claimed),
            // It was not sent.
            Err(error) if error.is_suspended() => self.debt.answered(&Claimed::Free),
            Err(_) => {}
        }
        answer
    }
}

impl Claimant {
    /// The call that sends the claim, of which something may be owed from now on; `None` if there is no
    /// time left.
    fn begin_send(
        &mut self,
        takeover: Takeover,
        now: Instant,
        within: Duration,
    ) -> Option<BoxFuture<Answer>> {
        let claim = Box::new(Claim { takeover, within, ..self.claim.clone() });
        if claim.is_look() {
            return None;
        }
        self.last_sent = Some(now);
        self.debt.too_late = Some(now + within + ROUNDING);
        self.debt.lease = claim.lease;
        self.debt.has_alias = claim.alias.is_some();
        self.debt.unanswered += 1;
        Some(self.shared.store.clone().claim(claim))
    }
}

/// Whether a claim with this answer was granted, or may have been: of what is said about its alias
/// alone, nobody knows what became of its key.
fn may_be_granted(claimed: &Claimed, has_alias: bool) -> bool {
    match claimed {
        Claimed::Granted(_) | Claimed::DeliveryTaken(_) => true,
        Claimed::Foreign => has_alias,
        _ => false,
    }
}

impl Drop for Claimant {
    fn drop(&mut self) {
        let release = self.release();
        mem::take(&mut self.debt).settle(release, &self.shared.keeper, self.call_within);
    }
}

impl Debt {
    /// The last send was answered; earlier ones without an answer may still arrive.
    fn answered(&mut self, claimed: &Claimed) {
        self.unanswered = self.unanswered.saturating_sub(1);
        self.granted |= may_be_granted(claimed, self.has_alias);
        if self.unanswered == 0 && !self.granted {
            self.counted = None;
        }
    }

    /// Calls off what was sent: now if it was granted, and once it is too late for what has no
    /// answer yet.
    fn settle(mut self, release: Release, keeper: &Keeper, call_within: Duration) {
        if let Some(answer) = self.in_flight.take() {
            let Ok(runtime) = Handle::try_current() else {
                return self.call_off(release, keeper);
            };
            let orphan = Orphan { debt: self, release, keeper: keeper.clone() };
            runtime.spawn(orphan.wait_for(answer, call_within));
        } else {
            self.call_off(release, keeper);
        }
    }

    /// What was counted is counted off at the end, when the keeper has what is left to do.
    fn call_off(self, release: Release, keeper: &Keeper) {
        if self.granted {
            keeper.release_later(release.clone(), self.lease, Instant::now());
        }
        if self.unanswered > 0 {
            let too_late = self.too_late.unwrap_or_else(Instant::now);
            keeper.release_later(release, self.lease, too_late);
        }
    }
}

/// A claim whose request has gone while its answer was on the way.
struct Orphan {
    debt: Debt,
    release: Release,
    keeper: Keeper,
}

impl Orphan {
    async fn wait_for(mut self, answer: BoxFuture<Answer>, call_within: Duration) {
        if let Ok(Ok(claimed)) = timeout(call_within, answer).await {
            self.debt.answered(&claimed);
        }
    }
}

impl Drop for Orphan {
    /// Also when the runtime ends before the answer comes.
    fn drop(&mut self) {
        mem::take(&mut self.debt).call_off(self.release.clone(), &self.keeper);
    }
}

fn not_asked_for() -> StoreError {
    StoreError::new(
        StoreErrorKind::Garbled,
        "the store granted another claim than it was asked for",
    )
}

/// A claim that only reads.
pub(super) fn look(claim: &Claim) -> Box<Claim> {
    let mut look = Box::new(claim.clone());
    look.token = ClaimToken::random();
    look.within = Duration::ZERO;
    look.takeover = Takeover::Refuse;
    // The claim before it has bound the alias, and said if it could not.
    look.alias = None;
    look
}
