//! What a rule does: every choice as plain data, with its default.

mod check;
mod choices;
mod comparison;
mod outcome;
mod scope;
mod token;

use std::{fmt, sync::Arc, time::Duration};

use http::Method;

pub use check::PolicyError;
use outcome::Statuses;
pub(crate) use outcome::{Ending, is_success};
pub use scope::Scope;
pub(crate) use token::Demand;

use crate::{
    fingerprint::Compared,
    identity::{AnySource, Header, Input, Source, header},
    ledger::{DynLedger, DynResolver},
    record::Answer,
    refusal::Refusal,
    verify::AnyVerify,
};

/// An identity came again with something else.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Mismatch {
    /// The name of the rule.
    pub rule: String,
    /// Whose identity it is; empty where the policy's scope is everyone.
    pub scope: String,
    /// The identity of the operation, as it was sent; one that is no UTF-8 is percent-encoded, and so
    /// is a scope.
    pub key: String,
    /// The identity of the delivery, where the operation has another of its own.
    pub delivery_id: Option<String>,
    /// The names of the fields that differ, where they are known: of a completed operation whose
    /// fields are compared one by one.
    pub fields: Option<Vec<String>>,
}

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
    /// The policy's ledger is asked.
    Ledger,
}

pub(crate) type KeepIf = Arc<dyn Fn(&Answer) -> bool + Send + Sync>;
pub(crate) type OnMismatch = Arc<dyn Fn(&Mismatch) + Send + Sync>;
pub(crate) type RefuseWith = Arc<dyn Fn(&Refusal) -> Option<Answer> + Send + Sync>;

/// What a rule does with the requests it matches: every choice, with its default.
///
/// Two starting points have defaults that fit together; each setter changes one choice.
///
/// | choice | [`Policy::api`] | [`Policy::webhook`] |
/// |---|---|---|
/// | methods, unless the rule names others | POST, PATCH | POST |
/// | identity, 1 to 255 bytes | header `Idempotency-Key` | as named |
/// | absent identity | 400 | 400 |
/// | one-time token | none demanded | none demanded |
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
    /// Takes the identity's place.
    pub(crate) token: Option<Demand>,
    pub(crate) optional: bool,
    pub(crate) scope: Scope,
    pub(crate) business_key: Option<AnySource>,
    pub(crate) compared: Compared,
    pub(crate) verify: Option<AnyVerify>,
    pub(crate) on_mismatch: Option<OnMismatch>,
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
    pub(crate) keep_if: Option<KeepIf>,
    pub(crate) on_abandoned: OnAbandoned,
    pub(crate) ledger: Option<Arc<dyn DynLedger>>,
    pub(crate) run_unprotected: bool,
    pub(crate) observe: bool,
    pub(crate) keep_cookies: bool,
    pub(crate) private_label: bool,
    pub(crate) refuse_with: Option<RefuseWith>,
    /// For [`Idempotent`](crate::Idempotent), and for no request.
    pub(crate) job: bool,
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
            compared: Compared::WholeRequest,
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

    /// For work that is not HTTP: the messages of a queue, the runs of a timer, with
    /// [`Idempotent`](crate::Idempotent).
    ///
    /// Lease 30 s, retention and hold 7 d, longest run 10 leases, store calls, waiting, what is abandoned
    /// and the ledger are as for a webhook, and so are their setters. There is no request: identity, scope
    /// and what must be the same are said where the work is run, and choices about them are errors
    /// ([`Policy::check`]).
    pub fn job() -> Self {
        let none = |_: &Input<'_>| Ok(None);
        Self { job: true, ..Self::new(Profile::Webhook, AnySource::new(none)) }
    }

    fn new(profile: Profile, identity: AnySource) -> Self {
        Self {
            profile,
            identity,
            header: None,
            token: None,
            optional: false,
            scope: Scope::everyone(),
            business_key: None,
            compared: Compared::Nothing,
            verify: None,
            on_mismatch: None,
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
            ledger: None,
            run_unprotected: false,
            observe: false,
            keep_cookies: false,
            private_label: false,
            refuse_with: None,
            job: false,
        }
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

    pub(crate) fn tell_mismatch(&self, mismatch: &Mismatch) {
        if let Some(tell) = &self.on_mismatch {
            tell(mismatch);
        }
    }

    pub(crate) fn refusal_answer(&self, refusal: &Refusal) -> Option<Answer> {
        self.refuse_with.as_ref().and_then(|refuse| refuse(refusal))
    }
}

/// Every choice; of a hook only that there is one.
impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Policy")
            .field("profile", &self.profile)
            .field("identity", &self.identity)
            .field("syntax", &self.identity.syntax())
            .field("token", &self.token)
            .field("optional", &self.optional)
            .field("scope", &self.scope)
            .field("business_key", &self.business_key)
            .field("compared", &self.compared)
            .field("verify", &self.verify.is_some())
            .field("on_mismatch", &self.on_mismatch.is_some())
            .field("refuse_with", &self.refuse_with.is_some())
            .field("keep_if", &self.keep_if.is_some())
            .field("wait", &self.wait)
            .field("call_within", &self.call_within)
            .field("claim_within", &self.claim_within)
            .field("lease", &self.lease)
            .field("retention", &self.retention)
            .field("hold", &self.hold)
            .field("max_run", &self.longest_run())
            .field("body_limit", &self.body_limit)
            .field("body_within", &self.body_within)
            .field("answer_limit", &self.answer_limit)
            .field("statuses", &self.statuses)
            .field("on_abandoned", &self.on_abandoned)
            .field("ledger", &self.ledger.is_some())
            .field("run_unprotected", &self.run_unprotected)
            .field("observe", &self.observe)
            .field("keep_cookies", &self.keep_cookies)
            .field("private_label", &self.private_label)
            .field("job", &self.job)
            .finish()
    }
}

impl fmt::Debug for OnAbandoned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Refuse => "Refuse",
            Self::Rerun => "Rerun",
            Self::Resolve(_) => "Resolve",
            Self::Ledger => "Ledger",
        })
    }
}
