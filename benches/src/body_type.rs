//! A layer that changes the types of the bodies and does nothing else: what any layer costs that has
//! bodies of its own.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tower::{Layer, Service};

/// Puts bodies into a type of its own.
#[derive(Clone, Copy, Debug)]
pub struct BodyType;

/// Made by [`BodyType`].
#[derive(Clone, Debug)]
pub struct BodyTypeService<S> {
    inner: S,
}

impl<S> Layer<S> for BodyType {
    type Service = BodyTypeService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        BodyTypeService { inner }
    }
}

impl<S, B, R> Service<Request<B>> for BodyTypeService<S>
where
    S: Service<Request<Wrapped<B>>, Response = Response<R>>,
{
    type Response = Response<Wrapped<R>>;
    type Error = S::Error;
    type Future = BodyTypeFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        BodyTypeFuture { inner: self.inner.call(request.map(|body| Wrapped { body })) }
    }
}

pin_project! {
    /// The inner service's future.
    #[derive(Debug)]
    pub struct BodyTypeFuture<F> {
        #[pin]
        inner: F,
    }
}

impl<F, R, E> Future for BodyTypeFuture<F>
where
    F: Future<Output = Result<Response<R>, E>>,
{
    type Output = Result<Response<Wrapped<R>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let response = ready!(self.project().inner.poll(cx))?;
        Poll::Ready(Ok(response.map(|body| Wrapped { body })))
    }
}

pin_project! {
    /// A body in a type of its own.
    #[derive(Debug, Default)]
    pub struct Wrapped<B> {
        #[pin]
        body: B,
    }
}

impl<B: Body<Data = Bytes>> Body for Wrapped<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        self.project().body.poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
