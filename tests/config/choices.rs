//! Every choice of a policy can be made in a configuration, and is what its setter makes of it.

use std::time::Duration;

use http::StatusCode;
use tower_idempotency::{
    Delivery, Policy, Registry, Scope, Verified, each, form, header, json, query, sender, sent, xml,
};

use crate::support::{one, policy, rules, rules_with};

const API: &str = "policy = \"api\"\nscope = \"everyone\"";
const WEBHOOK: &str = "policy = \"webhook\"\nidentity = { json = \"/id\" }";

fn api() -> Policy {
    Policy::api(Scope::everyone())
}

fn webhook() -> Policy {
    Policy::webhook(json("/id"))
}

/// Without the hooks, which are tried in `hooks.rs`.
fn of_an_api() -> Vec<(&'static str, Policy)> {
    let secs = Duration::from_secs;
    vec![
        ("identity = { header = \"X-Key\" }", api().identity(header("X-Key"))),
        (
            "identity = { header = \"X-Key\", strict = true }",
            api().identity(header("X-Key").strict()),
        ),
        ("strict = true", api().strict()),
        ("optional = true", api().optional()),
        ("business_key = { json = \"/order\" }", api().business_key(json("/order"))),
        ("no_fingerprint = true", api().no_fingerprint()),
        (
            "compare = [{ json = \"/a\" }, { query = \"b\" }]",
            api().compare([json("/a")]).compare([query("b")]),
        ),
        ("ignore = [{ json = \"/sign\" }]", api().ignore([json("/sign")])),
        ("wait = \"5s\"", api().wait(secs(5))),
        ("call_within = \"250ms\"", api().call_within(Duration::from_millis(250))),
        ("claim_within = \"3s\"", api().claim_within(secs(3))),
        ("lease = \"1m\"", api().lease(secs(60))),
        ("retention = \"2d\"", api().retention(secs(2 * 86_400))),
        ("hold = \"1week 1day\"", api().hold(secs(8 * 86_400))),
        ("max_run = \"1h30m\"", api().max_run(secs(5400))),
        ("body_limit = \"2MiB\"", api().body_limit(2 * 1024 * 1024)),
        ("body_limit = 65536", api().body_limit(65_536)),
        ("body_within = \"10s\"", api().body_within(secs(10))),
        ("answer_limit = \"64 kB\"", api().answer_limit(64_000)),
        ("answer_limit = 0", api().answer_limit(0)),
        ("keep = [409]", api().keep([StatusCode::CONFLICT])),
        (
            "release = [402, 500]",
            api().release([StatusCode::PAYMENT_REQUIRED, StatusCode::INTERNAL_SERVER_ERROR]),
        ),
        ("uncertain = [500]", api().uncertain([StatusCode::INTERNAL_SERVER_ERROR])),
        ("rerun_abandoned = true", api().rerun_abandoned()),
        ("run_unprotected = true", api().run_unprotected()),
        ("observe = true", api().observe()),
        ("keep_cookies = true", api().keep_cookies()),
        (
            "token = { read = { header = \"X-Once\" }, from = \"POST /tokens\" }",
            api().token(header("X-Once"), "POST /tokens"),
        ),
        (
            "token_bound_to = { header = \"X-User\" }\ntoken = { read = { form = \"t\" }, from = \"/t\" }",
            api().token(form("t"), "/t").token_bound_to(Scope::header("X-User")),
        ),
        ("private_label = true", api().private_label()),
    ]
}

#[test]
fn each_choice_is_what_its_setter_makes_of_it() {
    let default = format!("{:?}", policy(&rules(&one(API)).unwrap()));
    assert_eq!(default, format!("{:?}", api()));
    for (line, expected) in of_an_api() {
        let rules = rules(&one(&format!("{API}\n{line}"))).expect(line);
        let made = format!("{:?}", policy(&rules));
        assert_eq!(made, format!("{expected:?}"), "{line}");
        assert_ne!(made, default, "{line} changes something");
    }
}

