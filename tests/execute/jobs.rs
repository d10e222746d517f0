//! Jobs over a memory store that fails on demand, and work that a test lets go on.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::sync::Semaphore;
use tower_idempotency::{
    Idempotent, MemoryStore, Policy, Rule,
    execute::{Done, RunError},
    test_util::{Faults, FaultyStore},
};

pub(crate) const SECOND: Duration = Duration::from_secs(1);

pub(crate) type Ran<T = String, E = Infallible> = Result<Done<T>, RunError<E>>;

/// Jobs under the rule `charge`, and how often their work was run.
#[derive(Clone)]
pub(crate) struct Jobs {
    pub(crate) jobs: Idempotent,
    pub(crate) faults: Faults,
    pub(crate) memory: MemoryStore,
    runs: Arc<AtomicUsize>,
}

impl Jobs {
    pub(crate) fn new(policy: Policy) -> Self {
        Self::over(MemoryStore::new(), policy, Arc::default())
    }

    /// Those of another process, with the same records.
    pub(crate) fn elsewhere(&self, policy: Policy) -> Self {
        Self::over(self.memory.clone(), policy, self.runs.clone())
    }

    fn over(memory: MemoryStore, policy: Policy, runs: Arc<AtomicUsize>) -> Self {
        let store = FaultyStore::new(memory.clone());
        let faults = store.faults();
        let jobs = Idempotent::new(store, Rule::new("charge", policy));
        Self { jobs, faults, memory, runs }
    }

    /// The same, which keep the answers of the last minute.
    pub(crate) fn keeping(self) -> Self {
        Self { jobs: self.jobs.recent(1024 * 1024), ..self }
    }

    /// Work that says which run of all it is.
    pub(crate) async fn charge(&self, key: &str) -> Ran {
        let runs = self.runs.clone();
        let nth = async move |_| Ok(format!("run {}", runs.fetch_add(1, Ordering::SeqCst) + 1));
        self.jobs.run(key, None, nth).await
    }

    pub(crate) fn runs(&self) -> usize {
        self.runs.load(Ordering::SeqCst)
    }

    /// Counts a run of other work.
    pub(crate) fn counter(&self) -> impl Fn() -> usize + Clone + Send + 'static {
        let runs = self.runs.clone();
        move || runs.fetch_add(1, Ordering::SeqCst) + 1
    }
}

/// Work waits at it until it is let in.
#[derive(Clone)]
pub(crate) struct Door {
    came: Arc<Semaphore>,
    may_go: Arc<Semaphore>,
}

impl Door {
    pub(crate) fn new() -> Self {
        Self { came: Arc::new(Semaphore::new(0)), may_go: Arc::new(Semaphore::new(0)) }
    }

    pub(crate) async fn pass(&self) {
        self.came.add_permits(1);
        self.may_go.acquire().await.unwrap().forget();
    }

    /// Waits until one more is at the door.
    pub(crate) async fn came(&self) {
        self.came.acquire().await.unwrap().forget();
    }

    pub(crate) fn let_one_in(&self) {
        self.may_go.add_permits(1);
    }
}

pub(crate) fn executed(value: &str) -> impl Fn(&Ran) -> bool + '_ {
    move |ran| matches!(ran, Ok(Done::Executed(this)) if this == value)
}

pub(crate) fn replayed(value: &str) -> impl Fn(&Ran) -> bool + '_ {
    move |ran| matches!(ran, Ok(Done::Replayed(this)) if this == value)
}

/// Says what it was instead.
#[track_caller]
pub(crate) fn assert_ran(ran: &Ran, is: impl Fn(&Ran) -> bool) {
    assert!(is(ran), "{ran:?}");
}
