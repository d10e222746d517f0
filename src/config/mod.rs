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

use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};

pub use registry::Registry;
use rule::RuleConfig;
use value::Value;

use crate::rule::Rules;

/// Rules as a configuration says them, before the names in it are looked up in a [`Registry`].
///
/// It is a list of tables. Where nothing needs to be registered, [`Rules`] can be read directly. For
/// editors there is a JSON Schema of it in the repository, `docs/rules.schema.json`.
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
/// # Errors
///
/// Reading it fails where a field is unknown or stands twice, where two fields contradict each other,
/// and where a value is not what its field expects. Whether its policies can work is found by
/// [`Registry::rules`]. Each message names the rule, the field and what was expected.
#[derive(Clone, Debug, Default)]
pub struct RulesConfig {
    rules: Vec<RuleConfig>,
}

impl RulesConfig {
    fn into_rules(self) -> Vec<RuleConfig> {
        self.rules
    }
}

impl<'de> Deserialize<'de> for RulesConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(RulesVisitor)
    }
}

struct RulesVisitor;

impl<'de> Visitor<'de> for RulesVisitor {
    type Value = RulesConfig;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of rules")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<RulesConfig, A::Error> {
        let mut rules = Vec::new();
        while let Some(value) = list.next_element::<Value>()? {
            rules.push(RuleConfig::parse(&value, rules.len() + 1).map_err(A::Error::custom)?);
        }
        Ok(RulesConfig { rules })
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
impl<'de> Deserialize<'de> for Rules {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let config = RulesConfig::deserialize(deserializer)?;
        Registry::new().rules(config).map_err(D::Error::custom)
    }
}
