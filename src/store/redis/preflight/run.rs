//! Preflight over a store's own connection, and what its owner accepts.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use redis::Value;

#[cfg(feature = "redis-cluster")]
use super::slots;
use super::{Finding, Findings, Level, Preflight, clock, dry_run, fsync, inspect};
use crate::store::{
    RedisStore,
    redis::{
        Failure, call,
        info::Info,
        lane::Lane,
        link::{CONNECT_WITHIN, Link},
        origin,
        resp::Command,
    },
};

impl RedisStore {
    /// Accepts that the server evicts by this `maxmemory-policy`, so that [`preflight`](Self::preflight)
    /// warns and does not fail. Default: none is accepted but `noeviction`.
    ///
    /// Danger: what is evicted is forgotten, and a forgotten operation runs again.
    #[must_use]
    pub fn accept_eviction(self, policy: &str) -> Self {
        self.reach.accept(|accepted| accepted.eviction = Some(policy.to_owned()));
        self
    }

    /// Accepts a primary with replicas and without `min-replicas-to-write`, so that
    /// [`preflight`](Self::preflight) warns and does not fail. Default: it is not accepted.
    ///
    /// Danger: in a failover the old primary goes on granting for seconds beside the new one, and the
    /// same key may run on both.
    #[must_use]
    pub fn accept_unguarded_failover(self) -> Self {
        self.reach.accept(|accepted| accepted.unguarded_failover = true);
        self
    }

    /// The shortest lease of the policies that take abandoned operations over
    /// (`Policy::rerun_abandoned`, `Policy::resolve_abandoned`): a server whose clock is off by more
    /// than a third of it fails [`preflight`](Self::preflight). Default: none, and a clock that is off
    /// by more than a second is a warning.
    #[must_use]
    pub fn takeover_after(self, lease: Duration) -> Self {
        self.reach.accept(|accepted| accepted.takeover = Some(lease));
        self
    }

    /// Looks whether the server is one that records can be trusted to, and tries all transitions on a
    /// key of its own: version, role, eviction, memory, persistence, replicas, scripts, clock. What the
    /// server does not say is said to be hidden, not guessed. Call it once when the program starts; after
    /// each reconnect the same is looked at but for the scripts and `appendfsync`, and told as an event if
    /// it is not well.
    ///
    /// It takes a second at most if the server cannot be reached, and is a report then too.
    ///
    /// # Example: a program that rather does not start
    ///
    /// ```no_run
    /// # async fn start() -> Result<(), Box<dyn std::error::Error>> {
    /// use tower_idempotency::RedisStore;
    ///
    /// let store = RedisStore::connect("redis://127.0.0.1:6379").await?.prefix("shop");
    /// println!("{}", store.preflight().await.passed()?);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn preflight(&self) -> Preflight {
        let links = match self.reach.links().await {
            Ok(links) => links,
            Err(error) => {
                let mut findings = Findings::about(self.reach.address());
                findings.add("connection", Level::Error, error.to_string());
                return Preflight::new(findings.into_vec());
            }
        };
        let mut found = Vec::new();
        for link in &links {
            found.extend(self.look_at(link).await);
        }
        Preflight::new(found)
    }

    /// The findings about one server.
    async fn look_at(&self, link: &Arc<Link>) -> Vec<Finding> {
        let accepted = link.known.accepted();
        let mut findings = Findings::about(link.address());
        let within = self.call_within.max(CONNECT_WITHIN);
        let asked = Instant::now();
        let greeted = call::Call::new("INFO", within).make(link, &Greet).await;
        match greeted {
            Err(wrong) => findings.add("connection", Level::Error, wrong.error.to_string()),
            Ok((now_ms, took, info, setting)) => {
                let detail = format!("answered within {} ms", asked.elapsed().as_millis());
                findings.add("connection", Level::Fine, detail);
                inspect(&mut findings, info.as_ref(), link.known.is_in_cluster(), &accepted);
                fsync(&mut findings, info.as_ref(), setting);
                #[cfg(feature = "redis-cluster")]
                slots(&mut findings, link.known.covered());
                dry_run(&mut findings, self, link).await;
                clock(&mut findings, now_ms, took, &accepted);
            }
        }
        findings.into_vec()
    }
}

/// The server's time, how long it took to tell, what it says about itself, and how often it syncs.
struct Greet;

impl call::Ask for Greet {
    type Answer = (u64, Duration, Option<Info>, Option<Value>);

    async fn ask(&self, lane: &Lane<'_>) -> Result<Self::Answer, Failure> {
        let [time, info] = origin::greeting();
        let fsync = Command::new("CONFIG").arg("GET").arg("appendfsync");
        let mut answers = lane.send_all(&[time, info, fsync]).await?;
        let setting = answers.pop();
        let (now_ms, info) = origin::greeted(answers)?;
        // Asked once more, since connecting may have taken some of the time.
        let asked = Instant::now();
        let now_ms = lane.connection.server_time().await.unwrap_or(now_ms);
        Ok((now_ms, asked.elapsed(), info, setting))
    }
}
