//! Bodies read whole: a request's on its way in, an answer's on its way out.

use std::{
    collections::VecDeque,
    error::Error,
    future::poll_fn,
    pin::{Pin, pin},
    task::Poll,
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body::{Body, Frame};
use tokio::{task::yield_now, time::timeout};

use crate::{
    body::{BoxError, RequestBody, Whole},
    refusal::{Refusal, RefusalKind},
};

/// How long an answer may take from its head to its end before it is sent as it comes.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// Chunks as they came, and how much they are. Most bodies have one.
#[derive(Default)]
struct Chunks {
    first: Bytes,
    more: VecDeque<Bytes>,
    bytes: usize,
    trailers: Option<Box<HeaderMap>>,
}

/// Why no more frames are taken.
enum Stop<E> {
    End,
    TooLarge,
    Failed(E),
}

impl Chunks {
    /// Takes frames to the end, or to a limit; `None` if that takes longer than it may.
    async fn read<B>(
        &mut self,
        mut body: Pin<&mut B>,
        limit: usize,
        within: Duration,
    ) -> Option<Stop<B::Error>>
    where
        B: Body<Data = Bytes>,
    {
        let mut reading = pin!(async {
            loop {
                let frame = match poll_fn(|cx| body.as_mut().poll_frame(cx)).await {
                    None => return Stop::End,
                    Some(Err(error)) => return Stop::Failed(error),
                    Some(Ok(frame)) => frame,
                };
                match self.take(frame) {
                    0 => yield_now().await,
                    _ if self.bytes > limit => return Stop::TooLarge,
                    _ => {}
                }
            }
        });
        // Most bodies are there already, and need no timer.
        if let Poll::Ready(stop) = poll_fn(|cx| Poll::Ready(reading.as_mut().poll(cx))).await {
            return Some(stop);
        }
        Box::pin(timeout(within, reading)).await.ok()
    }

    /// Takes a frame, and says how much data it had. Frames without reach no limit; time must be able to
    /// pass between them.
    fn take(&mut self, frame: Frame<Bytes>) -> usize {
        let data = frame.into_data().unwrap_or_else(|frame| {
            if let Ok(trailers) = frame.into_trailers() {
                self.trailers = Some(Box::new(trailers));
            }
            Bytes::new()
        });
        let length = data.len();
        self.bytes = self.bytes.saturating_add(length);
        if self.first.is_empty() {
            self.first = data;
        } else if length > 0 {
            self.more.push_back(data);
        }
        length
    }

    /// In the order in which they came.
    fn into_chunks(self) -> VecDeque<Bytes> {
        let Self { first, more: mut chunks, .. } = self;
        if !first.is_empty() {
            chunks.push_front(first);
        }
        chunks
    }

    /// One chunk is passed on as it is; several are joined.
    fn into_whole(self) -> Whole {
        let Self { first, more, bytes, trailers } = self;
        if more.is_empty() {
            return Whole { data: first, trailers };
        }
        let mut joined = BytesMut::with_capacity(bytes);
        joined.extend_from_slice(&first);
        more.iter().for_each(|chunk| joined.extend_from_slice(chunk));
        Whole { data: joined.freeze(), trailers }
    }
}

/// Reads a request's body whole.
pub(super) async fn request_body<B>(
    body: B,
    limit: usize,
    within: Duration,
) -> Result<Whole, Refusal>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let body = pin!(body);
    if body.is_end_stream() {
        return Ok(Whole::default());
    }
    if body.size_hint().lower() > limit as u64 {
        return Err(too_large(limit));
    }
    let mut chunks = Chunks::default();
    match chunks.read(body, limit, within).await {
        Some(Stop::End) => Ok(chunks.into_whole()),
        Some(Stop::TooLarge) => Err(too_large(limit)),
        Some(Stop::Failed(error)) => Err(broken(&*error.into())),
        None => Err(too_slow(within)),
    }
}

