//! The layer in the middle of other people's layers, routers and servers, over real HTTP.

mod axum_places;
mod bodies;
mod grpc;
mod layers;
mod plain_hyper;
mod properties;
mod resets;
mod whole_stack;

use std::{
    convert::Infallible,
    error::Error,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body::Body;
use http_body_util::{BodyExt, Full};
use tower::Service;
use tower_idempotency::{IdempotencyLayer, MemoryStore, Policy, Rule, Scope};
use tower_idempotency_test_support::{Http2Answer, Runs};

type BoxError = Box<dyn Error + Send + Sync>;

const REPLAYED: &str = "idempotent-replayed";

/// Answers with what it was sent, and counts. It takes any body, as every layer inside may make
/// another of it.
#[derive(Clone, Debug, Default)]
struct Handler {
    runs: Runs,
}

impl<B> Service<Request<B>> for Handler
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let run = self.runs.add();
        Box::pin(async move {
            let (head, body) = request.into_parts();
            if head.headers.contains_key("x-panic") {
                panic!("the handler was told to");
            }
            if head.headers.contains_key("x-hang") {
                std::future::pending::<()>().await;
            }
            let Ok(body) = body.collect().await else {
                let mut response = Response::new(Full::from("no whole body"));
                *response.status_mut() = StatusCode::PAYLOAD_TOO_LARGE;
                return Ok(response);
            };
            let echo = [format!("run {run}: ").as_bytes(), &body.to_bytes()].concat();
            let mut response = Response::new(Full::from(echo));
            response.headers_mut().insert("content-type", "text/plain".parse().unwrap());
            Ok(response)
        })
    }
}

/// The layer over a store of its own, for every path, with the key in `Idempotency-Key`.
fn layer() -> IdempotencyLayer {
    IdempotencyLayer::new(MemoryStore::new(), Rule::new("pay", Policy::api(Scope::everyone())))
}

fn post(key: &str) -> Request<&'static str> {
    let request = Request::post("/pay").header("idempotency-key", key);
    request.body("a payment").unwrap()
}

fn is_replay(answer: &Http2Answer) -> bool {
    answer.headers.get(REPLAYED).is_some_and(|value| value == "true")
}

/// The last part of the problem's type.
fn problem(answer: &Http2Answer) -> String {
    let text = String::from_utf8_lossy(&answer.body);
    let (_, kind) = text.split_once("/problems/").unwrap_or_else(|| panic!("{text} is no problem"));
    kind.split('/').next().unwrap_or_default().replace('_', "-")
}
