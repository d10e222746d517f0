//! An identity in a field of a JSON body, found without building the document.

use std::{borrow::Cow, fmt, ops::ControlFlow};

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::{Identity, Input, Source, encoding, excerpt};
use crate::refusal::Refusal;

/// An identity in a field of a JSON body. Made by [`json`].
#[derive(Clone, Debug)]
pub struct Json {
    pointer: String,
    /// The pointer's reference tokens, unescaped.
    path: Vec<String>,
}

/// The identity in this field of a JSON body, named by a JSON Pointer (RFC 6901): `/notifyId`,
/// `/items/0/id`, `/a~1b` for a member named `a/b`, and the empty pointer for the whole document.
///
/// A string is the identity without its quotes, with its escapes undone; an integer is one as it
/// is written, so that `7` and `"7"` are one identity. Anything else there, `null` too, is refused,
/// and so is a body in which a member of the path stands twice, since readers disagree about which
/// of them counts. A field that is not there is an absent identity.
///
/// The body is read as JSON whatever its `Content-Type` says: some senders label it `text/plain`.
///
/// Danger: an index in the pointer names one item of an array, whatever else is in it. Where a body
/// may have several notifications, `json("/items/0/id")` takes the first for all of them; write
/// [`each("/items", json("/id"))`](crate::each).
///
/// # Panics
///
/// When `pointer` is no JSON Pointer: it must be empty or begin with `/`, and `~` must be followed
/// by `0` or `1`.
///
/// # Example: a notification
///
/// ```
/// use bytes::Bytes;
/// use tower_idempotency::{Identity, Input, Source, json};
///
/// let (head, body) = http::Request::new(Bytes::from(r#"{"notifyId": "N-1", "amount": 960}"#))
///     .into_parts();
/// let found = json("/notifyId").read(&Input::new(&head, &body)).unwrap();
/// assert_eq!(found, Some(Identity::new("N-1")));
/// ```
#[track_caller]
pub fn json(pointer: &str) -> Json {
    match Json::parse(pointer) {
        Ok(json) => json,
        Err(mend) => panic!("json({pointer:?}): {mend}"),
    }
}

impl Source for Json {
    fn read(&self, from: &Input<'_>) -> Result<Option<Identity>, Refusal> {
        self.find(from)?.map(|leaf| self.leaf(leaf)).transpose()
    }

    fn describe(&self) -> String {
        match &*self.pointer {
            "" => "the JSON document".to_owned(),
            pointer => format!("JSON field {pointer}"),
        }
    }
}

impl Json {
    /// The field at this pointer, or why it is none, and the mend.
    pub(crate) fn parse(pointer: &str) -> Result<Self, String> {
        let path = parse_pointer(pointer)?;
        Ok(Self { pointer: pointer.to_owned(), path })
    }

    /// The pointer's reference tokens, unescaped.
    pub(crate) fn path(&self) -> &[String] {
        &self.path
    }

