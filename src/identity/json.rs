//! An identity in a field of a JSON body.

use super::{Identity, Input, Source};
use crate::refusal::Refusal;

/// An identity in a field of a JSON body. Made by [`json`].
#[derive(Clone, Debug)]
pub struct Json {
    pointer: String,
}

/// The identity in this field of a JSON body, named by a JSON Pointer (RFC 6901): `/notifyId`.
///
/// # Panics
///
/// When `pointer` is no JSON Pointer.
#[track_caller]
pub fn json(pointer: &str) -> Json {
    Json { pointer: pointer.to_owned() }
}

impl Source for Json {
    fn read(&self, _from: &Input<'_>) -> Result<Option<Identity>, Refusal> {
        Ok(None)
    }

    fn describe(&self) -> String {
        format!("JSON field {}", self.pointer)
    }
}