#[test]
fn false_is_the_default_of_every_switch() {
    for switch in [
        "strict",
        "optional",
        "no_fingerprint",
        "rerun_abandoned",
        "run_unprotected",
        "observe",
        "keep_cookies",
        "private_label",
    ] {
        let of = |on| {
            let rules = rules(&one(&format!("{API}\n{switch} = {on}"))).unwrap();
            format!("{:?}", policy(&rules))
        };
        assert_eq!(of(false), format!("{:?}", api()), "{switch}");
        assert_ne!(of(true), of(false), "{switch}");
    }
}

#[test]
fn a_place_is_what_its_function_makes_of_it() {
    let of = |identity: &str| {
        let rules = rules(&one(&format!("policy = \"webhook\"\nidentity = {identity}")));
        format!("{:?}", policy(&rules.expect(identity)))
    };
    for (place, expected) in [
        ("{ json = \"/a/0\" }", Policy::webhook(json("/a/0"))),
        ("{ json = \"\" }", Policy::webhook(json(""))),
        ("{ form = \"a\" }", Policy::webhook(form("a"))),
        ("{ xml = \"/xml/a\" }", Policy::webhook(xml("/xml/a"))),
        ("{ query = \"a\" }", Policy::webhook(query("a"))),
        ("{ header = \"X-A\" }", Policy::webhook(header("X-A"))),
        ("{ header = \"x-a\", strict = false }", Policy::webhook(header("X-A"))),
        ("{ strict = true, header = \"x-a\" }", Policy::webhook(header("X-A").strict())),
        ("{ each = \"/i\", read = { json = \"/a\" } }", Policy::webhook(each("/i", json("/a")))),
        ("{ sent = { json = \"/a\" } }", Policy::webhook(sent(json("/a")))),
        ("[{ json = \"/a\" }, { json = \"/b\" }]", Policy::webhook((json("/a"), json("/b")))),
        (
            "{ each = \"/i\", read = [{ json = \"/a\" }, { json = \"/b\" }] }",
            Policy::webhook(each("/i", (json("/a"), json("/b")))),
        ),
    ] {
        assert_eq!(of(place), format!("{expected:?}"), "{place}");
    }
    assert_ne!(of("{ json = \"/a\" }"), of("{ form = \"a\" }"));
}

#[test]
fn a_scope_is_a_header_or_a_name() {
    let of = |scope: &str| {
        let rules = rules(&one(&format!("policy = \"api\"\nscope = {scope}"))).unwrap();
        format!("{:?}", policy(&rules))
    };
    assert_eq!(of("\"everyone\""), format!("{:?}", api()));
    let tenant = format!("{:?}", Policy::api(Scope::header("X-Tenant")));
    assert_eq!(of("{ header = \"X-Tenant\" }"), tenant);
    assert_ne!(of("{ header = \"X-Tenant\" }"), of("\"everyone\""));
}

#[test]
fn what_a_policy_compares_is_replaced_and_not_added_to() {
    let rules = rules(&one(&format!("{WEBHOOK}\ncompare = [{{ json = \"/a\" }}]"))).unwrap();
    let expected = webhook().compare([json("/a")]);
    assert_eq!(format!("{:?}", policy(&rules)), format!("{expected:?}"));

    let own = webhook().compare([json("/before")]).rerun_abandoned().private_label();
    let registry = Registry::new().policy("own", own.clone());
    let with = |lines: &str| {
        let rules = rules_with(&registry, &one(&format!("policy = \"own\"\n{lines}")));
        format!("{:?}", policy(&rules.unwrap()))
    };
    assert_eq!(with(""), format!("{own:?}"));
    let replaced = "compare = [{ json = \"/a\" }]\nrerun_abandoned = false\nprivate_label = false";
    assert_eq!(with(replaced), format!("{expected:?}"));
    // Only what it would have set is taken back.
    let asked = webhook().resolve_abandoned(async |_| tower_idempotency::Resolution::Unknown);
    let registry = Registry::new().policy("asked", asked.clone());
    let asking = rules_with(&registry, &one("policy = \"asked\"\nrerun_abandoned = false"));
    assert_eq!(format!("{:?}", policy(&asking.unwrap())), format!("{asked:?}"));
    let ignoring = webhook().ignore([form("a")]).rerun_abandoned().private_label();
    assert_eq!(with("ignore = [{ form = \"a\" }]"), format!("{ignoring:?}"));
}

