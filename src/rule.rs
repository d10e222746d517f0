//! Which requests are protected, and by which policy.

mod describe;

use std::{
    borrow::Cow,
    collections::HashMap,
    error::Error,
    fmt,
    sync::{Arc, atomic::AtomicBool},
};

use http::Method;

use crate::{
    in_words,
    policy::Policy,
    telemetry::{Metrics, RuleMetrics},
};

/// A name, a policy, and the requests it is for.
///
/// The name is part of every key: two rules never answer for each other, and renaming one forgets
/// all it has stored.
#[derive(Clone, Debug)]
pub struct Rule {
    name: Arc<str>,
    policy: Policy,
    path: Option<String>,
    methods: Option<Vec<Method>>,
    /// Whether it was told that its handler does not enter the ledger.
    pub(crate) not_entered: Arc<AtomicBool>,
    metrics: RuleMetrics,
}

impl Rule {
    /// A rule for every path the layer sees, and for the methods of its policy: POST, and PATCH for
    /// an API.
    ///
    /// # Panics
    ///
    /// When the name is empty, or the policy cannot work ([`Policy::check`]).
    #[track_caller]
    pub fn new(name: impl Into<Cow<'static, str>>, policy: Policy) -> Self {
        match Self::try_new(name, policy) {
            Ok(rule) => rule,
            Err(error) => panic!("{error}"),
        }
    }

    /// The same without a panic, for rules from a configuration.
    ///
    /// # Errors
    ///
    /// When the name is empty, or the policy cannot work.
    pub fn try_new(name: impl Into<Cow<'static, str>>, policy: Policy) -> Result<Self, RuleError> {
        let name = name.into();
        if name.is_empty() {
            return Err(RuleError::new(
                "a rule has an empty name; its name is part of every key, so give it one that stays",
            ));
        }
        policy.check().map_err(|error| RuleError::new(format!("rule {name:?}: {error}")))?;
        Ok(Self {
            name: name.into(),
            policy,
            path: None,
            methods: None,
            not_entered: Arc::default(),
            metrics: RuleMetrics::default(),
        })
    }

    /// Only for paths of this pattern, in axum 0.8's syntax: `/orders/{id}/fulfil`, `/files/{*rest}`.
    ///
    /// It is held against the raw path as the layer's place sees it: around a nested router
    /// without the prefix. `/orders/7/fulfil/` is not `/orders/{id}/fulfil`. Where several patterns
    /// match, the more specific counts, as in axum. Default: every path.
    ///
    /// Danger: a request whose path does not match passes unprotected, and a typo is no error. Test
    /// patterns with [`Rules::find`].
    ///
    /// A pattern that is none, and one that no path is like (`/orders/:id` of axum 0.7, a query), is
    /// found where the rule is added: [`Rules::try_add`].
    #[must_use]
    pub fn path(mut self, pattern: &str) -> Self {
        self.path = Some(pattern.to_owned());
        self
    }

    /// Only, and all, these methods, in place of the policy's (POST, and PATCH for an API).
    ///
    /// A rule without one is found where it is added: [`Rules::try_add`]. GET and HEAD are best left
    /// out: their answers are meant to change.
    #[must_use]
    pub fn methods(mut self, methods: impl IntoIterator<Item = Method>) -> Self {
        self.methods = Some(methods.into_iter().collect());
        self
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The path pattern, if it has one.
    pub fn pattern(&self) -> Option<&str> {
        self.path.as_deref()
    }

    /// What is counted of its requests.
    pub(crate) fn metrics(&self) -> &Metrics {
        self.metrics.of(&self.name)
    }

    /// The policy.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    fn all_methods(&self) -> &[Method] {
        self.methods.as_deref().unwrap_or_else(|| self.policy.methods())
    }

    fn takes(&self, method: &Method) -> bool {
        self.all_methods().contains(method)
    }

    /// Why this rule is for no job, and the mend.
    pub(crate) fn is_for_jobs(&self) -> Result<(), RuleError> {
        let wrong = if !self.policy.job {
            "its policy is for requests, and Idempotent runs jobs; make it with Policy::job()"
        } else if self.path.is_some() || self.methods.is_some() {
            "a job has neither path nor method; leave out .path(..) and .methods(..)"
        } else {
            return Ok(());
        };
        Err(RuleError::new(format!("rule {:?}: {wrong}", self.name)))
    }

