//! What a rule does: every choice as plain data, with its default.

mod check;
mod outcome;
mod scope;

use std::{fmt, sync::Arc, time::Duration};

use http::{Method, StatusCode};

pub use check::PolicyError;
pub(crate) use outcome::Ending;
use outcome::Statuses;
pub use scope::Scope;

use crate::{
    identity::{AnySource, Header, Source, header},
    ledger::{DynResolver, Resolver},
    record::{Answer, Outcome},
    refusal::Refusal,
};

/// How a policy says no, and which endings it keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Profile {
    /// To a client of an API: statuses that name the fault.
    Api,
    /// To the sender of a notification: statuses that make it come again.
    Webhook,
}

/// What happens with an operation that is abandoned.
#[derive(Clone)]
pub(crate) enum OnAbandoned {
    Refuse,
    Rerun,
    Resolve(Arc<dyn DynResolver>),
}

type KeepIf = Arc<dyn Fn(&Answer) -> bool + Send + Sync>;
type RefuseWith = Arc<dyn Fn(&Refusal) -> Option<Answer> + Send + Sync>;

/// What a rule does with the requests it matches: every choice, with its default.
///
/// Two starting points have defaults that fit together; each setter changes one choice.
///
/// | choice | [`Policy::api`] | [`Policy::webhook`] |
/// |---|---|---|
/// | methods, unless the rule names others | POST, PATCH | POST |
/// | identity, 1 to 255 bytes | header `Idempotency-Key` | as named |
/// | absent identity | 400 | 400 |
/// | fingerprint | method, path, query, body | none |
/// | kept and replayed | all but the next two rows | 2xx |
/// | released: may run again | 401, 403, 409, 423, 425, 429, 503 | every other answer |
/// | uncertain: abandoned at once | 408, 502, 504, panic, error, answer broken off | the same |
/// | a second delivery meanwhile | 409 | 503 |
/// | abandoned | 409 | 503 |
/// | store down before the run | 503 | 503 |
/// | lease, retention, hold | 30 s, 24 h, 7 d | 30 s, 7 d, 7 d |
/// | longest run | 10 leases | 10 leases |
/// | request body | 1 MiB within 30 s | 1 MiB within 30 s |
/// | stored answer | 1 MiB | 1 MiB |
///
/// # Example: an API whose keys belong to its users
///
/// ```
/// use std::time::Duration;
/// use tower_idempotency::{Policy, Scope};
///
/// #[derive(Clone)]
/// struct UserId(String);
/// impl AsRef<str> for UserId {
///     fn as_ref(&self) -> &str {
///         &self.0
///     }
/// }
///
/// let policy = Policy::api(Scope::extension::<UserId>())
///     .wait(Duration::from_secs(5))
///     .retention(Duration::from_secs(3 * 24 * 3600));
/// assert!(policy.check().is_ok());
/// ```
#[derive(Clone)]
pub struct Policy {
    pub(crate) profile: Profile,
    pub(crate) identity: AnySource,
    /// The same identity again where it is a header's, for [`Policy::strict`].
    header: Option<Header>,
    pub(crate) optional: bool,
    pub(crate) scope: Scope,
    pub(crate) fingerprint: bool,
    pub(crate) wait: Duration,
    pub(crate) call_within: Duration,
    pub(crate) claim_within: Duration,
    pub(crate) lease: Duration,
    pub(crate) retention: Duration,
    pub(crate) hold: Duration,
    max_run: Option<Duration>,
    pub(crate) body_limit: usize,
    pub(crate) body_within: Duration,
    pub(crate) answer_limit: usize,
    statuses: Statuses,
    keep_if: Option<KeepIf>,
    pub(crate) on_abandoned: OnAbandoned,
    pub(crate) run_unprotected: bool,
    pub(crate) keep_cookies: bool,
    pub(crate) private_label: bool,
    refuse_with: Option<RefuseWith>,
}

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const MEBIBYTE: usize = 1024 * 1024;