#[test]
fn the_same_rules_can_stand_in_json() {
    let toml = one(
        "policy = \"webhook\"\nidentity = { json = \"/id\" }\nlease = \"10s\"\nmethods = [\"PUT\"]\npath = \"/x/{id}\"",
    );
    let json = r#"[{"name": "r", "policy": "webhook", "identity": {"json": "/id"},
        "lease": "10s", "methods": ["PUT"], "path": "/x/{id}"}]"#;
    let from_json: tower_idempotency::Rules = serde_json::from_str(json).unwrap();
    assert_eq!(format!("{from_json:?}"), format!("{:?}", rules(&toml).unwrap()));
    assert_eq!(from_json.find(&http::Method::PUT, "/x/7").unwrap().name(), "r");
    assert!(from_json.find(&http::Method::POST, "/x/7").is_none());
}

#[test]
fn every_sender_is_a_policy_by_its_name() {
    let of = |name: &str| {
        let rules = rules(&one(&format!("policy = \"{name}\""))).expect(name);
        format!("{:?}", policy(&rules))
    };
    let senders = [
        ("adyen", sender::adyen()),
        ("alipay", sender::alipay()),
        ("cloudevents", sender::cloudevents()),
        ("github", sender::github()),
        ("shopify", sender::shopify()),
        ("sns", sender::sns()),
        ("standard_webhooks", sender::standard_webhooks()),
        ("stripe", sender::stripe()),
        ("wechat_pay_v2", sender::wechat_pay_v2()),
    ];
    for (name, policy) in &senders {
        assert_eq!(of(name), format!("{policy:?}"), "{name}");
    }
    // And none is forgotten: what the module exports are policies, but for one source.
    let module = include_str!("../../src/sender/mod.rs");
    let mut exported = 0;
    for line in module.lines().filter(|line| line.starts_with("pub use ")) {
        let (_, names) = line.trim_end_matches(';').rsplit_once("::").unwrap();
        let names = names.trim_matches(['{', '}']).split(", ");
        for name in names.filter(|name| *name != "stripe_once") {
            let known = senders.iter().any(|(known, _)| *known == name);
            assert!(known || name == "wechat_pay_v3", "{name}");
            exported += 1;
        }
    }
    assert_eq!(exported, senders.len() + 1);
}

#[test]
fn a_sender_can_be_changed_further() {
    let lines =
        "policy = \"alipay\"\nretention = \"14d\"\nhold = \"14d\"\ncompare = [{ form = \"a\" }]";
    let rules = rules(&one(lines)).unwrap();
    let days = Duration::from_secs(14 * 86_400);
    let alipay = sender::alipay().retention(days).hold(days);
    let expected = alipay.no_fingerprint().compare([form("a")]);
    assert_eq!(format!("{:?}", policy(&rules)), format!("{expected:?}"));
    assert_ne!(format!("{expected:?}"), format!("{:?}", sender::alipay()));
}

#[test]
fn a_sender_whose_notifications_are_enciphered_needs_the_hook_that_deciphers_them() {
    let error = rules(&one("policy = \"wechat_pay_v3\"")).unwrap_err();
    let expected = "rule \"r\": verify is missing, which policy \"wechat_pay_v3\" needs; name the";
    assert!(error.starts_with(expected), "{error}");
    let deciphers = async |delivery: Delivery| Ok(Verified::deciphered(delivery.body().clone()));
    let registry = Registry::new().verify("wechat-pay", deciphers);
    let lines = "policy = \"wechat_pay_v3\"\nverify = \"wechat-pay\"";
    let rules = rules_with(&registry, &one(lines)).unwrap();
    let expected = sender::wechat_pay_v3(deciphers);
    assert_eq!(format!("{:?}", policy(&rules)), format!("{expected:?}"));
}
