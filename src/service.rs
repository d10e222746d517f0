//! The service: passes a request through untouched, or runs it once.

use std::{
    fmt, mem,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Method, Request, Response, header::UPGRADE};
use http_body::Body;
use tower_service::Service;

use crate::{
    body::{BoxError, RequestBody, ResponseBody},
    future::ResponseFuture,
    layer::Configuration,
    operation, telemetry,
};

/// Runs each operation of the inner service once. Made by
/// [`IdempotencyLayer`](crate::IdempotencyLayer).
///
/// A request that no rule is for, and one that opens a tunnel (`CONNECT`, a `GET` with `Upgrade`), go
/// to the inner service untouched. Of every other the body is read whole first.
///
/// It is ready when the inner service is. While a body is read, and while a request waits for another's
/// run, it holds no reservation of the inner service: that is asked for readiness again before each
/// claim, so that what cannot be served now claims nothing.
///
/// # Errors
///
/// Those of the inner service alone. What the layer itself refuses is a response, with a
/// [`Refusal`](crate::Refusal) in its extensions.
#[derive(Clone)]
pub struct Idempotency<S> {
    inner: S,
    configuration: Arc<Configuration>,
}

impl<S> Idempotency<S> {
    pub(crate) fn new(inner: S, configuration: Arc<Configuration>) -> Self {
        Self { inner, configuration }
    }

    /// The inner service.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// The inner service.
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// The inner service.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S: fmt::Debug> fmt::Debug for Idempotency<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Idempotency")
            .field("inner", &self.inner)
            .field("rules", &self.configuration.rules)
            .finish()
    }
}

impl<S, B, R> Service<Request<B>> for Idempotency<S>
where
    S: Service<Request<RequestBody<B>>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
    R: Body<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    type Response = Response<ResponseBody<R>>;
    type Error = S::Error;
    type Future = ResponseFuture<S::Future, R, S::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let rules = &self.configuration.rules;
        let rule = match rules.matching(request.method(), request.uri().path()) {
            Some((place, rule)) if !opens_a_tunnel(&request) => {
                self.configuration.usage.hit(place);
                rule.clone()
            }
            _ => {
                self.configuration.usage.pass(rules);
                let request = request.map(RequestBody::untouched);
                return ResponseFuture::untouched(self.inner.call(request));
            }
        };
        // The reservation that `poll_ready` made is given back while the body is read; the clone that
        // goes along asks again before the claim.
        let inner = self.inner.clone();
        drop(mem::replace(&mut self.inner, inner.clone()));
        let span = telemetry::request_span(rule.name());
        let shared = self.configuration.shared.clone();
        if rule.policy().observe {
            let work = operation::observe(shared, rule, inner, request, span.clone());
            return ResponseFuture::protected(work, span);
        }
        let work = operation::run(shared, rule, inner, request, span.clone());
        ResponseFuture::protected(work, span)
    }
}

/// A tunnel has no answer that could be stored. A POST that merely offers an upgrade, as some clients
/// do with each request (`Upgrade: h2c`), opens none: letting it pass would let anybody pass.
fn opens_a_tunnel<B>(request: &Request<B>) -> bool {
    *request.method() == Method::CONNECT
        || (*request.method() == Method::GET && request.headers().contains_key(UPGRADE))
}