impl Policy {
    /// For an API whose clients send an `Idempotency-Key`
    /// (draft-ietf-httpapi-idempotency-key-header-07).
    ///
    /// `scope` says within what a key is unique. Say it: where two tenants may choose the same key,
    /// each would get the other's answer.
    pub fn api(scope: Scope) -> Self {
        let identity = header("Idempotency-Key");
        Self {
            header: Some(identity.clone()),
            scope,
            fingerprint: true,
            retention: DAY,
            ..Self::new(Profile::Api, AnySource::new(identity))
        }
    }

    /// For the notifications of a sender that names each of them: `json("/notifyId")`.
    ///
    /// The body is not compared, since a sender may sign each delivery anew.
    pub fn webhook(identity: impl Source) -> Self {
        Self::new(Profile::Webhook, AnySource::new(identity))
    }

    fn new(profile: Profile, identity: AnySource) -> Self {
        Self {
            profile,
            identity,
            header: None,
            optional: false,
            scope: Scope::everyone(),
            fingerprint: false,
            wait: Duration::ZERO,
            call_within: Duration::from_millis(500),
            claim_within: Duration::from_millis(1500),
            lease: Duration::from_secs(30),
            retention: 7 * DAY,
            hold: 7 * DAY,
            max_run: None,
            body_limit: MEBIBYTE,
            body_within: Duration::from_secs(30),
            answer_limit: MEBIBYTE,
            statuses: Statuses::default(),
            keep_if: None,
            on_abandoned: OnAbandoned::Refuse,
            run_unprotected: false,
            keep_cookies: false,
            private_label: false,
            refuse_with: None,
        }
    }

    /// Where the identity stands, in place of what the policy was made with.
    ///
    /// Danger: what is stored under the old identity is not found under the new one.
    #[must_use]
    pub fn identity(mut self, identity: impl Source) -> Self {
        self.identity = AnySource::new(identity);
        self.header = None;
        self
    }

    /// Demands the identity as a structured-field string, in quotes. By default a key without
    /// quotes is taken too, and is the same key as with them.
    ///
    /// # Panics
    ///
    /// When the identity is not `Idempotency-Key`: write `header("..").strict()` instead.
    #[must_use]
    #[track_caller]
    pub fn strict(mut self) -> Self {
        let Some(header) = self.header.take() else {
            panic!(
                "Policy::strict is about the header Idempotency-Key, but the identity is {}; \
                 for another header write .identity(header(\"..\").strict())",
                self.identity.describe()
            );
        };
        let header = header.strict();
        self.identity = AnySource::new(header.clone());
        self.header = Some(header);
        self
    }

    /// Lets a request without identity pass, unprotected. By default it is refused with 400.
    ///
    /// One whose identity is malformed is refused all the same.
    #[must_use]
    pub fn optional(mut self) -> Self {
        self.optional = true;
        self
    }

    /// Within what an identity is unique, besides the rule's name. Default: what [`Policy::api`] was
    /// given, and everyone for a webhook.
    #[must_use]
    pub fn scope(mut self, scope: Scope) -> Self {
        self.scope = scope;
        self
    }

    /// Compares nothing when an identity comes again: whatever else the request says, it is answered
    /// from the first. Default: an API compares method, path, query and body; a webhook nothing.
    ///
    /// Danger: a client that uses a key for two operations is told that both were done.
    #[must_use]
    pub fn no_fingerprint(mut self) -> Self {
        self.fingerprint = false;
        self
    }

    /// Lets a delivery wait this long for another that is in progress, and then answers it from
    /// that one. By default, and after that time, it is refused.
    ///
    /// The time counts from when it met the other. A waiter looks into the store after 25 ms, and less
    /// often the longer it lasts, each half second at most; one whose client leaves is gone.
    ///
    /// At most 1,024 requests of a layer wait at once; further ones are refused.
    #[must_use]
    pub fn wait(mut self, at_most: Duration) -> Self {
        self.wait = at_most;
        self
    }

    /// How long one call of the store may take. Default 500 ms.
    ///
    /// A store may have a limit of its own, as `RedisStore::call_within` is; the shorter counts.
    #[must_use]
    pub fn call_within(mut self, within: Duration) -> Self {
        self.call_within = within;
        self
    }

