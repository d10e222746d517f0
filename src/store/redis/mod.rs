//! Records in Redis or Valkey: one key a record, one script a transition, one connection for all.

mod adapter;
mod again;
mod breaker;
mod call;
mod clock;
mod command;
mod connection;
mod guard;
mod info;
mod link;
mod origin;
mod own;
mod preflight;
mod pulse;
mod refused;
mod reply;
mod scan;
mod script;
#[cfg(feature = "redis-sentinel")]
mod sentinel;
mod servers;
mod session;
mod tls;

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use redis::{Cmd, Value};

#[cfg(feature = "redis-tls")]
pub use self::tls::RedisTls;
pub use self::{
    adapter::{RedisCommand, RedisConnection, RedisTrouble, RedisValue},
    guard::OnDataLoss,
    preflight::{Finding, Level, Preflight},
    servers::RedisServers,
};
use self::{
    call::{Failure, read, run_on},
    connection::Connection,
    guard::Guard,
    link::{CONNECT_WITHIN, Link},
    origin::Origin,
    reply::{Answer, Reply},
    script::Script,
};
use super::{
    Alias, Claim, Claimed, Cursor, Issue, Issued, Kept, Page, Release, Resolve, Resolved, Store,
    StoreError, StoreErrorKind, Written,
};
use crate::record::{Grant, RecordKey};

/// Records in Redis (6.2 or newer) or Valkey, shared by all processes that use the same server and
/// prefix.
///
/// One connection serves all calls. It is made on the runtime of the call that needs it, and
/// replaced when it breaks, when three calls in a row go unanswered, and when the server turns out
/// to be a replica; one that nobody uses is asked for the time when it has been silent for two
/// seconds. A server that has not answered for two seconds is not waited for any more: calls are
/// [`Suspended`](StoreErrorKind::Suspended) at once, and one attempt at a time is made to reach it.
/// Cloning is cheap and shares the connection. All methods must be called on a tokio runtime with
/// time and IO enabled.
///
/// # What the server must be
///
/// Never evicting (`maxmemory-policy noeviction`), since a record that is evicted is a run that is
/// forgotten; and persisting (`appendonly yes`), since a server that restarts empty has forgotten
/// them all. Each application needs a [`prefix`](Self::prefix) of its own.
///
/// # Example: a store that the process may start without
///
/// ```
/// use std::time::Duration;
/// use tower_idempotency::RedisStore;
///
/// let store = RedisStore::lazy("redis://:secret@127.0.0.1:6379/0")?
///     .prefix("shop")
///     .call_within(Duration::from_millis(250));
/// assert!(!format!("{store:?}").contains("secret"));
/// # Ok::<(), tower_idempotency::StoreError>(())
/// ```
#[derive(Clone)]
pub struct RedisStore {
    link: Arc<Link>,
    guard: Arc<Guard>,
    call_within: Duration,
    /// Each claim asks which server it is.
    behind_proxy: bool,
}

impl RedisStore {
    /// Connects to the server of this URL: `redis://user:password@host:6379/0`, or `rediss://` with
    /// feature `redis-tls`.
    ///
    /// # Errors
    ///
    /// When the URL is none, and when the server cannot be reached, does not let us in or does not
    /// tell the time, all within one second.
    ///
    /// # Cancel safety
    ///
    /// Dropped, it leaves nothing behind.
    pub async fn connect(url: &str) -> Result<Self, StoreError> {
        let store = Self::lazy(url)?;
        match tokio::time::timeout(CONNECT_WITHIN, store.link.get()).await {
            Ok(connected) => drop(connected?),
            Err(_) => return Err(call::unreached(&store.link, CONNECT_WITHIN)),
        }
        Ok(store)
    }

    /// The same without connecting: the first call does. Until the server is reached, every call
    /// is an error within its time.
    ///
    /// # Errors
    ///
    /// When the URL is none.
    pub fn lazy(url: &str) -> Result<Self, StoreError> {
        Self::of(RedisServers::url(url)?)
    }

    /// The same of servers that are more than one URL: with authorities and certificates of one's own,
    /// named by sentinels, a cluster.
    ///
    /// # Errors
    ///
    /// When what is said about TLS is wrong.
    pub fn of(servers: RedisServers) -> Result<Self, StoreError> {
        Ok(Self::from(servers.origin()?, servers.address()))
    }

    /// Over a connection that the program has already, adapted by [`RedisConnection`]. Its first call
    /// uses it first.
    pub fn over(connection: impl RedisConnection) -> Self {
        Self::from(Origin::given(connection), "the program's own connection".into())
    }

    fn from(origin: Origin, address: String) -> Self {
        let (link, guard) = (Link::new(origin, address), Guard::new("idempotency:".into()));
        link.look_after(&guard);
        Self { link, guard, call_within: Duration::from_millis(500), behind_proxy: false }
    }

