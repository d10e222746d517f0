//! The codec of stored answers, for fuzzing.

use bytes::Bytes;

use crate::record::{RecordKey, decode, encode};

/// Decodes what may be a stored answer, for the key it names itself, and encodes it again; `None` if
/// it is none.
#[doc(hidden)]
pub fn recode(stored: &[u8]) -> Option<Bytes> {
    let key = RecordKey::from_bytes(*stored.first_chunk()?);
    let decoded = decode(&key, Bytes::copy_from_slice(stored)).ok()?;
    Some(encode(&key, &decoded.answer, &decoded.fields))
}
