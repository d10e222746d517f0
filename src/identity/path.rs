//! An identity in the path of the URI, where the rule's own pattern names it.

use bytes::Bytes;
use percent_encoding::percent_decode;

use super::{Identity, Input, Source};
use crate::refusal::Refusal;

/// An identity in a parameter of the path. Made by [`path`].
#[derive(Clone, Debug)]
pub struct Path {
    parameter: String,
}

/// The identity in this parameter of the rule's own pattern: `path("id")` for a rule with
/// `.path("/orders/{id}/fulfil")`. Its bytes, with `%2F` undone: two spellings are one identity.
///
/// A rule without such a pattern is an error where it is added to the rules. The body is not read,
/// so that a request can be refused before its body is sent.
///
/// # Panics
///
/// When `parameter` is empty.
///
/// # Example: one fulfilment an order
///
/// ```
/// use tower_idempotency::{Policy, Rule, Rules, Scope, path};
///
/// let fulfil = || Rule::new("fulfil", Policy::api(Scope::everyone()).identity(path("id")));
///
/// let mut rules = Rules::new();
/// assert!(rules.try_add(fulfil().path("/orders/{id}/fulfil")).is_ok());
///
/// let error = Rules::new().try_add(fulfil().path("/orders/{order}/fulfil")).unwrap_err();
/// assert!(error.to_string().contains("has no parameter {id}"));
/// ```
#[track_caller]
pub fn path(parameter: impl Into<String>) -> Path {
    let parameter = parameter.into();
    assert!(
        !parameter.is_empty(),
        "path(\"\"): give the name of a parameter, such as path(\"id\")"
    );
    Path { parameter }
}

impl Path {
    /// The parameter's bytes.
    pub(crate) fn find(&self, from: &Input<'_>) -> Result<Option<Bytes>, Refusal> {
        self.fits(from.pattern()).map_err(Refusal::identity_malformed)?;
        let mut router = matchit::Router::new();
        // The rules have taken this pattern; one that was made up by hand matches nothing.
        if router.insert(from.pattern().unwrap_or_default(), ()).is_err() {
            return Ok(None);
        }
        let Ok(found) = router.at(from.head().uri.path()) else { return Ok(None) };
        let value = found.params.get(&self.parameter);
        Ok(value.map(|value| percent_decode(value.as_bytes()).collect::<Vec<u8>>().into()))
    }

    /// Whether this pattern of a rule has the parameter.
    pub(crate) fn fits(&self, pattern: Option<&str>) -> Result<(), String> {
        let parameter = &self.parameter;
        match pattern {
            None => Err(format!(
                "{} is read from the rule's own path, and the rule has none; give it one, such as \
                 .path(\"/orders/{{{parameter}}}\")",
                self.describe()
            )),
            Some(pattern) if parameters(pattern).any(|name| name == parameter) => Ok(()),
            Some(pattern) => Err(format!(
                "{} is read from the rule's own path, and {pattern:?} has no parameter \
                 {{{parameter}}}; name it there, or read another one",
                self.describe()
            )),
        }
    }
}

/// The names in braces; `{{` and `}}` are braces of the path itself.
fn parameters(pattern: &str) -> impl Iterator<Item = &str> {
    let mut rest = pattern;
    std::iter::from_fn(move || {
        loop {
            let after = &rest[rest.find('{')? + 1..];
            if let Some(literal) = after.strip_prefix('{') {
                rest = literal;
                continue;
            }
            let (name, behind) = after.split_once('}')?;
            rest = behind;
            return Some(name.strip_prefix('*').unwrap_or(name));
        }
    })
}

impl Source for Path {
    fn read(&self, from: &Input<'_>) -> Result<Option<Identity>, Refusal> {
        Ok(self.find(from)?.map(Identity::new))
    }

    fn reads_body(&self) -> bool {
        false
    }

    fn describe(&self) -> String {
        format!("path parameter {}", self.parameter)
    }

    fn fits_pattern(&self, pattern: Option<&str>) -> Result<(), String> {
        self.fits(pattern)
    }
}
