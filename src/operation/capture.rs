//! Bodies read whole: a request's on its way in, an answer's on its way out.

use std::{
    collections::VecDeque,
    error::Error,
    future::poll_fn,
    pin::{Pin, pin},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body::Body;
use tokio::{
    task::yield_now,
    time::{Instant, timeout_at},
};

use crate::{
    body::{BoxError, RequestBody, Whole},
    refusal::{Refusal, RefusalKind},
};

/// How long an answer may take from its head to its end before it is sent as it comes.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// Chunks as they came, and how much they are.
#[derive(Default)]
struct Chunks {
    chunks: VecDeque<Bytes>,
    bytes: usize,
    trailers: Option<Box<HeaderMap>>,
}

enum Step<E> {
    More,
    End,
    TooLarge,
    Failed(E),
}

impl Chunks {
    /// Takes the next frame.
    async fn next<B>(&mut self, mut body: Pin<&mut B>, limit: usize) -> Step<B::Error>
    where
        B: Body<Data = Bytes>,
    {
        let frame = match poll_fn(|cx| body.as_mut().poll_frame(cx)).await {
            None => return Step::End,
            Some(Err(error)) => return Step::Failed(error),
            Some(Ok(frame)) => frame,
        };
        let data = frame.into_data().unwrap_or_else(|frame| {
            if let Ok(trailers) = frame.into_trailers() {
                self.trailers = Some(Box::new(trailers));
            }
            Bytes::new()
        });
        if data.is_empty() {
            // Frames without data reach no limit; time must be able to pass between them.
            yield_now().await;
            return Step::More;
        }
        self.bytes = self.bytes.saturating_add(data.len());
        self.chunks.push_back(data);
        if self.bytes > limit { Step::TooLarge } else { Step::More }
    }

    /// One chunk is passed on as it is; several are joined.
    fn into_whole(mut self) -> Whole {
        let data = match self.chunks.len() {
            0 => Bytes::new(),
            1 => self.chunks.pop_front().unwrap_or_default(),
            _ => {
                let mut joined = BytesMut::with_capacity(self.bytes);
                for chunk in &self.chunks {
                    joined.extend_from_slice(chunk);
                }
                joined.freeze()
            }
        };
        Whole { data, trailers: self.trailers }
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
    let mut body = pin!(body);
    if body.is_end_stream() {
        return Ok(Whole::default());
    }
    if body.size_hint().lower() > limit as u64 {
        return Err(too_large(limit));
    }
    let mut chunks = Chunks::default();
    let until = Instant::now() + within;
    loop {
        let Ok(step) = timeout_at(until, chunks.next(body.as_mut(), limit)).await else {
            return Err(too_slow(within));
        };
        match step {
            Step::More => {}
            Step::End => return Ok(chunks.into_whole()),
            Step::TooLarge => return Err(too_large(limit)),
            Step::Failed(error) => return Err(broken(&*error.into())),
        }
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
    let until = Instant::now() + within;
    loop {
        let refusal = match timeout_at(until, chunks.next(body.as_mut(), limit)).await {
            Ok(Step::More) => continue,
            Ok(Step::End) => return Ok(chunks.into_whole()),
            Ok(Step::Failed(error)) => return Err((broken(&*error.into()), None)),
            Ok(Step::TooLarge) => too_large(limit),
            Err(_) => too_slow(within),
        };
        // Trailers end a body, so there are none yet when it goes on.
        return Err((refusal, Some(RequestBody::begun(chunks.chunks, body))));
    }
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
        return Captured::Unfinished { chunks: chunks.chunks, rest: body };
    }
    let until = Instant::now() + ANSWER_WITHIN;
    loop {
        match timeout_at(until, chunks.next(body.as_mut(), limit)).await {
            Ok(Step::More) => {}
            Ok(Step::End) => return Captured::Whole(chunks.into_whole()),
            Ok(Step::Failed(error)) => {
                return Captured::Broken { chunks: chunks.chunks, error: error.into() };
            }
            // Trailers end a body, so there are none yet when it goes on.
            Ok(Step::TooLarge) | Err(_) => {
                return Captured::Unfinished { chunks: chunks.chunks, rest: body };
            }
        }
    }
}
