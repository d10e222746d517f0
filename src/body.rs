//! The bodies that go in and out of the layer: as they were, or read whole.

use std::{
    collections::VecDeque,
    error::Error,
    fmt,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

pub(crate) type BoxError = Box<dyn Error + Send + Sync>;

/// A body that was read to its end: its bytes, and its trailers if it had any.
#[derive(Debug, Default)]
pub(crate) struct Whole {
    pub(crate) data: Bytes,
    pub(crate) trailers: Option<Box<HeaderMap>>,
}

impl Whole {
    fn next_frame(&mut self) -> Option<Frame<Bytes>> {
        if !self.data.is_empty() {
            return Some(Frame::data(std::mem::take(&mut self.data)));
        }
        self.trailers.take().map(|trailers| Frame::trailers(*trailers))
    }

    fn is_end(&self) -> bool {
        self.data.is_empty() && self.trailers.is_none()
    }

    /// Exact only without trailers: over HTTP/1.1 a body of a known length cannot have any.
    fn size_hint(&self) -> SizeHint {
        let length = self.data.len() as u64;
        if self.trailers.is_none() {
            return SizeHint::with_exact(length);
        }
        let mut hint = SizeHint::new();
        hint.set_lower(length);
        hint
    }
}

pin_project! {
    /// The body of a request as the inner service gets it.
    ///
    /// Where no rule matched it is the body as it came; else it has been read whole, and its bytes
    /// and trailers are the ones that were sent. Its errors are those of the body as it came; one that
    /// was read whole has none. An axum handler sees nothing of it. Under
    /// [`Policy::observe`](crate::Policy::observe) one that is too large or too slow is what was read of
    /// it, and then the rest as it comes.
    #[derive(Debug)]
    pub struct RequestBody<B> {
        #[pin]
        inner: RequestKind<B>,
    }
}

pin_project! {
    #[derive(Debug)]
    #[project = RequestProjection]
    enum RequestKind<B> {
        Untouched { #[pin] body: B },
        // In a box, so that a body that passes through is no larger for it.
        Whole { whole: Box<Whole> },
        Begun { begun: Box<Begun<B>> },
    }
}

/// A body of which some was read.
#[derive(Debug)]
struct Begun<B> {
    chunks: VecDeque<Bytes>,
    rest: Pin<Box<B>>,
}

impl<B> RequestBody<B> {
    pub(crate) fn untouched(body: B) -> Self {
        Self { inner: RequestKind::Untouched { body } }
    }

    pub(crate) fn whole(whole: Whole) -> Self {
        Self { inner: RequestKind::Whole { whole: Box::new(whole) } }
    }

    /// What was read, and then the rest as it comes.
    pub(crate) fn begun(chunks: VecDeque<Bytes>, rest: Pin<Box<B>>) -> Self {
        Self { inner: RequestKind::Begun { begun: Box::new(Begun { chunks, rest }) } }
    }
}

impl<B> Default for RequestBody<B> {
    fn default() -> Self {
        Self::whole(Whole::default())
    }
}

impl<B> Body for RequestBody<B>
where
    B: Body<Data = Bytes>,
{
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match self.project().inner.project() {
            RequestProjection::Untouched { body } => body.poll_frame(cx),
            RequestProjection::Whole { whole } => Poll::Ready(whole.next_frame().map(Ok)),
            RequestProjection::Begun { begun } => match begun.chunks.pop_front() {
                Some(chunk) => Poll::Ready(Some(Ok(Frame::data(chunk)))),
                None => begun.rest.as_mut().poll_frame(cx),
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.inner {
            RequestKind::Untouched { body } => body.is_end_stream(),
            RequestKind::Whole { whole } => whole.is_end(),
            RequestKind::Begun { begun } => begun.chunks.is_empty() && begun.rest.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.inner {
            RequestKind::Untouched { body } => body.size_hint(),
            RequestKind::Whole { whole } => whole.size_hint(),
            RequestKind::Begun { begun } => longer(begun.rest.size_hint(), &begun.chunks),
        }
    }
}

pin_project! {
    /// The body of a response as it leaves the layer.
    ///
    /// Where no rule matched it is the inner service's own. Else it is what was captured or stored,
    /// or, where that was too large or had no end in time, what was captured so far and then the
    /// rest as it comes. Its errors are the inner service's, boxed.
    pub struct ResponseBody<R> {
        #[pin]
        inner: ResponseKind<R>,
    }
}

pin_project! {
    #[project = ResponseProjection]
    enum ResponseKind<R> {
        Untouched { #[pin] body: R },
        // In a box, so that a body that passes through is no larger for it.
        Held { held: Box<Held<R>> },
    }
}

/// A body of which all or some was read.
enum Held<R> {
    Whole(Whole),
    Unfinished { chunks: VecDeque<Bytes>, rest: Pin<Box<R>> },
    Broken { chunks: VecDeque<Bytes>, error: Option<BoxError> },
}

impl<R> ResponseBody<R> {
    pub(crate) fn untouched(body: R) -> Self {
        Self { inner: ResponseKind::Untouched { body } }
    }

    pub(crate) fn whole(whole: Whole) -> Self {
        Self::held(Held::Whole(whole))
    }

    pub(crate) fn unfinished(chunks: VecDeque<Bytes>, rest: Pin<Box<R>>) -> Self {
        Self::held(Held::Unfinished { chunks, rest })
    }

    pub(crate) fn broken(chunks: VecDeque<Bytes>, error: BoxError) -> Self {
        Self::held(Held::Broken { chunks, error: Some(error) })
    }

    fn held(held: Held<R>) -> Self {
        Self { inner: ResponseKind::Held { held: Box::new(held) } }
    }
}

impl<R> Default for ResponseBody<R> {
    /// An empty body. tower-http's `TimeoutLayer` and `CorsLayer` ask it of what they wrap.
    fn default() -> Self {
        Self::whole(Whole::default())
    }
}

impl<R> fmt::Debug for ResponseBody<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.inner {
            ResponseKind::Untouched { .. } => "ResponseBody::Untouched",
            ResponseKind::Held { held } => match **held {
                Held::Whole(_) => "ResponseBody::Whole",
                Held::Unfinished { .. } => "ResponseBody::Unfinished",
                Held::Broken { .. } => "ResponseBody::Broken",
            },
        })
    }
}

impl<R> Body for ResponseBody<R>
where
    R: Body<Data = Bytes>,
    R::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self.project().inner.project() {
            ResponseProjection::Untouched { body } => body.poll_frame(cx).map_err(Into::into),
            ResponseProjection::Held { held } => held.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.inner {
            ResponseKind::Untouched { body } => body.is_end_stream(),
            ResponseKind::Held { held } => held.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.inner {
            ResponseKind::Untouched { body } => body.size_hint(),
            ResponseKind::Held { held } => held.size_hint(),
        }
    }
}

impl<R> Held<R>
where
    R: Body<Data = Bytes>,
    R::Error: Into<BoxError>,
{
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = match self {
            Self::Whole(whole) => whole.next_frame().map(Ok),
            Self::Unfinished { chunks, rest } => match chunks.pop_front() {
                Some(chunk) => Some(Ok(Frame::data(chunk))),
                None => return rest.as_mut().poll_frame(cx).map_err(Into::into),
            },
            Self::Broken { chunks, error } => match chunks.pop_front() {
                Some(chunk) => Some(Ok(Frame::data(chunk))),
                None => error.take().map(Err),
            },
        };
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(whole) => whole.is_end(),
            Self::Unfinished { chunks, rest } => chunks.is_empty() && rest.is_end_stream(),
            Self::Broken { chunks, error } => chunks.is_empty() && error.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(whole) => whole.size_hint(),
            Self::Unfinished { chunks, rest } => longer(rest.size_hint(), chunks),
            // What was left to come is not known any more.
            Self::Broken { .. } => SizeHint::new(),
        }
    }
}

/// The size of a body with these chunks before it.
fn longer(rest: SizeHint, chunks: &VecDeque<Bytes>) -> SizeHint {
    let before: u64 = chunks.iter().map(|chunk| chunk.len() as u64).sum();
    let mut hint = SizeHint::new();
    hint.set_lower(rest.lower().saturating_add(before));
    if let Some(upper) = rest.upper().and_then(|upper| upper.checked_add(before)) {
        hint.set_upper(upper);
    }
    hint
}
