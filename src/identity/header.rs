//! An identity in a header field, as the `Idempotency-Key` draft has it: a structured-field string.

use http::HeaderName;

use super::{Identity, Input, Source};
use crate::refusal::Refusal;

/// An identity in a header field. Made by [`header`].
#[derive(Clone, Debug)]
pub struct Header {
    name: HeaderName,
    strict: bool,
}

/// The identity in this header field.
///
/// # Panics
///
/// When `name` is no name of a header field.
#[track_caller]
pub fn header<N>(name: N) -> Header
where
    N: TryInto<HeaderName>,
    N::Error: std::fmt::Display,
{
    match name.try_into() {
        Ok(name) => Header { name, strict: false },
        Err(error) => panic!("header(..): {error}; give the name of a header field"),
    }
}

impl Header {
    /// Demands the quotes: a key without them is refused.
    #[must_use]
    pub fn strict(mut self) -> Self {
        self.strict = true;
        self
    }
}

impl Source for Header {
    fn read(&self, from: &Input<'_>) -> Result<Option<Identity>, Refusal> {
        let _ = self.strict;
        Ok(from.head().headers.get(&self.name).map(|v| Identity::new(v.as_bytes().to_vec())))
    }

    fn reads_body(&self) -> bool {
        false
    }

    fn describe(&self) -> String {
        format!("header {}", self.name)
    }
}
