//! The bytes of a stored answer.
//!
//! ```text
//! 32   the key it was stored under
//! 1    version, 1
//! 1    flags: 1 the body was kept, 2 there are trailers, 4 there are digests of fields
//! 2    status, big endian
//! ..   headers: a count in 2 bytes, then for each the length of the name in 2, the name, the length
//!      of the value in 4, the value
//! ..   trailers, likewise, if there are any
//! ..   digests of compared fields, if there are any: a count in 1 byte, then 8 bytes each
//! 8    the length of the body, if it was kept
//! ..   the body, to the end
//! ```

use std::fmt;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use super::{Answer, RecordKey};

const VERSION: u8 = 1;
const BODY_KEPT: u8 = 1;
const HAS_TRAILERS: u8 = 2;
const HAS_FIELDS: u8 = 4;

/// A few bytes of a compared field's own hash.
pub(crate) type FieldDigest = [u8; 8];
/// A policy that compares more has no digests stored, which only costs it the names.
const FIELDS_AT_MOST: usize = 255;

/// What is stored of an operation that was executed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) answer: Answer,
    /// One for each compared field, so that it can be said which of them differs.
    pub(crate) fields: Vec<FieldDigest>,
}

/// The most bytes of headers and trailers that are stored, as they are written here. No server sends
/// more, and with so few neither a count nor a map of them can overflow.
const HEAD_AT_MOST: usize = 64 * 1024;
/// What the shortest of them takes: the lengths, and a name of one byte.
const FIELD_AT_LEAST: usize = 7;
/// Headers that a replay gets on its way out: the mark of a replay, and what a server adds, its
/// length and the date. With room for them the map need not grow.
const ADDED_LATER: usize = 3;

/// What is stored is no answer of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unreadable {
    /// It was stored for another key.
    OtherKey,
    /// Its version is not known here.
    Version(u8),
    /// It is cut short or broken.
    Broken,
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OtherKey => f.write_str("it was stored under another key"),
            Self::Version(version) => write!(f, "its version {version} is not known here"),
            Self::Broken => f.write_str("it is cut short or broken"),
        }
    }
}

/// The bytes of `answer`, bound to `key`, beside the digests of the compared fields.
///
/// An answer with more headers and trailers than are stored is kept as [`Answer::bare`].
pub(crate) fn encode(key: &RecordKey, answer: &Answer, fields: &[FieldDigest]) -> Bytes {
    let trailers = answer.trailers.as_deref();
    let head = size_of_map(&answer.headers) + trailers.map_or(0, size_of_map);
    if head > HEAD_AT_MOST {
        return encode(key, &answer.bare(), fields);
    }
    let fields = if fields.len() > FIELDS_AT_MOST { &[] } else { fields };
    let body = answer.body.as_deref().unwrap_or_default();
    let size = 44 + head + 1 + size_of_val(fields) + body.len();
    let mut out = BytesMut::with_capacity(size);
    out.put_slice(key.as_bytes());
    out.put_u8(VERSION);
    let kept = if answer.body.is_some() { BODY_KEPT } else { 0 };
    let has_fields = if fields.is_empty() { 0 } else { HAS_FIELDS };
    out.put_u8(kept | has_fields | if trailers.is_some() { HAS_TRAILERS } else { 0 });
    out.put_u16(answer.status.as_u16());
    put_map(&mut out, &answer.headers);
    if let Some(trailers) = trailers {
        put_map(&mut out, trailers);
    }
    if !fields.is_empty() {
        out.put_u8(fields.len() as u8);
        out.put_slice(fields.as_flattened());
    }
    if answer.body.is_some() {
        // A body that was cut would otherwise read as a shorter one.
        out.put_u64(body.len() as u64);
        out.put_slice(body);
    }
    out.freeze()
}

/// The answer in `stored`, which must be bound to `key`. Copies neither body nor header values.
pub(crate) fn decode(key: &RecordKey, mut stored: Bytes) -> Result<Stored, Unreadable> {
    if stored.len() < 36 {
        return Err(Unreadable::Broken);
    }
    if stored[..32] != key.as_bytes()[..] {
        return Err(Unreadable::OtherKey);
    }
    stored.advance(32);
    decode_unbound(stored)
}

/// The bytes of an answer that is bound to no key.
pub(crate) fn encode_unbound(answer: &Answer) -> Bytes {
    encode(&RecordKey::from_bytes([0; 32]), answer, &[]).slice(32..)
}

/// What follows the key.
pub(crate) fn decode_unbound(mut stored: Bytes) -> Result<Stored, Unreadable> {
    if stored.len() < 4 {
        return Err(Unreadable::Broken);
    }
    let version = stored.get_u8();
    if version != VERSION {
        return Err(Unreadable::Version(version));
    }
    let flags = stored.get_u8();
    if flags & !(BODY_KEPT | HAS_TRAILERS | HAS_FIELDS) != 0 {
        return Err(Unreadable::Broken);
    }
    let status = StatusCode::from_u16(stored.get_u16()).map_err(|_| Unreadable::Broken)?;
    let headers = get_map(&mut stored)?;
    let trailers = match flags & HAS_TRAILERS {
        0 => None,
        _ => Some(Box::new(get_map(&mut stored)?)),
    };
    let fields = match flags & HAS_FIELDS {
        0 => Vec::new(),
        _ => get_fields(&mut stored)?,
    };
    let body = match flags & BODY_KEPT {
        0 if stored.is_empty() => None,
        0 => return Err(Unreadable::Broken),
        _ => match stored.try_get_u64() {
            Ok(length) if length == stored.len() as u64 => Some(stored),
            _ => return Err(Unreadable::Broken),
        },
    };
    Ok(Stored { answer: Answer::from_parts(status, headers, body, trailers), fields })
}

