//! Every choice of a policy by the name of its setter, and how its value is read.

use std::{sync::Arc, time::Duration};

use http::StatusCode;

use super::{
    Registry,
    quantity::{duration, size, statuses},
    registry::Names,
    source::{NOT_A_FIELD, NOT_A_PART, Place},
    token::token,
    value::Value,
};
use crate::policy::{OnAbandoned, Policy, Scope};

/// What one field of a rule makes of its policy.
pub(super) type Change = Arc<dyn Fn(Policy, &Registry) -> Result<Policy, String> + Send + Sync>;

pub(super) type Parsed = Result<Change, String>;

type Parse = fn(&Value) -> Parsed;

/// The choices, in the order in which they are made: what a later one adds to must be there before.
pub(super) const CHOICES: &[(&str, Parse)] = &[
    ("identity", |value| {
        let place = Place::parse(value)?;
        change(move |policy, registry| Ok(policy.identity(place.source(registry)?)))
    }),
    ("strict", |value| {
        let on = value.switch()?;
        change(move |mut policy, _| {
            if !on || policy.try_strict() {
                return Ok(policy);
            }
            Err(format!(
                "this is about the header Idempotency-Key, but the identity is {}; for another \
                 header write identity = {{ header = \"..\", strict = true }}",
                policy.identity.describe()
            ))
        })
    }),
    ("token", token),
    ("token_bound_to", |value| {
        let caller = read_scope(value)?;
        change(move |mut policy, registry| match policy.try_token_bound_to(caller(registry)?) {
            true => Ok(policy),
            false => {
                Err("this is about a one-time token, and none is demanded; say where it stands: \
                          token = { read = { header = \"..\" }, from = \"..\" }"
                    .to_owned())
            }
        })
    }),
    ("optional", |value| switch(value, |policy, on| policy.optional = on)),
    ("scope", scope),
    ("business_key", |value| {
        let place = Place::parse(value)?;
        change(move |policy, registry| Ok(policy.business_key(place.source(registry)?)))
    }),
    ("no_fingerprint", |value| {
        let on = value.switch()?;
        change(move |policy, _| Ok(if on { policy.no_fingerprint() } else { policy }))
    }),
    ("compare", compare),
    ("ignore", ignore),
    ("verify", |value| {
        hook(value, |registry| &registry.verify, |policy, hook| policy.verify = Some(hook))
    }),
    ("on_mismatch", |value| {
        hook(
            value,
            |registry| &registry.on_mismatch,
            |policy, hook| {
                policy.on_mismatch = Some(hook);
            },
        )
    }),
    ("refuse_with", |value| {
        hook(
            value,
            |registry| &registry.refuse_with,
            |policy, hook| {
                policy.refuse_with = Some(hook);
            },
        )
    }),
    ("keep_if", |value| {
        hook(value, |registry| &registry.keep_if, |policy, hook| policy.keep_if = Some(hook))
    }),
    ("wait", |value| time(value, Policy::wait)),
    ("call_within", |value| time(value, Policy::call_within)),
    ("claim_within", |value| time(value, Policy::claim_within)),
    ("lease", |value| time(value, Policy::lease)),
    ("retention", |value| time(value, Policy::retention)),
    ("hold", |value| time(value, Policy::hold)),
    ("max_run", |value| time(value, Policy::max_run)),
    ("body_limit", |value| bytes(value, Policy::body_limit)),
    ("body_within", |value| time(value, Policy::body_within)),
    ("answer_limit", |value| bytes(value, Policy::answer_limit)),
    ("keep", |value| of_statuses(value, Policy::keep)),
    ("release", |value| of_statuses(value, Policy::release)),
    ("uncertain", |value| of_statuses(value, Policy::uncertain)),
    ("ledger", |value| {
        hook(
            value,
            |registry| &registry.ledgers,
            |policy, ledger| {
                policy.ledger = Some(ledger);
                policy.on_abandoned = OnAbandoned::Ledger;
            },
        )
    }),
    ("rerun_abandoned", |value| {
        switch(value, |policy, on| match (on, &policy.on_abandoned) {
            (true, _) => policy.on_abandoned = OnAbandoned::Rerun,
            // Only what it would have set is taken back.
            (false, OnAbandoned::Rerun) if policy.ledger.is_some() => {
                policy.on_abandoned = OnAbandoned::Ledger;
            }
            (false, OnAbandoned::Rerun) => policy.on_abandoned = OnAbandoned::Refuse,
            (false, _) => {}
        })
    }),
    ("resolve_abandoned", |value| {
        hook(
            value,
            |registry| &registry.resolvers,
            |policy, resolver| {
                policy.on_abandoned = OnAbandoned::Resolve(resolver);
            },
        )
    }),
    ("run_unprotected", |value| switch(value, |policy, on| policy.run_unprotected = on)),
    ("observe", |value| switch(value, |policy, on| policy.observe = on)),
    ("keep_cookies", |value| switch(value, |policy, on| policy.keep_cookies = on)),
    ("private_label", |value| switch(value, |policy, on| policy.private_label = on)),
];