    /// The whole body, if it is one JSON document.
    pub(crate) fn document<'a>(&self, from: &Input<'a>) -> Result<&'a str, Refusal> {
        let text = self.text(from)?;
        whole(text).map_err(|error| self.not_json(from, &error.to_string()))
    }

    /// The JSON text at the pointer, in a body that is one JSON document.
    pub(crate) fn find<'a>(&self, from: &Input<'a>) -> Result<Option<&'a str>, Refusal> {
        let text = self.text(from)?;
        let mut place: Option<&str> = None;
        for (depth, token) in self.path.iter().enumerate() {
            let found = step(place.unwrap_or(text), token)
                .map_err(|error| self.not_json(from, &error.to_string()))?;
            match found {
                Found::Value(value) => place = Some(value.get()),
                Found::Nothing => return Ok(None),
                Found::Twice => {
                    return Err(self.refusal(&format!("{} is there twice", self.to(depth + 1))));
                }
                Found::NoWay(kind) => {
                    return Err(self.refusal(&format!("{} is {kind}", self.to(depth))));
                }
            }
        }
        match place {
            Some(leaf) => Ok(Some(leaf)),
            None => self.document(from).map(Some),
        }
    }

    /// Shows each item of the array at the pointer to `visit`, with its place, and counts them; `None`
    /// if nothing is there.
    pub(super) fn visit_items<'a>(
        &self,
        from: &Input<'a>,
        mut visit: impl FnMut(usize, &'a str) -> ControlFlow<Refusal>,
    ) -> Result<Option<usize>, Refusal> {
        let Some(array) = self.find(from)? else { return Ok(None) };
        let other = kind(array);
        if !matches!(other, Kind::Array) {
            let wrong = format!("in the JSON body, {} is {other}", self.to(self.path.len()));
            return Err(Refusal::identity_malformed(format!("{wrong}; it must be an array")));
        }
        let items: Vec<&'a RawValue> =
            serde_json::from_str(array).map_err(|error| self.not_json(from, &error.to_string()))?;
        for (place, item) in items.iter().enumerate() {
            if let ControlFlow::Break(refusal) = visit(place, item.get()) {
                return Err(refusal);
            }
        }
        Ok(Some(items.len()))
    }

    fn text<'a>(&self, from: &Input<'a>) -> Result<&'a str, Refusal> {
        // serde_json checks UTF-8 only in what it hands out, and most of the body it skips.
        let text = std::str::from_utf8(from.body())
            .map_err(|e| self.not_json(from, &format!("byte {} is not UTF-8", e.valid_up_to())))?;
        if text.starts_with('\u{feff}') {
            return Err(self.not_json(from, "it begins with a byte order mark"));
        }
        if text.trim_matches(is_whitespace).is_empty() {
            return Err(self.not_json(from, "it is empty"));
        }
        Ok(text)
    }

    /// The identity that this JSON value is.
    fn leaf(&self, json: &str) -> Result<Identity, Refusal> {
        let wrong = match kind(json) {
            Kind::String => match serde_json::from_str::<String>(json) {
                Ok(text) => return Ok(Identity::new(text)),
                Err(_) => "has an escape that is no character".to_owned(),
            },
            Kind::Number if json == "-0" => "is -0, which is no integer of its own".to_owned(),
            Kind::Number if json.contains(['.', 'e', 'E']) => {
                format!("is {}, with a fraction or an exponent", excerpt(json.as_bytes()))
            }
            Kind::Number => return Ok(Identity::new(json.to_owned())),
            other => format!("is {other}"),
        };
        Err(self.refusal(&format!("{} {wrong}", self.to(self.path.len()))))
    }

    /// The first so many steps of the path, for messages.
    fn to(&self, depth: usize) -> Cow<'static, str> {
        if depth == 0 {
            return "the document".into();
        }
        // Each token has one `/` in front of it, and none within.
        let mut slashes = self.pointer.match_indices('/').map(|(at, _)| at);
        let end = slashes.nth(depth).unwrap_or(self.pointer.len());
        self.pointer[..end].to_owned().into()
    }

    fn refusal(&self, wrong: &str) -> Refusal {
        Refusal::identity_malformed(format!(
            "in the JSON body, {wrong}; {} must be one string or integer",
            self.to(self.path.len())
        ))
    }

    fn not_json(&self, from: &Input<'_>, wrong: &str) -> Refusal {
        let detail = match encoding(from) {
            None => format!(
                "the body is no JSON document ({wrong}); send one in UTF-8, with {} in it",
                self.to(self.path.len())
            ),
            Some(coding) => format!(
                "{coding} and cannot be read as JSON ({wrong}); send it plain, or let the server \
                 decompress it in a layer outside this one"
            ),
        };
        Refusal::identity_malformed(detail)
    }
}

fn parse_pointer(pointer: &str) -> Result<Vec<String>, String> {
    if pointer.is_empty() {
        return Ok(Vec::new());
    }
    let Some(tokens) = pointer.strip_prefix('/') else {
        // Whoever writes `$.data.id` means a path through members, and not a member with dots.
        let steps = pointer.strip_prefix('$').unwrap_or(pointer).trim_start_matches('.');
        let meant = steps.replace('.', "/");
        return Err(format!("a JSON Pointer begins with `/`; write \"/{meant}\""));
    };
    tokens.split('/').map(unescape).collect()
}

