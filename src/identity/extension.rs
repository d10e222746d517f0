//! An identity that a layer further out has put beside the request.

use std::{any::type_name, fmt, marker::PhantomData};

use bytes::Bytes;

use super::{Identity, Input, Source};
use crate::refusal::Refusal;

/// An identity in a request extension. Made by [`extension`].
pub struct Extension<T> {
    of: PhantomData<fn() -> T>,
}

/// The identity that this request extension says, as a layer further out sets it: the id of a message
/// that was taken from a queue, the claim of a token.
///
/// A request without the extension has no identity: it is refused, or passes where the policy is
/// [`optional`](crate::Policy::optional). The body is not read, so that a request can be refused
/// before its body is sent.
///
/// # Example: the id of a message
///
/// ```
/// use bytes::Bytes;
/// use tower_idempotency::{Identity, Input, Source, extension};
///
/// #[derive(Clone)]
/// struct MessageId(String);
/// impl AsRef<str> for MessageId {
///     fn as_ref(&self) -> &str {
///         &self.0
///     }
/// }
///
/// let mut head = http::Request::new(()).into_parts().0;
/// let read = |head: &_| extension::<MessageId>().read(&Input::new(head, &Bytes::new())).unwrap();
/// assert_eq!(read(&head), None);
/// head.extensions.insert(MessageId("m-1".to_owned()));
/// assert_eq!(read(&head), Some(Identity::new("m-1")));
/// ```
pub fn extension<T: AsRef<str> + Clone + Send + Sync + 'static>() -> Extension<T> {
    Extension { of: PhantomData }
}

impl<T: AsRef<str> + Clone + Send + Sync + 'static> Extension<T> {
    /// The extension's bytes.
    pub(crate) fn find(from: &Input<'_>) -> Option<Bytes> {
        let found = from.head().extensions.get::<T>()?;
        Some(Bytes::copy_from_slice(found.as_ref().as_bytes()))
    }
}

impl<T> Clone for Extension<T> {
    fn clone(&self) -> Self {
        Self { of: PhantomData }
    }
}

impl<T> fmt::Debug for Extension<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Extension({})", type_name::<T>())
    }
}

impl<T: AsRef<str> + Clone + Send + Sync + 'static> Source for Extension<T> {
    fn read(&self, from: &Input<'_>) -> Result<Option<Identity>, Refusal> {
        Ok(Self::find(from).map(Identity::new))
    }

    fn reads_body(&self) -> bool {
        false
    }

    fn describe(&self) -> String {
        format!("request extension {}", type_name::<T>())
    }
}
