//! A store that fails on demand, for tests of what stands on one.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::sync::watch;

use crate::{
    record::Grant,
    store::{
        Claim, Claimed, Cursor, Issue, Issued, Kept, Page, Release, Resolve, Resolved, Store,
        StoreError, StoreErrorKind, Written,
    },
};

/// A transition of [`Store`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Transition {
    /// [`Store::claim`], looks included.
    Claim,
    /// [`Store::renew`].
    Renew,
    /// [`Store::complete`].
    Complete,
    /// [`Store::release`].
    Release,
    /// [`Store::resolve`].
    Resolve,
    /// [`Store::issue`].
    Issue,
    /// [`Store::scan`].
    Scan,
}

/// What happens to one call.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Fault {
    /// Nothing: it goes through. Lets calls pass before a fault that comes later.
    None,
    /// It fails and nothing was done.
    Fail(StoreErrorKind),
    /// It is done, and its answer is lost: the caller gets this error.
    LoseAnswer(StoreErrorKind),
    /// It is sent this much later.
    Delay(Duration),
    /// It is not sent before the gate opens. A caller that stops waiting has sent nothing.
    Hold(Gate),
    /// It is done, and its answer waits at the gate.
    HoldAnswer(Gate),
}

/// A closed gate at which calls wait until it is opened. Clones are the same gate.
#[derive(Clone)]
pub struct Gate(Arc<GateState>);

struct GateState {
    open: watch::Sender<bool>,
    arrived: watch::Sender<usize>,
}

impl Gate {
    /// A closed gate.
    pub fn new() -> Self {
        Self(Arc::new(GateState {
            open: watch::Sender::new(false),
            arrived: watch::Sender::new(0),
        }))
    }

    /// Lets everybody through, now and later.
    pub fn open(&self) {
        self.0.open.send_replace(true);
    }

    /// Waits until this many calls have come to the gate, whether they are there still or not.
    pub async fn arrived(&self, calls: usize) {
        wait_until(&self.0.arrived, |arrived| *arrived >= calls).await;
    }

    async fn pass(&self) {
        self.0.arrived.send_modify(|arrived| *arrived += 1);
        wait_until(&self.0.open, |open| *open).await;
    }
}

impl Default for Gate {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if *self.0.open.borrow() { "open" } else { "closed" };
        write!(f, "Gate({state}, {} arrived)", *self.0.arrived.borrow())
    }
}

async fn wait_until<T>(value: &watch::Sender<T>, reached: impl FnMut(&T) -> bool) {
    // It fails when the sender is gone, and the sender is borrowed here.
    let _ = value.subscribe().wait_for(reached).await;
}

/// What is done to the calls of a [`FaultyStore`], and how many there were. Clones are the same.
///
/// # Example: a completion whose answer is lost
///
/// ```
/// use tower_idempotency::{
///     MemoryStore,
///     store::StoreErrorKind,
///     test_util::{Fault, FaultyStore, Transition},
/// };
///
/// let store = FaultyStore::new(MemoryStore::new());
/// let faults = store.faults();
/// faults.next(Transition::Complete, Fault::LoseAnswer(StoreErrorKind::Timeout));
/// assert_eq!(faults.calls(Transition::Complete), 0);
/// ```
#[derive(Clone)]
pub struct Faults(Arc<FaultsState>);

struct FaultsState {
    /// Held for the few lines that read or change it, never across an await: a mutex of the standard
    /// library is the cheapest that can be locked from outside a runtime too.
    plan: Mutex<Plan>,
    calls: watch::Sender<HashMap<Transition, usize>>,
}

#[derive(Debug, Default)]
struct Plan {
    next: HashMap<Transition, VecDeque<Fault>>,
    always: HashMap<Transition, Fault>,
}

impl Faults {
    fn new() -> Self {
        Self(Arc::new(FaultsState {
            plan: Mutex::default(),
            calls: watch::Sender::new(HashMap::new()),
        }))
    }

    /// One call more has this fault: the next one, or the one after those that were planned before.
    pub fn next(&self, transition: Transition, fault: Fault) {
        self.plan().next.entry(transition).or_default().push_back(fault);
    }

    /// Every call has this fault that [`Faults::next`] plans nothing for.
    pub fn always(&self, transition: Transition, fault: Fault) {
        self.plan().always.insert(transition, fault);
    }

