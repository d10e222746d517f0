//! Records in Redis or Valkey: one key a record, one script a transition, one connection for all.

mod command;
mod connection;
mod refused;
mod reply;
mod scan;
mod script;

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use redis::{Cmd, Value};

use self::{
    connection::{CONNECT_WITHIN, Connection, Link},
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
/// to be a replica. Cloning is cheap and shares the connection. All methods must be called on a
/// tokio runtime with time and IO enabled.
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
    /// With the colon that ends it.
    prefix: Arc<str>,
    call_within: Duration,
}

impl RedisStore {
    /// Connects to the server of this URL: `redis://user:password@host:6379/0`.
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
            Ok(connected) => connected.map(|_| store),
            Err(_) => Err(store.unreached(CONNECT_WITHIN)),
        }
    }

    /// The same without connecting: the first call does. Until the server is reached, every call
    /// is an error within its time.
    ///
    /// # Errors
    ///
    /// When the URL is none.
    pub fn lazy(url: &str) -> Result<Self, StoreError> {
        Ok(Self {
            link: Link::new(url)?,
            prefix: "idempotency:".into(),
            call_within: Duration::from_millis(500),
        })
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
        self.prefix = format!("{prefix}:").into();
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
        let mut name = String::with_capacity(self.prefix.len() + 43);
        name.push_str(&self.prefix);
        URL_SAFE_NO_PAD.encode_string(key.as_bytes(), &mut name);
        name
    }

    fn unreached(&self, within: Duration) -> StoreError {
        let address = self.link.address();
        StoreError::new(
            StoreErrorKind::Unreachable,
            format!("no connection to Redis at {address} within {within:?}: is it there?"),
        )
    }

    fn late(&self, what: &str) -> StoreError {
        let (address, within) = (self.link.address(), self.call_within);
        StoreError::new(
            StoreErrorKind::Timeout,
            format!("no answer from Redis at {address} to {what} within {within:?}"),
        )
    }

    /// One call as a whole, under its time limit: a connection, then what `ask` makes of it.
    async fn call<T>(
        &self,
        what: &str,
        ask: impl AsyncFnOnce(&Connection) -> Result<T, Failure>,
    ) -> Result<T, StoreError> {
        let until = tokio::time::Instant::now() + self.call_within;
        let Ok(connection) = tokio::time::timeout_at(until, self.link.get()).await else {
            return Err(self.unreached(self.call_within));
        };
        let connection = connection?;
        let Ok(asked) = tokio::time::timeout_at(until, ask(&connection)).await else {
            let late = self.late(what);
            self.link.timed_out(&connection, &late);
            return Err(late);
        };
        asked.map_err(|failure| match failure {
            Failure::Store(error) => {
                // Replies that do not fit what was asked may be out of step, and would stay so.
                if error.is_garbled() {
                    self.link.replace(&connection, &error);
                }
                error
            }
            Failure::Server(error) => {
                let refused = refused::by_server(what, &error);
                if refused::is_read_only(&error) {
                    self.link.replace(&connection, &refused);
                }
                refused
            }
            Failure::Client(error) => {
                let refused = refused::by_client(self.link.address(), &error);
                self.link.replace(&connection, &refused);
                refused
            }
        })
    }

    /// One transition of one record.
    async fn run(&self, script: &'static Script, command: Cmd) -> Result<Reply, StoreError> {
        self.call(script.name(), async |connection| self.run_on(connection, script, &command).await)
            .await
    }

    async fn run_on(
        &self,
        connection: &Connection,
        script: &'static Script,
        command: &Cmd,
    ) -> Result<Reply, Failure> {
        let mut answer = connection.send(command).await?;
        if refused::is_no_script(&answer) {
            answer = connection.send(&script.spelled_out(command)).await?;
        }
        self.read(connection, script, answer)
    }

    fn read(
        &self,
        connection: &Connection,
        script: &'static Script,
        answer: Value,
    ) -> Result<Reply, Failure> {
        if let Value::ServerError(error) = answer {
            return Err(Failure::Server(error));
        }
        let reply = Reply::read(script.name(), answer)?;
        self.link.answered(connection, reply.now_ms);
        Ok(reply)
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
        let bound = self.read(connection, first, bound)?;
        let not_bound =
            if claim.is_look() { bound.seen_by_look(claim)? } else { bound.not_bound()? };
        if let Some(taken) = not_bound {
            return Ok(taken);
        }
        let reply = self.read(connection, &script::CLAIM, claimed)?;
        self.claimed(connection, claim, &claim_command, reply).await
    }

    /// What a claim was answered; a long answer is fetched, and the claim is made again where it is not
    /// there any more.
    async fn claimed(
        &self,
        connection: &Connection,
        claim: &Claim,
        command: &Cmd,
        mut reply: Reply,
    ) -> Result<Claimed, Failure> {
        for _ in 0..FETCHES_AT_MOST {
            let times = match reply.claimed(claim, connection.server_ms())? {
                Answer::Claimed(claimed) => return Ok(claimed),
                Answer::Fetch(times) => times,
            };
            let record = connection.send(&command::whole(&self.name(&claim.key))).await?;
            if let Value::ServerError(error) = record {
                return Err(Failure::Server(error));
            }
            if let Some(completed) = Reply::fetched(record, &times, connection.server_ms()) {
                return Ok(Claimed::Completed(completed));
            }
            reply = self.run_on(connection, &script::CLAIM, command).await?;
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
            .field("prefix", &&self.prefix[..self.prefix.len() - 1])
            .field("call_within", &self.call_within)
            .finish()
    }
}

