//! A body that comes in pieces and does not say how long it is.

use std::{
    collections::VecDeque,
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame};

/// These pieces, one a frame, without a length: chunked over HTTP/1.1.
#[derive(Clone, Debug)]
pub struct Chunks(VecDeque<Bytes>);

impl Chunks {
    /// These pieces.
    pub fn new<T: Into<Bytes>>(pieces: impl IntoIterator<Item = T>) -> Self {
        Self(pieces.into_iter().map(Into::into).collect())
    }
}

impl Body for Chunks {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.pop_front().map(|piece| Ok(Frame::data(piece))))
    }
}
