//! Preflight over a store's own connection, and what its owner accepts.

use std::time::{Duration, Instant};

use super::{Findings, Level, Preflight, clock, dry_run, fsync, inspect};
use crate::store::{
    RedisStore,
    redis::{call, link::CONNECT_WITHIN, origin},
};

impl RedisStore {
    /// Accepts that the server evicts by this `maxmemory-policy`, so that [`preflight`](Self::preflight)
    /// warns and does not fail. Default: none is accepted but `noeviction`.
    ///
    /// Danger: what is evicted is forgotten, and a forgotten operation runs again.
    #[must_use]
    pub fn accept_eviction(self, policy: &str) -> Self {
        self.link.accept(|accepted| accepted.eviction = Some(policy.to_owned()));
        self
    }

    /// Accepts a primary with replicas and without `min-replicas-to-write`, so that
    /// [`preflight`](Self::preflight) warns and does not fail. Default: it is not accepted.
    ///
    /// Danger: in a failover the old primary goes on granting for seconds beside the new one, and the
    /// same key may run on both.
    #[must_use]
    pub fn accept_unguarded_failover(self) -> Self {
        self.link.accept(|accepted| accepted.unguarded_failover = true);
        self
    }

    /// The shortest lease of the policies that take abandoned operations over
    /// (`Policy::rerun_abandoned`, `Policy::resolve_abandoned`): a server whose clock is off by more
    /// than a third of it fails [`preflight`](Self::preflight). Default: none, and a clock that is off
    /// by more than a second is a warning.
    #[must_use]
    pub fn takeover_after(self, lease: Duration) -> Self {
        self.link.accept(|accepted| accepted.takeover = Some(lease));
        self
    }

    /// Looks whether the server is one that records can be trusted to, and tries all transitions on a
    /// key of its own: version, role, eviction, memory, persistence, replicas, scripts, clock. What the
    /// server does not say is said to be hidden, not guessed. Call it once when the program starts; after
    /// each reconnect the same is looked at but for the scripts, and told as an event if it is not well.
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
        let address = self.link.address();
        let accepted = self.link.accepted();
        let mut findings = Findings::about(address);
        let within = self.call_within.max(CONNECT_WITHIN);
        let asked = Instant::now();
        let greeted = call::call(&self.link, "INFO", within, async |connection| {
            let mut commands = origin::greeting();
            commands.cmd("CONFIG").arg("GET").arg("appendfsync");
            let mut answers = connection.send_all(&commands).await?;
            let setting = answers.pop();
            let (now_ms, info) = origin::greeted(answers)?;
            // Asked once more, since connecting may have taken some of the time.
            let (asked, now_ms) =
                (Instant::now(), connection.server_time().await.unwrap_or(now_ms));
            Ok((now_ms, asked.elapsed(), info, setting))
        });
        match greeted.await {
            Err(error) => findings.add("connection", Level::Error, error.to_string()),
            Ok((now_ms, took, info, setting)) => {
                let detail = format!("answered within {} ms", asked.elapsed().as_millis());
                findings.add("connection", Level::Fine, detail);
                inspect(&mut findings, info.as_ref(), false, &accepted);
                fsync(&mut findings, info.as_ref(), setting);
                dry_run(&mut findings, self).await;
                clock(&mut findings, now_ms, took, &accepted);
            }
        }
        Preflight::new(findings.into_vec())
    }
}
