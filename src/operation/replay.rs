//! Answers that do not come from the handler: stored ones, and refusals.

use std::time::Duration;

use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, Response,
    header::{self, CONNECTION, Entry},
};

use super::{Handled, subject::Subject};
use crate::{
    body::{ResponseBody, Whole},
    policy::{Policy, Profile},
    record::{Answer, decode},
    refusal::{Refusal, RefusalKind, is_grpc},
};

/// On replays alone; a handler's own header of this name is taken away.
pub(super) const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// Nobody is asked to come again earlier.
const LEAST_PAUSE: Duration = Duration::from_secs(1);

/// The stored answer as a response, or why it cannot be given.
pub(super) fn replay<R>(
    subject: &Subject,
    payload: Bytes,
) -> Result<Response<ResponseBody<R>>, Refusal> {
    let answer = stored(subject, payload)?;
    // A kept head alone is an answer to a sender that reads the status; gRPC's stood in the trailers.
    let head_is_no_answer =
        subject.rule.policy().profile == Profile::Api || is_grpc(answer.headers());
    if answer.body().is_none() && head_is_no_answer {
        return Err(Refusal::answer_not_kept());
    }
    let mut response = respond(answer);
    response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    response.extensions_mut().insert(Handled::Replayed);
    Ok(response)
}

/// The stored answer, or why it cannot be read.
pub(super) fn stored(subject: &Subject, payload: Bytes) -> Result<Answer, Refusal> {
    decode(&subject.record, payload).map(|stored| stored.answer).map_err(|unreadable| {
        unreadable.report(&subject.record);
        Refusal::unreadable()
    })
}

/// Says no, in the way the policy and the protocol want it.
pub(super) fn refuse<R>(
    policy: &Policy,
    refusal: Refusal,
    grpc: bool,
) -> Response<ResponseBody<R>> {
    let own = refusal.own_answer().cloned().or_else(|| policy.refusal_answer(&refusal));
    let answer = own.unwrap_or_else(|| if grpc { refusal.to_grpc() } else { refusal.to_problem() });
    let mut response = respond(answer);
    response.extensions_mut().insert(refusal);
    response
}

fn respond<R>(answer: Answer) -> Response<ResponseBody<R>> {
    let (status, mut headers, data, trailers) = answer.into_parts();
    if let Some(trailers) = &trailers {
        announce(trailers, &mut headers);
    }
    let whole = Whole { data: data.unwrap_or_default(), trailers };
    let mut response = Response::new(ResponseBody::whole(whole));
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

/// RFC 9110, section 6.6.2. Over HTTP/1.1 servers send only the trailers that the head announces, and
/// the handler's own announcement belonged to its connection.
fn announce(trailers: &HeaderMap, headers: &mut HeaderMap) {
    for name in trailers.keys() {
        headers.append(header::TRAILER, HeaderValue::from(name.clone()));
    }
}

impl Refusal {
    fn answer_not_kept() -> Self {
        Self::new(
            RefusalKind::AnswerNotKept,
            "the request was handled before, and is not handled again; its answer was too large \
             to be kept",
        )
    }

    pub(super) fn unreadable() -> Self {
        Self::new(
            RefusalKind::RecordUnreadable,
            "what is stored for this identity cannot be read; nothing was run",
        )
        .with_retry_after(Duration::from_secs(60))
    }

    pub(super) fn store_unavailable() -> Self {
        Self::new(
            RefusalKind::StoreUnavailable,
            "the store of idempotency keys cannot be asked; nothing was run, send it again",
        )
        .with_retry_after(LEAST_PAUSE)
    }

    /// The same, and it is not worth to come earlier.
    pub(super) fn not_before(self, after: Option<Duration>) -> Self {
        match after {
            Some(after) => self.with_retry_after(after.max(LEAST_PAUSE)),
            None => self,
        }
    }
}

/// What is stored of an answer's headers: those that belong to the answer, and not to one connection,
/// one caller or one moment.
pub(super) fn stored_headers(headers: &HeaderMap, keep_cookies: bool) -> HeaderMap {
    let named_by_connection = connection_options(headers);
    // By names: for as many lines as a field may have there need be no map.
    let mut stored = HeaderMap::with_capacity(headers.keys_len());
    for (name, value) in headers {
        let kept = match *name {
            header::SET_COOKIE => keep_cookies,
            _ => !is_never_stored(name) && !named_by_connection.contains(name),
        };
        if kept {
            match stored.entry(name) {
                Entry::Occupied(mut entry) => entry.append(value.clone()),
                Entry::Vacant(entry) => {
                    entry.insert(value.clone());
                }
            }
        }
    }
    stored
}

/// The same of an answer's trailers, if any is left.
pub(super) fn stored_trailers(trailers: &HeaderMap, keep_cookies: bool) -> Option<Box<HeaderMap>> {
    let stored = stored_headers(trailers, keep_cookies);
    (!stored.is_empty()).then(|| Box::new(stored))
}

/// RFC 9110, section 7.6.1: a field named in `Connection` is for that connection alone.
fn connection_options(headers: &HeaderMap) -> Vec<HeaderName> {
    headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|option| HeaderName::from_bytes(option.trim().as_bytes()).ok())
        .collect()
}

fn is_never_stored(name: &HeaderName) -> bool {
    let name = name.as_str();
    matches!(
        name,
        // Hop by hop, RFC 9110, section 7.6.1.
        "connection" | "keep-alive" | "te" | "trailer" | "transfer-encoding" | "upgrade"
        // Written anew from the body that is sent.
        | "content-length"
        // Of one moment.
        | "date" | "age" | "server-timing"
        // Of one caller.
        | "www-authenticate" | "authentication-info"
        // Of one request and its trace.
        | "traceparent" | "tracestate" | "traceresponse" | "baggage" | "b3" | "uber-trace-id"
        | "x-amzn-trace-id" | "x-cloud-trace-context" | "request-id" | "x-request-id"
        | "x-correlation-id"
        | "idempotent-replayed"
    ) || name.starts_with("proxy-")
        || name.starts_with("access-control-")
        || name.starts_with("x-b3-")
        || name.starts_with("ratelimit")
        || name.starts_with("x-ratelimit")
        || name.starts_with("x-rate-limit")
}
