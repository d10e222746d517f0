//! What makes two requests one operation, and where it stands in a request.

mod composite;
mod each;
mod extension;
mod form;
mod header;
mod json;
mod pairs;
mod path;
mod query;
mod sent;
#[cfg(feature = "xml")]
mod xml;

use std::{fmt, sync::Arc};

use bytes::Bytes;
use http::{header::CONTENT_ENCODING, request::Parts};

#[cfg(feature = "serde")]
pub(crate) use composite::Several;
pub(crate) use each::Joined;
pub use each::{Each, each};
pub use extension::{Extension, extension};
pub use form::{Form, form};
pub use header::{Header, header};
pub use json::{Json, json};
pub(crate) use pairs::{decode, pairs};
pub use path::{Path, path};
pub use query::{Query, query};
pub(crate) use sent::outside;
pub use sent::{Sent, sent};
#[cfg(feature = "xml")]
pub use xml::{Xml, xml};

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

    /// This identity, if its length is that of one. `what` says where it stands.
    pub(crate) fn check(self, what: impl FnOnce() -> String) -> Result<Self, Refusal> {
        match self.0.len() {
            0 => Err(Refusal::identity_malformed(format!(
                "{} is empty; it must have 1 to {IDENTITY_BYTES_AT_MOST} bytes",
                what()
            ))),
            1..=IDENTITY_BYTES_AT_MOST => Ok(self),
            length => Err(Refusal::identity_malformed(format!(
                "{} has {length} bytes; it must have 1 to {IDENTITY_BYTES_AT_MOST}",
                what()
            ))),
        }
    }
}

impl From<&str> for Identity {
    fn from(text: &str) -> Self {
        Self(Bytes::copy_from_slice(text.as_bytes()))
    }
}

impl From<String> for Identity {
    fn from(text: String) -> Self {
        Self(text.into())
    }
}

impl From<Bytes> for Identity {
    fn from(bytes: Bytes) -> Self {
        Self(bytes)
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identity({:?})", self.0)
    }
}

/// What a [`Source`] or a [`Field`](crate::Field) may read: the head of a request and its whole body.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    head: &'a Parts,
    body: &'a Bytes,
    sent: &'a Bytes,
    pattern: Option<&'a str>,
}

impl<'a> Input<'a> {
    /// This head and body. A source that does not read the body is asked with an empty one, before
    /// the body has come.
    pub fn new(head: &'a Parts, body: &'a Bytes) -> Self {
        Self { head, body, sent: body, pattern: None }
    }

    /// The same where the body was deciphered: `sent` is the body as it came.
    #[must_use]
    pub fn deciphered_from(self, sent: &'a Bytes) -> Self {
        Self { sent, ..self }
    }

    /// The same for a rule with this path pattern.
    #[must_use]
    pub fn matched_by(self, pattern: &'a str) -> Self {
        Self { pattern: Some(pattern), ..self }
    }

    /// Method, URI, headers and extensions.
    pub fn head(&self) -> &'a Parts {
        self.head
    }

    /// The body: as it was sent, or as [`Verify`](crate::Verify) has deciphered it.
    pub fn body(&self) -> &'a Bytes {
        self.body
    }

    /// The body as it was sent.
    pub fn sent(&self) -> &'a Bytes {
        self.sent
    }

    /// The path pattern of the rule, if it has one.
    pub fn pattern(&self) -> Option<&'a str> {
        self.pattern
    }
}

