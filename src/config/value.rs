//! What a configuration says, whatever its format: a value that can tell what it is.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// A value of a configuration.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Nothing,
    Bool(bool),
    Whole(u64),
    /// A number that is negative or has a fraction, as it is shown.
    Number(String),
    Text(String),
    List(Vec<Self>),
    Table(Vec<(String, Self)>),
}

impl Value {
    /// What is wrong with it, for the message of the field it stands in.
    pub(super) fn is_not(&self, expected: &str) -> String {
        format!("expected {expected}, found {self}")
    }

    pub(super) fn text(&self, expected: &str) -> Result<&str, String> {
        match self {
            Self::Text(text) if !text.is_empty() => Ok(text),
            other => Err(other.is_not(expected)),
        }
    }

    pub(super) fn switch(&self) -> Result<bool, String> {
        match self {
            Self::Bool(on) => Ok(*on),
            other => Err(other.is_not("true or false")),
        }
    }

    /// A list with something in it.
    pub(super) fn list(&self, expected: &str) -> Result<&[Self], String> {
        match self {
            Self::List(values) if !values.is_empty() => Ok(values),
            other => Err(other.is_not(expected)),
        }
    }
}

/// What was found, for messages.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("nothing"),
            Self::Bool(on) => write!(f, "{on}"),
            Self::Whole(number) => write!(f, "the number {number}"),
            Self::Number(number) => write!(f, "the number {number}"),
            Self::Text(text) => write!(f, "{text:?}"),
            Self::List(values) if values.is_empty() => f.write_str("an empty list"),
            Self::List(_) => f.write_str("a list"),
            Self::Table(fields) => {
                let names: Vec<_> = fields.iter().map(|(name, _)| name.as_str()).collect();
                write!(f, "a table with the fields [{}]", names.join(", "))
            }
        }
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text, a number, true or false, a list or a table")
    }

    fn visit_bool<E: Error>(self, on: bool) -> Result<Value, E> {
        Ok(Value::Bool(on))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Value, E> {
        Ok(match u64::try_from(number) {
            Ok(number) => Value::Whole(number),
            Err(_) => Value::Number(number.to_string()),
        })
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Value, E> {
        Ok(Value::Whole(number))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Value, E> {
        // With its point, so that `7.0` is not shown as the 7 that would have been right.
        Ok(Value::Number(format!("{number:?}")))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Value, E> {
        Ok(Value::Text(text.to_owned()))
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Nothing)
    }

    fn visit_none<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Nothing)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, inner: D) -> Result<Value, D::Error> {
        inner.deserialize_any(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = list.next_element()? {
            values.push(value);
        }
        Ok(Value::List(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, table: A) -> Result<Value, A::Error> {
        fields(table).map(Value::Table)
    }
}

/// The fields of a table.
pub(super) fn fields<'de, A: MapAccess<'de>>(
    mut table: A,
) -> Result<Vec<(String, Value)>, A::Error> {
    let mut fields: Vec<(String, Value)> = Vec::new();
    while let Some((name, value)) = table.next_entry::<String, Value>()? {
        // JSON lets a name stand twice, and readers disagree about which of them counts.
        if fields.iter().any(|(known, _)| *known == name) {
            return Err(A::Error::custom(format!("the field `{name}` stands twice; keep one")));
        }
        fields.push((name, value));
    }
    Ok(fields)
}
