//! The answer of an execution, as it is stored and given again.

use std::{error::Error, fmt};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header::CONTENT_TYPE};

use super::{
    RecordKey, Unreadable,
    codec::{decode_unbound, encode_unbound},
    encode,
};
use crate::in_words;

/// The longest content type of an answer of which nothing else is kept.
const KIND_AT_MOST: usize = 100;

/// An answer as it is stored: status, headers, body and trailers.
///
/// A replay is this, with `Idempotent-Replayed: true`.
///
/// # Example: the answer a notification's sender waits for
///
/// ```
/// use tower_idempotency::Answer;
///
/// let answer = Answer::text("success");
/// assert_eq!(answer.status(), 200);
/// assert_eq!(answer.body().unwrap(), "success");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Option<Bytes>,
    pub(super) trailers: Option<Box<HeaderMap>>,
}

/// Bytes that are no answer of this version or an older one.
#[derive(Clone, PartialEq, Eq)]
pub struct UnreadableAnswer(Unreadable);

impl fmt::Debug for UnreadableAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        in_words::debug(f, None, self)
    }
}

impl fmt::Display for UnreadableAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an answer cannot be read: {}", self.0)
    }
}

impl Error for UnreadableAnswer {}

impl Answer {
    /// An empty answer with this status.
    pub fn new(status: StatusCode) -> Self {
        Self { status, headers: HeaderMap::new(), body: Some(Bytes::new()), trailers: None }
    }

    /// 200 with this text, as `text/plain; charset=utf-8`.
    pub fn text(text: impl Into<Bytes>) -> Self {
        Self::new(StatusCode::OK)
            .with_header(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"))
            .with_body(text)
    }

    /// 200 with this JSON text, as `application/json`.
    pub fn json(json: impl Into<Bytes>) -> Self {
        Self::new(StatusCode::OK)
            .with_header(CONTENT_TYPE, HeaderValue::from_static("application/json"))
            .with_body(json)
    }

    /// The same with this status.
    #[must_use]
    pub fn with_status(mut self, status: StatusCode) -> Self {
        self.status = status;
        self
    }

    /// The same with this header, in place of others of its name.
    #[must_use]
    pub fn with_header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.insert(name, value);
        self
    }

    /// The same with this body.
    #[must_use]
    pub fn with_body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = Some(body.into());
        self
    }

    /// The same with these trailers.
    #[must_use]
    pub fn with_trailers(mut self, trailers: HeaderMap) -> Self {
        self.trailers = Some(Box::new(trailers));
        self
    }

    /// Only that it was executed, and how it was answered: a replay is refused with
    /// `answer-not-kept`, or has the status alone.
    #[must_use]
    pub fn without_body(mut self) -> Self {
        self.body = None;
        self.trailers = None;
        self
    }

    /// The status.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// The headers.
    pub fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    /// The body; `None` if it was too large, or had no end in time, and was not kept.
    pub fn body(&self) -> Option<&Bytes> {
        self.body.as_ref()
    }

    /// The trailers, if it had any.
    pub fn trailers(&self) -> Option<&HeaderMap> {
        self.trailers.as_deref()
    }

    /// This response as an answer: status, all headers and body. The way back is
    /// [`Answer::into_http`].
    pub fn from_http(response: Response<Bytes>) -> Self {
        let (head, body) = response.into_parts();
        Self { status: head.status, headers: head.headers, body: Some(body), trailers: None }
    }

    /// This answer as a response. The trailers do not come along, and a body that was not kept is
    /// empty.
    pub fn into_http(self) -> Response<Bytes> {
        let mut response = Response::new(self.body.unwrap_or_default());
        *response.status_mut() = self.status;
        *response.headers_mut() = self.headers;
        response
    }

    /// This answer as a store keeps it for `key`, and for no other: the payload of a
    /// [`Verdict::Done`](crate::store::Verdict::Done) when an operator settles an operation by hand.
    ///
    /// All headers come along. Those the layer would not have stored, `Date` and `Set-Cookie` among
    /// them, are better left out.
    pub fn to_payload(&self, key: &RecordKey) -> Bytes {
        encode(key, self, &[])
    }

    /// This answer as bytes, for a [`Ledger`](crate::Ledger) that keeps it in a column: all of it, and
    /// bound to no key.
    pub fn to_bytes(&self) -> Bytes {
        encode_unbound(self)
    }

    /// The answer of which [`Answer::to_bytes`] made these bytes, by this version or an older one.
    ///
    /// # Errors
    ///
    /// When the bytes are no answer, or a newer version's.
    ///
    /// # Example: an answer in a column of a table
    ///
    /// ```
    /// use tower_idempotency::Answer;
    ///
    /// let answer = Answer::text("success");
    /// let column = answer.to_bytes().to_vec();
    /// assert_eq!(Answer::from_bytes(column).unwrap(), answer);
    /// assert!(Answer::from_bytes("success").is_err());
    /// ```
    pub fn from_bytes(bytes: impl Into<Bytes>) -> Result<Self, UnreadableAnswer> {
        decode_unbound(bytes.into()).map(|stored| stored.answer).map_err(UnreadableAnswer)
    }

    pub(crate) fn from_parts(
        status: StatusCode,
        headers: HeaderMap,
        body: Option<Bytes>,
        trailers: Option<Box<HeaderMap>>,
    ) -> Self {
        Self { status, headers, body, trailers }
    }

    /// The least that says that it was executed: the status, and what kind of answer it was. In a record
    /// it takes less room than the label of the grant that it replaces may have taken.
    pub(crate) fn bare(&self) -> Self {
        let mut bare = Self::new(self.status).without_body();
        let kind = self.headers.get(CONTENT_TYPE).filter(|kind| kind.len() <= KIND_AT_MOST);
        if let Some(kind) = kind {
            bare.headers.insert(CONTENT_TYPE, kind.clone());
        }
        bare
    }

    pub(crate) fn into_parts(
        self,
    ) -> (StatusCode, HeaderMap, Option<Bytes>, Option<Box<HeaderMap>>) {
        (self.status, self.headers, self.body, self.trailers)
    }
}
