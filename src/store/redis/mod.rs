//! Records in Redis or Valkey: one key a record, one script a transition, one connection for all.

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
use redis::{Cmd, Pipeline, Value};

use self::{
    connection::{CONNECT_WITHIN, Connection, Link},
    reply::Reply,
    script::Script,
};
use super::{
    Alias, Claim, Claimed, Cursor, Issue, Issued, Kept, Page, Reason, Release, Resolve, Resolved,
    Store, StoreError, StoreErrorKind, Takeover, Verdict, Written,
};
use crate::record::{Fingerprint, Grant, Previous, RecordKey};

const NO_PRINT: [u8; 32] = [0; 32];
/// The deadline of a claim that reads and is never granted.
const LOOK: u64 = 1;
/// A hundred years: more than any record is kept, and far from what a column can hold.
const LONGEST_MS: u64 = 100 * 366 * 24 * 60 * 60 * 1000;

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
    /// set. A call that takes longer is an error, although what it asked for may have happened.
    #[must_use]
    pub fn call_within(mut self, within: Duration) -> Self {
        self.call_within = within;
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
            Failure::Store(error) => error,
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
        let answer = match connection.send(command).await? {
            Value::ServerError(error) if refused::is_no_script(&error) => {
                connection.send(&script.spelled_out(command)).await?
            }
            answer => answer,
        };
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

    /// The command of a claim. `not_after` is its deadline by the server's clock, in ms.
    fn claim_command(&self, claim: &Claim, not_after: u64) -> Cmd {
        let mut command = script::CLAIM.on(&self.name(&claim.key), 9, 192 + claim.label.len());
        command.arg(&claim.token.as_bytes()[..]).arg(print(claim.print.as_ref()));
        command.arg(ms(claim.lease)).arg(ms(claim.hold));
        match claim.takeover {
            Takeover::Refuse => command.arg(""),
            Takeover::Any => command.arg("*"),
            Takeover::Only(mark) => command.arg(format!("{}:{}", mark.fence.get(), mark.stamp_ms)),
        };
        match &claim.one_time {
            Some(token) => command.arg(&token.as_bytes()[..]),
            None => command.arg(""),
        };
        // No identity of the server is asked for, and none demanded.
        command.arg("").arg(&claim.label[..]).arg(not_after);
        command
    }

    /// `bind`, then `claim`, in one write. Both again with their texts if the server does not know
    /// one of them: the same token gets the same grant, and binding twice is binding once.
    async fn bind_and_claim(
        &self,
        connection: &Connection,
        claim: &Claim,
        alias: &Alias,
        claim_command: Cmd,
    ) -> Result<Claimed, Failure> {
        let (first, bind) = self.bind_command(claim, alias);
        let mut answers = connection.send_all(&pair(&bind, &claim_command)).await?;
        let unknown = |answer: &Value| matches!(answer, Value::ServerError(error) if refused::is_no_script(error));
        if answers.iter().any(unknown) {
            let bind = first.spelled_out(&bind);
            let claim = script::CLAIM.spelled_out(&claim_command);
            answers = connection.send_all(&pair(&bind, &claim)).await?;
        }
        let [bound, claimed] =
            <[Value; 2]>::try_from(answers).map_err(|_| reply::garbled("bind and claim"))?;
        let bound = self.read(connection, first, bound)?;
        let not_bound =
            if claim.is_look() { bound.seen_by_look(claim)? } else { bound.not_bound()? };
        if let Some(taken) = not_bound {
            return Ok(taken);
        }
        Ok(self.read(connection, &script::CLAIM, claimed)?.claimed(claim)?)
    }

    /// What makes the alias; for a look, which writes nothing, what looks whether it could be made.
    fn bind_command(&self, claim: &Claim, alias: &Alias) -> (&'static Script, Cmd) {
        if claim.is_look() {
            let look =
                Claim::new(alias.key, claim.token, None, claim.lease, claim.hold, Duration::ZERO);
            return (&script::CLAIM, self.claim_command(&look, LOOK));
        }
        let mut bind = script::BIND.on(&self.name(&alias.key), 2, 64);
        bind.arg(ms(alias.ttl)).arg(&claim.key.as_bytes()[..]);
        (&script::BIND, bind)
    }
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

fn pair(first: &Cmd, second: &Cmd) -> Pipeline {
    let mut commands = Pipeline::with_capacity(2);
    commands.add_command(first.clone()).add_command(second.clone());
    commands
}

/// Whole milliseconds, at least one: zero would mean no expiry, or none at all.
fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(LONGEST_MS).clamp(1, LONGEST_MS)
}

