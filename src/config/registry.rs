//! What a configuration names and only code can be: scopes and hooks.

use std::{collections::BTreeMap, fmt, sync::Arc};

use super::RulesConfig;
use crate::{
    fingerprint::{AnyField, Field},
    identity::{AnySource, Source},
    ledger::{DynLedger, DynResolver, Ledger, Resolver},
    policy::{KeepIf, Mismatch, OnMismatch, Policy, RefuseWith, Scope},
    record::Answer,
    refusal::Refusal,
    rule::{RuleError, Rules},
    verify::{AnyVerify, Verify},
};

/// The names under which a configuration finds what is code.
///
/// # Panics
///
/// Each of its setters does when the name is empty, is one that the crate has given away itself, or
/// is registered already.
///
/// # Example: rules that name a scope and a hook
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use http::Method;
/// use tower_idempotency::{Answer, Registry, Rules, RulesConfig, Scope};
///
/// #[derive(Clone)]
/// struct TenantId(String);
/// impl AsRef<str> for TenantId {
///     fn as_ref(&self) -> &str {
///         &self.0
///     }
/// }
///
/// #[derive(serde::Deserialize)]
/// struct Config {
///     rules: RulesConfig,
/// }
///
/// let config: Config = toml::from_str(r#"
///     [[rules]]
///     name = "pay"
///     path = "/payments"
///     policy = "api"
///     scope = "tenant"
///     wait = "5s"
///
///     [[rules]]
///     name = "fulfil"
///     path = "/fulfil/callback"
///     policy = "webhook"
///     identity = { json = "/notifyId" }
///     keep_if = "success"
/// "#)?;
/// let rules = Registry::new()
///     .scope("tenant", Scope::extension::<TenantId>())
///     .keep_if("success", |answer: &Answer| answer.body().is_some_and(|body| body == "success"))
///     .rules(config.rules)?;
/// assert_eq!(rules.find(&Method::POST, "/payments").unwrap().name(), "pay");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Registry {
    pub(super) scopes: Names<Scope>,
    pub(super) policies: Names<Policy>,
    pub(super) sources: Names<AnySource>,
    pub(super) fields: Names<AnyField>,
    pub(super) verify: Names<AnyVerify>,
    pub(super) keep_if: Names<KeepIf>,
    pub(super) on_mismatch: Names<OnMismatch>,
    pub(super) refuse_with: Names<RefuseWith>,
    pub(super) resolvers: Names<Arc<dyn DynResolver>>,
    pub(super) ledgers: Names<Arc<dyn DynLedger>>,
}

impl Registry {
    /// No names.
    pub fn new() -> Self {
        Self {
            scopes: Names::new("scope", "scope"),
            policies: Names::new("policy", "policy"),
            sources: Names::new("source of identities", "source"),
            fields: Names::new("field", "field"),
            verify: Names::new("hook", "verify"),
            keep_if: Names::new("hook", "keep_if"),
            on_mismatch: Names::new("hook", "on_mismatch"),
            refuse_with: Names::new("hook", "refuse_with"),
            resolvers: Names::new("resolver", "resolver"),
            ledgers: Names::new("ledger", "ledger"),
        }
    }

    /// For `scope = "tenant"`. `everyone` is there already, and headers need no name:
    /// `scope = { header = "X-Tenant" }`.
    #[must_use]
    #[track_caller]
    pub fn scope(mut self, name: impl Into<String>, scope: Scope) -> Self {
        self.scopes.add(name.into(), &["everyone"], scope);
        self
    }

    /// For `policy = "partner"`: what a rule starts from, in place of `api`, `webhook` or a sender.
    #[must_use]
    #[track_caller]
    pub fn policy(mut self, name: impl Into<String>, policy: Policy) -> Self {
        let taken: Vec<_> = super::policies::names().collect();
        self.policies.add(name.into(), &taken, policy);
        self
    }

    /// For `{ source = "message-id" }` where an identity is named: an
    /// [`extension`](crate::extension), a closure.
    #[must_use]
    #[track_caller]
    pub fn source(mut self, name: impl Into<String>, source: impl Source) -> Self {
        self.sources.add(name.into(), &[], AnySource::new(source));
        self
    }

    /// For `{ source = "shop" }` where `compare` names a field.
    #[must_use]
    #[track_caller]
    pub fn field(mut self, name: impl Into<String>, field: impl Field) -> Self {
        self.fields.add(name.into(), &[], AnyField::new(field));
        self
    }

