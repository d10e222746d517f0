//! What makes two requests one operation, and where it stands in a request.

mod header;
mod json;

use std::{fmt, sync::Arc};

use bytes::Bytes;
use http::request::Parts;

pub use header::{Header, header};
pub use json::{Json, json};

use crate::refusal::Refusal;

/// The most bytes an identity may have.
pub const IDENTITY_BYTES_AT_MOST: usize = 255;

/// An identity as it stood in the request: 1 to 255 bytes, compared byte by byte.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Identity(Bytes);

impl Identity {
    /// These bytes as an identity. The layer refuses one that is empty or longer than
    /// [`IDENTITY_BYTES_AT_MOST`].
    pub fn new(bytes: impl Into<Bytes>) -> Self {
        Self(bytes.into())
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identity({:?})", self.0)
    }
}

/// What a [`Source`] may read: the head of a request and its whole body.
#[derive(Debug)]
pub struct Input<'a> {
    head: &'a Parts,
    body: &'a Bytes,
}

impl<'a> Input<'a> {
    /// This head and body. A source that does not read the body is asked with an empty one, before
    /// the body has come.
    pub fn new(head: &'a Parts, body: &'a Bytes) -> Self {
        Self { head, body }
    }

    /// Method, URI, headers and extensions.
    pub fn head(&self) -> &'a Parts {
        self.head
    }

    /// The body, as it was sent.
    pub fn body(&self) -> &'a Bytes {
        self.body
    }
}

/// Where an identity stands in a request.
///
/// Implemented by [`header`] and [`json`], and by every closure
/// `Fn(&Input<'_>) -> Result<Option<Identity>, Refusal>`.
pub trait Source: Send + Sync + 'static {
    /// Reads the identity; `None` if the request has none.
    ///
    /// # Errors
    ///
    /// [`Refusal::identity_malformed`] when there is something that is no identity, saying what is
    /// wrong with it.
    fn read(&self, from: &Input<'_>) -> Result<Option<Identity>, Refusal>;

    /// Whether it reads the body. One that does not can refuse a request before its body is sent.
    fn reads_body(&self) -> bool {
        true
    }

    /// What it reads, for messages: `header Idempotency-Key`, `JSON field /notifyId`.
    fn describe(&self) -> String {
        "the identity".to_owned()
    }
}

impl<F> Source for F
where
    F: Fn(&Input<'_>) -> Result<Option<Identity>, Refusal> + Send + Sync + 'static,
{
    fn read(&self, from: &Input<'_>) -> Result<Option<Identity>, Refusal> {
        self(from)
    }
}

/// A source as a policy holds it.
#[derive(Clone)]
pub(crate) struct AnySource(Arc<dyn Source>);

impl AnySource {
    pub(crate) fn new(source: impl Source) -> Self {
        Self(Arc::new(source))
    }

    /// Reads the identity and checks its length.
    pub(crate) fn read(&self, from: &Input<'_>) -> Result<Option<Identity>, Refusal> {
        let Some(identity) = self.0.read(from)? else { return Ok(None) };
        match identity.0.len() {
            0 => Err(Refusal::identity_malformed(format!(
                "{} is empty; it must have 1 to {IDENTITY_BYTES_AT_MOST} bytes",
                self.describe()
            ))),
            1..=IDENTITY_BYTES_AT_MOST => Ok(Some(identity)),
            length => Err(Refusal::identity_malformed(format!(
                "{} has {length} bytes; it must have 1 to {IDENTITY_BYTES_AT_MOST}",
                self.describe()
            ))),
        }
    }

    pub(crate) fn reads_body(&self) -> bool {
        self.0.reads_body()
    }

    pub(crate) fn describe(&self) -> String {
        self.0.describe()
    }
}

impl fmt::Debug for AnySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.describe())
    }
}