    /// How long a claim may take with all its resends, before the request is refused with 503.
    /// Default 1.5 s.
    #[must_use]
    pub fn claim_within(mut self, within: Duration) -> Self {
        self.claim_within = within;
        self
    }

    /// How long a grant holds without renewal. Default 30 s.
    ///
    /// It is renewed at a third of that while the handler runs. When a process dies, its operations
    /// are abandoned after this time at the latest. It must be shorter than the retention.
    ///
    /// Danger: a process that stalls for longer, or loses the store for longer, is taken for dead. A
    /// handler is started only while at least half the lease is left, so that one not much longer than
    /// a store's call lets nothing run.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// How long an answer is kept, from the moment it is stored. Default 24 h for an API, 7 d for
    /// notifications.
    ///
    /// After that the identity is new: a delivery runs. Keep it at least twice as long as the sender
    /// or client goes on trying. It must not be longer than the hold.
    #[must_use]
    pub fn retention(mut self, retention: Duration) -> Self {
        self.retention = retention;
        self
    }

    /// How long it is remembered that an operation was started and did not end. Default 7 d; at
    /// least the retention.
    ///
    /// After that the identity is new: a delivery runs, though the first run may have happened.
    #[must_use]
    pub fn hold(mut self, hold: Duration) -> Self {
        self.hold = hold;
        self
    }

    /// How long a handler may run before its lease is renewed no more. Default ten leases.
    ///
    /// It is not stopped; but its operation is abandoned a lease later. It must not be shorter than
    /// the lease.
    #[must_use]
    pub fn max_run(mut self, max_run: Duration) -> Self {
        self.max_run = Some(max_run);
        self
    }

    /// The most bytes a request's body may have; a larger one is refused with 413. Default 1 MiB.
    ///
    /// The body is held in memory whole, so this is memory a request may take. axum's
    /// `DefaultBodyLimit` is unknown to the layer: where one is raised, raise the other.
    #[must_use]
    pub fn body_limit(mut self, bytes: usize) -> Self {
        self.body_limit = bytes;
        self
    }

    /// How long a request's body may take to come whole; a slower one is refused with 408. Default
    /// 30 s.
    #[must_use]
    pub fn body_within(mut self, within: Duration) -> Self {
        self.body_within = within;
        self
    }

    /// The most bytes of an answer's body that are stored. Default 1 MiB.
    ///
    /// A larger answer is sent in full and remembered as done; a later delivery learns that, but
    /// not the answer. So is one that has not ended after 5 s. Zero stores no bodies at all.
    #[must_use]
    pub fn answer_limit(mut self, bytes: usize) -> Self {
        self.answer_limit = bytes;
        self
    }

    /// Keeps answers with these statuses: final, stored and replayed. Of `keep`, `release` and
    /// `uncertain` the last word about a status counts.
    ///
    /// The statuses are HTTP's, also of gRPC, whose answers are all 200.
    #[must_use]
    pub fn keep(mut self, statuses: impl IntoIterator<Item = StatusCode>) -> Self {
        self.statuses.set(statuses, Outcome::Keep);
        self
    }

    /// Takes answers with these statuses for "it did not happen": the key may run again.
    ///
    /// Danger: a handler that answers so after it had an effect has it twice.
    #[must_use]
    pub fn release(mut self, statuses: impl IntoIterator<Item = StatusCode>) -> Self {
        self.statuses.set(statuses, Outcome::Release);
        self
    }

    /// Takes answers with these statuses for "nobody knows": the key is abandoned at once.
    #[must_use]
    pub fn uncertain(mut self, statuses: impl IntoIterator<Item = StatusCode>) -> Self {
        self.statuses.set(statuses, Outcome::Uncertain);
        self
    }

