//! The answers of a server, as RESP 2 spells them: the whole of what is read, or nothing of it.
//!
//! RESP 3 is not asked for, so that none of its types can come.

use bytes::{Buf, BytesMut};
use redis::Value;

/// What Redis itself takes a string to be at most.
const LONGEST: usize = 512 * 1024 * 1024;
/// Answers in answers: `SCAN` has one in another.
const DEEPEST: usize = 8;
/// A line is a number, or an error's words.
const LONGEST_LINE: usize = 64 * 1024;

/// What was read is no answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Garbled;

/// Takes the first answer, if it is there whole.
pub(super) fn take(unread: &mut BytesMut) -> Result<Option<Value>, Garbled> {
    let mut rest = &unread[..];
    match value(&mut rest, DEEPEST)? {
        Some(value) => {
            let taken = unread.len() - rest.len();
            unread.advance(taken);
            Ok(Some(value))
        }
        None => Ok(None),
    }
}

/// How much must have been read before [`take`] can find more: all of a string whose length is known.
pub(super) fn wanted(unread: &[u8]) -> usize {
    let mut rest = unread;
    let string = matches!(rest.first(), Some(b'$'));
    match line(&mut rest) {
        Ok(Some(line)) if string => {
            let length = number(&line[1..]).ok().and_then(|length| usize::try_from(length).ok());
            unread.len() - rest.len() + length.unwrap_or_default() + 2
        }
        _ => unread.len() + 1,
    }
}

/// The first value of what is left, which is left as it is after it.
fn value(rest: &mut &[u8], depth: usize) -> Result<Option<Value>, Garbled> {
    let whole = *rest;
    let Some(line) = line(rest)? else { return Ok(None) };
    let Some((kind, text)) = line.split_first() else { return Err(Garbled) };
    Ok(Some(match kind {
        b'+' if text == b"OK" => Value::Okay,
        b'+' => Value::SimpleString(String::from_utf8(text.to_vec()).map_err(|_| Garbled)?),
        b'-' => error(&whole[..line.len() + 2])?,
        b':' => Value::Int(number(text)?),
        b'$' => match number(text)? {
            -1 => Value::Nil,
            length => match string(rest, length)? {
                Some(string) => Value::BulkString(string),
                None => return Ok(None),
            },
        },
        b'*' => match number(text)? {
            -1 => Value::Nil,
            count => match array(rest, count, depth)? {
                Some(values) => Value::Array(values),
                None => return Ok(None),
            },
        },
        _ => return Err(Garbled),
    }))
}

/// A line, without its end.
fn line<'a>(rest: &mut &'a [u8]) -> Result<Option<&'a [u8]>, Garbled> {
    let within = &rest[..rest.len().min(LONGEST_LINE)];
    match within.iter().position(|byte| *byte == b'\r') {
        Some(end) if rest.len() < end + 2 => Ok(None),
        Some(end) if rest[end + 1] == b'\n' => {
            let line = &rest[..end];
            *rest = &rest[end + 2..];
            Ok(Some(line))
        }
        Some(_) => Err(Garbled),
        // Nothing else begins like this, however much more of it comes.
        None if within.len() == LONGEST_LINE => Err(Garbled),
        None if !within.is_empty() && !b"+-:$*".contains(&within[0]) => Err(Garbled),
        None => Ok(None),
    }
}

fn number(text: &[u8]) -> Result<i64, Garbled> {
    std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).ok_or(Garbled)
}

fn string(rest: &mut &[u8], length: i64) -> Result<Option<Vec<u8>>, Garbled> {
    let length = usize::try_from(length).ok().filter(|length| *length <= LONGEST).ok_or(Garbled)?;
    if rest.len() < length + 2 {
        return Ok(None);
    }
    let (string, after) = rest.split_at(length);
    *rest = after.strip_prefix(b"\r\n").ok_or(Garbled)?;
    Ok(Some(string.to_vec()))
}

fn array(rest: &mut &[u8], count: i64, depth: usize) -> Result<Option<Vec<Value>>, Garbled> {
    let count = usize::try_from(count).ok().filter(|count| *count <= LONGEST).ok_or(Garbled)?;
    let Some(deeper) = depth.checked_sub(1) else { return Err(Garbled) };
    // A value has three bytes and more: what is not there yet needs no room yet.
    let mut values = Vec::with_capacity(count.min(rest.len() / 3));
    for _ in 0..count {
        match value(rest, deeper)? {
            Some(value) => values.push(value),
            None => return Ok(None),
        }
    }
    Ok(Some(values))
}

/// An error's line. The client's own parser knows the words that errors begin with.
fn error(line: &[u8]) -> Result<Value, Garbled> {
    match redis::parse_redis_value(line) {
        Ok(error @ Value::ServerError(_)) => Ok(error),
        _ => Err(Garbled),
    }
}
