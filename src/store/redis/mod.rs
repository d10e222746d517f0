//! Records in Redis or Valkey: one key a record, one script a transition, one connection for all.

mod adapter;
mod again;
mod breaker;
mod call;
mod claim;
mod clock;
#[cfg(feature = "redis-cluster")]
mod cluster;
mod command;
mod connection;
mod guard;
mod info;
mod known;
mod lane;
mod link;
#[cfg(feature = "redis-cluster")]
mod listing;
#[cfg(feature = "redis-cluster")]
mod member;
mod origin;
mod own;
mod preflight;
mod pulse;
mod reach;
mod refused;
mod reply;
mod resp;
mod scan;
mod script;
#[cfg(feature = "redis-sentinel")]
mod sentinel;
mod servers;
mod session;
mod side;
#[cfg(feature = "redis-cluster")]
mod slot;
mod tls;
mod transitions;
mod wait;

use std::{fmt, sync::Arc, time::Duration};

#[cfg(feature = "redis-tls")]
pub use self::tls::RedisTls;
pub use self::{
    adapter::{RedisCommand, RedisConnection, RedisTrouble, RedisValue},
    guard::OnDataLoss,
    preflight::{Finding, Level, Preflight},
    servers::RedisServers,
};
use self::{
    call::{Call, Failure},
    guard::Guard,
    link::Link,
    origin::Origin,
    reach::Reach,
    wait::Wait,
};
use super::StoreError;

/// Records in Redis (6.2 or newer) or Valkey, shared by all processes that use the same server and
/// prefix.
///
/// One connection serves all calls. It is made on the runtime of the call that needs it, and
/// replaced when it breaks, when three calls in a row go unanswered, and when the server turns out
/// to be a replica; one that nobody uses is asked for the time when it has been silent for two
/// seconds. A server that has not answered for two seconds is not waited for any more: calls are
/// [`Suspended`](super::StoreErrorKind::Suspended) at once, and one attempt at a time is made to reach it.
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
    reach: Reach,
    guard: Arc<Guard>,
    call_within: Duration,
    /// Each claim asks which server it is.
    behind_proxy: bool,
    wait: Option<Wait>,
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
        store.reach.connect().await?;
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
        Ok(Self::from(servers.reach()?))
    }

    /// Over a connection that the program has already, adapted by [`RedisConnection`]. Its first call
    /// uses it first.
    pub fn over(connection: impl RedisConnection) -> Self {
        let address = "the program's own connection".to_owned();
        Self::from(Reach::One(Link::new(Origin::given(connection), address)))
    }

    fn from(reach: Reach) -> Self {
        let guard = Guard::new("idempotency:".into());
        reach.look_after(&guard);
        Self {
            reach,
            guard,
            call_within: Duration::from_millis(500),
            behind_proxy: false,
            wait: None,
        }
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
        self.reach.look_after(&guard);
        self.guard = guard;
        self
    }

    /// What is done when it is noticed that the server has lost records; [`OnDataLoss::Observe`] if it is
    /// not set. Clones that were made before do the same.
    ///
    /// It is noticed by a key of the store's own, `<prefix>:canary`, which is looked at each five
    /// seconds and after each connect. The first process that comes to an empty server writes it. In a
    /// cluster each primary has one, the others with a number behind that; what one primary has lost is
    /// refused in all of the cluster, since its slots may be another's when they are asked for.
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
        // There is always one of this name, and all processes look at it.
        let name = again::canary_name(self.guard.prefix(), 0);
        let accept = again::Accept { guard: &self.guard, name: &name };
        self.reach.call(&Call::new("canary", self.call_within), &name[..], &accept).await
    }

    /// A claim counts only when so many replicas have it, which may take so long: half of
    /// [`call_within`](Self::call_within) at most. One that too few have in that time is asked for again
    /// while there is time for a claim, then refused (503) and called off. Default: none are waited for,
    /// and the last grants before a failover may be lost with the primary.
    ///
    /// It takes a claim a way to the slowest of these replicas and back. `WAIT` holds up whatever comes
    /// behind it on a connection: such claims have connections of their own, sixteen at most to a server.
    /// The user needs the right to `+wait`.
    ///
    /// A replica that has a claim keeps it from being lost with the primary; it is no consensus, and a
    /// failover may still choose another one: see `docs/redis.md`.
    ///
    /// # Panics
    ///
    /// When `replicas` is 0, and for a store [`over`](Self::over) a connection of the program's own.
    #[must_use]
    pub fn wait_for_replicas(mut self, replicas: u32, within: Duration) -> Self {
        assert!(replicas > 0, "to wait for no replica is not to wait: leave wait_for_replicas out");
        assert!(
            !self.reach.is_given(),
            "wait_for_replicas needs connections of its own, and RedisStore::over has the program's: \
             give the URL to RedisStore::connect"
        );
        self.reach.accept(|accepted| accepted.wait_for = replicas);
        self.wait = Some(Wait { replicas, within });
        self
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
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore")
            .field("address", &self.reach.address())
            .field("prefix", &self.guard.prefix().trim_end_matches(':'))
            .field("call_within", &self.call_within)
            .finish()
    }
}
