//! What a token is asked for.

use std::{borrow::Cow, fmt, time::Duration};

use bytes::Bytes;

use super::of_claim;
use crate::{
    fingerprint::{FieldValue, of_values},
    identity::Identity,
    record::{Fingerprint, OneTimeToken, Secret},
};

const TEN_MINUTES: Duration = Duration::from_secs(600);
const SHORTEST: Duration = Duration::from_millis(1);
/// As for the times of a policy.
const LONGEST: Duration = Duration::from_secs(10 * 366 * 24 * 60 * 60);

/// What a token is asked for: a rule, and within it a business key, a caller, what must match.
///
/// # Example: a token for one order and one customer
///
/// ```
/// use std::time::Duration;
/// use tower_idempotency::{FieldValue, TokenRequest};
///
/// # fn main() -> Result<(), tower_idempotency::Refusal> {
/// // For Policy::api(Scope::extension::<Tenant>()).token(..).token_bound_to(Scope::extension::<UserId>())
/// //     .business_key(json("/orderId")).compare([json("/amount"), json("/currency")])
/// let request = TokenRequest::new("pay")
///     .scope("tenant-3")
///     .business_key("O-1")
///     .bound_to("user-7")
///     .must_match([Some(FieldValue::json("960")?), Some(FieldValue::json(r#""CNY""#)?)])
///     .within(Duration::from_secs(120));
/// # let _ = request;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct TokenRequest {
    pub(super) rule: Cow<'static, str>,
    pub(super) scope: Bytes,
    pub(super) business_key: Option<Identity>,
    caller: Option<Bytes>,
    matches: Option<Vec<Option<FieldValue>>>,
    pub(super) ttl: Duration,
}

impl TokenRequest {
    /// A token for the rule of this name: free, bound to nobody, for ten minutes.
    ///
    /// Danger: a token for a rule that has another name is unknown to it.
    pub fn new(rule: impl Into<Cow<'static, str>>) -> Self {
        Self {
            rule: rule.into(),
            scope: Bytes::new(),
            business_key: None,
            caller: None,
            matches: None,
            ttl: TEN_MINUTES,
        }
    }

    /// What the policy's [`Scope`](crate::Scope) says of the request that will bring the token: the
    /// tenant. Default: empty, as with `Scope::everyone()`.
    #[must_use]
    pub fn scope(mut self, scope: impl Into<Bytes>) -> Self {
        self.scope = scope.into();
        self
    }

    /// What the token is for, as the policy's [`business_key`](crate::Policy::business_key) will read it:
    /// 1 to 255 bytes. Of several parts it is [`Identity::joined`]. Default: none, a free token.
    ///
    /// One token at most is outstanding for it. A token for a business key is unknown where the request
    /// has another, and a free one is where the request has any.
    #[must_use]
    pub fn business_key(mut self, key: impl Into<Identity>) -> Self {
        self.business_key = Some(key.into());
        self
    }

    /// Who alone may use it, as [`Policy::token_bound_to`](crate::Policy::token_bound_to) will read it.
    /// Default: nobody in particular.
    ///
    /// With that policy a token that is bound to nobody is unknown, and without it one that is bound.
    #[must_use]
    pub fn bound_to(mut self, caller: impl Into<Bytes>) -> Self {
        self.caller = Some(caller.into());
        self
    }

    /// What the fields must be that the policy compares, in its order; `None` is one that must be absent.
    /// Default: whatever the first request with the token says, which further ones must repeat.
    ///
    /// Another value is refused as a mismatch, with 422, and told to
    /// [`Policy::on_mismatch`](crate::Policy::on_mismatch). It needs
    /// [`Policy::compare`](crate::Policy::compare): under a policy that compares something else, or
    /// another number of fields, nothing matches.
    #[must_use]
    pub fn must_match(mut self, values: impl IntoIterator<Item = Option<FieldValue>>) -> Self {
        self.matches = Some(values.into_iter().collect());
        self
    }

    /// How long it may be used. Default ten minutes; at least 1 ms, and at most ten years, is what any
    /// other is taken for.
    ///
    /// It counts to the first use. What was used is kept for the policy's hold and retention.
    #[must_use]
    pub fn within(mut self, ttl: Duration) -> Self {
        self.ttl = ttl.clamp(SHORTEST, LONGEST);
        self
    }

    /// The fingerprint that this token has if it is issued to this request.
    pub(super) fn print(&self, secret: Option<&Secret>, token: &OneTimeToken) -> Fingerprint {
        let matches = self.matches.as_ref().map(|values| of_values(secret, values));
        of_claim(secret, token, self.caller.as_deref(), matches)
    }
}

/// What it is for, and neither whose nor what must match.
impl fmt::Debug for TokenRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenRequest")
            .field("rule", &self.rule)
            .field("business_key", &self.business_key)
            .field("within", &self.ttl)
            .finish_non_exhaustive()
    }
}