    /// What every key starts with, before a colon; `idempotency` if it is not set. Two applications
    /// with different prefixes share no record. Any characters will do.
    ///
    /// Changing it forgets every record.
    ///
    /// # Panics
    ///
    /// When it is empty.
    #[must_use]
    pub fn prefix(mut self, prefix: &str) -> Self {
        assert!(
            !prefix.is_empty(),
            "the prefix of a RedisStore is empty: give the name of the application, such as \
             .prefix(\"shop\"), or leave the default"
        );
        let guard = Guard::new(format!("{prefix}:").into());
        guard.on_data_loss(self.guard.choice());
        self.link.look_after(&guard);
        self.guard = guard;
        self
    }

    /// What is done when it is noticed that the server has lost records; [`OnDataLoss::Observe`] if it is
    /// not set. Clones that were made before do the same.
    ///
    /// It is noticed by a key of the store's own, `<prefix>:canary`, which is looked at each five
    /// seconds and after each connect. The first process that comes to an empty server writes it.
    #[must_use]
    pub fn on_data_loss(self, choice: OnDataLoss) -> Self {
        self.guard.on_data_loss(choice);
        self
    }

    /// Accepts that records were lost, for all processes of this prefix: after
    /// [`OnDataLoss::Refuse`], what is new is granted again. Call it when it is known what was lost, and
    /// what of it has run.
    ///
    /// # Errors
    ///
    /// When the server cannot be asked.
    pub async fn accept_data_loss(&self) -> Result<(), StoreError> {
        self.call("canary", async |connection| {
            again::accept(&self.link, connection, &self.guard).await
        })
        .await
    }

    /// Each claim asks which server it is, for an address that a proxy stands behind, which may lead to
    /// another server without the connection breaking. Default: it is asked once a connection. It takes
    /// the server about 10 us a claim, and the right to `INFO`.
    #[must_use]
    pub fn behind_proxy(mut self) -> Self {
        self.behind_proxy = true;
        self
    }

    /// How long a call may take as a whole, waiting for a connection included; 500 ms if it is not
    /// set, a day at most. A call that takes longer is an error, although what it asked for may have
    /// happened.
    #[must_use]
    pub fn call_within(mut self, within: Duration) -> Self {
        self.call_within = within.min(Duration::from_secs(24 * 60 * 60));
        self
    }

    fn name(&self, key: &RecordKey) -> String {
        command::name(self.guard.prefix(), key)
    }

    /// One call as a whole, under its time limit: a connection, then what `ask` makes of it.
    async fn call<T>(
        &self,
        what: &str,
        ask: impl AsyncFnOnce(&Connection) -> Result<T, Failure>,
    ) -> Result<T, StoreError> {
        call::call(&self.link, what, self.call_within, ask).await
    }

    /// One transition of one record.
    async fn run(&self, script: &'static Script, command: Cmd) -> Result<Reply, StoreError> {
        self.call(script.name(), async |connection| {
            run_on(&self.link, connection, script, &command).await
        })
        .await
    }

    /// `bind`, then `claim`, in one write. Each again with its text if the server does not know it, and
    /// that one alone: a claim that was granted and comes again might come too late, and be answered
    /// as if it never was.
    async fn bind_and_claim(
        &self,
        connection: &Connection,
        claim: &Claim,
        alias: &Alias,
        claim_command: Cmd,
    ) -> Result<Claimed, Failure> {
        let (first, bind) = command::bind(&self.name(&alias.key), claim, alias);
        let answers = connection.send_all(&command::pair(&bind, &claim_command)).await?;
        let [mut bound, mut claimed] = both(answers)?;
        match (refused::is_no_script(&bound), refused::is_no_script(&claimed)) {
            (false, false) => {}
            (true, true) => {
                let (bind, claim) =
                    (first.spelled_out(&bind), script::CLAIM.spelled_out(&claim_command));
                let answers = connection.send_all(&command::pair(&bind, &claim)).await?;
                [bound, claimed] = both(answers)?;
            }
            (true, false) => bound = connection.send(&first.spelled_out(&bind)).await?,
            (false, true) => {
                claimed = connection.send(&script::CLAIM.spelled_out(&claim_command)).await?;
            }
        }
        let bound = read(&self.link, connection, first, bound)?;
        let not_bound =
            if claim.is_look() { bound.seen_by_look(claim)? } else { bound.not_bound()? };
        if let Some(taken) = not_bound {
            return Ok(taken);
        }
        let reply = read(&self.link, connection, &script::CLAIM, claimed)?;
        self.claimed(connection, claim, &claim_command, reply).await
    }