/// Reads a request's body that will be passed on whatever comes of it: whole, or why it would be refused
/// and what is passed on of it. Of a body that broke off there is nothing to pass on.
pub(super) async fn observed_body<B>(
    body: B,
    limit: usize,
    within: Duration,
) -> Result<Whole, (Refusal, Option<RequestBody<B>>)>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    if body.is_end_stream() {
        return Ok(Whole::default());
    }
    if body.size_hint().lower() > limit as u64 {
        return Err((too_large(limit), Some(RequestBody::untouched(body))));
    }
    let mut chunks = Chunks::default();
    // On the heap, because it may have to be passed on half read.
    let mut body = Box::pin(body);
    let refusal = match chunks.read(body.as_mut(), limit, within).await {
        Some(Stop::End) => return Ok(chunks.into_whole()),
        Some(Stop::Failed(error)) => return Err((broken(&*error.into()), None)),
        Some(Stop::TooLarge) => too_large(limit),
        None => too_slow(within),
    };
    // Trailers end a body, so there are none yet when it goes on.
    Err((refusal, Some(RequestBody::begun(chunks.into_chunks(), body))))
}

fn too_slow(within: Duration) -> Refusal {
    Refusal::new(
        RefusalKind::BodyTooSlow,
        format!("the body was not whole after {} s", within.as_secs_f32()),
    )
}

fn broken(error: &(dyn Error + 'static)) -> Refusal {
    if is_length_limit(error) { too_large_for_a_layer_outside() } else { cut_short() }
}

pub(super) fn too_large(limit: usize) -> Refusal {
    // The name of the setting is for the developer who reads it first.
    Refusal::new(
        RefusalKind::BodyTooLarge,
        format!("the body must have at most {limit} bytes (Policy::body_limit)"),
    )
}

pub(super) fn cut_short() -> Refusal {
    Refusal::new(RefusalKind::BodyCutShort, "the body ended before it was whole; send it again")
}

fn too_large_for_a_layer_outside() -> Refusal {
    Refusal::new(
        RefusalKind::BodyTooLarge,
        "the body has more bytes than a limit around this service allows",
    )
}

/// Whether a length limit further out (tower-http's, http-body-util's) ended the body. It is told by
/// its text, since its type belongs to a crate that need not be there.
fn is_length_limit(error: &(dyn Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if error.to_string() == "length limit exceeded" {
            return true;
        }
        cause = error.source();
    }
    false
}

/// An answer's body, as far as it was read.
pub(super) enum Captured<R> {
    /// Whole, and small enough to be kept.
    Whole(Whole),
    /// Too large, or without an end in time: what came so far, and the rest.
    Unfinished { chunks: VecDeque<Bytes>, rest: Pin<Box<R>> },
    /// It broke off.
    Broken { chunks: VecDeque<Bytes>, error: BoxError },
}

/// Reads an answer's body, up to `limit` bytes and for five seconds at most.
pub(super) async fn answer_body<R>(body: R, limit: usize) -> Captured<R>
where
    R: Body<Data = Bytes>,
    R::Error: Into<BoxError>,
{
    if body.is_end_stream() {
        return Captured::Whole(Whole::default());
    }
    let mut chunks = Chunks::default();
    let too_large = body.size_hint().lower() > limit as u64;
    // On the heap, because it may have to move into the response half read.
    let mut body = Box::pin(body);
    if too_large {
        return Captured::Unfinished { chunks: VecDeque::new(), rest: body };
    }
    match chunks.read(body.as_mut(), limit, ANSWER_WITHIN).await {
        Some(Stop::End) => Captured::Whole(chunks.into_whole()),
        Some(Stop::Failed(error)) => {
            Captured::Broken { chunks: chunks.into_chunks(), error: error.into() }
        }
        // Trailers end a body, so there are none yet when it goes on.
        Some(Stop::TooLarge) | None => {
            Captured::Unfinished { chunks: chunks.into_chunks(), rest: body }
        }
    }
}
