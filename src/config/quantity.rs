//! Durations, sizes, methods and statuses, as people write them.

use std::time::Duration;

use http::{Method, StatusCode};

use super::value::Value;

const DURATION: &str = "a duration such as \"30s\", \"7d\" or \"1h30m\"";
const SIZE: &str = "a number of bytes, or a size such as \"64KiB\" or \"1MiB\"";
/// The least that an answer takes in there, times the parts of which it may take one.
const ROOM_AT_LEAST: usize = 256 * 32;
const METHODS: [Method; 7] = [
    Method::POST,
    Method::PUT,
    Method::PATCH,
    Method::DELETE,
    Method::GET,
    Method::HEAD,
    Method::OPTIONS,
];

pub(super) fn duration(value: &Value) -> Result<Duration, String> {
    let text = value.text(DURATION)?;
    humantime::parse_duration(text).map_err(|error| format!("{} ({error})", value.is_not(DURATION)))
}

/// A number of bytes: `1048576`, `"1MiB"`, `"64 kB"`.
pub(super) fn size(value: &Value) -> Result<usize, String> {
    let wrong = || value.is_not(SIZE);
    let bytes = match value {
        Value::Whole(bytes) => *bytes,
        Value::Text(text) => {
            let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
            let (number, unit) = text.split_at(digits);
            let unit: u64 = match unit.trim() {
                "" | "B" => 1,
                "kB" | "KB" => 1000,
                "KiB" => 1 << 10,
                "MB" => 1_000_000,
                "MiB" => 1 << 20,
                "GB" => 1_000_000_000,
                "GiB" => 1 << 30,
                _ => return Err(wrong()),
            };
            let number: u64 = number.parse().map_err(|_| wrong())?;
            number.checked_mul(unit).ok_or_else(wrong)?
        }
        _ => return Err(wrong()),
    };
    usize::try_from(bytes).map_err(|_| wrong())
}

/// How many bytes answers are kept in. What is too little for a single one is a number without its unit.
pub(super) fn room(value: &Value) -> Result<usize, String> {
    match size(value)? {
        bytes @ 1..ROOM_AT_LEAST => Err(format!(
            "{bytes} bytes have no room for a single answer, of which each may take 1/32; write a size \
             such as \"2MiB\", or 0 to keep none"
        )),
        bytes => Ok(bytes),
    }
}

pub(super) fn methods(value: &Value) -> Result<Vec<Method>, String> {
    let known = METHODS.map(|method| format!("{:?}", method.as_str())).join(", ");
    // Methods that are not of this list are rare, and a typing error would protect nothing.
    let expected = format!("a list such as [\"POST\", \"PATCH\"], of {known}");
    let listed = value.list(&expected)?;
    let method = |value: &Value| {
        let name = value.text(&expected)?;
        let found = METHODS.into_iter().find(|method| method == name);
        found.ok_or_else(|| value.is_not(&format!("one of {known}")))
    };
    listed.iter().map(method).collect()
}

pub(super) fn statuses(value: &Value) -> Result<Vec<StatusCode>, String> {
    let expected = "a list of statuses from 200 to 599, such as [402, 409]";
    let status = |value: &Value| match value {
        Value::Whole(status @ 200..=599) => {
            u16::try_from(*status).ok().and_then(|status| StatusCode::from_u16(status).ok())
        }
        _ => None,
    };
    value
        .list(expected)?
        .iter()
        .map(|value| status(value).ok_or_else(|| value.is_not(expected)))
        .collect()
}
