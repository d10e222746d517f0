//! What is sent again, how often and when: a policy for tower's `Retry`.

use std::time::Duration;

use http::{Request, Response, StatusCode};
use tokio::time::{Instant, Sleep, sleep_until};
use tower::retry::Policy;

use super::{key::Keyed, retry_after::retry_after};
use crate::telemetry;

/// A policy of `tower::retry` that sends what has a key again, when that may be of use.
///
/// [The module](crate::client) says what that is. A request has a key if a [`KeyLayer`](super::KeyLayer)
/// around has given it one; every other is sent once. Errors of the inner service are passed on as they
/// are.
///
/// It does not end a send that hangs: put tower's `TimeoutLayer` inside of the `Retry`.
#[derive(Clone, Debug)]
pub struct Resend {
    sends: u32,
    within: Duration,
    first_pause: Duration,
    longest_pause: Duration,
    /// When the operation was first sent.
    begun: Option<Instant>,
    sent: u32,
}

impl Default for Resend {
    fn default() -> Self {
        Self {
            sends: 5,
            within: Duration::from_secs(60),
            first_pause: Duration::from_millis(200),
            longest_pause: Duration::from_secs(10),
            begun: None,
            sent: 0,
        }
    }
}

impl Resend {
    /// Five sends within 60 s, with pauses of 200 ms, 400 ms, .. 10 s.
    pub fn new() -> Self {
        Self::default()
    }

    /// How often an operation is sent at most, the first time included. Default 5; 1 sends nothing again.
    #[must_use]
    pub fn sends(self, at_most: u32) -> Self {
        Self { sends: at_most, ..self }
    }

    /// How long after the first send another may begin; what the server asks to wait for counts. Default
    /// 60 s. Who has to wait longer gets the last answer, or the last error, at once.
    #[must_use]
    pub fn within(self, within: Duration) -> Self {
        Self { within, ..self }
    }

    /// The first pause and the longest. It doubles from send to send, and up to half of each is left out by
    /// chance, so that callers do not come in step. Default 200 ms and 10 s.
    #[must_use]
    pub fn pauses(self, first: Duration, longest: Duration) -> Self {
        Self { first_pause: first, longest_pause: longest, ..self }
    }

    /// When to send again, not before this much has passed.
    fn next(&mut self, after: Duration) -> Option<Sleep> {
        let begun = self.begun?;
        self.sent += 1;
        if self.sent >= self.sends {
            return None;
        }
        // Not tower's own backoff: of a pause of whole seconds it makes none by chance.
        let doubled = self.first_pause.saturating_mul(2u32.saturating_pow(self.sent - 1));
        let pause = doubled.min(self.longest_pause).mul_f64(rand::random_range(0.5..1.0));
        let at = Instant::now().checked_add(after)?.checked_add(pause)?;
        (at.saturating_duration_since(begun) <= self.within).then(|| sleep_until(at))
    }
}

impl<B, R, E> Policy<Request<B>, Response<R>, E> for Resend
where
    B: Clone,
{
    type Future = Sleep;

    fn retry(&mut self, _: &mut Request<B>, result: &mut Result<Response<R>, E>) -> Option<Sleep> {
        let (status, after) = match result {
            Ok(response) => (Some(response.status()), worth_sending_again(response)?),
            Err(_) => (None, Duration::ZERO),
        };
        let next = self.next(after)?;
        telemetry::sent_again(self.sent, status, next.deadline() - Instant::now());
        Some(next)
    }

    fn clone_request(&mut self, request: &Request<B>) -> Option<Request<B>> {
        request.extensions().get::<Keyed>()?;
        // Asked before the first send on the policy that all operations share, and before each other send on
        // the operation's own.
        if self.sent == 0 {
            self.begun = Some(Instant::now());
        }
        Some(request.clone())
    }
}

/// How long to wait at least before the request is sent again; `None` if this is its answer.
fn worth_sending_again<R>(response: &Response<R>) -> Option<Duration> {
    let headers = response.headers();
    // It is kept, and will be the same next time.
    if headers.contains_key("idempotent-replayed") {
        return None;
    }
    match response.status() {
        // Without a time it is not in progress: nobody knows what became of it, or it is in the way of
        // something else.
        StatusCode::CONFLICT => retry_after(headers),
        StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT => {
            Some(retry_after(headers).unwrap_or_default())
        }
        _ => None,
    }
}
