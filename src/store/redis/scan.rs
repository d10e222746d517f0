//! Listing records for an operator: a page of keys, then the head of each.

use std::time::Duration;

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use bytes::Bytes;
use redis::Value;

#[cfg(feature = "redis-cluster")]
use super::{Failure, lane::Lane, refused::is_elsewhere};
use super::{
    reply::{decimal, garbled, number, state, time_ms},
    resp::Command,
};
use crate::{
    record::{Fence, Mark, RecordKey, State},
    store::{Cursor, Listed, StoreError},
};

/// A record's columns before its payload.
const HEADER: usize = 90;
/// The header and the longest label, without reading a stored answer.
const HEAD_ENDS_AT: usize = HEADER + 256 - 1;
/// A page larger than this would keep the server from its other work.
const KEYS_AT_MOST: usize = 1000;

/// The server's time, and the next keys.
pub(super) fn page(
    prefix: &str,
    from: &Cursor,
    at_most: usize,
) -> Result<[Command; 2], StoreError> {
    let cursor = match &from.as_bytes()[..] {
        [] => 0,
        bytes => decimal(bytes).ok_or_else(|| garbled("scan"))?,
    };
    let scan = Command::new("SCAN").number(cursor).arg("MATCH").arg(pattern(prefix));
    let scan = scan.arg("COUNT").number(at_most.clamp(1, KEYS_AT_MOST));
    Ok([Command::new("TIME"), scan])
}

/// Every key that starts with `prefix`, whatever characters it has.
fn pattern(prefix: &str) -> String {
    let mut pattern = String::with_capacity(prefix.len() + 1);
    for character in prefix.chars() {
        if matches!(character, '*' | '?' | '[' | ']' | '^' | '\\') {
            pattern.push('\\');
        }
        pattern.push(character);
    }
    pattern.push('*');
    pattern
}

/// The server's ms, the keys and where to go on.
pub(super) type Keys = (u64, Vec<(RecordKey, Vec<u8>)>, Option<Cursor>);

/// What [`page`] was answered. Keys of others that share the prefix are left out.
pub(super) fn keys(prefix: &str, answers: Vec<Value>) -> Result<Keys, StoreError> {
    let wrong = || garbled("scan");
    let [time, page] = <[Value; 2]>::try_from(answers).map_err(|_| wrong())?;
    let now_ms = time_ms(time).ok_or_else(wrong)?;
    let Value::Array(page) = page else { return Err(wrong()) };
    let [cursor, keys] = <[Value; 2]>::try_from(page).map_err(|_| wrong())?;
    let (Value::BulkString(cursor), Value::Array(keys)) = (cursor, keys) else {
        return Err(wrong());
    };
    let next = (cursor != b"0").then(|| Cursor::from_bytes(Bytes::from(cursor)));
    let ours = keys.into_iter().filter_map(|name| match name {
        Value::BulkString(name) => Some((key_of(prefix, &name)?, name)),
        _ => None,
    });
    Ok((now_ms, ours.collect(), next))
}

fn key_of(prefix: &str, name: &[u8]) -> Option<RecordKey> {
    let encoded = name.strip_prefix(prefix.as_bytes())?;
    let bytes = URL_SAFE_NO_PAD.decode(encoded).ok()?;
    Some(RecordKey::from_bytes(bytes.try_into().ok()?))
}

/// The head and the time left of each key.
pub(super) fn heads(keys: &[(RecordKey, Vec<u8>)]) -> Vec<Command> {
    keys.iter().flat_map(|(_, name)| [head(name), left(name)]).collect()
}

fn head(name: &[u8]) -> Command {
    Command::new("GETRANGE").arg(name).number(0).number(HEAD_ENDS_AT)
}

fn left(name: &[u8]) -> Command {
    Command::new("PTTL").arg(name)
}

/// Keys of a slot that is being moved to this node are listed by it, and told to those alone who say that
/// they know of the move.
#[cfg(feature = "redis-cluster")]
pub(super) async fn arriving(
    lane: &Lane<'_>,
    keys: &[(RecordKey, Vec<u8>)],
    mut answers: Vec<Value>,
) -> Result<Vec<Value>, Failure> {
    let asking = || Command::new("ASKING");
    let mut commands = Vec::new();
    let mut which = Vec::new();
    for (pair, (_, name)) in answers.chunks_exact_mut(2).zip(keys) {
        let is_elsewhere =
            |answer: &Value| matches!(answer, Value::ServerError(error) if is_elsewhere(error));
        if pair.iter().any(is_elsewhere) {
            commands.extend([asking(), head(name), asking(), left(name)]);
            which.push(pair);
        }
    }
    if !which.is_empty() {
        let mut told = lane.send_all(&commands).await?.into_iter();
        for answer in which.into_iter().flatten() {
            // Between two answers there is the one to `ASKING`.
            *answer = told.nth(1).unwrap_or_default();
        }
    }
    Ok(answers)
}

/// The records among what [`heads`] was answered: what is gone by now, or is no record of ours, is
/// left out.
pub(super) fn records(
    now_ms: u64,
    keys: &[(RecordKey, Vec<u8>)],
    answers: &[Value],
) -> Vec<Listed> {
    let answers = answers.chunks_exact(2);
    keys.iter().zip(answers).filter_map(|((key, _), pair)| record(now_ms, *key, pair)).collect()
}

fn record(now_ms: u64, key: RecordKey, pair: &[Value]) -> Option<Listed> {
    let [Value::BulkString(head), left] = pair else { return None };
    if head.len() < HEADER || &head[..2] != b"I1" {
        return None;
    }
    let state = state(head[2]).filter(|state| *state != State::Absent)?;
    let stamp_ms = decimal(&head[19..35])?;
    let fence = Fence::new(decimal(&head[35..51])?);
    let attempt = u32::try_from(decimal(&head[51..57])?).ok()?;
    let expires_in = match left {
        // Somebody made it stay for good.
        Value::Int(-1) => Duration::MAX,
        left => Duration::from_millis(number(left)?),
    };
    let unfinished = state == State::InProgress;
    let leased = (unfinished && stamp_ms > now_ms)
        .then(|| Duration::from_millis(stamp_ms.saturating_sub(now_ms)));
    let label = if unfinished { Bytes::copy_from_slice(&head[HEADER..]) } else { Bytes::new() };
    let mark = Mark::new(fence, stamp_ms);
    Some(Listed::new(key, state, mark, attempt, leased, expires_in, label))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_searched_for_as_it_is_written() {
        assert_eq!(pattern("a*b?[c]\\{d}:"), "a\\*b\\?\\[c\\]\\\\{d}:*");
    }

    #[test]
    fn keys_of_a_longer_prefix_are_not_ours() {
        let key = RecordKey::from_bytes([3; 32]);
        assert_eq!(key_of("shop:", format!("shop:{key}").as_bytes()), Some(key));
        assert_eq!(key_of("shop:", format!("shop:eu:{key}").as_bytes()), None);
        assert_eq!(key_of("shop:", b"shop:cart"), None);
    }

    #[test]
    fn a_cursor_of_another_store_is_an_error() {
        assert!(page("p:", &Cursor::from_bytes(Bytes::from_static(b"17")), 10).is_ok());
        assert!(page("p:", &Cursor::from_bytes(Bytes::from_static(b"+17")), 10).is_err());
    }
}