/// Choices of which a rule makes one at most: each would take the other's place.
pub(super) const EXCLUSIVE: [(&str, &str); 6] = [
    ("token", "identity"),
    ("no_fingerprint", "compare"),
    ("no_fingerprint", "ignore"),
    ("compare", "ignore"),
    ("rerun_abandoned", "resolve_abandoned"),
    ("rerun_abandoned", "ledger"),
];

/// The choices that give statuses a meaning.
pub(super) const OF_STATUSES: [&str; 3] = ["keep", "release", "uncertain"];

pub(super) fn change(
    change: impl Fn(Policy, &Registry) -> Result<Policy, String> + Send + Sync + 'static,
) -> Parsed {
    Ok(Arc::new(change))
}

/// A choice that a policy may have made before, so that `false` takes it back.
fn switch(value: &Value, set: fn(&mut Policy, bool)) -> Parsed {
    let on = value.switch()?;
    change(move |mut policy, _| {
        set(&mut policy, on);
        Ok(policy)
    })
}

fn time(value: &Value, set: fn(Policy, Duration) -> Policy) -> Parsed {
    let time = duration(value)?;
    change(move |policy, _| Ok(set(policy, time)))
}

fn bytes(value: &Value, set: fn(Policy, usize) -> Policy) -> Parsed {
    let bytes = size(value)?;
    change(move |policy, _| Ok(set(policy, bytes)))
}

fn of_statuses(value: &Value, set: fn(Policy, Vec<StatusCode>) -> Policy) -> Parsed {
    let statuses = statuses(value)?;
    change(move |policy, _| Ok(set(policy, statuses.clone())))
}

fn hook<T: Clone + 'static>(
    value: &Value,
    names: fn(&Registry) -> &Names<T>,
    set: fn(&mut Policy, T),
) -> Parsed {
    let name = value.text("a name that was registered")?.to_owned();
    change(move |mut policy, registry| {
        set(&mut policy, names(registry).get(&name)?.clone());
        Ok(policy)
    })
}

fn scope(value: &Value) -> Parsed {
    let scope = read_scope(value)?;
    change(move |policy, registry| Ok(policy.scope(scope(registry)?)))
}

type ReadScope = Box<dyn Fn(&Registry) -> Result<Scope, String> + Send + Sync>;

fn read_scope(value: &Value) -> Result<ReadScope, String> {
    let expected = "\"everyone\", the name of a registered scope, or { header = \"X-Tenant\" }";
    match value {
        Value::Text(name) if name == "everyone" => Ok(Box::new(|_| Ok(Scope::everyone()))),
        Value::Text(name) if !name.is_empty() => {
            let name = name.clone();
            Ok(Box::new(move |registry| registry.scopes.get(&name).cloned()))
        }
        Value::Table(fields) => match &fields[..] {
            [(kind, Value::Text(name))] if kind == "header" => {
                let name = http::HeaderName::try_from(name.as_str())
                    .map_err(|_| format!("header: {name:?} is not the name of a header field"))?;
                Ok(Box::new(move |_| Ok(Scope::header(&name))))
            }
            _ => Err(value.is_not(expected)),
        },
        _ => Err(value.is_not(expected)),
    }
}

fn places(value: &Value) -> Result<Vec<Place>, String> {
    let expected = "a list of fields such as [{ json = \"/amount\" }, { json = \"/currency\" }]";
    value.list(expected)?.iter().map(Place::one).collect()
}

/// In place of what the policy has compared before, whatever that was.
fn compare(value: &Value) -> Parsed {
    let places = places(value)?;
    if !places.iter().all(Place::is_field) {
        return Err(NOT_A_FIELD.to_owned());
    }
    change(move |policy, registry| {
        let fields: Result<Vec<_>, _> = places.iter().map(|place| place.field(registry)).collect();
        Ok(policy.no_fingerprint().compare(fields?))
    })
}

fn ignore(value: &Value) -> Parsed {
    let places = places(value)?;
    if !places.iter().all(Place::is_part) {
        return Err(NOT_A_PART.to_owned());
    }
    change(move |policy, _| {
        let policy = policy.no_fingerprint();
        Ok(places.iter().fold(policy, |policy, place| place.ignore(policy)))
    })
}
