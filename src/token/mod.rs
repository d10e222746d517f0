//! One-time tokens: the right to do something once, asked for before it is done.
//!
//! A client asks for a token ([`Tokens::issue`], behind a route of the application), and sends it with the
//! request that acts ([`Policy::token`](crate::Policy::token)). The claim uses it up in the same
//! transition that grants the run. Used again, it gets the first one's answer: a double click gets its
//! result. One that is unknown, has expired or is somebody else's is refused with 403, and nothing runs.
//!
//! A token is 128 random bits. It stands for itself (*free*), or for a *business key*, of which one token at
//! most is outstanding: whoever asks again is given the same one, with the time that is left. It can be
//! bound to a caller and to what must match. The store has the token itself while it is outstanding, and
//! from its use on no more than a keyed hash of it; no log, label, span or `Debug` has it.
//!
//! It fits callers that can be made to ask first: internal calls, forms that are sent twice. A gateway
//! never asks; for that one there are [`Policy::webhook`](crate::Policy::webhook) and a
//! [`Ledger`](crate::Ledger).
//!
//! # What a crash means at each point
//!
//! | a process dies, or an answer is lost | the token | the operation |
//! |---|---|---|
//! | before the issue has reached the store | was never issued | can be asked for again |
//! | after that, before the client has it | is outstanding; asked again for the business key, it is given out; a free one expires | has not begun |
//! | before the claim has reached the store | is outstanding still | has not begun |
//! | after that, before the handler is started (one round trip) | is used up | counts as begun: once the lease is over it is *abandoned*, refused with 409 until it is settled, though nothing ran |
//! | while the handler runs, or before its end has reached the store | is used up | the same, and it may have happened: a resolver, a [`Ledger`](crate::Ledger) or a person settles it. Settled as not done, the same token may be used again |
//! | after that, before the client has the answer | is used up | is done; the same token gets the answer |
//!
//! A lost answer of the issue or of the claim costs nothing but a resend: both are sent again with what
//! they were sent with first, and answered the same. A client that leaves before its claim is answered has
//! it called off: its token may be used still, but a new one may be issued in its place.
//!
//! After an end that says that it did not happen (a refused payment, a 503) the same token may be used
//! again for the same, or another asked for, from which on the first is unknown.
//!
//! # What a loss in the store means
//!
//! Flushed or evicted, an outstanding token is unknown: refused, never let through. So is one that was used,
//! and its answer is not found, unless a process that is alive writes it again: a run that is still going
//! on, and what was completed within the last minute. (Where `RedisStore` has noticed the loss, requests
//! with tokens it does not know are told 503 until that has had its time, and 403 from then on.) But asked
//! for its business key, the store knows nothing, and a new token can run the operation again: that is what
//! a [`Ledger`](crate::Ledger) is for, whose row answers every token of the same caller, and no other caller's. A failover to a replica that lagged can make a used token outstanding
//! again; its run, if its process is alive, writes over that.

mod issuance;
mod print;
mod request;

use std::{fmt, future::Future, sync::Arc, time::Duration};

use tokio::time::{Instant, sleep, timeout_at};

pub use issuance::{Issuance, IssueError, IssueErrorKind};
pub(crate) use print::{of_caller, of_claim};
pub use request::TokenRequest;

use crate::{
    identity::IDENTITY_BYTES_AT_MOST,
    record::{ClaimToken, Kind, OneTimeToken, RecordKey, Secret, State},
    store::{Claim, Claimed, DynStore, Issue, Issued, Store, StoreError, Takeover},
    telemetry,
};

const CALL_WITHIN: Duration = Duration::from_millis(500);
const ISSUE_WITHIN: Duration = Duration::from_millis(1500);
/// Between two sends of an issue that failed at once.
const RESEND_AFTER: Duration = Duration::from_millis(20);
const RESEND_AFTER_AT_MOST: Duration = Duration::from_millis(250);

/// Issues one-time tokens for the rules of a layer over the same store. Clones are the same.
///
/// Put a rate limit before the route that it stands behind: each token is a record in the store until it
/// expires. Authenticate before it, too: where tokens are bound, whoever asks first has the business key's
/// only token.
///
/// # Example: a payment that is sent twice
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// use http::{Request, Response};
/// use tower::{ServiceBuilder, ServiceExt};
/// use tower_idempotency::{
///     IdempotencyLayer, Issuance, MemoryStore, Policy, RequestBody, Rule, Scope, TokenRequest, Tokens,
///     header, json,
/// };
///
/// let store = MemoryStore::new();
/// let policy = Policy::api(Scope::everyone())
///     .token(header("X-Once-Token"), "POST /orders/{id}/payment-token")
///     .business_key(json("/order"));
/// let service = ServiceBuilder::new()
///     .layer(IdempotencyLayer::new(store.clone(), Rule::new("pay", policy)))
///     .service_fn(async |_: Request<RequestBody<String>>| {
///         Ok::<_, std::io::Error>(Response::new("paid".to_owned()))
///     });
/// let pay = async |token: &str| {
///     let request = Request::post("/pay").header("X-Once-Token", token);
///     service.clone().oneshot(request.body(r#"{"order": "O-1"}"#.to_owned()).unwrap()).await.unwrap()
/// };
/// assert_eq!(pay("made-up").await.status(), 403);
///
/// let tokens = Tokens::new(store);
/// let request = || TokenRequest::new("pay").business_key("O-1");
/// let Issuance::Token { token, .. } = tokens.issue(request()).await? else { panic!("it is free") };
/// assert_eq!(pay(&token.to_text()).await.status(), 200);
/// let twice = pay(&token.to_text()).await;
/// assert_eq!((twice.status(), &twice.headers()["idempotent-replayed"]), (200.try_into()?, &"true".parse()?));
/// assert!(matches!(tokens.issue(request()).await?, Issuance::Done));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Tokens {
    store: Arc<dyn DynStore>,
    secret: Option<Secret>,
    call_within: Duration,
    issue_within: Duration,
}

