//! What is known of a server, whichever connection leads to it: which one it is, what it is fit for, and
//! whose records it has.

#![cfg_attr(
    not(feature = "redis-cluster"),
    expect(clippy::unused_self, reason = "a cluster needs it")
)]

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use super::{
    again,
    guard::{Guard, Uneasy},
    info::Info,
    preflight::{Accepted, Findings, Level, Preflight, clock, inspect},
};
#[cfg(feature = "redis-cluster")]
use super::{cluster::Cluster, member::Member, origin::Place};
use crate::{store::StoreError, telemetry};

/// What a server said of its time may have been on its way for so long, and still be the last that was heard.
const HEARD_LATE: Duration = Duration::from_millis(500);

/// What is known of a server.
pub(super) struct Known {
    address: String,
    fitness: Mutex<Fitness>,
    /// Which server the records are trusted to.
    identity: Mutex<Option<String>>,
    /// Another one than before has them now.
    changed: Uneasy,
    /// How often that was so.
    changes: AtomicU64,
    /// After so many changes it has taken a write.
    writable_after: AtomicU64,
    /// Why it has taken none since.
    takes_none: Mutex<Option<String>>,
    /// It is a node of a cluster that may have come after another one, and its canary was not looked at.
    #[cfg(feature = "redis-cluster")]
    unseen: AtomicBool,
    /// It has slots of a server of which that is so.
    #[cfg(feature = "redis-cluster")]
    inherited: Uneasy,
    guards: Mutex<Vec<Weak<Guard>>>,
    /// The server may have lost what this process has there, and has not been told it again.
    to_be_written: AtomicBool,
    #[cfg(feature = "redis-cluster")]
    member: std::sync::OnceLock<Member>,
}

/// What is thought of the server.
#[derive(Default)]
struct Fitness {
    accepted: Accepted,
    /// What was last told of it.
    told: Vec<(&'static str, Level)>,
}

impl Known {
    pub(super) fn new(address: String) -> Self {
        Self {
            address,
            fitness: Mutex::default(),
            identity: Mutex::default(),
            changed: Uneasy::default(),
            changes: AtomicU64::new(0),
            writable_after: AtomicU64::new(0),
            takes_none: Mutex::default(),
            #[cfg(feature = "redis-cluster")]
            unseen: AtomicBool::new(false),
            #[cfg(feature = "redis-cluster")]
            inherited: Uneasy::default(),
            guards: Mutex::default(),
            to_be_written: AtomicBool::new(false),
            #[cfg(feature = "redis-cluster")]
            member: std::sync::OnceLock::new(),
        }
    }

    fn fitness(&self) -> MutexGuard<'_, Fitness> {
        // Nothing under the lock can leave it half changed.
        self.fitness.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The records that are behind it.
    pub(super) fn guards(&self) -> Vec<Arc<Guard>> {
        let guards = self.guards.lock().unwrap_or_else(PoisonError::into_inner);
        guards.iter().filter_map(Weak::upgrade).collect()
    }

    /// Looks after the records of one more prefix.
    pub(super) fn look_after(&self, guard: &Arc<Guard>) {
        let mut guards = self.guards.lock().unwrap_or_else(PoisonError::into_inner);
        guards.retain(|guard| guard.strong_count() > 0);
        guards.push(Arc::downgrade(guard));
    }

    /// The server says which it is. Another one than before may not have what that one was told.
    pub(super) fn met(&self, identity: &str) {
        let mut known = self.identity.lock().unwrap_or_else(PoisonError::into_inner);
        if known.as_deref() == Some(identity) {
            return;
        }
        let before = known.replace(identity.to_owned());
        drop(known);
        if before.is_some() {
            self.has_changed();
        }
    }

    fn has_changed(&self) {
        self.changes.fetch_add(1, Relaxed);
        self.changed.begin();
        self.write_again();
        telemetry::server_changed(&self.address);
    }

    /// Since when there may be records that the server should have and has not, as far as it is no longer
    /// the one it was, or has slots of one that is not. Until it takes writes that is now: a server that is
    /// loading its data, or waits for its cluster or its replicas, lets no owner write again.
    pub(super) fn changed(&self) -> Option<Instant> {
        let changed = match self.has_taken_a_write() {
            true => self.changed.since(),
            false => Some(Instant::now()),
        };
        #[cfg(feature = "redis-cluster")]
        return changed.max(self.inherited.since());
        #[cfg(not(feature = "redis-cluster"))]
        changed
    }

    /// Since it changed, or was first met where it may come after another one.
    pub(super) fn has_taken_a_write(&self) -> bool {
        #[cfg(feature = "redis-cluster")]
        if self.unseen.load(Relaxed) {
            return false;
        }
        self.changes() == self.writable_after.load(Relaxed)
    }

    /// Its canaries were looked at.
    pub(super) fn was_seen(&self) {
        #[cfg(feature = "redis-cluster")]
        self.unseen.store(false, Relaxed);
    }

    /// How often it has changed.
    pub(super) fn changes(&self) -> u64 {
        self.changes.load(Relaxed)
    }

    /// It has taken none, and this is what was heard.
    pub(super) fn takes_none(&self, why: &StoreError) {
        *self.takes_none.lock().unwrap_or_else(PoisonError::into_inner) = Some(why.to_string());
    }

    /// Why nothing is granted, with what was heard of the server besides.
    pub(super) fn explained(&self, error: StoreError) -> StoreError {
        let why = self.takes_none.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(why) = why.as_ref().filter(|_| !self.has_taken_a_write()) else { return error };
        let more = StoreError::new(error.kind(), format!("{error}; so far: {why}"));
        match error.retry_after() {
            Some(after) => more.with_retry_after(after),
            None => more,
        }
    }

