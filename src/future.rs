//! The future of a response.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use http::Response;
use pin_project_lite::pin_project;
use tracing::{Instrument, Span};

use crate::body::ResponseBody;

type Protected<R, E> = Pin<Box<dyn Future<Output = Result<Response<ResponseBody<R>>, E>> + Send>>;

pin_project! {
    /// The future of [`Idempotency`](crate::Idempotency): the inner service's own where no rule
    /// matched, without a box around it.
    ///
    /// # Cancel safety
    ///
    /// Dropped before the grant, what was claimed is called off. Dropped after it, the handler goes
    /// on in a task of its own, and its answer is stored.
    pub struct ResponseFuture<F, R, E> {
        #[pin]
        state: State<F, R, E>,
    }
}

pin_project! {
    #[project = StateProjection]
    enum State<F, R, E> {
        Untouched { #[pin] future: F },
        Protected { future: Protected<R, E> },
    }
}

impl<F, R, E> ResponseFuture<F, R, E> {
    pub(crate) fn untouched(future: F) -> Self {
        Self { state: State::Untouched { future } }
    }

    pub(crate) fn protected(
        future: impl Future<Output = Result<Response<ResponseBody<R>>, E>> + Send + 'static,
        span: Span,
    ) -> Self {
        // The span is in the box: around it, it would make the futures larger that only pass through.
        Self { state: State::Protected { future: Box::pin(future.instrument(span)) } }
    }
}

impl<F, R, E> Future for ResponseFuture<F, R, E>
where
    F: Future<Output = Result<Response<R>, E>>,
{
    type Output = Result<Response<ResponseBody<R>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().state.project() {
            StateProjection::Untouched { future } => {
                let response = ready!(future.poll(cx))?;
                Poll::Ready(Ok(response.map(ResponseBody::untouched)))
            }
            StateProjection::Protected { future } => future.as_mut().poll(cx),
        }
    }
}

impl<F, R, E> fmt::Debug for ResponseFuture<F, R, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.state {
            State::Untouched { .. } => "ResponseFuture::Untouched",
            State::Protected { .. } => "ResponseFuture::Protected",
        })
    }
}