    /// Keeps an answer only if this says so, for senders that read the body: an answer that would
    /// be kept by its status, and of which this says no, is released as failed.
    ///
    /// It is asked with the headers that would be stored. It is not asked about an answer whose body is
    /// too large to be kept or has no end in time: that one is kept. If it panics, the outcome is
    /// uncertain.
    ///
    /// # Example: a sender that comes again until it reads `success`
    ///
    /// ```
    /// use tower_idempotency::{Policy, json};
    ///
    /// let policy = Policy::webhook(json("/notify_id"))
    ///     .keep_if(|answer| answer.body().is_some_and(|body| body == "success"));
    /// assert!(policy.check().is_ok());
    /// ```
    #[must_use]
    pub fn keep_if(mut self, keep: impl Fn(&Answer) -> bool + Send + Sync + 'static) -> Self {
        self.keep_if = Some(Arc::new(keep));
        self
    }

    /// Runs an abandoned operation again, blindly. By default it is refused.
    ///
    /// Danger: the first run may have happened, and may still be running where its process only
    /// stalled or lost the store for longer than a lease. Only for handlers that are idempotent
    /// themselves; they see `Previous::AbandonedUnknown`.
    #[must_use]
    pub fn rerun_abandoned(mut self) -> Self {
        self.on_abandoned = OnAbandoned::Rerun;
        self
    }

    /// Asks this what became of an abandoned operation. By default it is refused.
    ///
    /// Danger: a wrong [`Resolution::NotDone`](crate::Resolution::NotDone) runs it twice.
    #[must_use]
    pub fn resolve_abandoned(mut self, resolver: impl Resolver) -> Self {
        self.on_abandoned = OnAbandoned::Resolve(Arc::new(resolver));
        self
    }

    /// Runs requests without a grant while the store cannot be asked. By default they are refused
    /// with 503.
    ///
    /// Danger: while the store is away nothing is deduplicated. The answer is still offered to the
    /// store. Only where running twice is better than not running.
    #[must_use]
    pub fn run_unprotected(mut self) -> Self {
        self.run_unprotected = true;
        self
    }

    /// Stores `Set-Cookie` and replays it. By default it is not stored.
    ///
    /// Danger: whoever sends the same key gets the same session. Only with a scope.
    #[must_use]
    pub fn keep_cookies(mut self) -> Self {
        self.keep_cookies = true;
        self
    }

    /// Leaves only a digest of the identity for operators to read, in the store and in events. By
    /// default the label of an unfinished operation is the rule's name and the identity as it was sent,
    /// 256 bytes at most.
    #[must_use]
    pub fn private_label(mut self) -> Self {
        self.private_label = true;
        self
    }

    /// Says no as this sender wants to hear it; where it returns `None`, as usual.
    ///
    /// It must not panic; the panic would go on to the server.
    ///
    /// # Example: a sender that reads only the body
    ///
    /// ```
    /// use tower_idempotency::{Answer, Policy, RefusalKind, json};
    ///
    /// let policy = Policy::webhook(json("/notify_id")).refuse_with(|refusal| {
    ///     let busy = refusal.kind() == RefusalKind::InProgress;
    ///     busy.then(|| Answer::text("fail"))
    /// });
    /// assert!(policy.check().is_ok());
    /// ```
    #[must_use]
    pub fn refuse_with(
        mut self,
        answer: impl Fn(&Refusal) -> Option<Answer> + Send + Sync + 'static,
    ) -> Self {
        self.refuse_with = Some(Arc::new(answer));
        self
    }

    pub(crate) fn methods(&self) -> &'static [Method] {
        match self.profile {
            Profile::Api => &[Method::POST, Method::PATCH],
            Profile::Webhook => &[Method::POST],
        }
    }

    pub(crate) fn longest_run(&self) -> Duration {
        self.max_run.unwrap_or_else(|| self.lease.saturating_mul(10))
    }

    pub(crate) fn refusal_answer(&self, refusal: &Refusal) -> Option<Answer> {
        self.refuse_with.as_ref().and_then(|refuse| refuse(refusal))
    }
}

impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Policy")
            .field("profile", &self.profile)
            .field("identity", &self.identity)
            .field("scope", &self.scope)
            .field("lease", &self.lease)
            .field("retention", &self.retention)
            .field("hold", &self.hold)
            .finish_non_exhaustive()
    }
}
