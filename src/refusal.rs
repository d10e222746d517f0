//! Every way of saying no, as `application/problem+json` or as a gRPC status.

use std::{borrow::Cow, time::Duration};

use http::{
    HeaderMap, HeaderName, HeaderValue, StatusCode,
    header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER},
};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

use crate::record::Answer;

/// Where the page of each problem type is.
const TYPE_BASE: &str = "https://docs.rs/tower-idempotency/latest/tower_idempotency/problems/";

/// Why a request was refused. Each has a page with what client and operator can do: see
/// [`problems`](crate::problems).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RefusalKind {
    /// The request has no identity, and the policy demands one.
    IdentityMissing,
    /// The identity cannot be one.
    IdentityMalformed,
    /// The body ended before it was whole.
    BodyCutShort,
    /// The body has more bytes than the policy allows.
    BodyTooLarge,
    /// The body took longer than the policy allows.
    BodyTooSlow,
    /// The identity was used for another request.
    Mismatch,
    /// The operation is being executed by another delivery.
    InProgress,
    /// The operation was started and nobody knows whether it happened.
    OutcomeUnknown,
    /// The operation is done; its answer was not kept.
    AnswerNotKept,
    /// A one-time token is demanded, and the request has none.
    TokenMissing,
    /// The one-time token is unknown, expired or another's.
    TokenUnknown,
    /// The store cannot answer; nothing was run.
    StoreUnavailable,
    /// What is stored for the identity cannot be read; nothing was run.
    RecordUnreadable,
    /// The server is about to stop; nothing was run.
    ShuttingDown,
    /// The request does not say in whose scope the identity is: a mistake of the server.
    ScopeMissing,
    /// The request is not from whom it says it is.
    NotVerified,
    /// The operation is known by the id of its delivery, but may only run under its business key.
    BusinessKeyMissing,
}

impl RefusalKind {
    /// All there are, for metrics that begin at zero.
    #[cfg(feature = "metrics")]
    pub(crate) const ALL: [Self; 17] = [
        Self::IdentityMissing,
        Self::IdentityMalformed,
        Self::BodyCutShort,
        Self::BodyTooLarge,
        Self::BodyTooSlow,
        Self::Mismatch,
        Self::InProgress,
        Self::OutcomeUnknown,
        Self::AnswerNotKept,
        Self::TokenMissing,
        Self::TokenUnknown,
        Self::StoreUnavailable,
        Self::RecordUnreadable,
        Self::ShuttingDown,
        Self::ScopeMissing,
        Self::NotVerified,
        Self::BusinessKeyMissing,
    ];