fn size_of_map(map: &HeaderMap) -> usize {
    2 + map.iter().map(|(name, value)| 6 + name.as_str().len() + value.len()).sum::<usize>()
}

fn put_map(out: &mut BytesMut, map: &HeaderMap) {
    // A name has at most 65,535 bytes, and `HEAD_AT_MOST` bounds the rest: all fit.
    out.put_u16(map.len() as u16);
    for (name, value) in map {
        out.put_u16(name.as_str().len() as u16);
        out.put_slice(name.as_str().as_bytes());
        out.put_u32(value.len() as u32);
        out.put_slice(value.as_bytes());
    }
}

fn get_map(stored: &mut Bytes) -> Result<HeaderMap, Unreadable> {
    let count = usize::from(stored.try_get_u16().map_err(|_| Unreadable::Broken)?);
    // More than we ever write, or than there are bytes for: a hostile count reserves nothing.
    if count > HEAD_AT_MOST.min(stored.len()) / FIELD_AT_LEAST {
        return Err(Unreadable::Broken);
    }
    let mut map = HeaderMap::with_capacity(count + ADDED_LATER);
    for _ in 0..count {
        let length = stored.try_get_u16().map_err(|_| Unreadable::Broken)?;
        let name = stored.get(..usize::from(length)).ok_or(Unreadable::Broken)?;
        let name = HeaderName::from_bytes(name).map_err(|_| Unreadable::Broken)?;
        stored.advance(usize::from(length));
        let length = stored.try_get_u32().map_err(|_| Unreadable::Broken)?;
        let value = take(stored, length as usize)?;
        let value = HeaderValue::from_maybe_shared(value).map_err(|_| Unreadable::Broken)?;
        map.try_append(name, value).map_err(|_| Unreadable::Broken)?;
    }
    Ok(map)
}

fn get_fields(stored: &mut Bytes) -> Result<Vec<FieldDigest>, Unreadable> {
    let count = stored.try_get_u8().map_err(|_| Unreadable::Broken)?;
    let digests = take(stored, usize::from(count) * size_of::<FieldDigest>())?;
    Ok(digests.chunks_exact(8).filter_map(|digest| digest.try_into().ok()).collect())
}

fn take(stored: &mut Bytes, length: usize) -> Result<Bytes, Unreadable> {
    if stored.len() < length {
        return Err(Unreadable::Broken);
    }
    Ok(stored.split_to(length))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: RecordKey = RecordKey::from_bytes([9; 32]);
    const FIELDS: [FieldDigest; 2] = [[1; 8], [2; 8]];

    fn sample() -> Answer {
        let mut answer = Answer::text("ok").with_status(StatusCode::CREATED);
        answer.headers.append("x-a", HeaderValue::from_bytes(b"\xff").unwrap());
        answer.headers.append("x-a", HeaderValue::from_static("2"));
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", HeaderValue::from_static("0"));
        answer.trailers = Some(Box::new(trailers));
        answer
    }

    #[test]
    fn an_answer_comes_back_as_it_went() {
        assert_eq!(
            decode(&KEY, encode(&KEY, &sample(), &FIELDS)),
            Ok(Stored { answer: sample(), fields: FIELDS.to_vec() })
        );
        let mut unkept = sample();
        unkept.body = None;
        assert_eq!(
            decode(&KEY, encode(&KEY, &unkept, &[])),
            Ok(Stored { answer: unkept, fields: Vec::new() })
        );
    }

    #[test]
    fn the_bytes_are_these() {
        let mut golden = [9; 32].to_vec();
        golden.extend_from_slice(b"\x01\x01\x00\xc9\x00\x01\x00\x0ccontent-type\x00\x00\x00\x19");
        golden.extend_from_slice(b"text/plain; charset=utf-8\0\0\0\0\0\0\0\x02ok");
        let answer = Answer::text("ok").with_status(StatusCode::CREATED);
        assert_eq!(encode(&KEY, &answer, &[]), golden);
    }

    #[test]
    fn an_answer_for_another_key_is_refused() {
        let other = RecordKey::from_bytes([8; 32]);
        assert_eq!(decode(&other, encode(&KEY, &sample(), &FIELDS)), Err(Unreadable::OtherKey));
    }

    #[test]
    fn a_newer_version_and_every_cut_are_refused() {
        let stored = encode(&KEY, &sample(), &FIELDS);
        let mut newer = stored.to_vec();
        newer[32] = 2;
        assert_eq!(decode(&KEY, newer.into()), Err(Unreadable::Version(2)));
        for cut in 0..stored.len() {
            assert!(decode(&KEY, stored.slice(..cut)).is_err(), "cut at {cut}");
        }
        let longer = [&stored[..], b"!"].concat();
        assert_eq!(decode(&KEY, longer.into()), Err(Unreadable::Broken));
    }

    #[test]
    fn a_count_without_entries_reserves_nothing() {
        let mut hostile = KEY.as_bytes().to_vec();
        hostile.extend_from_slice(b"\x01\x01\x00\xc8\xff\xff");
        assert_eq!(decode(&KEY, hostile.into()), Err(Unreadable::Broken));
    }
}
