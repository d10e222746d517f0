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
/// Implemented by [`Header`] and [`Json`], and by every closure
/// `Fn(&Input<'_>) -> Result<Option<Identity>, Refusal>`.
///
/// It must say the same of the same request each time. It must not panic: the panic would go on to the
/// server.
///
/// # Example: the last part of the path
///
/// ```
/// use bytes::Bytes;
/// use tower_idempotency::{Identity, Input, Policy, Refusal, Source};
///
/// let last = |from: &Input<'_>| -> Result<Option<Identity>, Refusal> {
///     let path = from.head().uri.path();
///     let (_, last) = path.rsplit_once('/').unwrap_or_default();
///     Ok(Some(Identity::new(last.to_owned())))
/// };
/// let (head, body) = http::Request::post("/orders/7").body(Bytes::new()).unwrap().into_parts();
/// assert_eq!(last.read(&Input::new(&head, &body)).unwrap(), Some(Identity::new("7")));
/// let policy = Policy::webhook(last);
/// # let _ = policy;
/// ```
pub trait Source: Send + Sync + 'static {
    /// Reads the identity; `None` if the request has none.
    ///
    /// # Errors
    ///
    /// [`Refusal::identity_malformed`] when there is something that is no identity, saying what is
    /// wrong with it.
    fn read(&self, from: &Input<'_>) -> Result<Option<Identity>, Refusal>;

    /// Whether it reads the body; by default it does. One that does not is asked with an empty body
    /// before the real one is sent, and can refuse a request without it.
    fn reads_body(&self) -> bool {
        true
    }

    /// What it reads, for messages: `header Idempotency-Key`, `JSON field /notifyId`; by default `the
    /// identity`.
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

/// The beginning of a value that was sent, for messages: printable, quoted, at most 40 characters.
fn excerpt(value: &[u8]) -> String {
    const CHARACTERS_AT_MOST: usize = 40;
    // One byte more than is shown, which tells whether that was all.
    let beginning = &value[..value.len().min(CHARACTERS_AT_MOST + 1)];
    let mut text: String = beginning.iter().map(|byte| printable(*byte)).collect();
    if text.len() > CHARACTERS_AT_MOST {
        text.truncate(CHARACTERS_AT_MOST);
        text.push_str("...");
    }
    format!("`{text}`")
}

/// A byte as messages show it: as it is, where that can be read. Quotes and backslashes are what is
/// often wrong with a value, so that escaping them would hide it.
fn printable(byte: u8) -> String {
    if byte == b' ' || byte.is_ascii_graphic() {
        char::from(byte).to_string()
    } else {
        byte.escape_ascii().to_string()
    }
}

impl fmt::Debug for AnySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.describe())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(source: impl Source, request: http::Request<Bytes>) -> Result<usize, String> {
        let (head, body) = request.into_parts();
        match AnySource::new(source).read(&Input::new(&head, &body)) {
            Ok(Some(identity)) => Ok(identity.as_bytes().len()),
            Ok(None) => Err("absent".to_owned()),
            Err(refusal) => Err(refusal.detail().to_owned()),
        }
    }

    fn with_key(value: &str) -> http::Request<Bytes> {
        http::Request::builder().header("Idempotency-Key", value).body(Bytes::new()).unwrap()
    }

    #[test]
    fn case_15_an_identity_has_255_bytes_at_most_and_the_refusal_says_so() {
        for (quote, length) in [("", 1), ("", 255), ("\"", 1), ("\"", 255)] {
            let value = format!("{quote}{}{quote}", "k".repeat(length));
            assert_eq!(read(header("Idempotency-Key"), with_key(&value)), Ok(length));
        }
        for (quote, length) in [("", 256), ("", 1024), ("\"", 256), ("\"", 1024), ("\"", 65_000)] {
            let value = format!("{quote}{}{quote}", "k".repeat(length));
            let refused = read(header("Idempotency-Key"), with_key(&value)).unwrap_err();
            let expected =
                format!("header Idempotency-Key has {length} bytes; it must have 1 to 255");
            assert_eq!(refused, expected);
        }
    }

    #[test]
    fn case_15_the_length_of_a_json_string_counts_in_bytes_of_utf_8() {
        let body = |key: &str| http::Request::new(Bytes::from(format!("{{\"id\": \"{key}\"}}")));
        assert_eq!(read(json("/id"), body(&"\u{e9}".repeat(127))), Ok(254));
        let refused = read(json("/id"), body(&"\u{e9}".repeat(128))).unwrap_err();
        assert_eq!(refused, "JSON field /id has 256 bytes; it must have 1 to 255");
        let refused = read(json("/id"), body("")).unwrap_err();
        assert_eq!(refused, "JSON field /id is empty; it must have 1 to 255 bytes");
    }

    #[test]
    fn an_excerpt_is_short_and_printable_and_says_when_there_was_more() {
        assert_eq!(excerpt(br#""a\b'"#), r#"`"a\b'`"#);
        assert_eq!(excerpt(&[b'a'; 40]), format!("`{}`", "a".repeat(40)));
        assert_eq!(excerpt(&[b'a'; 41]), format!("`{}...`", "a".repeat(40)));
        assert_eq!(excerpt(&[0xfc; 9]), format!("`{}`", "\\xfc".repeat(9)));
        assert_eq!(excerpt(&[0xfc; 90]), format!("`{}...`", "\\xfc".repeat(10)));
    }
}