    /// Its name in words: `identity-missing`. It never changes: it is the name of its page in
    /// [`problems`](crate::problems), part of the problem's `type`, and the beginning of a
    /// `grpc-message`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::IdentityMissing => "identity-missing",
            Self::IdentityMalformed => "identity-malformed",
            Self::BodyCutShort => "body-cut-short",
            Self::BodyTooLarge => "body-too-large",
            Self::BodyTooSlow => "body-too-slow",
            Self::Mismatch => "mismatch",
            Self::InProgress => "in-progress",
            Self::OutcomeUnknown => "outcome-unknown",
            Self::AnswerNotKept => "answer-not-kept",
            Self::TokenMissing => "token-missing",
            Self::TokenUnknown => "token-unknown",
            Self::StoreUnavailable => "store-unavailable",
            Self::RecordUnreadable => "record-unreadable",
            Self::ShuttingDown => "shutting-down",
            Self::ScopeMissing => "scope-missing",
            Self::NotVerified => "not-verified",
            Self::BusinessKeyMissing => "business-key-missing",
        }
    }

    const fn title(self) -> &'static str {
        match self {
            Self::IdentityMissing => "The request has no idempotency key",
            Self::IdentityMalformed => "The idempotency key is malformed",
            Self::BodyCutShort => "The request body was cut short",
            Self::BodyTooLarge => "The request body is too large",
            Self::BodyTooSlow => "The request body took too long",
            Self::Mismatch => "The idempotency key was used for another request",
            Self::InProgress => "A request with this idempotency key is in progress",
            Self::OutcomeUnknown => "The outcome of an earlier request is unknown",
            Self::AnswerNotKept => "The request was handled before; its answer was not kept",
            Self::TokenMissing => "The request has no one-time token",
            Self::TokenUnknown => "The one-time token is not valid",
            Self::StoreUnavailable => "The idempotency store is unavailable",
            Self::RecordUnreadable => "What is stored for this idempotency key cannot be read",
            Self::ShuttingDown => "The server is shutting down",
            Self::ScopeMissing => "The server does not know whose idempotency key this is",
            Self::NotVerified => "The request could not be verified",
            Self::BusinessKeyMissing => "The request does not say which operation it is for",
        }
    }

    const fn status(self) -> StatusCode {
        match self {
            Self::IdentityMissing
            | Self::IdentityMalformed
            | Self::BodyCutShort
            | Self::BusinessKeyMissing => StatusCode::BAD_REQUEST,
            Self::NotVerified => StatusCode::UNAUTHORIZED,
            Self::BodyTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::BodyTooSlow => StatusCode::REQUEST_TIMEOUT,
            Self::Mismatch => StatusCode::UNPROCESSABLE_ENTITY,
            Self::InProgress | Self::OutcomeUnknown | Self::AnswerNotKept => StatusCode::CONFLICT,
            Self::TokenMissing => StatusCode::PRECONDITION_REQUIRED,
            Self::TokenUnknown => StatusCode::FORBIDDEN,
            Self::StoreUnavailable | Self::RecordUnreadable | Self::ShuttingDown => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Self::ScopeMissing => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// The code of `google.rpc` that a gRPC client acts on in the same way.
    fn grpc_status(self, status: StatusCode) -> u8 {
        match self {
            // Whoever is told 400 over HTTP has to mend the request here too.
            Self::ScopeMissing if status == StatusCode::BAD_REQUEST => 3,
            // INVALID_ARGUMENT
            Self::IdentityMissing
            | Self::IdentityMalformed
            | Self::BodyCutShort
            | Self::Mismatch
            | Self::TokenMissing
            | Self::BusinessKeyMissing => 3,
            // DEADLINE_EXCEEDED
            Self::BodyTooSlow => 4,
            // PERMISSION_DENIED
            Self::TokenUnknown => 7,
            // RESOURCE_EXHAUSTED
            Self::BodyTooLarge => 8,
            // FAILED_PRECONDITION: not to be sent again before somebody settled it.
            Self::OutcomeUnknown | Self::AnswerNotKept => 9,
            // ABORTED: to be sent again, a little later.
            Self::InProgress => 10,
            // INTERNAL
            Self::ScopeMissing => 13,
            // UNAUTHENTICATED
            Self::NotVerified => 16,
            // UNAVAILABLE
            Self::StoreUnavailable | Self::RecordUnreadable | Self::ShuttingDown => 14,
        }
    }
}

/// A request was refused; its handler was not run.
///
/// The layer answers it as RFC 9457 problem details (`application/problem+json`) with
/// `Cache-Control: no-store`, or as a gRPC status, or as
/// [`Policy::refuse_with`](crate::Policy::refuse_with) says. It is also an extension of that response,
/// for layers outside. It says nothing of any other request.
///
/// # Example: what a source of identities says no with
///
/// ```
/// use tower_idempotency::{Refusal, RefusalKind};
///
/// let refusal = Refusal::identity_malformed("the order number must have 12 digits");
/// assert_eq!(refusal.kind(), RefusalKind::IdentityMalformed);
/// assert_eq!(refusal.status(), 400);
/// assert!(refusal.type_uri().ends_with("/problems/identity_malformed/index.html"));
/// ```
#[derive(Clone, Debug)]
pub struct Refusal {
    kind: RefusalKind,
    status: StatusCode,
    detail: Cow<'static, str>,
    retry_after: Option<Duration>,
    answer: Option<Box<Answer>>,
}

impl Refusal {
    pub(crate) fn new(kind: RefusalKind, detail: impl Into<Cow<'static, str>>) -> Self {
        Self { kind, status: kind.status(), detail: detail.into(), retry_after: None, answer: None }
    }

    /// The identity in the request cannot be one. `detail` says what is wrong with it and what
    /// would be right; the client reads it.
    pub fn identity_malformed(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(RefusalKind::IdentityMalformed, detail)
    }

    /// The request is not from whom it says it is: 401. `detail` says what was wrong, as far as the
    /// caller may know.
    pub fn not_verified(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(RefusalKind::NotVerified, detail)
    }

    /// The same with an answer of its own, in place of the problem document.
    #[must_use]
    pub fn with_answer(mut self, answer: Answer) -> Self {
        self.status = answer.status();
        self.answer = Some(Box::new(answer));
        self
    }

    /// The answer of its own, if it has one.
    pub(crate) fn own_answer(&self) -> Option<&Answer> {
        self.answer.as_deref()
    }

    pub(crate) fn with_status(mut self, status: StatusCode) -> Self {
        self.status = status;
        self
    }

    pub(crate) fn with_retry_after(mut self, after: Duration) -> Self {
        self.retry_after = Some(after);
        self
    }

    /// Why.
    pub fn kind(&self) -> RefusalKind {
        self.kind
    }

    /// The status of the response, as HTTP says it; gRPC has a code of its own in `grpc-status`.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// What the client reads about it: what was wrong with its request, and what would be right.
    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// When the client may come again, if that is known. A response says it in whole seconds,
    /// rounded up.
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// The URI of the problem's type: the address of its page in [`problems`](crate::problems).
    pub fn type_uri(&self) -> String {
        format!("{TYPE_BASE}{}/index.html", self.kind.name().replace('-', "_"))
    }

    /// This refusal as RFC 9457 problem details: `type`, `title`, `status` and `detail`, with
    /// `Retry-After` where a time is known.
    pub fn to_problem(&self) -> Answer {
        let problem = serde_json::json!({
            "type": self.type_uri(),
            "title": self.kind.title(),
            "status": self.status.as_u16(),
            "detail": self.detail,
        });
        let answer = Answer::json(problem.to_string())
            .with_status(self.status)
            .with_header(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"))
            .with_header(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        match self.retry_after_seconds() {
            Some(seconds) => answer.with_header(RETRY_AFTER, HeaderValue::from(seconds)),
            None => answer,
        }
    }

    /// This refusal as gRPC tells it: 200, with the status in the head.
    pub(crate) fn to_grpc(&self) -> Answer {
        let mut answer = Answer::new(StatusCode::OK)
            .with_header(CONTENT_TYPE, HeaderValue::from_static("application/grpc"))
            .with_header(
                GRPC_STATUS,
                HeaderValue::from(u16::from(self.kind.grpc_status(self.status))),
            );
        let message = format!("{}: {}", self.kind.name(), self.detail);
        let message = utf8_percent_encode(&message, NOT_IN_GRPC_MESSAGE).to_string();
        if let Ok(value) = HeaderValue::try_from(message) {
            answer = answer.with_header(GRPC_MESSAGE, value);
        }
        match self.retry_after {
            Some(after) => answer.with_header(
                GRPC_RETRY_PUSHBACK,
                HeaderValue::from(u64::try_from(after.as_millis()).unwrap_or(u64::MAX)),
            ),
            None => answer,
        }
    }

    fn retry_after_seconds(&self) -> Option<u64> {
        self.retry_after
            .map(|after| after.as_secs().saturating_add(u64::from(after.subsec_nanos() > 0)))
    }
}

pub(crate) const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
/// What gRPC percent-encodes in a `grpc-message`, besides all that is not ASCII.
const NOT_IN_GRPC_MESSAGE: &AsciiSet = &CONTROLS.add(b'%');
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const GRPC_RETRY_PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

/// Whether the message is one of gRPC's (not gRPC-Web's, which has its own framing).
pub(crate) fn is_grpc(headers: &HeaderMap) -> bool {
    let Some(value) = headers.get(CONTENT_TYPE) else { return false };
    match value.as_bytes().strip_prefix(b"application/grpc") {
        Some(rest) => matches!(rest.first(), None | Some(b'+' | b';')),
        None => false,
    }
}
