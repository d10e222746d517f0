//! One poller a key for all requests that wait for its run: one of them looks, and all hear what it saw.
//!
//! Nobody but the waiters does it, so that a poller ends with its last waiter, in whatever runtime. The
//! one that has waited longest leads. When it has its answer, is out of time or is gone, the next leads;
//! and should it be held up, another looks in its place.

use std::{
    collections::HashMap,
    future::{Future, pending, poll_fn},
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::Poll,
    time::Duration,
};

use tokio::{
    sync::{self, Notify, watch},
    time::{Instant, timeout_at},
};

use crate::{
    record::{Fingerprint, OneTimeToken, RecordKey},
    store::{Claim, Claimed, IfForgotten, InProgress, StoreError},
};

/// Between two looks, doubled each time and jittered, so that processes do not look in step.
const LOOK_AFTER: Duration = Duration::from_millis(25);
const LOOK_AFTER_AT_MOST: Duration = Duration::from_millis(500);

/// The pollers of a layer: of a key as many as ask differently, which is one as a rule.
#[derive(Default)]
pub(crate) struct Pollers {
    /// Held for a few map operations at a time and never across an await, so the standard mutex.
    by_key: Mutex<ByKey>,
}

type ByKey = HashMap<RecordKey, Vec<Arc<Poller>>>;

struct Poller {
    asks: Asks,
    /// Whoever holds it looks. It is handed over in the order in which they came.
    lead: sync::Mutex<()>,
    /// What every waiter is to hear. It is said once, and then the poller is not joined any more.
    told: watch::Sender<Option<Claimed>>,
    /// The run may have ended in this process.
    hurry: Notify,
    state: Mutex<State>,
}

/// A look compares these. Whoever brings the same of a key is answered the same.
#[derive(PartialEq, Eq)]
struct Asks {
    print: Option<Fingerprint>,
    one_time: Option<OneTimeToken>,
    if_forgotten: IfForgotten,
}

struct State {
    waiters: usize,
    /// How many have come in all.
    came: u64,
    /// What the last look saw, or the last claim.
    seen: InProgress,
    /// When the last look began.
    looked: Option<Instant>,
    /// When the next is due.
    next: Instant,
    /// How long it is from that one to the one after, without the jitter.
    pause: Duration,
}

enum Turn<T> {
    Told(Claimed),
    Lead(T),
}

