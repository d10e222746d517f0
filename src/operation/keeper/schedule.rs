//! What is kept, and when each of it is due.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use rustc_hash::FxHashMap;
use tokio::{runtime::Id, task::AbortHandle, time::Instant};

use super::{
    Drained,
    late::Late,
    renewal::{RUNTIME_MAY_LAG, Run},
};
use crate::{record::Grant, telemetry};

/// How much waits for the store at most.
struct Limits {
    /// Releases and completions.
    writes: usize,
    /// Bytes of answers.
    bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { writes: 100_000, bytes: 64 * 1024 * 1024 }
    }
}

/// How long a task stays when there is nothing left to do.
const IDLE: Duration = Duration::from_secs(10);

/// When something is due, and its number.
type Queue = BTreeSet<(Instant, u64)>;

/// What is due goes in this order, so that nothing late makes later what is not: a lease ends at its
/// time; an answer that is not stored has no lease that is renewed; what is released only keeps
/// others waiting.
const RENEWALS: usize = 0;
const COMPLETIONS: usize = 1;
const RELEASES: usize = 2;

/// Runs and late writes by number, and the order in which they are due.
#[derive(Default)]
pub(super) struct Schedule {
    limits: Limits,
    pub(super) runs: FxHashMap<u64, Run>,
    releases: BTreeMap<u64, Late>,
    completions: BTreeMap<u64, Late>,
    due: [Queue; 3],
    last: u64,
    /// Late writes that are being sent.
    sending: usize,
    late_bytes: usize,
    dropped: u64,
    /// When a task looks again at the latest.
    wake_at: Option<Instant>,
    idle_since: Option<Instant>,
    tasks: FxHashMap<Id, AbortHandle>,
}

/// What is to be done now.
pub(super) enum Due {
    Renewal(u64, Grant),
    Late(Late),
}

/// What a task does next.
#[expect(clippy::large_enum_variant, reason = "one at a time, on the task's own stack")]
pub(super) enum Step {
    Do(Due),
    /// Nothing is due before then.
    SleepUntil(Instant),
    /// Nothing is left; the task is struck off.
    End,
}

impl Schedule {
    /// Adds a run whose lease is to be renewed at `due`; whether a task must be woken for it.
    pub(super) fn add_run(&mut self, mut run: Run, due: Instant, now: Instant) -> (u64, bool) {
        self.last += 1;
        let id = self.last;
        run.due = Some(due);
        self.due[RENEWALS].insert((due, id));
        self.runs.insert(id, run);
        (id, self.is_before_all(due, now))
    }

    /// Renews the run's lease at `due`; whether a task must be woken for it.
    pub(super) fn set_due(&mut self, id: u64, due: Instant) -> bool {
        if let Some(run) = self.runs.get_mut(&id)
            && let Some(before) = run.due.replace(due)
        {
            self.due[RENEWALS].remove(&(before, id));
        }
        self.due[RENEWALS].insert((due, id));
        self.is_before_all(due, Instant::now())
    }

    /// Whether no task will have looked by then. A time that is past is that of a task that is awake;
    /// another may sleep for longer.
    fn is_before_all(&self, due: Instant, now: Instant) -> bool {
        self.wake_at.is_none_or(|wake_at| due < wake_at || wake_at <= now)
    }

    /// Renews the run's lease no more.
    pub(super) fn unset_due(&mut self, id: u64) {
        if let Some(due) = self.runs.get_mut(&id).and_then(|run| run.due.take()) {
            self.due[RENEWALS].remove(&(due, id));
        }
    }

    pub(super) fn remove_run(&mut self, id: u64) {
        if let Some(due) = self.runs.remove(&id).and_then(|run| run.due) {
            self.due[RENEWALS].remove(&(due, id));
        }
    }

    /// Adds a late write.
    pub(super) fn add_late(&mut self, mut late: Late, due: Instant) {
        if self.releases.len() + self.completions.len() >= self.limits.writes {
            match self.releases.pop_first() {
                Some((id, oldest)) => {
                    self.due[RELEASES].remove(&(oldest.due, id));
                    self.dropped += 1;
                    telemetry::late_release_dropped(self.dropped);
                }
                None => return late.give_up("too many answers wait for the store"),
            }
        }
        if self.late_bytes + late.bytes() > self.limits.bytes {
            late.shrink_to_fit();
        }
        self.late_bytes += late.bytes();
        self.insert_late(late, due);
    }

