//! Recovery by hand: what is abandoned or runs for long, and settling it as done or not done.

mod settle;

use std::time::Duration;

pub use settle::{Settle, SettleError, SettleErrorKind};

use crate::{
    record::{ClaimToken, Mark, RecordKey, Secret, State},
    store::{Claim, Claimed, Cursor, Listed, Store, StoreError},
};

/// The most records that one page looks through.
const PAGE_AT_MOST: usize = 1_000;
/// How many a search looks through at a time.
const SEARCHED_AT_ONCE: usize = 500;
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// The operations in a store, for whoever operates it: the store an application's layer has, opened
/// with the same URL and prefix.
///
/// The times below are those of the application's policies. The store does not know them.
///
/// # Example: an operation that timed out and is settled as done
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// # use http::{Request, Response};
/// # use tower::{ServiceBuilder, ServiceExt};
/// # use tower_idempotency::{IdempotencyLayer, Policy, RequestBody, Rule, json};
/// use tower_idempotency::{
///     Answer, MemoryStore,
///     operations::{Operations, Settle},
///     store::Cursor,
/// };
/// # let store = MemoryStore::new();
/// # let rule = Rule::new("fulfil", Policy::webhook(json("/id")));
/// # let service = ServiceBuilder::new()
/// #     .layer(IdempotencyLayer::new(store.clone(), rule))
/// #     .service_fn(async |_: Request<RequestBody<String>>| {
/// #         Response::builder().status(504).body(String::new())
/// #     });
/// # service.oneshot(Request::post("/").body(r#"{"id": "N-1"}"#.to_owned())?).await?;
///
/// let operations = Operations::new(store);
/// let page = operations.list(Cursor::START, 100).await?;
/// let operation = &page.operations[0];
/// assert_eq!((operation.label.as_str(), operation.attempt), ("fulfil N-1", 1));
///
/// let verdict = Settle::done(Answer::text("success"), "the provider has the charge");
/// operations.settle(operation, verdict).await?;
/// assert!(operations.list(Cursor::START, 100).await?.operations.is_empty());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Operations<S> {
    store: S,
    lease: Duration,
    max_run: Duration,
    long_running: Duration,
    retention: Duration,
    hold: Duration,
    secret: Option<Secret>,
}

impl<S: Store> Operations<S> {
    /// The operations in this store, with the default times of a policy.
    pub fn new(store: S) -> Self {
        Self {
            store,
            lease: Duration::from_secs(30),
            max_run: Duration::from_secs(300),
            long_running: Duration::from_secs(30),
            retention: 7 * DAY,
            hold: 7 * DAY,
            secret: None,
        }
    }

    /// The lease of the policies ([`Policy::lease`](crate::Policy::lease)), from which the last sign of
    /// life is computed. Default 30 s.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// The longest run of the policies ([`Policy::max_run`](crate::Policy::max_run)): an operation
    /// that lapsed no longer ago may still be run by a process that only stalls. Default 5 min.
    ///
    /// Danger: with a shorter time than the policies', *not done* may be said of what is running.
    #[must_use]
    pub fn max_run(mut self, max_run: Duration) -> Self {
        self.max_run = max_run;
        self
    }

    /// Operations that are alive are listed when they run for at least this long. Default 30 s, a
    /// lease.
    #[must_use]
    pub fn long_running(mut self, long_running: Duration) -> Self {
        self.long_running = long_running;
        self
    }

    /// How long an answer is kept that is given by hand. Default 7 d.
    #[must_use]
    pub fn retention(mut self, retention: Duration) -> Self {
        self.retention = retention;
        self
    }

    /// How long it is remembered that an operation was settled as not done. Default 7 d.
    #[must_use]
    pub fn hold(mut self, hold: Duration) -> Self {
        self.hold = hold;
        self
    }

    /// The secret of the layer ([`IdempotencyLayer::secret`](crate::IdempotencyLayer::secret)), of which
    /// [`Settle::in_ledger`] has to know which entry is whose. Default none.
    #[must_use]
    pub fn secret(mut self, secret: &[u8; 32]) -> Self {
        self.secret = Some(Secret::new(secret));
        self
    }

    /// The abandoned and the long-running operations among the next records, of which it looks
    /// through about `at_most`, and 1,000 at most.
    ///
    /// A page may be empty before the end, which is where [`Unsettled::next`] is `None`. Each operation
    /// that is unfinished costs a look of its own, which tells its times by the store's clock.
    ///
    /// # Errors
    ///
    /// When the store cannot answer.
    pub async fn list(&self, from: Cursor, at_most: usize) -> Result<Unsettled, StoreError> {
        let page = self.store.scan(from, at_most.clamp(1, PAGE_AT_MOST)).await?;
        let mut operations = Vec::new();
        for listed in page.records {
            if listed.state != State::InProgress {
                continue;
            }
            let found = self.found(listed).await?;
            match found.standing {
                Standing::Lapsed { .. } | Standing::GivenUp { .. } => operations.push(found),
                Standing::Running { age, .. } if age >= self.long_running => operations.push(found),
                // It has ended since it was listed, or is young.
                _ => {}
            }
        }
        Ok(Unsettled { operations, next: page.next })
    }

