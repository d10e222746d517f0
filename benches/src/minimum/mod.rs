//! What somebody would write by hand who needs this one case and nothing else: claim, run, save,
//! replay; no body read whole, no fingerprint, no lease, no recovery, nothing that outlives a client.
//!
//! It is the floor that the layer is measured against, not something to use.

mod memory;
mod record;
mod redis;

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll},
};

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::BodyExt;
use pin_project_lite::pin_project;
use tower::{Layer, Service};

use crate::app::KEY;

pub use memory::Memory;
pub use redis::Redis;

/// How long an answer is kept, in the minimum and under the layer.
pub const RETENTION_MS: u64 = 120_000;

/// What a claim finds.
#[derive(Debug)]
pub enum Found {
    /// Nothing: this request is the one that runs.
    Granted,
    /// Another request, still running.
    Busy,
    /// An answer.
    Answer(Bytes),
}

/// Where the minimum keeps answers.
pub trait Backend: Clone + Send + Sync + 'static {
    /// Claims `key` unless somebody has it.
    fn claim(&self, key: &str, token: &[u8; 16]) -> impl Future<Output = Found> + Send;

    /// Stores the answer, if `token` still has `key`.
    fn save(&self, key: &str, token: &[u8; 16], answer: Bytes) -> impl Future<Output = ()> + Send;
}

/// The minimum as a layer.
#[derive(Clone, Debug)]
pub struct Minimum<K> {
    backend: K,
}

impl<K: Backend> Minimum<K> {
    /// The minimum over `backend`.
    pub fn new(backend: K) -> Self {
        Self { backend }
    }
}

/// Made by [`Minimum`].
#[derive(Clone, Debug)]
pub struct MinimumService<S, K> {
    inner: S,
    backend: K,
}

impl<S, K: Backend> Layer<S> for Minimum<K> {
    type Service = MinimumService<S, K>;

    fn layer(&self, inner: S) -> Self::Service {
        MinimumService { inner, backend: self.backend.clone() }
    }
}

type Protected<E> = Pin<Box<dyn Future<Output = Result<Response<Body>, E>> + Send>>;

pin_project! {
    /// The inner service's future where there is no key.
    pub struct MinimumFuture<F, E> {
        #[pin]
        state: State<F, E>,
    }
}

pin_project! {
    #[project = Projection]
    enum State<F, E> {
        Untouched { #[pin] future: F },
        Protected { future: Protected<E> },
    }
}

impl<F, E> Future for MinimumFuture<F, E>
where
    F: Future<Output = Result<Response<Body>, E>>,
{
    type Output = Result<Response<Body>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().state.project() {
            Projection::Untouched { future } => future.poll(cx),
            Projection::Protected { future } => future.as_mut().poll(cx),
        }
    }
}

impl<F, E> fmt::Debug for MinimumFuture<F, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MinimumFuture")
    }
}

impl<S, K> Service<Request<Body>> for MinimumService<S, K>
where
    S: Service<Request<Body>, Response = Response<Body>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send,
    K: Backend,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = MinimumFuture<S::Future, S::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let Some(key) = request.headers().get(KEY).cloned() else {
            return MinimumFuture { state: State::Untouched { future: self.inner.call(request) } };
        };
        let unready = self.inner.clone();
        let inner = std::mem::replace(&mut self.inner, unready);
        let future = run(inner, self.backend.clone(), key, request);
        MinimumFuture { state: State::Protected { future: Box::pin(future) } }
    }
}

async fn run<S, K>(
    mut inner: S,
    backend: K,
    key: HeaderValue,
    request: Request<Body>,
) -> Result<Response<Body>, S::Error>
where
    S: Service<Request<Body>, Response = Response<Body>>,
    K: Backend,
{
    let Ok(key) = key.to_str() else { return Ok(refusal(StatusCode::BAD_REQUEST)) };
    // As random as the layer's, and from the same source.
    let token = tower_idempotency::ClaimToken::random();
    match backend.claim(key, token.as_bytes()).await {
        Found::Granted => {}
        Found::Busy => return Ok(refusal(StatusCode::CONFLICT)),
        Found::Answer(answer) => return Ok(record::replay(answer)),
    }
    let (head, body) = inner.call(request).await?.into_parts();
    let Ok(body) = body.collect().await else {
        return Ok(refusal(StatusCode::INTERNAL_SERVER_ERROR));
    };
    let body = body.to_bytes();
    backend.save(key, token.as_bytes(), record::encode(&head, &body)).await;
    Ok(Response::from_parts(head, Body::from(body)))
}

fn refusal(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    response
}
