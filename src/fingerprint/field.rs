//! A field that is compared by its meaning.

use std::fmt;

use bytes::Bytes;

use super::canonical::canonical;
use crate::{identity::Input, refusal::Refusal};

/// What a field says, in a form in which equal meanings are equal bytes: `1.0`, `1` and `1e0` are one
/// number.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct FieldValue(Bytes);

impl FieldValue {
    /// A value whose equality is that of these bytes.
    pub fn new(bytes: impl Into<Bytes>) -> Self {
        Self(bytes.into())
    }

    /// What a field of a JSON body says that has this value: `960`, `"CNY"`, `[1, 2]`.
    ///
    /// # Errors
    ///
    /// When the text is no JSON value, or one that cannot be compared: see
    /// [`Policy::compare`](crate::Policy::compare).
    pub fn json(text: &str) -> Result<Self, Refusal> {
        let found = serde_json::from_str::<&serde_json::value::RawValue>(text);
        let wrong = match found {
            Ok(value) => match canonical(value.get(), &[]) {
                Ok(meaning) => return Ok(Self::new(meaning)),
                Err(wrong) => wrong.into_owned(),
            },
            Err(error) => error.to_string(),
        };
        Err(Refusal::identity_malformed(format!("the value cannot be compared: {wrong}")))
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for FieldValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FieldValue({:?})", self.0)
    }
}

/// A field that must mean the same when an identity comes again: `json("/amount")`.
///
/// Every source of this crate but the composites is one; name several fields instead.
///
/// # Example: equal and different amounts
///
/// ```
/// use bytes::Bytes;
/// use tower_idempotency::{Field, Input, json};
///
/// let amount = |body: &'static str| {
///     let (head, body) = http::Request::new(Bytes::from(body)).into_parts();
///     json("/amount").value(&Input::new(&head, &body)).unwrap()
/// };
/// assert_eq!(amount(r#"{"amount": 960}"#), amount(r#"{"currency": "EUR", "amount": 9.600e2}"#));
/// assert_ne!(amount(r#"{"amount": 960}"#), amount(r#"{"amount": "960"}"#));
/// assert_ne!(amount(r#"{"amount": null}"#), amount("{}"));
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no part of a request that can be compared",
    label = "this is no `Field`",
    note = "one is `json(\"/amount\")`, `form(\"total_amount\")`, `header(\"X-Shop\")` and so on, in a list: `.compare([json(\"/amount\")])`"
)]
pub trait Field: Send + Sync + 'static {
    /// Reads the field; `None` if the request has none.
    ///
    /// # Errors
    ///
    /// When it cannot be said what the field is: the body cannot be read, or it stands twice.
    fn value(&self, from: &Input<'_>) -> Result<Option<FieldValue>, Refusal>;

    /// Its name, for messages: `JSON field /amount`.
    fn name(&self) -> String;

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
