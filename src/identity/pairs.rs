//! Names and values as `application/x-www-form-urlencoded` has them, byte by byte.

use std::borrow::Cow;

use bytes::Bytes;
use percent_encoding::percent_decode;

/// A name that is there more than once.
#[derive(Debug)]
pub(super) struct Twice;

/// The names and values, still encoded, in their order. What has no `=` is a name without a value.
///
/// `&`, `=`, `%` and `+` are no part of a character of more bytes in GBK, GB 18030, Big5, Shift JIS or
/// any other charset that extends ASCII, so that nothing has to be decoded to find them.
pub(crate) fn pairs(text: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    let pieces = text.split(|byte| *byte == b'&').filter(|piece| !piece.is_empty());
    pieces.map(|piece| match piece.iter().position(|byte| *byte == b'=') {
        Some(at) => (&piece[..at], &piece[at + 1..]),
        None => (piece, &[][..]),
    })
}

/// `+` is a space, `%` and two hexadecimal digits are a byte; any other `%` is itself, as browsers
/// and frameworks read it (WHATWG URL standard, section 5.1).
pub(crate) fn decode(raw: &[u8]) -> Cow<'_, [u8]> {
    if !raw.contains(&b'+') {
        return percent_decode(raw).into();
    }
    let spaced: Vec<u8> = raw.iter().map(|byte| if *byte == b'+' { b' ' } else { *byte }).collect();
    percent_decode(&spaced).collect::<Vec<u8>>().into()
}

/// The value of the only pair with this name.
pub(super) fn only(text: &[u8], name: &str) -> Result<Option<Bytes>, Twice> {
    let mut values = pairs(text).filter(|pair| *decode(pair.0) == *name.as_bytes());
    match (values.next(), values.next()) {
        (_, Some(_)) => Err(Twice),
        (Some((_, value)), None) => Ok(Some(decode(value).into_owned().into())),
        (None, None) => Ok(None),
    }
}
