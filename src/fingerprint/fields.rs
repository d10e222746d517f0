//! What the sources mean as fields that are compared.

use super::{Field, FieldValue, canonical::canonical};
use crate::{
    identity::{Each, Extension, Form, Header, Input, Json, Path, Query, Sent, Source, outside},
    refusal::Refusal,
};

/// The value's meaning: members in any order, whitespace and escapes do not matter, `10`, `10.0` and
/// `1e1` are one number, compared digit by digit and never as a float. `"960.00"` and `960` are
/// different, and so are `null` and a field that is not there. Refused are a member that is there
/// twice, more than 64 arrays and objects in each other, and an exponent of more than 18 digits.
impl Field for Json {
    fn value(&self, from: &Input<'_>) -> Result<Option<FieldValue>, Refusal> {
        let Some(text) = self.find(from)? else { return Ok(None) };
        match canonical(text, &[]) {
            Ok(meaning) => Ok(Some(FieldValue::new(meaning))),
            Err(wrong) => Err(Refusal::identity_malformed(format!(
                "{} cannot be compared: {wrong}",
                self.describe()
            ))),
        }
    }

    fn name(&self) -> String {
        self.describe()
    }
}

/// The value as it is written, without spaces around it. A field on several lines is refused.
impl Field for Header {
    fn value(&self, from: &Input<'_>) -> Result<Option<FieldValue>, Refusal> {
        Ok(self.line(from)?.map(|value| FieldValue::new(value.to_vec())))
    }

    fn name(&self) -> String {
        self.describe()
    }
}

/// The field's decoded bytes: `960.00` and `960` are different.
impl Field for Form {
    fn value(&self, from: &Input<'_>) -> Result<Option<FieldValue>, Refusal> {
        Ok(self.find(from)?.map(FieldValue::new))
    }

    fn name(&self) -> String {
        self.describe()
    }
}

/// The element's bytes: `960.00` and `960` are different.
#[cfg(feature = "xml")]
impl Field for crate::identity::Xml {
    fn value(&self, from: &Input<'_>) -> Result<Option<FieldValue>, Refusal> {
        Ok(self.find(from)?.map(FieldValue::new))
    }

    fn name(&self) -> String {
        self.describe()
    }
}

/// The parameter's decoded bytes.
impl Field for Query {
    fn value(&self, from: &Input<'_>) -> Result<Option<FieldValue>, Refusal> {
        Ok(self.find(from)?.map(FieldValue::new))
    }

    fn name(&self) -> String {
        self.describe()
    }
}

/// The parameter's decoded bytes.
impl Field for Path {
    fn value(&self, from: &Input<'_>) -> Result<Option<FieldValue>, Refusal> {
        Ok(self.find(from)?.map(FieldValue::new))
    }

    fn name(&self) -> String {
        self.describe()
    }

    fn fits_pattern(&self, pattern: Option<&str>) -> Result<(), String> {
        self.fits(pattern)
    }
}

/// The extension's text.
impl<T: AsRef<str> + Clone + Send + Sync + 'static> Field for Extension<T> {
    fn value(&self, from: &Input<'_>) -> Result<Option<FieldValue>, Refusal> {
        Ok(Self::find(from).map(FieldValue::new))
    }

    fn name(&self) -> String {
        self.describe()
    }
}

/// The field of every item, in their order.
impl<F: Field> Field for Each<F> {
    fn value(&self, from: &Input<'_>) -> Result<Option<FieldValue>, Refusal> {
        let mut all = Vec::new();
        let found = self.visit(from, |_, item| {
            match self.inner().value(item)? {
                None => all.push(0),
                Some(value) => {
                    all.push(1);
                    all.extend_from_slice(&super::length(value.as_bytes()));
                    all.extend_from_slice(value.as_bytes());
                }
            }
            Ok(())
        })?;
        Ok(found.map(|()| FieldValue::new(all)))
    }

    fn name(&self) -> String {
        self.describe_with(&self.inner().name())
    }

    fn fits_pattern(&self, pattern: Option<&str>) -> Result<(), String> {
        self.inner().fits_pattern(pattern)
    }
}

impl<F: Field> Field for Sent<F> {
    fn value(&self, from: &Input<'_>) -> Result<Option<FieldValue>, Refusal> {
        self.inner().value(&outside(from))
    }

    fn name(&self) -> String {
        self.inner().name()
    }

    fn fits_pattern(&self, pattern: Option<&str>) -> Result<(), String> {
        self.inner().fits_pattern(pattern)
    }
}
