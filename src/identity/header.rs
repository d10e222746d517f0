//! An identity in a header field, as the `Idempotency-Key` draft has it: a structured-field string.

use std::borrow::Cow;

use http::{HeaderName, HeaderValue};
use sfv::{BareItemFromInput, Parser};

use super::{Identity, Input, Source, excerpt, printable};
use crate::refusal::Refusal;

/// What a message shows as a right value: the key of the draft's own example.
const EXAMPLE: &str = "8e03978e-40d5-43e8-bc93-6894a57f9324";

/// An identity in a header field. Made by [`header`].
#[derive(Clone, Debug)]
pub struct Header {
    name: HeaderName,
    shown: String,
    strict: bool,
}

/// The identity in this header field, `Idempotency-Key` or another.
///
/// The value is a string of RFC 9651, `Idempotency-Key: "8e03978e-40d5-43e8-bc93-6894a57f9324"`;
/// the quotes are not part of the identity, `\"` and `\\` are unescaped, parameters (`;v=1`) are
/// ignored. Most clients send the key without quotes; that is the same identity, as long as it is
/// made of visible ASCII characters other than `"`, `,` and `;` and does not begin with `'`.
/// [`strict`](Header::strict) refuses it. Upper and lower case are different, and nothing is
/// trimmed inside the quotes.
///
/// A request with the field on several lines is refused even if they are alike: which of them
/// counts would depend on who reads it.
///
/// # Panics
///
/// When `name` is no name of a header field.
///
/// # Example: with quotes and without
///
/// ```
/// use bytes::Bytes;
/// use tower_idempotency::{Input, Source, header};
///
/// let key = header("Idempotency-Key");
/// let read = |value: &str| {
///     let request = http::Request::builder().header("Idempotency-Key", value).body(()).unwrap();
///     key.read(&Input::new(&request.into_parts().0, &Bytes::new()))
/// };
///
/// assert_eq!(read(r#""abc-1""#).unwrap(), read("abc-1").unwrap());
/// assert!(read(r#""abc-1"#).is_err());
/// ```
#[track_caller]
pub fn header<N>(name: N) -> Header
where
    N: TryInto<HeaderName>,
    N::Error: std::fmt::Display,
{
    match name.try_into() {
        Ok(name) => Header { shown: as_people_write(&name), name, strict: false },
        Err(error) => panic!(
            "header(..): {error}; give the name of a header field, such as \"Idempotency-Key\""
        ),
    }
}

impl Header {
    /// Demands the quotes: a key without them is refused. Default: both are taken.
    ///
    /// Clients that send a bare key, as most do today, get 400 from a strict rule.
    #[must_use]
    pub fn strict(mut self) -> Self {
        self.strict = true;
        self
    }

    /// The value of the only line, without spaces around it.
    pub(crate) fn line<'a>(&self, from: &Input<'a>) -> Result<Option<&'a [u8]>, Refusal> {
        // Deliberately not HeaderMap::get, which would take the first of several.
        let mut lines = from.head().headers.get_all(&self.name).iter();
        let Some(value) = lines.next() else { return Ok(None) };
        let more = lines.count();
        if more > 0 {
            return Err(Refusal::identity_malformed(format!(
                "the header {name} is on {} lines; send it once, like {name}: \"{EXAMPLE}\"",
                more + 1,
                name = self.shown,
            )));
        }
        Ok(Some(without_spaces_around(value)))
    }

    fn identity(&self, value: &[u8]) -> Result<Identity, Refusal> {
        match value.first() {
            None => Err(self.refusal(value, "is empty")),
            Some(b'"') => self.quoted(value),
            Some(_) if self.strict => Err(self.refusal(value, "has no quotes around it")),
            Some(_) => self.unquoted(value),
        }
    }

    fn quoted(&self, value: &[u8]) -> Result<Identity, Refusal> {
        let item = Parser::new(value).parse_item::<BareItemFromInput<'_>>().map_err(|error| {
            let at = match error.index().and_then(|index| value.get(index).map(|b| (index, b))) {
                Some((index, byte)) => format!(" at byte {index}, {}", show_byte(*byte)),
                None => String::new(),
            };
            self.refusal(value, &format!("is no structured-field string ({error:#}{at})"))
        })?;
        match item {
            BareItemFromInput::String(key) if key.as_str().is_empty() => {
                Err(self.refusal(value, "has nothing between its quotes"))
            }
            BareItemFromInput::String(key) => Ok(Identity::new(key.as_str().to_owned())),
            // It begins with a quote, so that the parser has nothing else to make of it.
            _ => Err(self.refusal(value, "is no structured-field string")),
        }
    }

    /// The value as it stands. What its first character is must not matter: a structured-field
    /// parser that also took tokens would refuse the 10 of 16 UUIDs that begin with a digit.
    fn unquoted(&self, value: &[u8]) -> Result<Identity, Refusal> {
        if value.first() == Some(&b'\'') {
            return Err(self.refusal(value, "has single quotes, which are not quotes here"));
        }
        // Without a way out at the first that does not, many bytes are looked at at once.
        let all_stand = value.iter().fold(true, |all, byte| all & stands_unquoted(*byte));
        let wrong = match all_stand {
            true => None,
            false => value.iter().find(|byte| !stands_unquoted(**byte)),
        };
        match wrong {
            None => Ok(Identity::new(value.to_vec())),
            Some(byte) => {
                let wrong = format!("has {} in it, and no quotes around it", show_byte(*byte));
                Err(self.refusal(value, &wrong))
            }
        }
    }

    fn refusal(&self, value: &[u8], wrong: &str) -> Refusal {
        let name = &self.shown;
        let value: Cow<'_, str> = match value {
            [] => "".into(),
            value => format!(" {}", excerpt(value)).into(),
        };
        Refusal::identity_malformed(format!(
            "the value{value} of the header {name} {wrong}; send one like {name}: \"{EXAMPLE}\""
        ))
    }
}

impl Source for Header {
    fn read(&self, from: &Input<'_>) -> Result<Option<Identity>, Refusal> {
        self.line(from)?.map(|value| self.identity(value)).transpose()
    }

    fn reads_body(&self) -> bool {
        false
    }

    fn describe(&self) -> String {
        format!("header {}", self.shown)
    }

    fn syntax(&self) -> Option<String> {
        let quotes = if self.strict { "" } else { "; the quotes may be left out" };
        let name = &self.shown;
        Some(format!("a structured-field string (RFC 9651), `{name}: \"{EXAMPLE}\"`{quotes}"))
    }
}

/// Visible ASCII, without what separates values, parameters and strings from each other.
const fn stands_unquoted(byte: u8) -> bool {
    byte.is_ascii_graphic() && !matches!(byte, b'"' | b',' | b';')
}

/// RFC 9651 section 4.2 discards spaces around the value, and nothing else.
fn without_spaces_around(value: &HeaderValue) -> &[u8] {
    let mut value = value.as_bytes();
    while let [b' ', rest @ ..] | [rest @ .., b' '] = value {
        value = rest;
    }
    value
}

fn show_byte(byte: u8) -> String {
    match byte {
        b' ' => "a space".to_owned(),
        byte => format!("`{}`", printable(byte)),
    }
}

/// `Idempotency-Key` for `idempotency-key`: `http` keeps names in lower case.
fn as_people_write(name: &HeaderName) -> String {
    let mut shown = String::with_capacity(name.as_str().len());
    for character in name.as_str().chars() {
        let starts_a_word = shown.is_empty() || shown.ends_with('-');
        shown.push(if starts_a_word { character.to_ascii_uppercase() } else { character });
    }
    shown
}
