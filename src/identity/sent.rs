//! An identity or a field in the body as it was sent, where another is read from the deciphered one.

use super::{Identity, Input, Source};
use crate::refusal::Refusal;

/// What is read from the body as it was sent. Made by [`sent`].
#[derive(Clone, Debug)]
pub struct Sent<S> {
    inner: S,
}

/// The same identity or field, read from the body as it was sent, though
/// [`Verify`](crate::Verify) has deciphered it: WeChat Pay v3 has the id of the delivery outside
/// and the order inside.
pub fn sent<S>(inner: S) -> Sent<S> {
    Sent { inner }
}

impl<S> Sent<S> {
    pub(crate) fn inner(&self) -> &S {
        &self.inner
    }
}

/// The same request with the body as it was sent.
pub(crate) fn outside<'a>(from: &Input<'a>) -> Input<'a> {
    Input { body: from.sent, ..*from }
}

impl<S: Source> Source for Sent<S> {
    fn read(&self, from: &Input<'_>) -> Result<Option<Identity>, Refusal> {
        self.inner.read(&outside(from))
    }

    fn reads_body(&self) -> bool {
        self.inner.reads_body()
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn fits_pattern(&self, pattern: Option<&str>) -> Result<(), String> {
        self.inner.fits_pattern(pattern)
    }
}
