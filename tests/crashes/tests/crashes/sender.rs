//! A sender that delivers each notification until it is acknowledged.

use std::time::{Duration, Instant};

use http::{Request, StatusCode};
use serde_json::json;
use tokio::time::sleep;
use tower_idempotency_test_support::Server;

use crate::site::{Doors, account, till};

/// After that long a notification that is not acknowledged is a key that stays busy while nobody runs.
const ACKNOWLEDGED_WITHIN: Duration = Duration::from_secs(60);

/// How long the sender waits for an answer, as gateways do.
const ANSWERED_WITHIN: Duration = Duration::from_secs(10);

/// Where a notification goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// A gateway's webhook: a success, or it comes again.
    Notify,
    /// A client that pays: the bank's refusal is an answer too.
    Pay,
}

/// One notification of an order.
#[derive(Clone, Debug)]
pub(crate) struct Notification {
    pub(crate) order: String,
    pub(crate) id: String,
    pub(crate) route: Route,
    account: String,
    till: String,
    amount: usize,
}

/// What a sender heard.
#[derive(Clone, Debug)]
pub(crate) struct Heard {
    pub(crate) order: String,
    pub(crate) id: String,
    pub(crate) end: End,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Acknowledged {
        status: u16,
        content_type: String,
        text: String,
    },
    /// The last that was heard.
    Never(String),
    /// What no route of this shop answers.
    Unexpected(String),
}

impl Notification {
    /// The n-th notification of the order of this number.
    pub(crate) fn new(number: usize, n: usize, route: Route) -> Self {
        let order = order(number, route);
        let id = format!("N-{order}-{n}");
        let (account, till) = (account(number), till(number));
        Self { order, id, route, account, till, amount: 100 + number % 7 }
    }

    /// Delivers it to one process; none if there was no answer.
    async fn deliver(&self, doors: &Doors, to: usize) -> Option<End> {
        self.deliver_and_wait(doors, to, ANSWERED_WITHIN).await
    }

    /// The same of a client that waits so long.
    pub(crate) async fn deliver_and_wait(
        &self,
        doors: &Doors,
        to: usize,
        within: Duration,
    ) -> Option<End> {
        let path = match self.route {
            Route::Notify => "/notify",
            Route::Pay => "/pay",
        };
        let body = json!({
            "notifyId": self.id,
            "orderId": self.order,
            "event": "PAID",
            "account": self.account,
            "till": self.till,
            "amount": self.amount,
        });
        let request = Request::post(path).header("content-type", "application/json");
        let request = request.body(body.to_string()).expect("these are all valid");
        let answer = Server::attempt(doors.get(to), request, within).await?;
        let content_type = format!("{:?}", answer.headers().get("content-type"));
        let status = answer.status();
        let text = String::from_utf8_lossy(answer.body()).into_owned();
        Some(match (self.route, status) {
            (_, StatusCode::OK) | (Route::Pay, StatusCode::PAYMENT_REQUIRED) => {
                End::Acknowledged { status: status.as_u16(), content_type, text }
            }
            (_, StatusCode::SERVICE_UNAVAILABLE) | (Route::Pay, StatusCode::CONFLICT) => {
                End::Never(format!("{status} {text}"))
            }
            _ => End::Unexpected(format!("{status} {text}")),
        })
    }

    /// Delivers it until it is acknowledged, to one process after the other from this one on.
    pub(crate) async fn until_acknowledged(self, doors: Doors, mut to: usize) -> Heard {
        let started = Instant::now();
        let (mut last, mut pause) = (String::from("nothing"), Duration::from_millis(50));
        let end = loop {
            match self.deliver(&doors, to).await {
                Some(End::Never(said)) => last = said,
                Some(end) => break end,
                None => {}
            }
            if started.elapsed() > ACKNOWLEDGED_WITHIN {
                break End::Never(last);
            }
            sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(400));
            to += 1;
        };
        Heard { order: self.order, id: self.id, end }
    }
}

/// The order of this number.
pub(crate) fn order(number: usize, route: Route) -> String {
    format!("O-{route:?}-{number}")
}
