//! A one-time token that a file demands.

use http::Method;
use tower_idempotency::{Registry, Scope};

use crate::support::{one, policy, rules, rules_with};

const TOKEN: &str = "token = { read = { header = \"X-Once\" }, from = \"POST /tokens\" }";

#[derive(Clone)]
struct User(String);

impl AsRef<str> for User {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

fn error(lines: &str) -> String {
    rules(&one(&format!("policy = \"api\"\nscope = \"everyone\"\n{lines}"))).expect_err(lines)
}

#[test]
fn a_token_may_be_bound_to_a_scope_that_is_registered() {
    let file = one(&format!(
        "policy = \"api\"\nscope = \"everyone\"\npath = \"/pay\"\n{TOKEN}\ntoken_bound_to = \"user\""
    ));
    let registry = Registry::new().scope("user", Scope::extension::<User>());
    let rules = rules_with(&registry, &file).unwrap();
    assert!(rules.find(&Method::POST, "/pay").is_some());
    let shown = format!("{:?}", policy(&rules));
    assert!(shown.contains("User"), "{shown}");
    let unknown = rules_with(&Registry::new(), &file).unwrap_err();
    assert!(unknown.contains("no scope is registered as \"user\""), "{unknown}");
}

#[test]
fn a_token_that_is_everyones_is_bound_to_nobody() {
    let api = "policy = \"api\"\nscope = \"everyone\"";
    let of = |lines: &str| {
        let rules = rules(&one(&format!("{api}\n{TOKEN}\n{lines}"))).unwrap();
        format!("{:?}", policy(&rules))
    };
    assert_eq!(of("token_bound_to = \"everyone\""), of(""));
    assert_ne!(of("token_bound_to = { header = \"X-User\" }"), of(""));
}

#[test]
fn what_is_wrong_with_a_token_is_said_with_its_mend() {
    for (lines, expected) in [
        ("token = \"X-Once\"", "token: expected where the token stands and where clients get one"),
        ("token = { read = { header = \"X-Once\" } }", "token: expected where the token stands"),
        (
            "token = { read = { hedaer = \"X\" }, from = \"/t\" }",
            "token: read: hedaer: is no kind of place",
        ),
        ("token = { read = { form = \"a\" }, from = 7 }", "token: from: expected the route"),
        (
            "token = { read = { form = \"a\" }, from = \" \" }",
            "does not say where clients get a token",
        ),
        (
            "token_bound_to = { header = \"X-User\" }",
            "token_bound_to: this is about a one-time token, and none is demanded",
        ),
        (&format!("{TOKEN}\noptional = true"), ".optional() lets requests without one pass"),
        (&format!("{TOKEN}\nrun_unprotected = true"), ".run_unprotected() lets requests run"),
        (
            "token = { read = { path = \"token\" }, from = \"/t\" }\npath = \"/pay/{order}\"",
            "token",
        ),
    ] {
        let error = error(lines);
        assert!(error.starts_with("rule \"r\"") && error.contains(expected), "{lines}: {error}");
    }
    assert!(rules(&one(&format!("policy = \"api\"\nscope = \"everyone\"\n{TOKEN}"))).is_ok());
}