impl Tokens {
    /// Issues into this store: the one that the layer has.
    pub fn new(store: impl Store) -> Self {
        Self {
            store: Arc::new(store),
            secret: None,
            call_within: CALL_WITHIN,
            issue_within: ISSUE_WITHIN,
        }
    }

    /// The secret of the layer ([`IdempotencyLayer::secret`](crate::IdempotencyLayer::secret)). Default:
    /// none.
    ///
    /// Danger: with another one than the layer's, every token is unknown to it.
    #[must_use]
    pub fn secret(mut self, secret: &[u8; 32]) -> Self {
        self.secret = Some(Secret::new(secret));
        self
    }

    /// How long one call of the store may take. Default 500 ms.
    #[must_use]
    pub fn call_within(mut self, within: Duration) -> Self {
        self.call_within = within;
        self
    }

    /// How long an issue may take with all its resends, and as long again the look at an operation that was
    /// begun. Default 1.5 s.
    #[must_use]
    pub fn issue_within(mut self, within: Duration) -> Self {
        self.issue_within = within;
        self
    }

    /// Issues a token, or gives the one that is outstanding.
    ///
    /// Two that ask at once for one business key get the same token. A failing call is sent again, the
    /// same, until its time is over.
    ///
    /// # Errors
    ///
    /// When the store cannot answer, in which case the token may have been issued, but nobody has it; when
    /// what is stored under the key is no record of this version; when the business key has not 1 to 255
    /// bytes.
    ///
    /// # Panics
    ///
    /// Outside of a Tokio runtime with time enabled.
    ///
    /// # Cancel safety
    ///
    /// May be dropped: what was issued then is outstanding, and expires.
    pub async fn issue(&self, request: TokenRequest) -> Result<Issuance, IssueError> {
        let candidate = OneTimeToken::random();
        let key = self.key(&request, &candidate)?;
        let print = request.print(self.secret.as_ref(), &candidate);
        let issue = Issue::new(key, candidate, Some(print), request.ttl);
        let issued = self.insist(|| self.store.clone().issue(issue.clone())).await;
        let issued = issued.inspect_err(|error| {
            telemetry::token_not_issued(&request.rule, &key, error);
        })?;
        match issued {
            Issued::Token { token, remaining, print } => {
                let bound = print == Some(request.print(self.secret.as_ref(), &token));
                telemetry::token_issued(&request.rule, &key, token == candidate, bound);
                Ok(match bound {
                    true => Issuance::Token { token, remaining },
                    false => Issuance::BoundOtherwise { remaining },
                })
            }
            Issued::Taken(State::Completed) => Ok(Issuance::Done),
            Issued::Taken(State::InProgress) => Ok(self.standing(key).await),
            Issued::Taken(state) => Err(unreadable(&key, format!("it is {state:?}"))),
            Issued::Foreign => Err(unreadable(&key, "it is no record of ours".to_owned())),
        }
    }

    fn key(
        &self,
        request: &TokenRequest,
        candidate: &OneTimeToken,
    ) -> Result<RecordKey, IssueError> {
        let scope = [request.rule.as_bytes(), &request.scope];
        let derive = |kind, id| RecordKey::derive(self.secret.as_ref(), &scope, kind, id);
        let Some(business_key) = &request.business_key else {
            return Ok(derive(Kind::Delivery, candidate.name().as_bytes()));
        };
        match business_key.as_bytes().len() {
            1..=IDENTITY_BYTES_AT_MOST => Ok(derive(Kind::Business, business_key.as_bytes())),
            length => Err(IssueError::business_key(length)),
        }
    }

    /// Somebody was granted the operation: whether he is at it.
    async fn standing(&self, key: RecordKey) -> Issuance {
        let look = Claim {
            takeover: Takeover::Refuse,
            ..Claim::new(
                key,
                ClaimToken::random(),
                None,
                self.call_within,
                self.call_within,
                Duration::ZERO,
            )
        };
        match self.insist(|| self.store.clone().claim(Box::new(look.clone()))).await {
            Ok(Claimed::Completed(_)) => Issuance::Done,
            Ok(Claimed::Abandoned(_)) => Issuance::OutcomeUnknown,
            // Changed meanwhile, or not known: whoever asks again is told.
            _ => Issuance::InProgress,
        }
    }

    /// Calls until there is an answer or the time is over.
    async fn insist<T, F>(&self, call: impl Fn() -> F) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        let until = Instant::now() + self.issue_within;
        let mut pause = RESEND_AFTER;
        loop {
            let within = until.min(Instant::now() + self.call_within);
            let answer = timeout_at(within, call()).await;
            let error = match answer.unwrap_or_else(|_| Err(StoreError::too_slow())) {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            if Instant::now() + pause >= until {
                return Err(error);
            }
            sleep(pause.mul_f64(rand::random_range(0.5..1.0))).await;
            pause = (pause * 2).min(RESEND_AFTER_AT_MOST);
        }
    }
}

fn unreadable(key: &RecordKey, why: String) -> IssueError {
    telemetry::record_unreadable(key, &why);
    IssueError::unreadable(why)
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokens")
            .field("call_within", &self.call_within)
            .field("issue_within", &self.issue_within)
            .finish_non_exhaustive()
    }
}
