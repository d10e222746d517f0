//! What really happened, written down outside of the layer, and what must not happen.

use std::{
    collections::{HashMap, HashSet},
    sync::{Mutex, MutexGuard},
};

use tower_idempotency::{Operation, Previous};

use crate::plan::{Plan, Recovery};

/// An operation, as the handler is told of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Name {
    pub(crate) tenant: String,
    pub(crate) business: bool,
    pub(crate) key: String,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Kept,
    /// It said that it did not happen.
    Released,
    /// It answered a failure, and did not happen.
    Failed,
    /// The layer cannot know; it did happen.
    UnknownDone,
    /// The layer cannot know; it did not happen.
    UnknownNotDone,
}

impl End {
    /// Whether the layer is told that it did not happen.
    fn may_run_again(self) -> bool {
        matches!(self, Self::Released | Self::Failed)
    }

    fn happened(self) -> bool {
        matches!(self, Self::Kept | Self::UnknownDone)
    }
}

#[derive(Clone, Debug)]
struct Run {
    previous: Previous,
    attempt: u32,
    fence: u64,
    body: String,
    end: Option<End>,
}

/// What became of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Truth {
    Running,
    Done(String),
    NotDone,
}

/// All runs of all operations.
#[derive(Debug)]
pub(crate) struct Journal {
    plan: Plan,
    runs: Mutex<HashMap<Name, Vec<Run>>>,
    /// Of which somebody who knows has said that they were not done.
    called_not_done: Mutex<HashSet<Name>>,
    /// What must not have happened and did.
    wrong: Mutex<Vec<String>>,
}

impl Journal {
    pub(crate) fn new(plan: Plan) -> Self {
        Self {
            plan,
            runs: Mutex::default(),
            called_not_done: Mutex::default(),
            wrong: Mutex::default(),
        }
    }

    fn runs(&self) -> MutexGuard<'_, HashMap<Name, Vec<Run>>> {
        self.runs.lock().expect("no holder panics")
    }

    pub(crate) fn wrong(&self, what: String) {
        self.wrong.lock().expect("no holder panics").push(what);
    }

    pub(crate) fn all_wrong(&self) -> Vec<String> {
        self.wrong.lock().expect("no holder panics").clone()
    }

    pub(crate) fn names(&self) -> Vec<Name> {
        self.runs().keys().cloned().collect()
    }

    pub(crate) fn count(&self) -> usize {
        self.runs().values().map(Vec::len).sum()
    }

    /// A handler starts: its operation, and which of its runs it is.
    pub(crate) fn start(&self, operation: &Operation) -> (Name, usize) {
        let name = Name {
            tenant: operation.scope().to_owned(),
            business: operation.delivery_id().is_some(),
            key: operation.key().to_owned(),
        };
        let mut runs = self.runs();
        let before = runs.entry(name.clone()).or_default();
        let run = Run {
            previous: operation.previous(),
            attempt: operation.attempt(),
            fence: operation.fence().get(),
            body: format!("{}/{}/{}/run {}", name.tenant, name.business, name.key, before.len()),
            end: None,
        };
        if let Some(why) = self.must_not_start(&name, before, &run) {
            self.wrong(format!("{name:?} started although {why}: {before:?}, then {run:?}"));
        }
        before.push(run);
        let place = before.len() - 1;
        (name, place)
    }

    fn must_not_start(&self, name: &Name, before: &[Run], run: &Run) -> Option<&'static str> {
        let last = before.last()?;
        let rerun = run.previous == Previous::AbandonedUnknown;
        if rerun && self.plan.recovery != Recovery::Rerun {
            return Some("nobody allowed a blind rerun");
        }
        if before.iter().any(|before| before.end.is_none()) && (!rerun || self.plan.storm == 0) {
            return Some("another was running");
        }
        let settled = self.plan.recovery == Recovery::Resolve;
        let not_done = |end: End| end.may_run_again() || (settled && !end.happened());
        if !rerun && !before.iter().filter_map(|before| before.end).all(not_done) {
            return Some("one before it happened, or nobody knows");
        }
        if before.iter().any(|before| before.fence >= run.fence) {
            return Some("its fence does not grow");
        }
        if before.iter().any(|before| before.attempt >= run.attempt) {
            return Some("its attempt does not grow");
        }
        match (last.end, run.previous) {
            (_, Previous::Nothing | Previous::Issued) => Some("it is told that it is the first"),
            // A failure that the store was not told of before somebody else said what it came to.
            (Some(End::Failed), Previous::Released) if self.was_called_not_done(name) => None,
            (Some(End::Failed), Previous::Released) => Some("it is not told of the failure"),
            _ => None,
        }
    }

    /// Somebody who knows says that it was not done.
    pub(crate) fn call_not_done(&self, name: &Name) {
        self.called_not_done.lock().expect("no holder panics").insert(name.clone());
    }

    fn was_called_not_done(&self, name: &Name) -> bool {
        self.called_not_done.lock().expect("no holder panics").contains(name)
    }

    pub(crate) fn body(&self, (name, place): &(Name, usize)) -> String {
        self.runs()[name][*place].body.clone()
    }

    pub(crate) fn end(&self, (name, place): &(Name, usize), end: End) {
        let mut runs = self.runs();
        let Some(runs) = runs.get_mut(name) else { return };
        runs[*place].end = Some(end);
        let happened = runs.iter().filter(|run| run.end.is_some_and(End::happened)).count();
        if happened > 1 && self.plan.recovery != Recovery::Rerun {
            self.wrong(format!("{name:?} happened {happened} times: {runs:?}"));
        }
    }

    pub(crate) fn truth(&self, name: &Name) -> Truth {
        let runs = self.runs();
        let runs = runs.get(name).map_or(&[][..], Vec::as_slice);
        if runs.iter().any(|run| run.end.is_none()) {
            return Truth::Running;
        }
        let done = runs.iter().find(|run| run.end.is_some_and(End::happened));
        done.map_or(Truth::NotDone, |run| Truth::Done(run.body.clone()))
    }

    /// Whether the layer can know what became of the operation, and if so, whether it may run.
    pub(crate) fn known(&self, name: &Name) -> Option<bool> {
        let runs = self.runs();
        let ends: Vec<_> = runs.get(name)?.iter().map(|run| run.end).collect();
        if ends.contains(&Some(End::Kept)) {
            return Some(false);
        }
        let all_known = ends.iter().all(|end| end.is_some_and(End::may_run_again));
        all_known.then_some(true)
    }

    /// Whether a run of one of this tenant's operations has ended so that the layer cannot know.
    pub(crate) fn is_unknown(&self, tenant: &str, keys: &[&str]) -> bool {
        let unknown =
            |run: &Run| run.end.is_some_and(|end| !end.may_run_again() && end != End::Kept);
        self.runs().iter().any(|(name, runs)| {
            name.tenant == tenant && keys.contains(&&*name.key) && runs.iter().any(unknown)
        })
    }

    /// Whether this is what a run of this operation answered that was kept, or was done in truth.
    pub(crate) fn may_be_replayed(&self, name: &Name, body: &str) -> bool {
        let runs = self.runs();
        let Some(runs) = runs.get(name) else { return false };
        runs.iter().any(|run| run.body == body && run.end.is_some_and(End::happened))
    }

    /// The operation of an answer's body, if there was such a run.
    pub(crate) fn of_body(&self, body: &str) -> Option<Name> {
        let runs = self.runs();
        let found = runs.iter().find(|(_, runs)| runs.iter().any(|run| run.body == body));
        found.map(|(name, _)| name.clone())
    }
}
