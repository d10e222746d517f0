//! What an API has to publish about its keys is made from its rules.

use std::time::Duration;

use http::{Method, StatusCode};
use tower_idempotency::{Answer, Policy, Rule, Rules, Scope, form, header, json, path};

#[derive(Clone)]
struct Tenant(String);

impl AsRef<str> for Tenant {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

fn api() -> Policy {
    Policy::api(Scope::everyone())
}

fn token() -> Policy {
    api().token(header("X-Once"), "POST /tokens")
}

fn webhook() -> Policy {
    Policy::webhook(json("/id"))
}

fn describe(policy: Policy) -> String {
    Rules::from(Rule::new("r", policy)).describe()
}

#[test]
fn an_api_says_all_that_the_draft_demands() {
    let policy = Policy::api(Scope::extension::<Tenant>()).wait(Duration::from_secs(5));
    let rules = Rules::new().add(Rule::new("pay", policy).path("/payments/{id}"));
    assert_eq!(
        rules.describe(),
        "**POST, PATCH `/payments/{id}`** (rule `pay`): a request needs a key, its header \
         Idempotency-Key: 1 to 255 bytes, a structured-field string (RFC 9651), `Idempotency-Key: \
         \"8e03978e-40d5-43e8-bc93-6894a57f9324\"`; the quotes may be left out. One without, or with a \
         malformed one, is refused with 400. Keys belong to the caller's `Tenant`. When a key comes \
         again, these must be the same, or it is refused with 422: method, path, query and body. The \
         answer is kept for 24 hours and given to every further request with the key, with \
         `Idempotent-Replayed: true`; after that the key is new. After an answer with the status 401, \
         403, 409, 423, 425, 429, 503 the same key may be sent again and runs again. A request that \
         comes while the first one runs waits for its answer for 5 seconds at most, and is then \
         refused with 409 and `Retry-After`. Where nobody knows whether a request happened, its key \
         is refused with 409 until that is found out, for 7 days at most."
    );
}

#[test]
fn each_rule_has_a_paragraph_in_their_order() {
    let rules = Rules::new()
        .add(Rule::new("b", webhook()).path("/b").methods([Method::PUT]))
        .add(Rule::new("a", webhook()));
    let text = rules.describe();
    let [b, a] = text.split("\n\n").collect::<Vec<_>>()[..] else { panic!("{text}") };
    assert!(b.starts_with("**PUT `/b`** (rule `b`): "), "{b}");
    assert!(a.starts_with("**every POST** (rule `a`): "), "{a}");
    assert_eq!(Rules::new().describe(), "");
}

/// Each choice changes a sentence, and is not said where it is not made.
#[test]
fn what_is_chosen_is_what_is_said() {
    for (said, chosen, other) in [
        ("the quotes may be left out", api(), api().strict()),
        ("a structured-field string", webhook().identity(header("X-Id")), webhook()),
        ("its JSON field /id: 1 to 255 bytes.", webhook(), webhook().identity(form("id"))),
        (
            "needs a one-time token as its key, its header X-Once: 22 characters, from POST /tokens.",
            token(),
            api(),
        ),
        ("refused with 428; one whose token is unknown", token(), api()),
        ("after that the key is unknown", token(), api()),
        (
            "issued for what the request is about, its JSON field /order",
            token().business_key(json("/order")),
            token(),
        ),
        (
            "Tokens belong to the caller's `Tenant`",
            token().token_bound_to(Scope::extension::<Tenant>()),
            token(),
        ),
        ("Idempotency-Key", api(), token()),
        ("may have a key", api().optional(), api()),
        ("One without is not protected", api().optional(), api()),
        ("One without, or with a malformed one, is refused", api(), api().optional()),
        ("are shared by all callers", api(), Policy::api(Scope::header("X-Tenant"))),
        (
            "belong to whom the header `x-tenant` names",
            Policy::api(Scope::header("X-Tenant")),
            api(),
        ),
        (
            "What it is about is its JSON field /order",
            webhook().business_key(json("/order")),
            webhook(),
        ),
        (
            "same key for something else is refused with 422",
            webhook().business_key(json("/order")),
            webhook(),
        ),
        (
            "is refused with 418",
            webhook().refuse_with(|_| Some(Answer::new(StatusCode::IM_A_TEAPOT))),
            webhook().refuse_with(|_| None),
        ),
        ("Nothing else is compared", webhook(), webhook().compare([json("/amount")])),
        ("refused with 422: JSON field /amount.", webhook().compare([json("/amount")]), webhook()),
        ("but for JSON field /sign.", webhook().ignore([json("/sign")]), webhook()),
        ("kept for 7 days", webhook(), webhook().retention(Duration::from_secs(3 * 86_400))),
        ("kept for 3 days", webhook().retention(Duration::from_secs(3 * 86_400)), webhook()),
        ("status 401, 402, 403", api().release([StatusCode::PAYMENT_REQUIRED]), api()),
        ("the next delivery runs again", webhook(), api()),
        ("first one runs is refused with 503", webhook(), api()),
        ("first one runs is refused with 409", api(), api().wait(Duration::from_secs(1))),
        ("waits for its answer for 1 second at most", api().wait(Duration::from_secs(1)), api()),
        ("the next one with its key runs again", api().rerun_abandoned(), api()),
        ("its key is refused with 409 until that is found out", api(), api().rerun_abandoned()),
        ("(rule `r`): only observed for now: every request runs", api().observe(), api()),
        ("for 8 days at most", api().hold(Duration::from_secs(8 * 86_400)), api()),
    ] {
        let (with, without) = (describe(chosen), describe(other));
        assert!(with.contains(said), "{said}: {with}");
        assert!(!without.contains(said), "{said}: {without}");
    }
    let rule = Rule::new("r", api().identity(path("id"))).path("/x/{id}");
    assert!(Rules::from(rule).describe().contains("its path parameter id: 1 to 255 bytes."));
}
