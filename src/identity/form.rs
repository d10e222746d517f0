//! An identity in a field of a form, found without decoding the rest of it as text.

use bytes::Bytes;

use super::{Identity, Input, Source, encoding, pairs};
use crate::refusal::Refusal;

/// An identity in a field of a form. Made by [`form`].
#[derive(Clone, Debug)]
pub struct Form {
    name: String,
}

/// The identity in this field of an `application/x-www-form-urlencoded` body, as Alipay and Twilio
/// send it: the field's bytes, with `+` and `%2F` undone.
///
/// Only that is decoded, and not as text: a body in GBK or another charset that extends ASCII is
/// read as one in UTF-8 is. Two charsets of one text are two identities. The body is read as a form
/// whatever its `Content-Type` says, and `;` separates nothing.
///
/// A field that is not there is an absent identity, and every body can be read as a form: one that
/// is none has no field. One that is there with nothing after its `=` is refused, and so is one
/// that is there twice, even if both are alike.
///
/// # Panics
///
/// When `name` is empty.
///
/// # Example: a notification
///
/// ```
/// use bytes::Bytes;
/// use tower_idempotency::{Identity, Input, Source, form};
///
/// let body = Bytes::from("subject=%B2%E2%CA%D4&notify_id=ac05%2B1&charset=GBK");
/// let (head, body) = http::Request::new(body).into_parts();
/// let found = form("notify_id").read(&Input::new(&head, &body)).unwrap();
/// assert_eq!(found, Some(Identity::new("ac05+1")));
/// ```
#[track_caller]
pub fn form(name: impl Into<String>) -> Form {
    let name = name.into();
    assert!(!name.is_empty(), "form(\"\"): give the name of a field, such as form(\"notify_id\")");
    Form { name }
}

impl Form {
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The field's bytes.
    pub(crate) fn find(&self, from: &Input<'_>) -> Result<Option<Bytes>, Refusal> {
        let found = pairs::only(from.body(), &self.name).map_err(|pairs::Twice| {
            Refusal::identity_malformed(format!("{} is there twice; send it once", self.describe()))
        })?;
        match encoding(from) {
            Some(coding) if found.is_none() => Err(Refusal::identity_malformed(format!(
                "{coding} and {} is not to be found in it; send it plain, or let the server \
                 decompress it in a layer outside this one",
                self.describe()
            ))),
            _ => Ok(found),
        }
    }
}

impl Source for Form {
    fn read(&self, from: &Input<'_>) -> Result<Option<Identity>, Refusal> {
        Ok(self.find(from)?.map(Identity::new))
    }

    fn describe(&self) -> String {
        format!("form field {}", self.name)
    }
}
