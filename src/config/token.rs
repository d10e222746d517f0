//! The one-time token that a rule of a configuration demands.

use super::{
    choices::{Parsed, change},
    source::Place,
    value::Value,
};

/// `token = { read = { header = "X-Once-Token" }, from = "POST /tokens" }`
pub(super) fn token(value: &Value) -> Parsed {
    const EXPECTED: &str = "where the token stands and where clients get one, such as \
                            { read = { header = \"X-Once-Token\" }, from = \"POST /tokens\" }";
    let Value::Table(fields) = value else { return Err(value.is_not(EXPECTED)) };
    let get = |name| fields.iter().find(|(known, _)| known == name).map(|(_, value)| value);
    let (Some(read), Some(from), 2) = (get("read"), get("from"), fields.len()) else {
        return Err(value.is_not(EXPECTED));
    };
    let place = Place::one(read).map_err(|wrong| format!("read: {wrong}"))?;
    let from = from.text("the route that gives tokens, such as \"POST /tokens\"");
    let from = from.map_err(|wrong| format!("from: {wrong}"))?.to_owned();
    change(move |policy, registry| Ok(policy.token(place.source(registry)?, from.clone())))
}