fn print(print: Option<&Fingerprint>) -> &[u8] {
    print.map_or(&NO_PRINT, Fingerprint::as_bytes).as_slice()
}

impl Store for RedisStore {
    async fn claim(&self, claim: Claim) -> Result<Claimed, StoreError> {
        let asked = Instant::now();
        self.call("claim", async |connection| {
            let not_after = if claim.is_look() {
                LOOK
            } else {
                // What the connection took to come about is time that the claim has had.
                let left = claim.within.checked_sub(asked.elapsed()).ok_or_else(|| {
                    let message = "the time of the claim was over before Redis was reached";
                    StoreError::new(StoreErrorKind::Timeout, message)
                })?;
                connection.server_ms() + ms(left)
            };
            let command = self.claim_command(&claim, not_after);
            match &claim.alias {
                Some(alias) => self.bind_and_claim(connection, &claim, alias, command).await,
                None => {
                    let reply = self.run_on(connection, &script::CLAIM, &command).await?;
                    Ok(reply.claimed(&claim)?)
                }
            }
        })
        .await
    }

    async fn renew(&self, grant: &Grant) -> Result<Written, StoreError> {
        let mut command = script::RENEW.on(&self.name(&grant.key), 8, 160 + grant.label.len());
        command.arg(&grant.token.as_bytes()[..]).arg(print(grant.print.as_ref()));
        command.arg(grant.fence.get()).arg(grant.attempt);
        command.arg(ms(grant.lease)).arg(ms(grant.hold));
        command.arg(&grant.label[..]).arg(reply::letter(grant.previous));
        self.run(&script::RENEW, command).await?.written()
    }

    async fn complete(&self, grant: &Grant, kept: Kept) -> Result<Written, StoreError> {
        let bytes = 160 + kept.payload.len();
        let mut command = script::COMPLETE.on(&self.name(&grant.key), 6, bytes);
        command.arg(&grant.token.as_bytes()[..]).arg(print(grant.print.as_ref()));
        command.arg(grant.fence.get()).arg(grant.attempt);
        command.arg(ms(kept.retention)).arg(&kept.payload[..]);
        self.run(&script::COMPLETE, command).await?.written()
    }

    async fn release(&self, release: Release) -> Result<Written, StoreError> {
        let mut command = script::RELEASE.on(&self.name(&release.key()), 8, 512);
        match &release {
            Release::Grant { grant, reason } => {
                let mode = match reason {
                    Reason::DidNotHappen => "R",
                    Reason::Failed => "F",
                    Reason::Unknown => "X",
                };
                command.arg(&grant.token.as_bytes()[..]).arg(ms(grant.hold)).arg(mode);
                command.arg(print(grant.print.as_ref()));
                command.arg(grant.fence.get()).arg(grant.attempt);
                command.arg(&grant.label[..]).arg(reply::letter(grant.previous));
            }
            Release::CalledOff { token, hold, .. } => {
                command.arg(&token.as_bytes()[..]).arg(ms(*hold)).arg("U");
                command.arg(&NO_PRINT[..]).arg(0).arg(0);
                command.arg("").arg(reply::letter(Previous::Nothing));
            }
        }
        self.run(&script::RELEASE, command).await?.written()
    }

    async fn resolve(&self, resolve: Resolve) -> Result<Resolved, StoreError> {
        let (to, ttl, payload) = match &resolve.verdict {
            Verdict::Done(kept) => ("C", kept.retention, &kept.payload[..]),
            Verdict::NotDone { hold } => ("R", *hold, &[][..]),
        };
        let name = self.name(&resolve.key);
        let mut command = script::RESOLVE.on(&name, 7, 128 + payload.len());
        command.arg(resolve.mark.fence.get()).arg(to).arg(ms(ttl)).arg(payload);
        if resolve.force {
            command.arg("1").arg("");
        } else {
            command.arg("0").arg(resolve.mark.stamp_ms);
        }
        command.arg(&resolve.token.as_bytes()[..]);
        self.run(&script::RESOLVE, command).await?.resolved()
    }

    async fn issue(&self, issue: Issue) -> Result<Issued, StoreError> {
        let mut command = script::ISSUE.on(&self.name(&issue.key), 3, 64);
        command.arg(&issue.token.as_bytes()[..]).arg(print(issue.print.as_ref()));
        command.arg(ms(issue.ttl));
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
