//! The key of one outgoing operation, and what is kept under it.

use std::{
    error::Error,
    fmt,
    sync::{Arc, OnceLock},
};

use http::{HeaderName, HeaderValue};
use rand::RngExt;

use crate::{identity::IDENTITY_BYTES_AT_MOST, in_words, record::uuid};

/// The key of one operation: what all sends of it have in common.
///
/// As an extension of a request it is the one that is sent, for an operation that has a name of its own
/// and is to be the same after a restart: an order's number. Without one a random key is made.
///
/// # Example: the same operation after a restart
///
/// ```
/// use http::Request;
/// use tower_idempotency::client::Key;
///
/// let key = Key::new("order-7/charge").unwrap();
/// let request = Request::post("/charge").extension(key).body("960").unwrap();
/// # let _ = request;
/// assert!(Key::new("").is_err());
/// assert_eq!(Key::random().as_str().len(), 36);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key(Arc<str>);

/// A text that cannot be a key. Its message says what is wrong and what would be right.
#[derive(Clone, PartialEq, Eq)]
pub struct KeyError(String);

impl fmt::Debug for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        in_words::debug(f, None, self)
    }
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for KeyError {}

impl Key {
    /// This text as a key.
    ///
    /// # Errors
    ///
    /// When it has not 1 to 255 characters, or one that is not printable ASCII: a structured-field string
    /// (RFC 9651, section 3.3.3) has no others.
    pub fn new(text: impl Into<Arc<str>>) -> Result<Self, KeyError> {
        let text = text.into();
        if text.is_empty() || text.len() > IDENTITY_BYTES_AT_MOST {
            return Err(KeyError(format!(
                "a key has 1 to {IDENTITY_BYTES_AT_MOST} bytes, and this has {}",
                text.len()
            )));
        }
        match text.chars().find(|c| !matches!(c, ' '..='~')) {
            Some(wrong) => Err(KeyError(format!(
                "a key is printable ASCII, and this has {wrong:?}: encode it"
            ))),
            None => Ok(Self(text)),
        }
    }

    /// A new key: a random UUID.
    pub fn random() -> Self {
        Self(uuid(rand::rng().random(), 4).into())
    }

    /// The key itself, without quotes.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// As a structured-field string, or as it is.
    pub(super) fn to_value(&self, bare: bool) -> HeaderValue {
        let text = if bare {
            self.0.to_string()
        } else {
            format!("\"{}\"", self.0.replace('\\', "\\\\").replace('"', "\\\""))
        };
        HeaderValue::try_from(text).expect("a key is printable ASCII, as `Key::new` has checked")
    }
}

/// The mark of a request that has a key: an extension that all copies of it share, with the one-time token
/// that was fetched for it.
#[derive(Clone, Default)]
pub(super) struct Keyed {
    pub(super) token: Arc<OnceLock<HeaderValue>>,
    /// The headers that the key stands in: one for each layer that has given one.
    pub(super) headers: Vec<HeaderName>,
}
