//! Where an identity or a field stands, as a configuration says it: `{ json = "/notifyId" }`.

use http::HeaderName;

use super::{Registry, value::Value};
use crate::{
    fingerprint::AnyField,
    identity::{
        AnySource, Each, Form, Header, Json, Path, Query, Several, form, header, path, query, sent,
    },
    policy::Policy,
};

const PLACE: &str = "a place such as { json = \"/notifyId\" } or { header = \"X-Event-Id\" }";

pub(super) const NOT_A_FIELD: &str = "a list within a list is not compared; name each field alone";

pub(super) const NOT_A_PART: &str =
    "expected parts of a body, { json = \"/sign\" } or { form = \"sign\" }";

const KINDS: &str = "json, form, xml, header, query, path, source, each or sent";

/// A place, or several together.
#[derive(Clone, Debug)]
pub(super) enum Place {
    Json(Json),
    Form(Form),
    #[cfg(feature = "xml")]
    Xml(crate::identity::Xml),
    Header(Header),
    Query(Query),
    Path(Path),
    /// Code, by the name it was registered under.
    Registered(String),
    Each(Json, Box<Self>),
    Sent(Box<Self>),
    Several(Vec<Self>),
}

impl Place {
    /// One place, or a list of them that is one identity together.
    pub(super) fn parse(value: &Value) -> Result<Self, String> {
        match value {
            Value::List(_) => {
                let parts = value.list(&format!("{PLACE}, or a list of them"))?;
                parts.iter().map(Self::one).collect::<Result<_, _>>().map(Self::Several)
            }
            _ => Self::one(value),
        }
    }

    /// One place.
    pub(super) fn one(value: &Value) -> Result<Self, String> {
        let Value::Table(fields) = value else { return Err(value.is_not(PLACE)) };
        let get = |name| fields.iter().find(|(known, _)| known == name).map(|(_, value)| value);
        let (kind, companion) = match &fields[..] {
            [(kind, _)] => (kind.as_str(), None),
            [_, _] if get("header").is_some() => ("header", Some("strict")),
            [_, _] if get("each").is_some() => ("each", Some("read")),
            _ => return Err(value.is_not(PLACE)),
        };
        let inside = |wrong: String| format!("{kind}: {wrong}");
        let main = get(kind).unwrap_or(&Value::Nothing);
        let companion = match companion {
            None => None,
            Some(name) => Some(get(name).ok_or_else(|| {
                format!("{kind} goes with {name} alone; {}", value.is_not(PLACE))
            })?),
        };
        match (kind, companion) {
            ("each", Some(read)) => {
                let array = Json::parse(main.pointer()?).map_err(inside)?;
                let read = Self::parse(read).map_err(|wrong| format!("read: {wrong}"))?;
                Ok(Self::Each(array, Box::new(read)))
            }
            ("each", None) => Err(inside(
                "say what is read from each item: { each = \"/items\", read = { json = \"/id\" } }"
                    .to_owned(),
            )),
            ("sent", _) => Ok(Self::Sent(Box::new(Self::parse(main).map_err(inside)?))),
            ("header", strict) => {
                let found = parse_header(main).map_err(inside)?;
                let strict = strict.map_or(Ok(false), Value::switch);
                let strict = strict.map_err(|wrong| format!("strict: {wrong}"))?;
                Ok(Self::Header(if strict { found.strict() } else { found }))
            }
            _ => Self::simple(kind, main).map_err(inside),
        }
    }

    /// A place that is named by one text.
    fn simple(kind: &str, main: &Value) -> Result<Self, String> {
        match kind {
            "json" => Json::parse(main.pointer()?).map(Self::Json),
            "form" => main.text("the name of a field").map(form).map(Self::Form),
            "query" => main.text("the name of a parameter").map(query).map(Self::Query),
            "path" => main.text("the name of a parameter").map(path).map(Self::Path),
            "source" => {
                let name = main.text("a name that was registered")?;
                Ok(Self::Registered(name.to_owned()))
            }
            #[cfg(feature = "xml")]
            "xml" => {
                let path = main.text("the path of an element, such as \"/xml/out_trade_no\"")?;
                crate::identity::Xml::parse(path).map(Self::Xml)
            }
            #[cfg(not(feature = "xml"))]
            "xml" => Err("this program was built without the feature `xml`".to_owned()),
            _ => Err(format!("is no kind of place; there are {KINDS}")),
        }
    }

    /// What an identity is read from.
    pub(super) fn source(&self, registry: &Registry) -> Result<AnySource, String> {
        Ok(match self {
            Self::Json(json) => AnySource::new(json.clone()),
            Self::Form(form) => AnySource::new(form.clone()),
            #[cfg(feature = "xml")]
            Self::Xml(xml) => AnySource::new(xml.clone()),
            Self::Header(header) => AnySource::new(header.clone()),
            Self::Query(query) => AnySource::new(query.clone()),
            Self::Path(path) => AnySource::new(path.clone()),
            Self::Registered(name) => registry.sources.get(name)?.clone(),
            Self::Each(array, read) => {
                AnySource::new(Each::of(array.clone(), read.source(registry)?))
            }
            Self::Sent(inner) => AnySource::new(sent(inner.source(registry)?)),
            Self::Several(parts) => {
                let parts: Result<_, _> = parts.iter().map(|part| part.source(registry)).collect();
                AnySource::new(Several::new(parts?))
            }
        })
    }

    /// Whether it can be compared: all but lists, whose parts are fields of their own.
    pub(super) fn is_field(&self) -> bool {
        match self {
            Self::Several(_) => false,
            Self::Each(_, inner) | Self::Sent(inner) => inner.is_field(),
            _ => true,
        }
    }

    /// Whether it is a part of a body that can be left out.
    pub(super) fn is_part(&self) -> bool {
        matches!(self, Self::Json(_) | Self::Form(_))
    }

    /// What is compared.
    pub(super) fn field(&self, registry: &Registry) -> Result<AnyField, String> {
        Ok(match self {
            Self::Json(json) => AnyField::new(json.clone()),
            Self::Form(form) => AnyField::new(form.clone()),
            #[cfg(feature = "xml")]
            Self::Xml(xml) => AnyField::new(xml.clone()),
            Self::Header(header) => AnyField::new(header.clone()),
            Self::Query(query) => AnyField::new(query.clone()),
            Self::Path(path) => AnyField::new(path.clone()),
            Self::Registered(name) => registry.fields.get(name)?.clone(),
            Self::Each(array, read) => {
                AnyField::new(Each::of(array.clone(), read.field(registry)?))
            }
            Self::Sent(inner) => AnyField::new(sent(inner.field(registry)?)),
            Self::Several(_) => return Err(NOT_A_FIELD.to_owned()),
        })
    }

    /// The policy that ignores this part of the body too.
    pub(super) fn ignore(&self, policy: Policy) -> Policy {
        match self {
            Self::Json(json) => policy.ignore([json.clone()]),
            Self::Form(form) => policy.ignore([form.clone()]),
            // Refused where it was read.
            _ => policy,
        }
    }
}

fn parse_header(name: &Value) -> Result<Header, String> {
    let text = name.text("the name of a header field")?;
    match HeaderName::try_from(text) {
        Ok(name) => Ok(header(name)),
        Err(_) => Err(name.is_not("the name of a header field")),
    }
}

impl Value {
    /// A text that may be empty: the pointer to the whole document is.
    fn pointer(&self) -> Result<&str, String> {
        match self {
            Self::Text(pointer) => Ok(pointer),
            other => Err(other.is_not("a JSON Pointer such as \"/notifyId\"")),
        }
    }
}