    /// For `verify = "signature"`: see [`Policy::verify`].
    #[must_use]
    #[track_caller]
    pub fn verify(mut self, name: impl Into<String>, verify: impl Verify) -> Self {
        self.verify.add(name.into(), &[], AnyVerify::new(verify));
        self
    }

    /// For `keep_if = "success"`: see [`Policy::keep_if`].
    #[must_use]
    #[track_caller]
    pub fn keep_if(
        mut self,
        name: impl Into<String>,
        keep: impl Fn(&Answer) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.keep_if.add(name.into(), &[], Arc::new(keep));
        self
    }

    /// For `on_mismatch = "alarm"`: see [`Policy::on_mismatch`].
    #[must_use]
    #[track_caller]
    pub fn on_mismatch(
        mut self,
        name: impl Into<String>,
        tell: impl Fn(&Mismatch) + Send + Sync + 'static,
    ) -> Self {
        self.on_mismatch.add(name.into(), &[], Arc::new(tell));
        self
    }

    /// For `refuse_with = "fail"`: see [`Policy::refuse_with`].
    #[must_use]
    #[track_caller]
    pub fn refuse_with(
        mut self,
        name: impl Into<String>,
        answer: impl Fn(&Refusal) -> Option<Answer> + Send + Sync + 'static,
    ) -> Self {
        self.refuse_with.add(name.into(), &[], Arc::new(answer));
        self
    }

    /// For `resolve_abandoned = "ask-psp"`: see [`Policy::resolve_abandoned`].
    #[must_use]
    #[track_caller]
    pub fn resolver(mut self, name: impl Into<String>, resolver: impl Resolver) -> Self {
        self.resolvers.add(name.into(), &[], Arc::new(resolver));
        self
    }

    /// For `ledger = "dedup"`: see [`Policy::ledger`].
    #[must_use]
    #[track_caller]
    pub fn ledger(mut self, name: impl Into<String>, ledger: impl Ledger) -> Self {
        self.ledgers.add(name.into(), &[], Arc::new(ledger));
        self
    }

    /// The rules of this configuration, whose names are these.
    ///
    /// # Errors
    ///
    /// When a rule names what is not registered; when its policy cannot work
    /// ([`Policy::check`]); when two rules are for the same requests ([`Rules::try_add`]). The
    /// message names the rule, the field and what was expected.
    pub fn rules(&self, config: RulesConfig) -> Result<Rules, RuleError> {
        config.build(self)
    }
}

impl Default for Registry {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry")
            .field("scope", &self.scopes)
            .field("policy", &self.policies)
            .field("source", &self.sources)
            .field("field", &self.fields)
            .field("verify", &self.verify)
            .field("keep_if", &self.keep_if)
            .field("on_mismatch", &self.on_mismatch)
            .field("refuse_with", &self.refuse_with)
            .field("resolver", &self.resolvers)
            .field("ledger", &self.ledgers)
            .finish()
    }
}

/// What was registered of one kind.
#[derive(Clone)]
pub(super) struct Names<T> {
    kind: &'static str,
    setter: &'static str,
    known: BTreeMap<String, T>,
}

impl<T> Names<T> {
    const fn new(kind: &'static str, setter: &'static str) -> Self {
        Self { kind, setter, known: BTreeMap::new() }
    }

    #[track_caller]
    fn add(&mut self, name: String, taken: &[&str], what: T) {
        let setter = self.setter;
        assert!(
            !name.is_empty(),
            "Registry::{setter}: the name is empty; give the one that rules use"
        );
        assert!(
            !taken.contains(&name.as_str()) && !self.known.contains_key(&name),
            "Registry::{setter}: the name {name:?} is taken already; give another one"
        );
        self.known.insert(name, what);
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.known.keys().map(String::as_str)
    }

    pub(super) fn find(&self, name: &str) -> Option<&T> {
        self.known.get(name)
    }

    /// What was registered under this name, or that nothing was.
    pub(super) fn get(&self, name: &str) -> Result<&T, String> {
        self.find(name).ok_or_else(|| {
            let (kind, setter) = (self.kind, self.setter);
            let known = match self.names().collect::<Vec<_>>().join(", ") {
                none if none.is_empty() => "none is".to_owned(),
                known => format!("these are: {known}"),
            };
            format!(
                "no {kind} is registered as {name:?} ({known}); register it: \
                 Registry::new().{setter}({name:?}, ..)"
            )
        })
    }
}

impl<T> fmt::Debug for Names<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}