impl Pollers {
    /// Waits for the run that `claim` has met.
    pub(super) fn join(&self, claim: &Claim, met: InProgress) -> Waiting<'_> {
        let asks =
            Asks { print: claim.print, one_time: claim.one_time, if_forgotten: claim.if_forgotten };
        let mut by_key = self.by_key();
        let pollers = by_key.entry(claim.key).or_default();
        let poller = match pollers.iter().find(|poller| poller.asks == asks) {
            Some(poller) => poller.clone(),
            None => {
                let poller = Arc::new(Poller::new(asks, met));
                pollers.push(poller.clone());
                poller
            }
        };
        {
            let mut state = poller.state();
            state.waiters += 1;
            state.came += 1;
            state.seen = met;
        }
        Waiting { pollers: self, key: claim.key, poller, since: Instant::now() }
    }

    /// What is waited for under this key may have ended: looks at once.
    pub(super) fn hurry(&self, key: &RecordKey) {
        for poller in self.by_key().get(key).into_iter().flatten() {
            poller.hurry.notify_one();
        }
    }

    /// It is not joined any more; false where it is, because more than `at_most` have come.
    fn retire(&self, key: &RecordKey, poller: &Arc<Poller>, at_most: Option<u64>) -> bool {
        let mut by_key = self.by_key();
        if at_most.is_some_and(|at_most| poller.state().came > at_most) {
            return false;
        }
        remove(&mut by_key, key, poller);
        true
    }

    fn by_key(&self) -> MutexGuard<'_, ByKey> {
        // Nothing under the lock can leave the map half changed.
        self.by_key.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Poller {
    fn new(asks: Asks, seen: InProgress) -> Self {
        let (next, pause) = (Instant::now(), LOOK_AFTER);
        Self {
            asks,
            lead: sync::Mutex::new(()),
            told: watch::Sender::new(None),
            hurry: Notify::new(),
            state: Mutex::new(State { waiters: 0, came: 0, seen, looked: None, next, pause }),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // The state is whole after every statement.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What every waiter is to hear, once there is something.
    async fn told(&self) -> Claimed {
        let mut told = self.told.subscribe();
        loop {
            let now = told.borrow_and_update().clone();
            match now {
                Some(claimed) => return claimed,
                // The sender is in the poller.
                None if told.changed().await.is_err() => pending().await,
                None => {}
            }
        }
    }
}

impl State {
    /// A look begins. Whoever begins it may be dropped before its end, so the next is due all the same.
    fn begin(&mut self) {
        let now = Instant::now();
        self.looked = Some(now);
        self.next = now + self.pause.mul_f64(rand::random_range(0.5..1.0));
        self.pause = (self.pause * 2).min(LOOK_AFTER_AT_MOST);
    }

    /// The next look is due at once.
    fn look_again(&mut self) {
        self.next = Instant::now();
    }

    /// Another run may begin now, and be short.
    fn start_over(&mut self) {
        self.pause = LOOK_AFTER;
        self.begin();
    }
}

/// One request that waits. Dropped, it is gone, and another one looks in its place.
pub(super) struct Waiting<'a> {
    pollers: &'a Pollers,
    key: RecordKey,
    poller: Arc<Poller>,
    since: Instant,
}

impl Waiting<'_> {
    /// What the record is once it is something else than in progress, or in progress when the time is
    /// over. `look` looks once, in `within` at most; `for_one` says which answers only one of all waiters
    /// is to act on: the others go on waiting.
    ///
    /// Unless it is a stored one, which stays, the answer is from a look that began after the waiter came.
    pub(super) async fn wait<L, F>(
        &self,
        look: L,
        within: Duration,
        for_one: impl Fn(&Claimed) -> bool,
        until: Instant,
    ) -> Claimed
    where
        L: Fn() -> F,
        F: Future<Output = Result<Claimed, StoreError>>,
    {
        let look = || self.look(&look, &for_one);
        let held_up = within + LOOK_AFTER_AT_MOST * 2;
        let mut told = pin!(self.poller.told());
        let mut lead = pin!(self.poller.lead.lock());
        loop {
            let turn = poll_fn(|cx| match told.as_mut().poll(cx) {
                Poll::Ready(claimed) => Poll::Ready(Turn::Told(claimed)),
                Poll::Pending => lead.as_mut().poll(cx).map(Turn::Lead),
            });
            match timeout_at(until.min(Instant::now() + held_up), turn).await {
                Ok(Turn::Told(claimed)) => return claimed,
                Ok(Turn::Lead(_lead)) => return self.lead(look, until).await,
                Err(_) => {}
            }
            let now = Instant::now();
            let looked = self.poller.state().looked;
            let is_over = now >= until;
            let must_look = match is_over {
                true => looked.is_none_or(|looked| looked < self.since),
                false => looked.unwrap_or(self.since) + held_up <= now,
            };
            if must_look && let Some(claimed) = look().await {
                return claimed;
            }
            if is_over {
                return self.in_progress();
            }
        }
    }

    /// Looks whenever it is time to.
    async fn lead<F>(&self, look: impl Fn() -> F, until: Instant) -> Claimed
    where
        F: Future<Output = Option<Claimed>>,
    {
        loop {
            let due = self.poller.state().next.min(until);
            if due > Instant::now() {
                let _ = timeout_at(due, self.poller.hurry.notified()).await;
            }
            // Somebody else may have looked, or the one before may have been told so while it handed over.
            let told = self.poller.told.borrow().clone();
            if let Some(claimed) = told {
                return claimed;
            }
            if let Some(claimed) = look().await {
                return claimed;
            }
            if Instant::now() >= until {
                return self.in_progress();
            }
        }
    }

    /// Looks once. What it finds is told to everybody, unless one is enough to act on it.
    async fn look<L, F>(&self, look: &L, for_one: &impl Fn(&Claimed) -> bool) -> Option<Claimed>
    where
        L: Fn() -> F,
        F: Future<Output = Result<Claimed, StoreError>>,
    {
        let came = {
            let mut state = self.poller.state();
            state.begin();
            state.came
        };
        let claimed = match look().await {
            Ok(Claimed::InProgress(now)) => {
                self.poller.state().seen = now;
                return None;
            }
            Ok(claimed) => claimed,
            // A store that cannot be asked just now does not change what was seen.
            Err(_) => return None,
        };
        if for_one(&claimed) {
            // Of what was abandoned somebody is asked first, which takes a while: the others hear of the
            // verdict when there is one, and need not all ask for it.
            if !matches!(claimed, Claimed::Abandoned(_)) {
                self.poller.state().start_over();
            }
            return Some(claimed);
        }
        // What was done stays done. Anything else may have been settled while the answer was on its way, and
        // who came in that time has met the run that began then.
        let is_final = matches!(claimed, Claimed::Completed(_));
        // First, so that nobody who comes now hears what is older than he.
        if self.pollers.retire(&self.key, &self.poller, (!is_final).then_some(came)) {
            self.poller.told.send_replace(Some(claimed.clone()));
        } else {
            self.poller.state().look_again();
        }
        Some(claimed)
    }

    fn in_progress(&self) -> Claimed {
        Claimed::InProgress(self.poller.state().seen)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        // Under the lock under which others join.
        let mut by_key = self.pollers.by_key();
        let is_last = {
            let mut state = self.poller.state();
            state.waiters -= 1;
            state.waiters == 0
        };
        if is_last {
            remove(&mut by_key, &self.key, &self.poller);
        }
    }
}

fn remove(by_key: &mut ByKey, key: &RecordKey, poller: &Arc<Poller>) {
    if let Some(pollers) = by_key.get_mut(key) {
        pollers.retain(|one| !Arc::ptr_eq(one, poller));
        if pollers.is_empty() {
            by_key.remove(key);
        }
    }
}