    /// Why no request could be this rule's, and the mend: such a rule would protect nothing, and
    /// nobody would be told so.
    fn can_match(&self) -> Result<(), String> {
        if self.policy.job {
            return Err("its policy is a job's, for Idempotent; requests have Policy::api or \
                        Policy::webhook"
                .to_owned());
        }
        if self.all_methods().is_empty() {
            return Err("it has no method, so that it is for no request; name one, or leave out \
                        .methods(..)"
                .to_owned());
        }
        let Some(pattern) = self.pattern() else { return Ok(()) };
        if !pattern.starts_with('/') {
            return Err(format!("the path {pattern:?} must start with a slash"));
        }
        if pattern.contains(|c: char| matches!(c, '?' | '#') || c.is_whitespace()) {
            return Err(format!(
                "no path is like {pattern:?}: leave out the query and the fragment, and encode a \
                 space as it is sent (`%20`)"
            ));
        }
        // axum 0.7 wrote parameters so, and axum 0.8 refuses them for the same reason.
        for segment in pattern.split('/') {
            let (old, new) = match segment.split_at_checked(1) {
                Some((":", name)) => (segment, format!("{{{name}}}")),
                Some(("*", name)) => (segment, format!("{{*{name}}}")),
                _ => continue,
            };
            return Err(format!(
                "the path {pattern:?} has {old:?}, which is no parameter here and would match \
                 itself alone; write it as axum 0.8 does: `{new}`"
            ));
        }
        Ok(())
    }
}

/// The rules of a layer. A request that none of them is for passes untouched.
///
/// # Example: which rule is a request's?
///
/// ```
/// use http::Method;
/// use tower_idempotency::{Policy, Rule, Rules, Scope, json};
///
/// let rules = Rules::new()
///     .add(Rule::new("fulfil", Policy::webhook(json("/notifyId"))).path("/fulfil/{order}"))
///     .add(Rule::new("pay", Policy::api(Scope::everyone())).path("/payments"));
///
/// assert_eq!(rules.find(&Method::POST, "/fulfil/7").unwrap().name(), "fulfil");
/// assert!(rules.find(&Method::POST, "/fulfil/7/").is_none());
/// assert!(rules.find(&Method::GET, "/payments").is_none());
/// ```
#[derive(Clone, Default)]
pub struct Rules {
    rules: Vec<Arc<Rule>>,
    /// From a pattern to the rules with it, by their places in `rules`.
    patterns: HashMap<String, usize>,
    by_pattern: Vec<Vec<usize>>,
    router: matchit::Router<usize>,
    /// Rules without a pattern.
    anywhere: Vec<usize>,
    /// How many bytes a layer with them keeps answers in, where their configuration says so.
    #[cfg(feature = "recent")]
    pub(crate) recent: usize,
}

impl Rules {
    /// No rules.
    pub fn new() -> Self {
        Self::default()
    }

    /// These rules and one more.
    ///
    /// # Panics
    ///
    /// Where [`Rules::try_add`] has an error.
    #[must_use]
    #[track_caller]
    #[expect(clippy::should_implement_trait, reason = "rules are no numbers")]
    pub fn add(mut self, rule: Rule) -> Self {
        match self.try_add(rule) {
            Ok(()) => self,
            Err(error) => panic!("{error}"),
        }
    }

    /// Adds a rule.
    ///
    /// # Errors
    ///
    /// When its pattern is none, or no path is like it; when it has no method; when its name is
    /// another's; when another rule is for the same requests; when its policy reads a parameter that
    /// its pattern does not have.
    pub fn try_add(&mut self, rule: Rule) -> Result<(), RuleError> {
        if self.rules.iter().any(|other| other.name == rule.name) {
            return Err(RuleError::new(format!(
                "two rules are called {:?}; they would answer for each other, so name them apart",
                rule.name
            )));
        }
        rule.policy
            .fits_pattern(rule.pattern())
            .and_then(|()| rule.can_match())
            .map_err(|wrong| RuleError::new(format!("rule {:?}: {wrong}", rule.name)))?;
        let place = self.rules.len();
        match &rule.path {
            None => {
                self.refuse_twins(&rule, &self.anywhere, "every path")?;
                self.anywhere.push(place);
            }
            Some(pattern) => {
                let group = self.group_of(&rule, pattern)?;
                self.refuse_twins(&rule, &self.by_pattern[group], pattern)?;
                self.by_pattern[group].push(place);
            }
        }
        self.rules.push(Arc::new(rule));
        Ok(())
    }

    /// The rule for a request with this method and raw path, if there is one.
    pub fn find(&self, method: &Method, path: &str) -> Option<&Rule> {
        self.matching(method, path).map(|(_, rule)| &**rule)
    }