/// Where an identity stands in a request.
///
/// Implemented by [`header`], [`json`], [`form`], [`query`], [`path`], [`extension`] and, with the
/// feature `xml`, `xml`; by [`each`] for bodies with several notifications; by tuples of two to five
/// sources, which are one identity together; and by every closure
/// `Fn(&Input<'_>) -> Result<Option<Identity>, Refusal>`.
///
/// It must say the same of the same request each time. It must not panic: the panic would go on to the
/// server.
///
/// # Example: an event of an order
///
/// ```
/// use bytes::Bytes;
/// use tower_idempotency::{Identity, Input, Source, json};
///
/// let event = (json("/orderId"), json("/status"));
/// let (head, body) = http::Request::new(Bytes::from(r#"{"orderId": 7, "status": "PAID"}"#))
///     .into_parts();
/// assert_eq!(event.read(&Input::new(&head, &body)).unwrap(), Some(Identity::new("7,PAID")));
/// assert_eq!(event.describe(), "JSON field /orderId and JSON field /status");
/// ```
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
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not say where an identity stands in a request",
    label = "this is no `Source`",
    note = "one field is `json(\"/notifyId\")`, `form(\"notify_id\")`, `header(\"X-Event-Id\")` and so on",
    note = "several together are a tuple of two to five: `(json(\"/orderId\"), json(\"/status\"))`",
    note = "your own is `|from: &Input<'_>| -> Result<Option<Identity>, Refusal> {{ .. }}`"
)]
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

    /// How it is written, besides that it has 1 to 255 bytes, for
    /// [`Rules::describe`](crate::Rules::describe): of a header `a structured-field string`. By default
    /// there is nothing to say.
    fn syntax(&self) -> Option<String> {
        None
    }

    /// Whether it can be read where the rule has this path pattern. A rule for which it cannot is an
    /// error when it is added to the rules.
    ///
    /// # Errors
    ///
    /// What is wrong, and how to mend it.
    fn fits_pattern(&self, pattern: Option<&str>) -> Result<(), String> {
        let _ = pattern;
        Ok(())
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

/// As it is inside: whoever holds the whole identity checks its length.
#[cfg(feature = "serde")]
impl Source for AnySource {
    fn read(&self, from: &Input<'_>) -> Result<Option<Identity>, Refusal> {
        self.0.read(from)
    }

    fn reads_body(&self) -> bool {
        self.0.reads_body()
    }

    fn describe(&self) -> String {
        self.0.describe()
    }

    fn syntax(&self) -> Option<String> {
        self.0.syntax()
    }

    fn fits_pattern(&self, pattern: Option<&str>) -> Result<(), String> {
        self.0.fits_pattern(pattern)
    }
}

impl AnySource {
    pub(crate) fn new(source: impl Source) -> Self {
        Self(Arc::new(source))
    }

    /// Reads the identity and checks its length.
    pub(crate) fn read(&self, from: &Input<'_>) -> Result<Option<Identity>, Refusal> {
        match self.0.read(from)? {
            Some(identity) => identity.check(|| self.describe()).map(Some),
            None => Ok(None),
        }
    }

    pub(crate) fn reads_body(&self) -> bool {
        self.0.reads_body()
    }

    pub(crate) fn describe(&self) -> String {
        self.0.describe()
    }

    pub(crate) fn syntax(&self) -> Option<String> {
        self.0.syntax()
    }

    pub(crate) fn fits_pattern(&self, pattern: Option<&str>) -> Result<(), String> {
        self.0.fits_pattern(pattern)
    }
}

/// That the body is encoded, for the message of one that cannot be read.
fn encoding(from: &Input<'_>) -> Option<String> {
    let coding = from.head().headers.get(CONTENT_ENCODING)?;
    Some(format!("the body is encoded (Content-Encoding {})", excerpt(coding.as_bytes())))
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
    fn every_source_is_held_to_the_same_length() {
        let long = "k".repeat(256);
        let body = |text: &str| http::Request::new(Bytes::from(text.to_owned()));
        assert_eq!(
            read(form("id"), body("id=")).unwrap_err(),
            "form field id is empty; it must have 1 to 255 bytes"
        );
        assert_eq!(
            read(form("id"), body(&format!("id={long}"))).unwrap_err(),
            "form field id has 256 bytes; it must have 1 to 255"
        );
        assert_eq!(read(form("id"), body(&format!("id={}", &long[1..]))), Ok(255));
        let both = (form("a"), form("b"));
        assert_eq!(
            read(both.clone(), body(&format!("a=1&b={}", &long[2..]))).unwrap_err(),
            "form field a and form field b has 256 bytes; it must have 1 to 255"
        );
        assert_eq!(read(both, body(&format!("a=1&b={}", &long[3..]))), Ok(255));
        let uri = |uri: &str| http::Request::post(uri).body(Bytes::new()).unwrap();
        assert!(read(query("id"), uri("/?id")).unwrap_err().contains("is empty"));
        assert!(read(query("id"), uri(&format!("/?id={long}"))).unwrap_err().contains("256"));
        #[cfg(feature = "xml")]
        {
            let element = |text: &str| body(&format!("<id>{text}</id>"));
            assert!(read(xml("/id"), element("")).unwrap_err().contains("is empty"));
            assert!(read(xml("/id"), element(&long)).unwrap_err().contains("256"));
            assert_eq!(read(xml("/id"), element("1")), Ok(1));
        }
        // A batch is hashed instead.
        assert_eq!(read(each("", json("")), body(&format!("[\"{long}\"]"))), Ok(72));
        assert!(read(each("", json("")), body("[]")).unwrap_err().contains("empty array"));
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