/// Why a call came to nothing, before it is known what that means for the connection.
enum Failure {
    Store(StoreError),
    Server(redis::ServerError),
    Client(redis::RedisError),
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<redis::RedisError> for Failure {
    fn from(error: redis::RedisError) -> Self {
        Self::Client(error)
    }
}

impl Store for RedisStore {
    async fn claim(&self, claim: Claim) -> Result<Claimed, StoreError> {
        let asked = Instant::now();
        self.call("claim", async |connection| {
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
            let command = command::claim(&self.name(&claim.key), &claim, not_after);
            match &claim.alias {
                Some(alias) => self.bind_and_claim(connection, &claim, alias, command).await,
                None => {
                    let reply = self.run_on(connection, &script::CLAIM, &command).await?;
                    self.claimed(connection, &claim, &command, reply).await
                }
            }
        })
        .await
    }

    async fn renew(&self, grant: &Grant) -> Result<Written, StoreError> {
        let command = command::renew(&self.name(&grant.key), grant);
        self.run(&script::RENEW, command).await?.written(grant.token)
    }

    async fn complete(&self, grant: &Grant, kept: Kept) -> Result<Written, StoreError> {
        let command = command::complete(&self.name(&grant.key), grant, &kept);
        self.run(&script::COMPLETE, command).await?.written(grant.token)
    }

    async fn release(&self, release: Release) -> Result<Written, StoreError> {
        let command = command::release(&self.name(&release.key()), &release);
        self.run(&script::RELEASE, command).await?.written(release.token())
    }

    async fn resolve(&self, resolve: Resolve) -> Result<Resolved, StoreError> {
        let command = command::resolve(&self.name(&resolve.key), &resolve);
        self.run(&script::RESOLVE, command).await?.resolved()
    }

    async fn issue(&self, issue: Issue) -> Result<Issued, StoreError> {
        let command = command::issue(&self.name(&issue.key), &issue);
        self.run(&script::ISSUE, command).await?.issued()
    }

    async fn scan(&self, from: Cursor, at_most: usize) -> Result<Page, StoreError> {
        let page = scan::page(&self.prefix, &from, at_most)?;
        self.call("scan", async |connection| {
            let answers = without_error(connection.send_all(&page).await?)?;
            let (now_ms, keys, next) = scan::keys(&self.prefix, answers)?;
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