    /// It has taken a write that was sent when it had changed so often.
    pub(super) fn takes_writes(&self, changes: u64) {
        if self.writable_after.swap(changes, Relaxed) != changes {
            self.changed.begin();
            self.write_again();
        }
    }

    /// It has slots now of a server that has changed at that time.
    #[cfg(feature = "redis-cluster")]
    pub(super) fn inherits(&self, changed: Instant) {
        self.inherited.begin_at(changed);
        self.write_again();
    }

    /// Records were lost: of a cluster's nodes it is not told which had them.
    pub(super) fn lost(&self) {
        #[cfg(feature = "redis-cluster")]
        if let Some(cluster) = self.cluster() {
            return cluster.write_again();
        }
        self.write_again();
    }

    /// The server may have lost what this process has there.
    pub(super) fn write_again(&self) {
        self.to_be_written.store(true, Relaxed);
    }

    pub(super) fn is_to_be_written(&self) -> bool {
        self.to_be_written.load(Relaxed)
    }

    pub(super) fn was_written(&self) {
        self.to_be_written.store(false, Relaxed);
    }

    /// It is a node of a cluster.
    #[cfg(feature = "redis-cluster")]
    pub(super) fn in_cluster(&self, member: Member) {
        // Said once, by whoever has made the link.
        let _ = self.member.set(member);
        self.unseen.store(true, Relaxed);
    }

    /// Whether a record of this name is on this server.
    pub(super) fn owns(&self, name: &[u8]) -> bool {
        #[cfg(feature = "redis-cluster")]
        if let Some(member) = self.member.get() {
            return member.owns(name);
        }
        // Only a cluster needs it.
        let _ = name;
        true
    }

    /// The cluster it belongs to.
    #[cfg(feature = "redis-cluster")]
    pub(super) fn cluster(&self) -> Option<Arc<Cluster>> {
        self.member.get()?.cluster()
    }

    /// Where that knows it.
    #[cfg(feature = "redis-cluster")]
    pub(super) fn place(&self) -> Option<Place> {
        Some(self.member.get()?.place().clone())
    }

    /// The name of the key that is there for as long as nothing was lost. A node of a cluster may have
    /// no slot for one, and then it has none for records either.
    pub(super) fn canary(&self, guard: &Guard) -> Option<String> {
        #[cfg(feature = "redis-cluster")]
        if let Some(member) = self.member.get() {
            return member.canary(guard);
        }
        Some(again::canary_name(guard.prefix(), 0))
    }

    /// What the server of a new connection says about itself, before anything can be claimed over it.
    pub(super) fn greeted(&self, info: Option<&Info>) {
        #[cfg(feature = "redis-cluster")]
        if let Some(member) = self.member.get() {
            let is_new = self.trusted().is_none();
            if member.succeeds(info) && is_new && !self.changed.has_begun() {
                self.has_changed();
            }
        }
        if let Some(identity) = info.and_then(Info::identity) {
            self.met(&identity);
        }
    }

    /// What the server of a connection says of itself later on. Its history of data may have another name by
    /// then though it goes on: a primary to which a replica comes that had none for a while gives it one. It
    /// remembers no other's then, as it would if it had been a replica in between.
    pub(super) fn goes_by(&self, info: &Info) {
        #[cfg(feature = "redis-cluster")]
        if let Some(member) = self.member.get() {
            member.goes_by(info);
        }
        let goes_on = !info.is_replica()
            && info
                .get("master_replid2")
                .is_some_and(|other| other.bytes().all(|byte| byte == b'0'));
        let Some(identity) = info.identity().filter(|_| goes_on) else { return };
        let run = |identity: &str| identity.split(':').next().map(str::to_owned);
        let mut known = self.identity.lock().unwrap_or_else(PoisonError::into_inner);
        if known.as_deref().is_some_and(|known| run(known) == run(&identity)) {
            *known = Some(identity);
        }
    }

    /// Which server the records are trusted to, if it says so.
    pub(super) fn trusted(&self) -> Option<String> {
        self.identity.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Changes what is accepted of the server.
    pub(super) fn accept(&self, change: impl FnOnce(&mut Accepted)) {
        change(&mut self.fitness().accepted);
    }

    pub(super) fn accepted(&self) -> Accepted {
        self.fitness().accepted.clone()
    }

    /// Whether it is a node of a cluster, as far as the program knows.
    pub(super) fn is_in_cluster(&self) -> bool {
        #[cfg(feature = "redis-cluster")]
        return self.member.get().is_some();
        #[cfg(not(feature = "redis-cluster"))]
        false
    }

    /// How many of the slots of its cluster have a primary.
    #[cfg(feature = "redis-cluster")]
    pub(super) fn covered(&self) -> Option<usize> {
        self.member.get().map(Member::covered)
    }

    /// Tells what is wrong with the server of a new connection, unless that was told before. By its clock it
    /// is `now_ms`, as it was last heard.
    pub(super) fn tell_fitness(&self, info: Option<&Info>, now_ms: u64) {
        let (mut findings, accepted) = (Findings::about(&self.address), self.accepted());
        inspect(&mut findings, info, self.is_in_cluster(), &accepted);
        clock(&mut findings, now_ms, HEARD_LATE, &accepted);
        let report = Preflight::new(findings.into_vec());
        let gist = report.gist();
        let told = std::mem::replace(&mut self.fitness().told, gist.clone());
        if told != gist {
            telemetry::preflight(&self.address, &report, report.is_passed());
        }
    }
}
