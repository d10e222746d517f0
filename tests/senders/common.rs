//! What must be so with every sender.

use std::time::Duration;

use http::StatusCode;
use tower_idempotency::{Answer, Outcome, Policy};

use crate::receiver::{Delivery, Heard, Receiver, again};

pub(crate) const MINUTE: Duration = Duration::from_secs(60);
pub(crate) const HOUR: Duration = Duration::from_secs(60 * 60);
pub(crate) const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// A sender as its tests drive it.
pub(crate) struct Sender {
    pub(crate) policy: fn() -> Policy,
    /// What a handler answers that has done it.
    pub(crate) done: Answer,
    /// What it answers that has not.
    pub(crate) failed: Answer,
    pub(crate) first: Delivery,
    /// The same delivery again, as this sender redelivers.
    pub(crate) redelivered: Delivery,
    /// Something else that happened.
    pub(crate) other: Delivery,
}

impl Sender {
    pub(crate) fn receiver(&self) -> Receiver {
        Receiver::new((self.policy)(), self.done.clone())
    }

    fn assert_done(&self, heard: &Heard, replay: bool) {
        assert_eq!(heard.status, self.done.status(), "{heard:?}");
        assert_eq!(heard.body.as_bytes(), self.done.body().unwrap());
        assert_eq!(heard.is_replay(), replay, "{heard:?}");
    }

    /// All of what follows. Returns what the delivery heard that came while another ran.
    pub(crate) async fn keeps_its_promises(&self) -> Heard {
        self.runs_once().await;
        self.runs_again_after_a_failure().await;
        self.is_not_acknowledged_while_nobody_knows().await;
        self.comes_again_while_the_first_runs().await
    }

    async fn runs_once(&self) {
        let receiver = self.receiver();
        self.assert_done(&receiver.deliver(again(&self.first)).await, false);
        for delivery in [&self.redelivered, &self.first, &self.redelivered] {
            self.assert_done(&receiver.deliver(again(delivery)).await, true);
        }
        assert_eq!(receiver.runs.count(), 1);
        self.assert_done(&receiver.deliver(again(&self.other)).await, false);
        assert_eq!(receiver.runs.count(), 2, "something else is another operation");
    }

    async fn runs_again_after_a_failure(&self) {
        let receiver = self.receiver();
        let failures = [
            self.failed.clone(),
            Answer::new(StatusCode::INTERNAL_SERVER_ERROR),
            Answer::new(StatusCode::BAD_REQUEST),
        ];
        for (runs, failed) in failures.into_iter().enumerate() {
            receiver.next(failed.clone());
            let heard = receiver.deliver(again(&self.first)).await;
            assert_eq!((heard.status, heard.is_replay()), (failed.status(), false));
            assert_eq!(receiver.runs.count(), runs + 1);
        }
        self.assert_done(&receiver.deliver(again(&self.redelivered)).await, false);
        self.assert_done(&receiver.deliver(again(&self.first)).await, true);
        assert_eq!(receiver.runs.count(), 4);
    }

    /// Whatever of the 3xx a handler answers, it runs again; then its answer is kept.
    pub(crate) async fn never_hears_a_stored_redirect(&self) {
        let receiver = self.receiver();
        let redirects = [300, 301, 302, 303, 304, 307, 308];
        for (runs, status) in redirects.into_iter().enumerate() {
            let status = StatusCode::from_u16(status).unwrap();
            receiver.next(self.done.clone().with_status(status));
            let heard = receiver.deliver(again(&self.redelivered)).await;
            assert_eq!((heard.status, heard.is_replay()), (status, false));
            assert_eq!(receiver.runs.count(), runs + 1);
        }
        self.assert_done(&receiver.deliver(again(&self.redelivered)).await, false);
        self.assert_done(&receiver.deliver(again(&self.first)).await, true);
    }

    async fn is_not_acknowledged_while_nobody_knows(&self) {
        let receiver = self.receiver();
        receiver.next_says(self.done.clone(), Outcome::Uncertain);
        receiver.deliver(again(&self.first)).await;
        for _ in 0..3 {
            let heard = receiver.deliver(again(&self.redelivered)).await;
            assert_eq!(heard.status, StatusCode::SERVICE_UNAVAILABLE);
            assert_eq!(heard.header("retry-after"), "60");
        }
        assert_eq!(receiver.runs.count(), 1);
    }

    /// Returns what was heard meanwhile.
    async fn comes_again_while_the_first_runs(&self) -> Heard {
        let receiver = self.receiver();
        let begun = receiver.begin(again(&self.first)).await;
        let meanwhile = receiver.deliver(again(&self.redelivered)).await;
        assert_eq!(meanwhile.status, StatusCode::SERVICE_UNAVAILABLE, "{meanwhile:?}");
        assert!(meanwhile.header("retry-after").parse::<u64>().unwrap() >= 1);
        assert_eq!(meanwhile.header("cache-control"), "no-store");
        self.assert_done(&receiver.finish(begun).await, false);
        self.assert_done(&receiver.deliver(again(&self.redelivered)).await, true);
        assert_eq!(receiver.runs.count(), 1);
        meanwhile
    }

    /// With time paused: this long after the first delivery it is still known, and its time is over
    /// when `kept_for` is.
    pub(crate) async fn remembers(&self, redelivered_after: &[Duration], kept_for: Duration) {
        let receiver = self.receiver();
        let start = tokio::time::Instant::now();
        self.assert_done(&receiver.deliver(again(&self.first)).await, false);
        for after in redelivered_after {
            tokio::time::sleep_until(start + *after).await;
            self.assert_done(&receiver.deliver(again(&self.redelivered)).await, true);
        }
        assert!(redelivered_after.iter().max().unwrap() <= &kept_for);
        tokio::time::sleep_until(start + kept_for - MINUTE).await;
        self.assert_done(&receiver.deliver(again(&self.redelivered)).await, true);
        tokio::time::sleep_until(start + kept_for + MINUTE).await;
        self.assert_done(&receiver.deliver(again(&self.redelivered)).await, false);
        assert_eq!(receiver.runs.count(), 2);
    }
}
