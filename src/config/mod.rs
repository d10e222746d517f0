//! Rules from a configuration file, in any format that serde reads.

mod choices;
mod policies;
mod quantity;
mod registry;
mod rule;
mod source;
mod token;
mod value;

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};

pub use registry::Registry;
use rule::RuleConfig;
use value::Value;

use crate::rule::{RuleError, Rules};

/// What a table of rules may have.
const FIELDS: [&str; 2] = ["rules", "recent"];

/// Rules as a configuration says them, before the names in it are looked up in a [`Registry`].
///
/// It is a list of tables, a rule each. Where nothing needs to be registered, [`Rules`] can be read
/// directly. For editors there is a JSON Schema of it in the repository, `docs/rules.schema.json`.
///
/// | field | what it is |
/// |---|---|
/// | `name` | [`Rule::new`](crate::Rule::new): part of every key |
/// | `path` | [`Rule::path`](crate::Rule::path), in axum 0.8's syntax; without one every path |
/// | `methods` | [`Rule::methods`](crate::Rule::methods): `["POST", "PUT"]` |
/// | `policy` | what the rule starts from: `"api"`, `"webhook"`, a sender, or a registered one |
/// | `scope` | `"everyone"`, `{ header = "X-Tenant" }`, or the name of a registered one |
/// | `identity`, `business_key` | a place, or a list of places that is one identity together |
/// | `token` | a one-time token that is demanded: `{ read = { header = "X-Once-Token" }, from = "POST /tokens" }` |
/// | `token_bound_to` | whose the token must be: like `scope` |
/// | `compare` | a list of places, in place of what the policy compares |
/// | `ignore` | a list of places `{ json = ".." }` or `{ form = ".." }` |
/// | `lease`, `retention`, `hold`, `max_run`, `wait`, `call_within`, `claim_within`, `body_within` | a time: `"500ms"`, `"30s"`, `"7d"`, `"1h30m"`; `m` is minutes, `M` months |
/// | `body_limit`, `answer_limit` | a number of bytes, or `"64KiB"`, `"1MiB"` |
/// | `keep`, `release`, `uncertain` | a list of statuses: `[402, 409]` |
/// | `strict`, `optional`, `no_fingerprint`, `rerun_abandoned`, `run_unprotected`, `observe`, `keep_cookies`, `private_label` | `true` or `false` |
/// | `verify`, `keep_if`, `on_mismatch`, `refuse_with`, `resolve_abandoned`, `ledger` | the name of a registered hook |
///
/// All but the first four are the setters of [`Policy`](crate::Policy) by their names, with its
/// defaults. A place is one of
///
/// | place | what it is |
/// |---|---|
/// | `{ json = "/notifyId" }` | [`json`](crate::json) |
/// | `{ form = "notify_id" }` | [`form`](crate::form) |
/// | `{ xml = "/xml/out_trade_no" }` | `xml`, with the feature `xml` |
/// | `{ header = "X-Id" }`, `{ header = "X-Id", strict = true }` | [`header`](crate::header) |
/// | `{ query = "event" }`, `{ path = "id" }` | [`query`](crate::query), [`path`](crate::path) |
/// | `{ each = "/items", read = { json = "/id" } }` | [`each`](crate::each) |
/// | `{ sent = { json = "/id" } }` | [`sent`](crate::sent) |
/// | `{ source = "message-id" }` | [`Registry::source`], in `compare` [`Registry::field`] |
///
/// In place of the list there may be a table with it, for what a layer with these rules does beside them:
///
/// | field | what it is |
/// |---|---|
/// | `rules` | the list |
/// | `recent` | `IdempotencyLayer::recent`, with the feature `recent`: how many bytes of memory answers of the last minute are kept in, `"2MiB"`; 0, the default, keeps none |
///
/// Each layer that is made with the rules has as much room for itself; its own setter counts over what
/// the file says.
///
/// An empty list protects nothing: it may be meant so, where an environment opts in to nothing, and the
/// layer that is made with it says so in a warning, *no rule*. Without the list it is an error.
///
/// # Errors
///
/// Reading it fails where a field is unknown or stands twice, where two fields contradict each other,
/// and where a value is not what its field expects. Whether its policies can work is found by
/// [`Registry::rules`]. Each message names the rule, the field and what was expected.
#[derive(Clone, Debug, Default)]
pub struct RulesConfig {
    rules: Vec<RuleConfig>,
    #[cfg(feature = "recent")]
    recent: usize,
}

