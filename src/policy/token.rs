//! The choice to demand a one-time token.

use std::{borrow::Cow, fmt};

use bytes::Bytes;
use http::request::Parts;

use super::{Policy, Scope};
use crate::{
    identity::{AnySource, Input, Source},
    record::OneTimeToken,
    refusal::{Refusal, RefusalKind},
};

/// Where a request has its one-time token, where clients get one, and whose it must be.
#[derive(Clone)]
pub(crate) struct Demand {
    source: AnySource,
    from: Cow<'static, str>,
    caller: Option<Scope>,
}

impl Policy {
    /// Demands a one-time token, as [`Tokens`](crate::Tokens) issues it, and uses it up with the claim.
    /// By default none is demanded.
    ///
    /// It stands at `source`: `header("X-Once-Token")`, `form("token")`. `from` says to clients where they
    /// get one: `"POST /orders/{id}/payment-token"`.
    ///
    /// A request without one is refused with 428, which says `from`; one whose token is unknown, has
    /// expired or is another's with 403. Used again, a token gets the first one's answer. In place of the
    /// policy's identity it is the name of the operation, and no `Idempotency-Key` is read; what
    /// [`Operation::key`](crate::Operation::key) tells is a hash of it. With a [`Policy::business_key`]
    /// that is the name, and the token must have been issued for it.
    ///
    /// What must be the same when the token comes again is the policy's own choice, and so is what is
    /// bound at its issue: see [`TokenRequest::must_match`](crate::TokenRequest::must_match).
    ///
    /// With [`Policy::optional`] or [`Policy::run_unprotected`] it is an error of the policy
    /// ([`Policy::check`]): both would let something run without a token.
    ///
    /// Danger: the token in a path or a query stands in logs of servers and proxies.
    ///
    /// # Example: a form that is sent twice
    ///
    /// ```
    /// use tower_idempotency::{Policy, Scope, form};
    ///
    /// let policy = Policy::api(Scope::everyone()).token(form("token"), "GET /order-form");
    /// assert!(policy.check().is_ok());
    /// assert!(policy.optional().check().is_err());
    /// ```
    #[must_use]
    pub fn token(mut self, source: impl Source, from: impl Into<Cow<'static, str>>) -> Self {
        let caller = self.token.take().and_then(|before| before.caller);
        self.token = Some(Demand { source: AnySource::new(source), from: from.into(), caller });
        self
    }

    /// Takes a one-time token only from the caller that it was issued to
    /// ([`TokenRequest::bound_to`](crate::TokenRequest::bound_to)): what this says of the request. By
    /// default, and with `Scope::everyone()`, from whoever has it.
    ///
    /// It differs from the policy's scope: the business keys are the same for all callers in a scope, and
    /// so is the token that is outstanding for one.
    ///
    /// # Panics
    ///
    /// When no token is demanded: write [`Policy::token`] first.
    #[must_use]
    #[track_caller]
    pub fn token_bound_to(mut self, caller: Scope) -> Self {
        if self.try_token_bound_to(caller) {
            return self;
        }
        panic!("Policy::token_bound_to: no token is demanded; write .token(..) before it");
    }

    /// The same without a panic: whether a token is demanded.
    pub(crate) fn try_token_bound_to(&mut self, caller: Scope) -> bool {
        let Some(demand) = &mut self.token else { return false };
        demand.caller = (!caller.is_everyone()).then_some(caller);
        true
    }

    /// Whether the body is needed to know what the request is.
    pub(crate) fn identity_is_in_body(&self) -> bool {
        self.token.as_ref().map_or(&self.identity, |demand| &demand.source).reads_body()
    }
}

impl Demand {
    /// The token of this request.
    ///
    /// What the source has against it is not told, since it may quote what was sent.
    pub(crate) fn read(&self, from: &Input<'_>) -> Result<OneTimeToken, Refusal> {
        let place = self.source.describe();
        match self.source.read(from) {
            Ok(Some(sent)) => {
                OneTimeToken::from_text(sent.as_bytes()).ok_or_else(|| self.unknown())
            }
            Ok(None) => Err(Refusal::new(
                RefusalKind::TokenMissing,
                format!(
                    "{place} is missing: this needs a one-time token; get one from {}",
                    self.from
                ),
            )),
            Err(_) => Err(Refusal::identity_malformed(format!(
                "{place} cannot be read; it must have a one-time token once, as {} gave it",
                self.from
            ))),
        }
    }

    /// Whose token it must be; `None` is nobody's in particular.
    pub(crate) fn caller(&self, head: &Parts) -> Result<Option<Bytes>, Refusal> {
        self.caller.as_ref().map(|caller| caller.read(head)).transpose()
    }

    pub(crate) fn unknown(&self) -> Refusal {
        Refusal::new(
            RefusalKind::TokenUnknown,
            format!(
                "the one-time token is unknown here, has expired, or was issued to somebody else or for \
                 something else; get one from {}",
                self.from
            ),
        )
    }

    /// Where it stands, for messages.
    pub(crate) fn place(&self) -> String {
        self.source.describe()
    }

    /// Where clients get one.
    pub(crate) fn from(&self) -> &str {
        &self.from
    }

    /// Whose it must be, for clients: what the caller is known by.
    pub(crate) fn bound_to(&self) -> Option<String> {
        self.caller.as_ref().map(Scope::describe)
    }

    pub(super) fn fits_pattern(&self, pattern: Option<&str>) -> Result<(), String> {
        self.source.fits_pattern(pattern)
    }

    /// Why this cannot be demanded by this policy, and the mend.
    pub(super) fn wrong(&self, policy: &Policy) -> Option<&'static str> {
        if policy.optional {
            return Some(
                "a one-time token is demanded and .optional() lets requests without one pass; leave \
                 one of them out",
            );
        }
        if policy.run_unprotected {
            return Some(
                "a one-time token is demanded and .run_unprotected() lets requests run without asking \
                 whether theirs is valid; leave one of them out",
            );
        }
        self.from.trim().is_empty().then_some(
            "token(.., from) does not say where clients get a token; name the route, such as \
             \"POST /tokens\"",
        )
    }
}

impl fmt::Debug for Demand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Demand")
            .field("at", &self.source)
            .field("from", &self.from)
            .field("bound_to", &self.caller)
            .finish()
    }
}