    /// A late write that was being sent was not taken.
    pub(super) fn put_back(&mut self, late: Late, due: Instant) {
        self.sending -= 1;
        self.insert_late(late, due);
    }

    /// A late write that was being sent has ended. `bytes` is what it had when it was taken.
    pub(super) fn end_late(&mut self, bytes: usize) {
        self.sending -= 1;
        self.late_bytes -= bytes;
    }

    /// A late write has become smaller.
    pub(super) fn shrunk(&mut self, bytes: usize) {
        self.late_bytes -= bytes;
    }

    /// Makes all late writes due, as far as they may be sent.
    pub(super) fn hurry(&mut self, now: Instant) {
        for (id, late) in self.releases.iter_mut().chain(&mut self.completions) {
            let queue = &mut self.due[queue_of(late)];
            queue.remove(&(late.due, *id));
            late.due = late.not_before.max(now);
            queue.insert((late.due, *id));
        }
    }

    pub(super) fn left(&self) -> Drained {
        Drained {
            running: self.runs.len(),
            unsent: self.releases.len() + self.completions.len() + self.sending,
        }
    }

    /// What the task of this runtime does next.
    pub(super) fn next(&mut self, now: Instant, task: Id) -> Step {
        let first = self.due.iter().filter_map(|queue| queue.first()).map(|(due, _)| *due).min();
        let Some(first) = first else { return self.idle(now, task) };
        self.idle_since = None;
        if first > now {
            self.wake_at = Some(first);
            return Step::SleepUntil(first);
        }
        let is_due = |queue: &Queue| queue.first().is_some_and(|(due, _)| *due <= now);
        let taken = self.due.iter_mut().find(|queue| is_due(queue)).and_then(Queue::pop_first);
        let (_, id) = taken.expect("one of the queues is due, as was just seen");
        Step::Do(self.take(now, id))
    }

    fn take(&mut self, now: Instant, id: u64) -> Due {
        if let Some(run) = self.runs.get_mut(&id) {
            run.renewing = true;
            // Until then it has said when it is due next, unless its runtime has stopped running.
            let otherwise = now + run.call_within() + RUNTIME_MAY_LAG;
            run.due = Some(otherwise);
            self.due[RENEWALS].insert((otherwise, id));
            return Due::Renewal(id, run.grant().clone());
        }
        let late = self.releases.remove(&id).or_else(|| self.completions.remove(&id));
        self.sending += 1;
        Due::Late(late.expect("what is due is a run or a late write"))
    }

    fn idle(&mut self, now: Instant, task: Id) -> Step {
        let since = *self.idle_since.get_or_insert(now);
        if now >= since + IDLE && self.left().is_clean() {
            self.tasks.remove(&task);
            if self.tasks.is_empty() {
                self.wake_at = None;
                self.idle_since = None;
            }
            return Step::End;
        }
        // Past that time something is left that is not due: whoever makes it due wakes the task.
        let until = if now < since + IDLE { since + IDLE } else { now + IDLE };
        self.wake_at = Some(until);
        Step::SleepUntil(until)
    }

    pub(super) fn has_task(&self, runtime: Id) -> bool {
        // The task of a runtime that has ended is finished, and its number may come again.
        self.tasks.get(&runtime).is_some_and(|task| !task.is_finished())
    }

    pub(super) fn add_task(&mut self, runtime: Id, task: AbortHandle) {
        self.tasks.retain(|_, task| !task.is_finished());
        self.tasks.insert(runtime, task);
    }

    fn insert_late(&mut self, mut late: Late, due: Instant) {
        // One that comes back keeps its number, so that the first is the oldest.
        if late.id == 0 {
            self.last += 1;
            late.id = self.last;
        }
        late.due = due.max(late.not_before);
        self.due[queue_of(&late)].insert((late.due, late.id));
        if late.is_release() {
            self.releases.insert(late.id, late);
        } else {
            self.completions.insert(late.id, late);
        }
    }
}

