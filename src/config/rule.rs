//! One rule of a configuration: read, and then built with what was registered.

use std::fmt;

use http::{Method, StatusCode};

use super::{
    Registry,
    choices::{CHOICES, Change, EXCLUSIVE, OF_STATUSES},
    policies, quantity,
    value::Value,
};
use crate::rule::{Rule, RuleError};

/// The fields of a rule besides the choices of its policy.
const OWN: [&str; 4] = ["name", "path", "methods", "policy"];

/// A rule as a configuration says it, with every value read.
#[derive(Clone)]
pub(super) struct RuleConfig {
    name: String,
    path: Option<String>,
    methods: Option<Vec<Method>>,
    policy: String,
    changes: Vec<(&'static str, Change)>,
}

impl RuleConfig {
    /// Reads the rule at this place, counted from one.
    pub(super) fn parse(value: &Value, place: usize) -> Result<Self, RuleError> {
        let nameless = |wrong: String| RuleError::new(format!("rule number {place}: {wrong}"));
        let Value::Table(fields) = value else {
            return Err(nameless(value.is_not("a table with name, path, policy and so on")));
        };
        let name = match get(fields, "name") {
            None => {
                Err("name is missing; it is part of every key, so give it one that stays".into())
            }
            Some(name) => name.text("a text").map_err(|wrong| format!("name: {wrong}")),
        };
        let name = name.map_err(nameless)?;
        Self::named(name, fields).map_err(|wrong| RuleError::new(format!("rule {name:?}: {wrong}")))
    }

    fn named(name: &str, fields: &[(String, Value)]) -> Result<Self, String> {
        refuse_unknown(fields)?;
        refuse_contradictions(fields)?;
        let policy = match get(fields, "policy") {
            Some(policy) => policy.text("the name of a policy, \"api\", \"webhook\" or another"),
            None => Err("say what the rule starts from, such as \"api\" or \"webhook\"".to_owned()),
        };
        let path = get(fields, "path").map(|path| path.text("a path such as \"/orders/{id}\""));
        let methods = get(fields, "methods").map(quantity::methods);
        let mut changes = Vec::new();
        for (choice, parse) in CHOICES {
            if let Some(value) = get(fields, choice) {
                let change = parse(value).map_err(|wrong| format!("{choice}: {wrong}"))?;
                changes.push((*choice, change));
            }
        }
        Ok(Self {
            name: name.to_owned(),
            path: path.transpose().map_err(|wrong| format!("path: {wrong}"))?.map(str::to_owned),
            methods: methods.transpose().map_err(|wrong| format!("methods: {wrong}"))?,
            policy: policy.map_err(|wrong| format!("policy: {wrong}"))?.to_owned(),
            changes,
        })
    }

    /// The rule, with what was registered under the names in it.
    pub(super) fn build(self, registry: &Registry) -> Result<Rule, RuleError> {
        let named = |wrong: String| RuleError::new(format!("rule {:?}: {wrong}", self.name));
        let start = policies::start(&self.policy, registry)
            .map_err(|wrong| named(format!("policy: {wrong}")))?;
        if let Some((field, mend)) = start.must_say
            // A one-time token takes the identity's place.
            && !self.changes.iter().any(|(choice, _)| {
                *choice == field || (field == "identity" && *choice == "token")
            })
        {
            let policy = &self.policy;
            return Err(named(format!(
                "{field} is missing, which policy {policy:?} needs; {mend}"
            )));
        }
        let mut policy = start.policy;
        for (choice, change) in &self.changes {
            policy =
                change(policy, registry).map_err(|wrong| named(format!("{choice}: {wrong}")))?;
        }
        let mut rule = Rule::try_new(self.name, policy)?;
        if let Some(path) = &self.path {
            rule = rule.path(path);
        }
        if let Some(methods) = self.methods {
            rule = rule.methods(methods);
        }
        Ok(rule)
    }
}

impl fmt::Debug for RuleConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let choices: Vec<_> = self.changes.iter().map(|(choice, _)| choice).collect();
        f.debug_struct("RuleConfig")
            .field("name", &self.name)
            .field("path", &self.path)
            .field("methods", &self.methods)
            .field("policy", &self.policy)
            .field("choices", &choices)
            .finish()
    }
}

fn get<'v>(fields: &'v [(String, Value)], name: &str) -> Option<&'v Value> {
    fields.iter().find(|(known, _)| known == name).map(|(_, value)| value)
}

fn refuse_unknown(fields: &[(String, Value)]) -> Result<(), String> {
    let known = || OWN.into_iter().chain(CHOICES.iter().map(|(choice, _)| *choice));
    match fields.iter().find(|(name, _)| !known().any(|known| known == name)) {
        None => Ok(()),
        Some((name, _)) => {
            let known: Vec<_> = known().collect();
            Err(format!("unknown field `{name}`; a rule may have {}", known.join(", ")))
        }
    }
}

fn refuse_contradictions(fields: &[(String, Value)]) -> Result<(), String> {
    for (one, other) in EXCLUSIVE {
        if get(fields, one).is_some() && get(fields, other).is_some() {
            return Err(format!("{one} and {other} exclude each other; leave one of them out"));
        }
    }
    let mut known: Vec<(StatusCode, &str)> = Vec::new();
    for choice in OF_STATUSES {
        // What is no list of statuses is found where it is read.
        let statuses = get(fields, choice).map(quantity::statuses).and_then(Result::ok);
        for status in statuses.unwrap_or_default() {
            if let Some((_, before)) = known.iter().find(|(known, _)| *known == status) {
                let status = status.as_u16();
                return Err(format!("{status} is in {before} and in {choice}; leave it in one"));
            }
            known.push((status, choice));
        }
    }
    Ok(())
}