/// RFC 6901 section 4: `~1` first and `~0` last, so that `~01` becomes `~1` and not `/`.
fn unescape(token: &str) -> Result<String, String> {
    let escapes_well = |after: &str| after.starts_with(['0', '1']);
    if !token.split('~').skip(1).all(escapes_well) {
        return Err(
            "`~` must be followed by `0` or `1`; write `~0` for `~` and `~1` for `/`".into()
        );
    }
    Ok(token.replace("~1", "/").replace("~0", "~"))
}

/// What stands at one step of the path.
enum Found<'a> {
    Value(&'a RawValue),
    Nothing,
    Twice,
    /// The value the step starts from has nothing inside that the step could name.
    NoWay(Kind),
}

/// Goes one step into this JSON text. The whole of it is read: what follows could name the member
/// once more, or be no JSON. Values beside the path are skipped without recursion, however deep.
fn step<'a>(text: &'a str, token: &str) -> serde_json::Result<Found<'a>> {
    let mut document = serde_json::Deserializer::from_str(text);
    let found = match (kind(text), index(token)) {
        (Kind::Object, _) => document.deserialize_map(Member(token))?,
        (Kind::Array, Some(index)) => document.deserialize_seq(Element(index))?,
        (other, _) => {
            document.deserialize_ignored_any(IgnoredAny)?;
            Found::NoWay(other)
        }
    };
    document.end()?;
    Ok(found)
}

/// This JSON text without the whitespace around it.
fn whole(text: &str) -> serde_json::Result<&str> {
    serde_json::from_str::<&RawValue>(text).map(RawValue::get)
}

/// RFC 6901 section 4: digits without leading zeros.
fn index(token: &str) -> Option<usize> {
    let all_digits = token.bytes().all(|byte| byte.is_ascii_digit());
    let leading_zero = token.len() > 1 && token.starts_with('0');
    if all_digits && !leading_zero { token.parse().ok() } else { None }
}

/// Finds the value of this member of an object.
struct Member<'t>(&'t str);

impl<'de> Visitor<'de> for Member<'_> {
    type Value = Found<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Self::Value, A::Error> {
        let mut found = Found::Nothing;
        while let Some(is_it) = members.next_key_seed(Is(self.0))? {
            match (is_it, &found) {
                (true, Found::Nothing) => found = Found::Value(members.next_value()?),
                (true, _) => {
                    found = Found::Twice;
                    members.next_value::<IgnoredAny>()?;
                }
                (false, _) => {
                    members.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(found)
    }
}

/// Whether a member's name, with its escapes undone, is this one.
struct Is<'t>(&'t str);

impl<'de> DeserializeSeed<'de> for Is<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, name: D) -> Result<bool, D::Error> {
        name.deserialize_str(self)
    }
}

impl Visitor<'_> for Is<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a member")
    }

    fn visit_str<E>(self, name: &str) -> Result<bool, E> {
        Ok(name == self.0)
    }
}

/// Finds the element of an array at this index.
struct Element(usize);

impl<'de> Visitor<'de> for Element {
    type Value = Found<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Self::Value, A::Error> {
        for _ in 0..self.0 {
            if elements.next_element::<IgnoredAny>()?.is_none() {
                return Ok(Found::Nothing);
            }
        }
        let found = elements.next_element()?.map_or(Found::Nothing, Found::Value);
        while elements.next_element::<IgnoredAny>()?.is_some() {}
        Ok(found)
    }
}

/// What a JSON value is, as messages name it.
#[derive(Clone, Copy)]
enum Kind {
    Object,
    Array,
    String,
    Number,
    Boolean,
    Null,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Object => "an object",
            Self::Array => "an array",
            Self::String => "a string",
            Self::Number => "a number",
            Self::Boolean => "a boolean",
            Self::Null => "null",
        })
    }
}

/// The first character of a JSON value says what it is; whether it is one, the parser says.
fn kind(text: &str) -> Kind {
    match text.trim_start_matches(is_whitespace).as_bytes().first() {
        Some(b'{') => Kind::Object,
        Some(b'[') => Kind::Array,
        Some(b'"') => Kind::String,
        Some(b't' | b'f') => Kind::Boolean,
        Some(b'n') => Kind::Null,
        _ => Kind::Number,
    }
}

/// RFC 8259 section 2; Unicode knows more.
fn is_whitespace(character: char) -> bool {
    matches!(character, ' ' | '\t' | '\n' | '\r')
}