impl RulesConfig {
    /// Reads the rules and what stands beside them.
    fn parse(fields: &[(String, Value)]) -> Result<Self, String> {
        let get = |name| fields.iter().find(|(known, _)| known == name).map(|(_, value)| value);
        if let Some((name, _)) = fields.iter().find(|(name, _)| !FIELDS.contains(&name.as_str())) {
            let known = FIELDS.join(" and ");
            return Err(format!(
                "unknown field `{name}`; there may be {known}, and a rule stands in the list `rules`"
            ));
        }
        let rules = match get("rules") {
            Some(Value::List(rules)) => rules,
            Some(other) => return Err(format!("rules: {}", other.is_not("a list of rules"))),
            None => return Err("rules is missing; it is the list of rules".to_owned()),
        };
        let parse =
            |(place, rule)| RuleConfig::parse(rule, place).map_err(|error| error.to_string());
        let rules = (1..).zip(rules).map(parse).collect::<Result<_, _>>()?;
        let recent = get("recent").map(quantity::room).transpose();
        let recent = recent.map_err(|wrong| format!("recent: {wrong}"))?;
        Self::keeping(rules, recent)
    }

    #[cfg(feature = "recent")]
    fn keeping(rules: Vec<RuleConfig>, recent: Option<usize>) -> Result<Self, String> {
        Ok(Self { rules, recent: recent.unwrap_or_default() })
    }

    #[cfg(not(feature = "recent"))]
    fn keeping(rules: Vec<RuleConfig>, recent: Option<usize>) -> Result<Self, String> {
        match recent {
            None => Ok(Self { rules }),
            Some(_) => {
                Err("recent: this program was built without the feature `recent`".to_owned())
            }
        }
    }

    /// The rules, with what was registered under the names in them.
    fn build(self, registry: &Registry) -> Result<Rules, RuleError> {
        let mut rules = Rules::new();
        #[cfg(feature = "recent")]
        {
            rules.recent = self.recent;
        }
        for rule in self.rules {
            rules.try_add(rule.build(registry)?)?;
        }
        Ok(rules)
    }
}

impl<'de> Deserialize<'de> for RulesConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RulesVisitor)
    }
}

struct RulesVisitor;

impl<'de> Visitor<'de> for RulesVisitor {
    type Value = RulesConfig;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of rules, or a table with that list as `rules`")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<RulesConfig, A::Error> {
        let mut config = RulesConfig::default();
        while let Some(value) = list.next_element::<Value>()? {
            let place = config.rules.len() + 1;
            config.rules.push(RuleConfig::parse(&value, place).map_err(A::Error::custom)?);
        }
        Ok(config)
    }

    fn visit_map<A: MapAccess<'de>>(self, table: A) -> Result<RulesConfig, A::Error> {
        RulesConfig::parse(&value::fields(table)?).map_err(A::Error::custom)
    }
}

/// A configuration in which nothing is registered: see [`RulesConfig`].
///
/// # Example: a field of a program's own configuration
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use http::Method;
/// use tower_idempotency::Rules;
///
/// #[derive(serde::Deserialize)]
/// struct Config {
///     listen: String,
///     rules: Rules,
/// }
///
/// let config: Config = toml::from_str(r#"
///     listen = "127.0.0.1:8080"
///
///     [[rules]]
///     name = "fulfil"
///     path = "/orders/{id}/fulfil"
///     policy = "webhook"
///     identity = { json = "/notifyId" }
///     retention = "7d"
/// "#)?;
/// assert!(config.rules.find(&Method::POST, "/orders/7/fulfil").is_some());
///
/// let error = toml::from_str::<Config>(r#"
///     listen = "127.0.0.1:8080"
///     rules = [{ name = "pay", policy = "api", scope = "everyone", retention = "7" }]
/// "#).err().unwrap();
/// assert!(error.message().starts_with(r#"rule "pay": retention: expected a duration"#));
/// # Ok(())
/// # }
/// ```
///
/// # Example: answers of the last minute from memory, by configuration
///
/// ```
/// # #[cfg(feature = "recent")]
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use tower_idempotency::Rules;
///
/// #[derive(serde::Deserialize)]
/// struct Config {
///     idempotency: Rules,
/// }
///
/// let config: Config = toml::from_str(r#"
///     [idempotency]
///     recent = "2MiB"
///
///     [[idempotency.rules]]
///     name = "fulfil"
///     policy = "webhook"
///     identity = { json = "/notifyId" }
/// "#)?;
/// assert_eq!(config.idempotency.iter().len(), 1);
///
/// let error = toml::from_str::<Config>("idempotency = { recnet = 0, rules = [] }").err().unwrap();
/// assert!(error.message().starts_with("unknown field `recnet`; there may be rules and recent"));
/// # Ok(())
/// # }
/// # #[cfg(not(feature = "recent"))]
/// # fn main() {}
/// ```
impl<'de> Deserialize<'de> for Rules {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let config = RulesConfig::deserialize(deserializer)?;
        Registry::new().rules(config).map_err(D::Error::custom)
    }
}
