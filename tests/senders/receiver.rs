//! A receiver of notifications behind the layer, and what its sender hears.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{Router, body::Body, extract::Request};
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use http_body_util::BodyExt;
use tokio::{sync::Semaphore, task::JoinHandle, time::timeout};
use tower::ServiceExt;
use tower_idempotency::{
    Answer, Deciphered, IdempotencyLayer, MemoryStore, Operation, Outcome, Policy, Rule, Store,
};
use tower_idempotency_test_support::Runs;

/// What a sender sends.
pub(crate) type Delivery = http::Request<Bytes>;

/// What it hears.
#[derive(Debug)]
pub(crate) struct Heard {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

impl Heard {
    pub(crate) fn is_replay(&self) -> bool {
        self.headers.get("idempotent-replayed").is_some_and(|value| value == "true")
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).expect(name).to_str().unwrap()
    }
}

/// What a run saw.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) key: String,
    pub(crate) delivery_id: Option<String>,
    pub(crate) body: Bytes,
    pub(crate) deciphered: Option<Bytes>,
}

/// How a run ends, and what it says of itself.
type End = (Answer, Option<Outcome>);

/// A route that notifications come to, and the layer around it.
#[derive(Clone)]
pub(crate) struct Receiver {
    app: Router,
    pub(crate) runs: Runs,
    seen: Arc<Mutex<Vec<Seen>>>,
    next: Arc<Mutex<VecDeque<End>>>,
    gate: Arc<Semaphore>,
}

const OPEN: usize = 1 << 20;

impl Receiver {
    /// It answers this, if nothing else is planned.
    pub(crate) fn new(policy: Policy, answer: Answer) -> Self {
        Self::with(MemoryStore::new(), Rule::new("notify", policy), answer)
    }

    pub(crate) fn with(store: impl Store, rule: Rule, answer: Answer) -> Self {
        let runs = Runs::new();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let next = Arc::new(Mutex::new(VecDeque::<End>::new()));
        let gate = Arc::new(Semaphore::new(OPEN));
        let handler = {
            let (runs, seen, next, gate) = (runs.clone(), seen.clone(), next.clone(), gate.clone());
            move |request: Request| async move {
                let (head, body) = request.into_parts();
                let operation = head.extensions.get::<Operation>().cloned();
                let run = Seen {
                    key: operation.as_ref().map_or("", Operation::key).to_owned(),
                    delivery_id: operation
                        .as_ref()
                        .and_then(|o| o.delivery_id().map(str::to_owned)),
                    body: body.collect().await.unwrap().to_bytes(),
                    deciphered: head.extensions.get::<Deciphered>().map(|plain| plain.0.clone()),
                };
                seen.lock().unwrap().push(run);
                runs.add();
                gate.acquire().await.unwrap().forget();
                let planned = next.lock().unwrap().pop_front();
                let (answer, outcome) = planned.unwrap_or((answer, None));
                let mut response = answer.into_http().map(Body::from);
                if let Some(outcome) = outcome {
                    response.extensions_mut().insert(outcome);
                }
                response
            }
        };
        let app = Router::new().fallback(handler).layer(IdempotencyLayer::new(store, rule));
        Self { app, runs, seen, next, gate }
    }

    /// The next run ends so.
    pub(crate) fn next(&self, answer: Answer) {
        self.next.lock().unwrap().push_back((answer, None));
    }

    /// The next run ends so, and says so itself.
    pub(crate) fn next_says(&self, answer: Answer, outcome: Outcome) {
        self.next.lock().unwrap().push_back((answer, Some(outcome)));
    }

    pub(crate) fn seen(&self, run: usize) -> Seen {
        self.seen.lock().unwrap()[run].clone()
    }

    pub(crate) fn app(&self) -> Router {
        self.app.clone()
    }

    pub(crate) async fn deliver(&self, delivery: Delivery) -> Heard {
        hear(self.app.clone().oneshot(delivery.map(Body::from)).await.unwrap()).await
    }

    /// Delivers and leaves the run unfinished; [`Receiver::finish`] ends it.
    pub(crate) async fn begin(&self, delivery: Delivery) -> JoinHandle<Heard> {
        self.gate.forget_permits(OPEN);
        let runs = self.runs.count() + 1;
        let receiver = self.clone();
        let first = tokio::spawn(async move { receiver.deliver(delivery).await });
        self.runs.wait_for(runs).await;
        first
    }

    pub(crate) async fn finish(&self, begun: JoinHandle<Heard>) -> Heard {
        self.gate.add_permits(OPEN);
        timeout(Duration::from_secs(20), begun).await.expect("it ends").unwrap()
    }
}

pub(crate) async fn hear(response: axum::response::Response) -> Heard {
    let (head, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let body = String::from_utf8(body.to_vec()).unwrap();
    Heard { status: head.status, headers: head.headers, body }
}

/// A POST with this content type, which has nothing else yet.
pub(crate) fn post(path: &str, content_type: &str, body: impl Into<Bytes>) -> Delivery {
    http::Request::post(path).header("content-type", content_type).body(body.into()).unwrap()
}

/// The same with this header.
pub(crate) fn with_header(mut delivery: Delivery, name: &'static str, value: &str) -> Delivery {
    delivery.headers_mut().insert(name, value.parse().unwrap());
    delivery
}

/// The delivery once more, byte by byte.
pub(crate) fn again(delivery: &Delivery) -> Delivery {
    let mut copy = http::Request::new(delivery.body().clone());
    *copy.method_mut() = delivery.method().clone();
    *copy.uri_mut() = delivery.uri().clone();
    *copy.headers_mut() = delivery.headers().clone();
    copy
}