    /// What a claim was answered, and by whom; a long answer is fetched, and the claim is made again where
    /// it is not there any more.
    async fn claimed(
        &self,
        connection: &Connection,
        claim: &Claim,
        command: &Cmd,
        mut reply: Reply,
    ) -> Result<Claimed, Failure> {
        for _ in 0..FETCHES_AT_MOST {
            let (identity, answer) = reply.told(claim, connection.server_ms())?;
            if self.behind_proxy
                && !identity.is_empty()
                && let Ok(identity) = std::str::from_utf8(&identity)
            {
                self.link.met(identity);
            }
            let times = match answer {
                Answer::Claimed(claimed) => return Ok(claimed),
                Answer::Untrusted => return Err(guard::changed(claim.lease / 3).into()),
                Answer::Fetch(times) => times,
            };
            let record = connection.send(&command::whole(&self.name(&claim.key))).await?;
            if let Value::ServerError(error) = record {
                return Err(Failure::Server(error));
            }
            if let Some(completed) = Reply::fetched(record, &times, connection.server_ms()) {
                return Ok(Claimed::Completed(completed));
            }
            reply = run_on(&self.link, connection, &script::CLAIM, command).await?;
        }
        Err(reply::garbled("claim").into())
    }
}

/// A record that was completed changes no more, so that it can be missed only at its expiry.
const FETCHES_AT_MOST: usize = 3;

fn both(answers: Vec<Value>) -> Result<[Value; 2], StoreError> {
    answers.try_into().map_err(|_| reply::garbled("bind and claim"))
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore")
            .field("address", &self.link.address())
            .field("prefix", &self.guard.prefix().trim_end_matches(':'))
            .field("call_within", &self.call_within)
            .finish()
    }
}

impl Store for RedisStore {
    async fn claim(&self, mut claim: Claim) -> Result<Claimed, StoreError> {
        let asked = Instant::now();
        self.call("claim", async |connection| {
            let gate = self.guard.gate(&self.link.changed, &claim);
            gate.narrow(&mut claim);
            let not_after = if claim.is_look() {
                command::LOOK
            } else {
                // What the connection took to come about is time that the claim has had.
                let left = claim.within.checked_sub(asked.elapsed()).ok_or_else(|| {
                    let message = "the time of the claim was over before Redis was reached";
                    StoreError::new(StoreErrorKind::Timeout, message)
                })?;
                connection.server_ms() + command::ms(left)
            };
            let trusted = match self.behind_proxy {
                true => self.link.trusted().unwrap_or("*".into()),
                false => String::new(),
            };
            let command = command::claim(&self.name(&claim.key), &claim, not_after, &trusted);
            let claimed = match &claim.alias {
                Some(alias) => self.bind_and_claim(connection, &claim, alias, command).await?,
                None => {
                    let reply = run_on(&self.link, connection, &script::CLAIM, &command).await?;
                    self.claimed(connection, &claim, &command, reply).await?
                }
            };
            if let Claimed::Granted(grant) = &claimed {
                self.guard.own.holds(grant);
            }
            Ok(gate.judge(claimed)?)
        })
        .await
    }

    async fn renew(&self, grant: &Grant) -> Result<Written, StoreError> {
        let command = command::renew(&self.name(&grant.key), grant);
        let written = self.run(&script::RENEW, command).await?.written(grant.token)?;
        if written.is_stored() {
            self.guard.own.holds(grant);
        } else {
            self.guard.own.ended(&grant.token);
        }
        Ok(written)
    }

    async fn complete(&self, grant: &Grant, kept: Kept) -> Result<Written, StoreError> {
        let command = command::complete(&self.name(&grant.key), grant, &kept);
        let written = self.run(&script::COMPLETE, command).await?.written(grant.token)?;
        if written.is_stored() {
            self.guard.own.completed(grant, kept);
        }
        Ok(written)
    }

    async fn release(&self, release: Release) -> Result<Written, StoreError> {
        let command = command::release(&self.name(&release.key()), &release);
        let written = self.run(&script::RELEASE, command).await?.written(release.token())?;
        self.guard.own.ended(&release.token());
        Ok(written)
    }

    async fn resolve(&self, resolve: Resolve) -> Result<Resolved, StoreError> {
        let command = command::resolve(&self.name(&resolve.key), &resolve);
        self.run(&script::RESOLVE, command).await?.resolved()
    }

    async fn issue(&self, issue: Issue) -> Result<Issued, StoreError> {
        let command = command::issue(&self.name(&issue.key), &issue);
        self.run(&script::ISSUE, command).await?.issued(issue.token)
    }

    async fn scan(&self, from: Cursor, at_most: usize) -> Result<Page, StoreError> {
        let page = scan::page(self.guard.prefix(), &from, at_most)?;
        self.call("scan", async |connection| {
            let answers = without_error(connection.send_all(&page).await?)?;
            let (now_ms, keys, next) = scan::keys(self.guard.prefix(), answers)?;
            self.link.answered(connection, now_ms);
            if keys.is_empty() {
                return Ok(Page::new(Vec::new(), next));
            }
            // Errors of single keys are those of foreign types: left out like other foreign data.
            let heads = connection.send_all(&scan::heads(&keys)).await?;
            Ok(Page::new(scan::records(now_ms, &keys, &heads), next))
        })
        .await
    }
}

fn without_error(answers: Vec<Value>) -> Result<Vec<Value>, Failure> {
    for answer in &answers {
        if let Value::ServerError(error) = answer {
            return Err(Failure::Server(error.clone()));
        }
    }
    Ok(answers)
}