    /// The operation of this name, whatever its state: 16 hexadecimal digits, the `key` of its events
    /// ([`RecordKey::digest`]), or the 43 characters of a [`RecordKey`].
    ///
    /// It looks through the store until it finds it.
    ///
    /// # Errors
    ///
    /// When the store cannot answer.
    pub async fn find(&self, name: &str) -> Result<Option<Found>, StoreError> {
        let is_it = |key: &RecordKey| key.digest() == name || key.to_string() == name;
        let mut from = Cursor::START;
        loop {
            let page = self.store.scan(from, SEARCHED_AT_ONCE).await?;
            if let Some(listed) = page.records.into_iter().find(|listed| is_it(&listed.key)) {
                return self.found(listed).await.map(Some);
            }
            match page.next {
                Some(next) => from = next,
                None => return Ok(None),
            }
        }
    }

    /// A listed record as it stands now.
    async fn found(&self, listed: Listed) -> Result<Found, StoreError> {
        let (standing, mark) = match listed.state {
            State::InProgress => self.look(&listed.key).await?,
            state => (Standing::Ended(state), None),
        };
        Ok(Found {
            label: String::from_utf8_lossy(&listed.label).into_owned(),
            attempt: listed.attempt,
            last_sign_of_life: self.last_sign_of_life(&standing),
            mark: mark.unwrap_or(listed.mark),
            expires_in: listed.expires_in,
            key: listed.key,
            standing,
        })
    }

    /// How a record stands, by the store's clock, and its mark where it is abandoned.
    async fn look(&self, key: &RecordKey) -> Result<(Standing, Option<Mark>), StoreError> {
        let nothing = Duration::ZERO;
        let look = Claim::new(*key, ClaimToken::random(), None, self.lease, self.hold, nothing);
        Ok(match self.store.claim(look).await? {
            Claimed::InProgress(met) => {
                (Standing::Running { age: met.running, remaining: met.remaining }, None)
            }
            Claimed::Abandoned(met) => {
                let age = met.granted;
                let standing = match met.lapsed {
                    Some(ago) => Standing::Lapsed { age, ago },
                    None => Standing::GivenUp { age },
                };
                (standing, Some(met.mark))
            }
            Claimed::Completed(_) => (Standing::Ended(State::Completed), None),
            Claimed::AliasOf(_) => (Standing::Ended(State::Alias), None),
            Claimed::TokenUnknown => (Standing::Ended(State::Issued), None),
            // A look at what is free says no more; what was listed there is over.
            _ => (Standing::Ended(State::Released), None),
        })
    }

    fn last_sign_of_life(&self, standing: &Standing) -> Option<Duration> {
        match standing {
            Standing::Running { remaining, .. } => self.lease.checked_sub(*remaining),
            Standing::Lapsed { ago, .. } => Some(*ago + self.lease),
            Standing::GivenUp { .. } | Standing::Ended(_) => None,
        }
    }
}

/// A page of abandoned and long-running operations.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Unsettled {
    /// The operations.
    pub operations: Vec<Found>,
    /// Where to go on; `None` at the end.
    pub next: Option<Cursor>,
}

/// An operation as an operator sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Found {
    /// The record.
    pub key: RecordKey,
    /// The rule's name and the identity as it was sent, of an operation that is unfinished. It is what
    /// a client sent: escape control characters where it is printed.
    pub label: String,
    /// Grants so far.
    pub attempt: u32,
    /// How it stands.
    pub standing: Standing,
    /// How long ago its owner was last heard of, where that is known: the end of its lease, less the
    /// lease.
    pub last_sign_of_life: Option<Duration>,
    /// How long the record is kept still.
    pub expires_in: Duration,
    mark: Mark,
}

/// How an operation stands, by the store's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Standing {
    /// Its owner is alive.
    Running {
        /// How long ago it was granted.
        age: Duration,
        /// What is left of its lease.
        remaining: Duration,
    },
    /// Abandoned: its owner gave no sign of life for a lease. It may be dead, or stall.
    Lapsed {
        /// How long ago it was granted.
        age: Duration,
        /// How long ago its lease ended.
        ago: Duration,
    },
    /// Abandoned: its owner said that nobody knows, and has ended.
    GivenUp {
        /// How long ago it was granted.
        age: Duration,
    },
    /// Nothing to settle: it is in this state.
    Ended(State),
}