    /// The rules, in the order in which they were added.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Rule> {
        self.rules.iter().map(|rule| &**rule)
    }

    /// The rule for a request, with its place among the others.
    pub(crate) fn matching(&self, method: &Method, path: &str) -> Option<(usize, &Arc<Rule>)> {
        // A pattern is more specific than none.
        self.of_pattern(method, path).or_else(|| self.taking(&self.anywhere, method))
    }

    fn of_pattern(&self, method: &Method, path: &str) -> Option<(usize, &Arc<Rule>)> {
        if self.by_pattern.is_empty() {
            return None;
        }
        let found = self.router.at(path).ok()?;
        self.taking(&self.by_pattern[*found.value], method)
    }

    fn taking(&self, places: &[usize], method: &Method) -> Option<(usize, &Arc<Rule>)> {
        let mut rules = places.iter().map(|place| (*place, &self.rules[*place]));
        rules.find(|(_, rule)| rule.takes(method))
    }

    fn group_of(&mut self, rule: &Rule, pattern: &str) -> Result<usize, RuleError> {
        if let Some(group) = self.patterns.get(pattern) {
            return Ok(*group);
        }
        let group = self.by_pattern.len();
        self.router.insert(pattern, group).map_err(|error| {
            RuleError::new(format!(
                "rule {:?}: the path {pattern:?} cannot be used: {error}; write it as axum 0.8 \
                 does (`/orders/{{id}}`), and the same way in every rule",
                rule.name
            ))
        })?;
        self.patterns.insert(pattern.to_owned(), group);
        self.by_pattern.push(Vec::new());
        Ok(group)
    }

    fn refuse_twins(&self, rule: &Rule, others: &[usize], what: &str) -> Result<(), RuleError> {
        for other in others {
            let other = &self.rules[*other];
            if let Some(method) = rule.all_methods().iter().find(|method| other.takes(method)) {
                return Err(RuleError::new(format!(
                    "rules {:?} and {:?} are both for {method} {what}; give one of them another \
                     path or other methods",
                    other.name, rule.name
                )));
            }
        }
        Ok(())
    }
}

impl From<Rule> for Rules {
    /// One rule alone.
    ///
    /// # Panics
    ///
    /// Where [`Rules::try_add`] has an error.
    #[track_caller]
    fn from(rule: Rule) -> Self {
        Self::new().add(rule)
    }
}

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.rules).finish()
    }
}

/// Rules that cannot work. The message says what is wrong and how to mend it.
#[derive(Clone, PartialEq, Eq)]
pub struct RuleError {
    message: String,
}

impl RuleError {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into() }
    }
}

impl fmt::Debug for RuleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        in_words::debug(f, None, self)
    }
}

impl fmt::Display for RuleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for RuleError {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Scope, json};

    fn webhook(name: &'static str) -> Rule {
        Rule::new(name, Policy::webhook(json("/id")))
    }

    fn error(rules: Rules, rule: Rule) -> String {
        let mut rules = rules;
        rules.try_add(rule).unwrap_err().to_string()
    }

    #[test]
    fn the_more_specific_pattern_counts_and_a_pattern_counts_over_none() {
        let rules = Rules::new()
            .add(webhook("any"))
            .add(webhook("one").path("/orders/{id}"))
            .add(webhook("new").path("/orders/new"))
            .add(webhook("put").path("/orders/{id}").methods([Method::PUT]));
        let name = |method, path| rules.find(&method, path).map(Rule::name);
        assert_eq!(name(Method::POST, "/orders/7"), Some("one"));
        assert_eq!(name(Method::POST, "/orders/new"), Some("new"));
        assert_eq!(name(Method::PUT, "/orders/7"), Some("put"));
        assert_eq!(name(Method::POST, "/else"), Some("any"));
        assert_eq!(name(Method::GET, "/orders/7"), None);
    }

    #[test]
    fn rules_for_the_same_requests_are_an_error() {
        let rules = || Rules::new().add(webhook("a").path("/x/{id}"));
        assert!(error(rules(), webhook("a")).contains("two rules are called \"a\""));
        assert!(error(rules(), webhook("b").path("/x/{id}")).contains("both for POST /x/{id}"));
        assert!(error(rules(), webhook("b").path("/x/{other}")).contains("cannot be used"));
        assert!(error(rules(), webhook("b").path("x")).contains("must start with a slash"));
        assert!(error(Rules::new().add(webhook("a")), webhook("b")).contains("every path"));
    }

    #[test]
    fn a_rule_that_no_request_can_meet_is_an_error_with_its_mend() {
        let refused = |path| error(Rules::new(), webhook("a").path(path));
        assert!(refused("/orders/:id/pay").contains("as axum 0.8 does: `{id}`"));
        assert!(refused("/files/*rest").contains("as axum 0.8 does: `{*rest}`"));
        assert!(refused("/orders?x=1").contains("leave out the query"));
        assert!(refused("/orders#top").contains("the fragment"));
        assert!(refused("/my orders").contains("`%20`"));
        assert!(error(Rules::new(), webhook("a").methods([])).contains("it has no method"));
        // A colon, or a star, that begins no segment is one.
        for path in ["/orders/new:cancel", "/a*b", "/my%20orders", "/files/{*rest}"] {
            Rules::new().try_add(webhook("a").path(path)).unwrap();
        }
    }

    #[test]
    #[should_panic(expected = "rule \"pay\": lease is 0ns")]
    fn a_policy_that_cannot_work_panics_where_the_rule_is_made() {
        let policy = Policy::api(Scope::everyone()).lease(std::time::Duration::ZERO);
        let _ = Rule::new("pay", policy);
    }
}
