//! The payment gateway: it delivers each notification five times, and each delivery again until it
//! is answered `success`.

use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

use axum::http::{Method, StatusCode};
use tokio::{task::JoinSet, time::sleep};

use crate::{Error, http, notification::Notification};

/// What a shop answers that has understood; the gateway delivers again after anything else.
const SUCCESS: &str = "success";
pub(crate) const DELIVERIES: usize = 5;
/// How often a delivery is tried before the gateway gives it up.
const TRIES: usize = 20;
const PAUSE: Duration = Duration::from_millis(300);

/// What the five deliveries of a notification look like.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Manner {
    /// One after another, each under a new `notifyId`: the gateway has forgotten that it told.
    NewIds,
    OneAfterAnother,
    AtOnce,
}

/// What the gateway has seen.
#[derive(Default)]
pub(crate) struct Tally {
    /// Requests sent, those sent again too.
    pub(crate) requests: usize,
    /// How often each answer came: `success`, `503`.
    pub(crate) answers: BTreeMap<String, usize>,
    /// Deliveries that were answered `success` in the end.
    pub(crate) delivered: usize,
}

/// Delivers the notification five times, to these servers in turn.
pub(crate) async fn notify(
    servers: &[SocketAddr],
    notification: &Notification,
    manner: Manner,
) -> Result<Tally, Error> {
    let mut tally = Tally::default();
    let mut under_way = JoinSet::new();
    for number in 0..DELIVERIES {
        let body = match manner {
            Manner::NewIds => serde_json::to_string(&notification.under_new_id(number))?,
            Manner::OneAfterAnother | Manner::AtOnce => serde_json::to_string(notification)?,
        };
        // Each try goes to the next server, as behind a load balancer.
        let servers = servers.iter().copied().cycle().skip(number).take(TRIES).collect();
        under_way.spawn(deliver(servers, body));
        if manner == Manner::AtOnce && number + 1 < DELIVERIES {
            continue;
        }
        while let Some(answers) = under_way.join_next().await {
            tally.count(answers?);
        }
    }
    Ok(tally)
}

impl Tally {
    fn count(&mut self, answers: Vec<String>) {
        self.requests += answers.len();
        self.delivered += usize::from(answers.last().is_some_and(|last| last == SUCCESS));
        for answer in answers {
            *self.answers.entry(answer).or_default() += 1;
        }
    }
}

/// Delivers to one server after the other until one has answered `success`; returns all answers.
async fn deliver(servers: Vec<SocketAddr>, body: String) -> Vec<String> {
    let mut answers = Vec::new();
    for server in servers {
        let answer = match http::send(server, Method::POST, "/fulfill/callback", body.clone()).await
        {
            Ok((StatusCode::OK, text)) => text,
            Ok((status, _)) => status.as_str().to_owned(),
            Err(_) => "no answer".to_owned(),
        };
        let done = answer == SUCCESS;
        answers.push(answer);
        if done {
            break;
        }
        sleep(PAUSE).await;
    }
    answers
}