fn queue_of(late: &Late) -> usize {
    if late.is_release() { RELEASES } else { COMPLETIONS }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::{
        record::{ClaimToken, Fence, Previous, RecordKey},
        store::{Claim, Kept, Release},
    };

    const SECOND: Duration = Duration::from_secs(1);

    fn schedule(writes: usize, bytes: usize) -> Schedule {
        Schedule { limits: Limits { writes, bytes }, ..Schedule::default() }
    }

    fn key(number: u8) -> RecordKey {
        RecordKey::from_bytes([number; 32])
    }

    fn release(number: u8) -> Late {
        let release = Release::called_off(key(number), ClaimToken::random(), SECOND);
        Late::release(release, SECOND, Instant::now())
    }

    fn completion(number: u8, bytes: usize) -> Late {
        let token = ClaimToken::random();
        let claim = Claim::new(key(number), token, None, SECOND, SECOND, SECOND);
        let grant = claim.granted(Fence::new(1), 1, Previous::Nothing);
        let kept = |bytes| Kept::new(Bytes::from(vec![0; bytes]), SECOND);
        Late::completion(grant, kept(bytes), kept(4))
    }

    /// Takes what is due, in order: its key, and how many bytes of an answer it holds.
    fn taken(schedule: &mut Schedule, now: Instant) -> Vec<(RecordKey, usize)> {
        let mut taken = Vec::new();
        let task = tokio::runtime::Handle::current().id();
        while schedule.due.iter().any(|queue| !queue.is_empty()) {
            let Step::Do(Due::Late(late)) = schedule.next(now, task) else { break };
            schedule.end_late(late.bytes());
            taken.push((late.key(), late.bytes()));
        }
        taken
    }

    #[tokio::test(start_paused = true)]
    async fn where_there_is_no_room_the_oldest_release_goes_and_is_counted() {
        let now = Instant::now();
        let mut schedule = schedule(3, 1000);
        for late in [completion(1, 9), release(2), release(3)] {
            schedule.add_late(late, now);
        }
        assert_eq!(schedule.dropped, 0, "as many as there is room for");
        // The oldest was tried and comes back: it is the oldest still.
        let task = tokio::runtime::Handle::current().id();
        for due in [now + SECOND, now] {
            let Step::Do(Due::Late(late)) = schedule.next(now, task) else { panic!("none is due") };
            schedule.put_back(late, due);
        }
        schedule.add_late(completion(4, 9), now);
        assert_eq!(schedule.dropped, 1);
        let mut left: Vec<_> =
            taken(&mut schedule, now + SECOND).into_iter().map(|(key, _)| key).collect();
        left.sort();
        assert_eq!(left, [key(1), key(3), key(4)], "no answer is forgotten before a release");
        assert_eq!((schedule.late_bytes, schedule.left().unsent), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn answers_over_the_bound_shrink_to_the_marker_and_none_is_forgotten() {
        let now = Instant::now();
        let mut schedule = schedule(10, 100);
        for late in [completion(1, 60), completion(2, 60), completion(3, 40)] {
            schedule.add_late(late, now);
        }
        assert_eq!(schedule.late_bytes, 60 + 4 + 4);
        schedule.add_late(completion(4, 32), now);
        let left = taken(&mut schedule, now);
        assert_eq!(left, [(key(1), 60), (key(2), 4), (key(3), 4), (key(4), 32)]);
        assert_eq!(schedule.late_bytes, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn answers_go_before_releases_however_long_those_have_waited() {
        let now = Instant::now();
        let mut schedule = schedule(10, 100);
        for late in [release(1), release(2), completion(3, 9), completion(4, 9)] {
            schedule.add_late(late, now);
        }
        let late = now + SECOND;
        schedule.add_late(completion(5, 9), late);
        let order = taken(&mut schedule, late).into_iter().map(|(key, _)| key);
        assert!(order.eq([3, 4, 5, 1, 2].map(key)));
        assert!(schedule.left().is_clean());
    }

    #[tokio::test(start_paused = true)]
    async fn with_answers_alone_in_the_way_what_comes_is_given_up_and_nothing_grows() {
        let now = Instant::now();
        let mut schedule = schedule(2, 100);
        for number in 1..=4 {
            schedule.add_late(completion(number, 9), now);
        }
        schedule.add_late(release(5), now);
        assert_eq!(schedule.left().unsent, 2);
        assert_eq!(taken(&mut schedule, now), [(key(1), 9), (key(2), 9)]);
    }
}