    /// Every call of every transition fails from now on, without being done: the store is down.
    pub fn down(&self, kind: StoreErrorKind) {
        use Transition::{Claim, Complete, Issue, Release, Renew, Resolve, Scan};
        for transition in [Claim, Renew, Complete, Release, Resolve, Issue, Scan] {
            self.always(transition, Fault::Fail(kind));
        }
    }

    /// Nothing is planned any more. Calls that wait at a gate go on waiting.
    pub fn heal(&self) {
        *self.plan() = Plan::default();
    }

    /// How many calls there were, whatever became of them.
    pub fn calls(&self, transition: Transition) -> usize {
        self.0.calls.borrow().get(&transition).copied().unwrap_or(0)
    }

    /// Waits until there were this many calls, whatever became of them.
    pub async fn called(&self, transition: Transition, calls: usize) {
        let reached = |counts: &HashMap<_, _>| counts.get(&transition).is_some_and(|&n| n >= calls);
        if calls > 0 {
            wait_until(&self.0.calls, reached).await;
        }
    }

    fn plan(&self) -> MutexGuard<'_, Plan> {
        // A plan is whole after every statement, so a panic elsewhere spoils nothing.
        self.0.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, transition: Transition) -> Fault {
        let fault = {
            let mut plan = self.plan();
            let next = plan.next.get_mut(&transition).and_then(VecDeque::pop_front);
            next.or_else(|| plan.always.get(&transition).cloned()).unwrap_or(Fault::None)
        };
        self.0.calls.send_modify(|calls| *calls.entry(transition).or_default() += 1);
        fault
    }

    async fn around<T>(
        &self,
        transition: Transition,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        match self.count(transition) {
            Fault::None => call.await,
            Fault::Fail(kind) => Err(planned(kind)),
            Fault::LoseAnswer(kind) => {
                // What it answered is what gets lost, an error of its own included.
                let _ = call.await;
                Err(planned(kind))
            }
            Fault::Delay(by) => {
                tokio::time::sleep(by).await;
                call.await
            }
            Fault::Hold(gate) => {
                gate.pass().await;
                call.await
            }
            Fault::HoldAnswer(gate) => {
                let answer = call.await;
                gate.pass().await;
                answer
            }
        }
    }
}

fn planned(kind: StoreErrorKind) -> StoreError {
    StoreError::new(kind, "a fault that a test planned")
}

impl fmt::Debug for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Faults")
            .field("plan", &*self.plan())
            .field("calls", &*self.0.calls.borrow())
            .finish()
    }
}

/// A store whose calls fail, hang or lose their answers as a test plans it.
#[derive(Debug)]
pub struct FaultyStore<S> {
    store: S,
    faults: Faults,
}

impl<S: Store> FaultyStore<S> {
    /// `store`, without a fault as yet.
    pub fn new(store: S) -> Self {
        Self { store, faults: Faults::new() }
    }

    /// The handle that plans faults and counts calls.
    pub fn faults(&self) -> Faults {
        self.faults.clone()
    }

    /// The store without its faults.
    pub fn inner(&self) -> &S {
        &self.store
    }
}

impl<S: Store> Store for FaultyStore<S> {
    async fn claim(&self, claim: Claim) -> Result<Claimed, StoreError> {
        self.faults.around(Transition::Claim, self.store.claim(claim)).await
    }

    async fn renew(&self, grant: &Grant) -> Result<Written, StoreError> {
        self.faults.around(Transition::Renew, self.store.renew(grant)).await
    }

    async fn complete(&self, grant: &Grant, kept: Kept) -> Result<Written, StoreError> {
        self.faults.around(Transition::Complete, self.store.complete(grant, kept)).await
    }

    async fn release(&self, release: Release) -> Result<Written, StoreError> {
        self.faults.around(Transition::Release, self.store.release(release)).await
    }

    async fn resolve(&self, resolve: Resolve) -> Result<Resolved, StoreError> {
        self.faults.around(Transition::Resolve, self.store.resolve(resolve)).await
    }

    async fn issue(&self, issue: Issue) -> Result<Issued, StoreError> {
        self.faults.around(Transition::Issue, self.store.issue(issue)).await
    }

    async fn scan(&self, from: Cursor, at_most: usize) -> Result<Page, StoreError> {
        self.faults.around(Transition::Scan, self.store.scan(from, at_most)).await
    }
}
