//! A whole JSON or form body by its meaning, but for some of its parts.

use super::{FieldValue, canonical::canonical, length};
use crate::{
    identity::{Form, Input, Json, Source, decode, pairs},
    refusal::Refusal,
};

/// A part of a body that [`Policy::ignore`](crate::Policy::ignore) may leave out:
/// [`json("/sign")`](crate::json) or [`form("sign")`](crate::form).
pub trait BodyPart: Sealed {}

impl BodyPart for Json {}
impl BodyPart for Form {}

/// Only the parts of this crate know how a body is read without them.
pub trait Sealed {
    /// Leaves this part out.
    fn leave_out(self, rest: &mut Rest);
}

impl Sealed for Json {
    fn leave_out(self, rest: &mut Rest) {
        rest.json.push(self);
    }
}

impl Sealed for Form {
    fn leave_out(self, rest: &mut Rest) {
        rest.form.push(self);
    }
}

/// What is left out of a body; the rest is compared.
#[derive(Clone, Debug, Default)]
pub struct Rest {
    json: Vec<Json>,
    form: Vec<Form>,
}

impl Rest {
    /// Why this cannot be left out, and the mend.
    pub(crate) fn wrong(&self) -> Option<String> {
        match (&*self.json, &*self.form) {
            ([], []) => Some(
                "ignore(..) names nothing; to compare a whole JSON body by its meaning write \
                 .compare([json(\"\")])"
                    .to_owned(),
            ),
            ([json, ..], [form, ..]) => Some(format!(
                "{} and {} cannot be ignored in one body: a body is JSON or a form, so name parts \
                 of one of them alone",
                json.describe(),
                form.describe()
            )),
            (json, _) if json.iter().any(|json| json.path().is_empty()) => Some(
                "json(\"\") is the whole body, so that nothing would be compared; name a part of \
                 it, or write .no_fingerprint()"
                    .to_owned(),
            ),
            _ => None,
        }
    }

    /// The body without it.
    pub(crate) fn meaning(&self, from: &Input<'_>) -> Result<FieldValue, Refusal> {
        let Some(first) = self.json.first() else { return Ok(self.form(from)) };
        let without: Vec<&[String]> = self.json.iter().map(Json::path).collect();
        match canonical(first.document(from)?, &without) {
            Ok(meaning) => Ok(FieldValue::new(meaning)),
            Err(wrong) => Err(Refusal::identity_malformed(format!(
                "the JSON body cannot be compared: {wrong}"
            ))),
        }
    }

    /// Fields in the order of their names. Those with one name keep their order, since readers
    /// disagree about which of them counts.
    fn form(&self, from: &Input<'_>) -> FieldValue {
        let is_compared =
            |name: &[u8]| !self.form.iter().any(|form| form.name().as_bytes() == name);
        let mut fields: Vec<_> = pairs(from.body())
            .map(|(name, value)| (decode(name), decode(value)))
            .filter(|(name, _)| is_compared(name))
            .collect();
        fields.sort_by(|one, other| one.0.cmp(&other.0));
        let mut out = Vec::with_capacity(from.body().len());
        for (name, value) in &fields {
            for part in [name, value] {
                out.extend_from_slice(&length(part));
                out.extend_from_slice(part);
            }
        }
        FieldValue::new(out)
    }

    /// For messages.
    pub(crate) fn describe(&self) -> String {
        let json = self.json.iter().map(Source::describe);
        let names: Vec<String> = json.chain(self.form.iter().map(Source::describe)).collect();
        format!("method, path, query and body, but for {}", names.join(", "))
    }
}
