//! A configuration that cannot work is an error at start that names the rule, the field and what was
//! expected; beside each stands what would have been right.

use tower_idempotency::{Registry, Rules};

use crate::support::{one, rules, rules_with};

const API: &str = "policy = \"api\"\nscope = \"everyone\"\n";

/// Each of `wrong` is refused with `rule "r": ` and the message beside it; each of `right` is taken.
fn check(wrong: &[(&str, &str)], right: &[&str]) {
    for (lines, message) in wrong {
        let error = rules(&one(lines)).expect_err(lines);
        assert!(error.starts_with(&format!("rule \"r\": {message}")), "{lines}: {error}");
    }
    for lines in right {
        assert!(rules(&one(lines)).is_ok(), "{lines}: {:?}", rules(&one(lines)));
    }
}

/// The same for a field of an API's rule.
fn check_field(wrong: &[(&str, &str)], right: &[&str]) {
    let with = |line: &str| format!("{API}{line}");
    let lines: Vec<_> = wrong.iter().map(|(line, message)| (with(line), *message)).collect();
    let lines: Vec<_> = lines.iter().map(|(line, message)| (line.as_str(), *message)).collect();
    let right: Vec<_> = right.iter().map(|line| with(line)).collect();
    check(&lines, &right.iter().map(String::as_str).collect::<Vec<_>>());
}

#[test]
fn a_rule_needs_a_name_and_what_it_starts_from() {
    let error = rules("[[rules]]\nname = \"r\"\npolicy = \"api\"\nscope = \"everyone\"\n\n[[rules]]\npolicy = \"api\"").unwrap_err();
    assert!(error.starts_with("rule number 2: name is missing"), "{error}");
    let error = rules("[[rules]]\nname = 7").unwrap_err();
    assert_eq!(error, "rule number 1: name: expected a text, found the number 7");
    let error = rules("rules = [7]").unwrap_err();
    assert!(error.starts_with("rule number 1: expected a table with name"), "{error}");
    let error = rules("rules = \"none\"").unwrap_err();
    assert!(error.contains("expected a list of rules"), "{error}");
    check(
        &[
            ("", "policy: say what the rule starts from"),
            (
                "policy = 7",
                "policy: expected the name of a policy, \"api\", \"webhook\" or another, found the number 7",
            ),
            ("policy = \"apii\"", "policy: there is no policy \"apii\"; there are api, webhook"),
        ],
        &[API],
    );
    assert_eq!(rules("rules = []").unwrap().iter().len(), 0);
}

#[test]
fn an_api_must_say_whose_its_keys_are_and_a_webhook_where_its_identity_stands() {
    check(
        &[
            (
                "policy = \"api\"",
                "scope is missing, which policy \"api\" needs; say within what a key is unique",
            ),
            (
                "policy = \"webhook\"",
                "identity is missing, which policy \"webhook\" needs; say where",
            ),
        ],
        &[API, "policy = \"webhook\"\nidentity = { json = \"/id\" }"],
    );
}

#[test]
fn an_unknown_field_is_answered_with_the_list_of_those_there_are() {
    let error = rules(&one(&format!("{API}retentoin = \"7d\""))).unwrap_err();
    assert!(
        error.starts_with("rule \"r\": unknown field `retentoin`; a rule may have name, path, "),
        "{error}"
    );
    assert!(error.contains(", retention, "), "{error}");
    check_field(&[], &["retention = \"7d\""]);
}

#[test]
fn a_field_that_stands_twice_is_refused_where_the_format_lets_it() {
    let twice =
        r#"[{"name": "r", "policy": "api", "scope": "everyone", "lease": "1s", "lease": "9s"}]"#;
    let error = serde_json::from_str::<Rules>(twice).unwrap_err().to_string();
    assert!(error.starts_with("the field `lease` stands twice; keep one"), "{error}");
    assert!(serde_json::from_str::<Rules>(&twice.replace(r#", "lease": "9s""#, "")).is_ok());
}

#[test]
fn a_time_says_its_unit() {
    let expected = |field: &str| {
        format!("{field}: expected a duration such as \"30s\", \"7d\" or \"1h30m\", found ")
    };
    for field in [
        "wait",
        "call_within",
        "claim_within",
        "lease",
        "retention",
        "hold",
        "max_run",
        "body_within",
    ] {
        let message = |found: &str| format!("{}{found}", expected(field));
        check_field(
            &[
                (&format!("{field} = 30"), &message("the number 30")),
                (&format!("{field} = 1.5"), &message("the number 1.5")),
                (&format!("{field} = -1"), &message("the number -1")),
                (&format!("{field} = \"30\""), &message("\"30\" (")),
                (
                    &format!("{field} = \"30 lightyears\""),
                    &message("\"30 lightyears\" (unknown time unit"),
                ),
                (&format!("{field} = \"\""), &message("\"\"")),
                (&format!("{field} = true"), &message("true")),
            ],
            &[],
        );
    }
    check_field(&[], &["lease = \"20s\"", "wait = \"0s\"", "retention = \"1d 2h\""]);
}

#[test]
fn impossible_times_are_errors() {
    check_field(
        &[
            ("lease = \"0s\"", "lease is 0ns; make it 1 ms or longer"),
            ("call_within = \"10us\"", "call_within is 10µs; make it 1 ms or longer"),
            ("hold = \"11years\"", "hold is "),
            ("lease = \"24h\"", "the lease (86400s) must be shorter than the retention (86400s)"),
            (
                "retention = \"8d\"",
                "the retention (691200s) must not be longer than the hold (604800s)",
            ),
            ("max_run = \"1s\"", "max_run (1s) must not be shorter than the lease (30s)"),
        ],
        &[
            "lease = \"23h\"\nmax_run = \"1d\"",
            "retention = \"8d\"\nhold = \"8d\"",
            "max_run = \"30s\"",
        ],
    );
}

#[test]
fn a_size_is_a_number_of_bytes_or_has_a_unit() {
    let expected = "expected a number of bytes, or a size such as \"64KiB\" or \"1MiB\", found";
    for field in ["body_limit", "answer_limit"] {
        for (value, found) in [
            ("-1", "the number -1"),
            ("1.5", "the number 1.5"),
            ("\"1 mib\"", "\"1 mib\""),
            ("\"MiB\"", "\"MiB\""),
            ("\"1.5MiB\"", "\"1.5MiB\""),
            ("\"99999999999GiB\"", "\"99999999999GiB\""),
            ("[]", "an empty list"),
        ] {
            check_field(
                &[(&format!("{field} = {value}"), &format!("{field}: {expected} {found}"))],
                &[],
            );
        }
        check_field(
            &[],
            &[
                &format!("{field} = 1"),
                &format!("{field} = \"1B\""),
                &format!("{field} = \"1 MiB\""),
            ],
        );
    }
    check_field(&[("body_limit = 0", "body_limit is 0")], &["answer_limit = 0"]);
}

#[test]
fn statuses_are_a_list_in_which_each_has_one_meaning() {
    for field in ["keep", "release", "uncertain"] {
        let expected = format!(
            "{field}: expected a list of statuses from 200 to 599, such as [402, 409], found"
        );
        for (value, found) in [
            ("409", "the number 409"),
            ("[]", "an empty list"),
            ("[\"409\"]", "\"409\""),
            ("[600]", "the number 600"),
            ("[199]", "the number 199"),
        ] {
            check_field(&[(&format!("{field} = {value}"), &format!("{expected} {found}"))], &[]);
        }
    }
    check_field(
        &[(
            "keep = [409, 500]\nuncertain = [500]",
            "500 is in keep and in uncertain; leave it in one",
        )],
        &["keep = [409]\nrelease = [500]\nuncertain = [502]"],
    );
}

#[test]
fn choices_that_take_each_others_place_are_not_made_together() {
    for (one, other) in [
        ("token = { read = { form = \"a\" }, from = \"b\" }", "identity = { form = \"a\" }"),
        ("no_fingerprint = true", "compare = [{ json = \"/a\" }]"),
        ("no_fingerprint = true", "ignore = [{ json = \"/a\" }]"),
        ("compare = [{ json = \"/a\" }]", "ignore = [{ json = \"/a\" }]"),
        ("rerun_abandoned = true", "resolve_abandoned = \"ask\""),
        ("rerun_abandoned = true", "ledger = \"dedup\""),
    ] {
        let name = |line: &str| line.split(' ').next().unwrap().to_owned();
        let message = format!("{} and {} exclude each other", name(one), name(other));
        check_field(&[(&format!("{one}\n{other}"), &message)], &[one]);
    }
}

#[test]
fn switches_are_true_or_false() {
    for field in [
        "strict",
        "optional",
        "no_fingerprint",
        "rerun_abandoned",
        "run_unprotected",
        "observe",
        "keep_cookies",
        "private_label",
    ] {
        let message = format!("{field}: expected true or false, found \"yes\"");
        check_field(&[(&format!("{field} = \"yes\""), &message)], &[&format!("{field} = true")]);
    }
    check_field(
        &[(
            "strict = true\nidentity = { header = \"X-Key\" }",
            "strict: this is about the header Idempotency-Key, but the identity is header X-Key; for another header write identity = { header = \"..\", strict = true }",
        )],
        &["identity = { header = \"X-Key\", strict = true }"],
    );
}

#[test]
fn methods_are_known_ones_in_capitals() {
    let expected = "methods: expected a list such as [\"POST\", \"PATCH\"], of \"POST\"";
    let one_of = "methods: expected one of \"POST\", \"PUT\"";
    check_field(
        &[
            ("methods = \"POST\"", expected),
            ("methods = []", expected),
            ("methods = [\"post\"]", one_of),
            ("methods = [\"PSOT\"]", one_of),
            ("methods = [7]", expected),
        ],
        &["methods = [\"POST\", \"DELETE\"]"],
    );
}

#[test]
fn a_scope_is_one_of_three_things() {
    let expected = "scope: expected \"everyone\", the name of a registered scope, or { header = \"X-Tenant\" }, found";
    check(
        &[
            ("policy = \"api\"\nscope = 7", &format!("{expected} the number 7")),
            (
                "policy = \"api\"\nscope = { heder = \"X\" }",
                &format!("{expected} a table with the fields [heder]"),
            ),
            (
                "policy = \"api\"\nscope = { header = \"X Y\" }",
                "scope: header: \"X Y\" is not the name of a header field",
            ),
            (
                "policy = \"api\"\nscope = \"tenant\"",
                "scope: no scope is registered as \"tenant\" (none is); register it: Registry::new().scope(\"tenant\", ..)",
            ),
        ],
        &["policy = \"api\"\nscope = { header = \"X-Y\" }"],
    );
}

#[test]
fn a_place_is_of_a_known_kind_and_says_all_it_needs() {
    let place = "expected a place such as { json = \"/notifyId\" }";
    for field in ["identity", "business_key"] {
        let wrong = |value: &str, message: &str| {
            check_field(&[(&format!("{field} = {value}"), &format!("{field}: {message}"))], &[]);
        };
        wrong("\"/notifyId\"", place);
        wrong("{}", place);
        wrong("[]", place);
        wrong("{ json = \"/a\", form = \"b\" }", place);
        wrong(
            "{ jsno = \"/a\" }",
            "jsno: is no kind of place; there are json, form, xml, header, query, path, source, each or sent",
        );
        wrong("{ json = \"a\" }", "json: a JSON Pointer begins with `/`; write \"/a\"");
        wrong("{ json = \"/~2\" }", "json: `~` must be followed by");
        wrong(
            "{ json = 7 }",
            "json: expected a JSON Pointer such as \"/notifyId\", found the number 7",
        );
        wrong("{ form = \"\" }", "form: expected the name of a field, found \"\"");
        wrong("{ query = 7 }", "query: expected the name of a parameter, found the number 7");
        wrong("{ header = \"a b\" }", "header: expected the name of a header field, found \"a b\"");
        wrong(
            "{ header = \"a\", strict = 7 }",
            "strict: expected true or false, found the number 7",
        );
        wrong("{ header = \"a\", strickt = true }", "header goes with strict alone");
        wrong("{ xml = \"a\" }", "xml: give the path of an element from the root");
        wrong("{ each = \"/i\" }", "each: say what is read from each item");
        wrong("{ each = \"/i\", read = 7 }", &format!("read: {place}"));
        wrong("{ sent = 7 }", &format!("sent: {place}"));
        wrong("{ source = \"x\" }", "no source of identities is registered as \"x\" (none is)");
    }
    check_field(
        &[
            ("compare = []", "compare: expected a list of fields"),
            ("compare = { json = \"/a\" }", "compare: expected a list of fields"),
            ("compare = [[{ json = \"/a\" }]]", "compare: expected a place"),
            ("compare = [{ source = \"x\" }]", "compare: no field is registered as \"x\""),
            (
                "compare = [{ sent = [{ json = \"/a\" }] }]",
                "compare: a list within a list is not compared",
            ),
            ("ignore = [{ header = \"x\" }]", "ignore: expected parts of a body"),
            (
                "ignore = [{ json = \"/a\" }, { form = \"b\" }]",
                "JSON field /a and form field b cannot be ignored in one body",
            ),
        ],
        &[
            "compare = [{ sent = { json = \"/a\" } }]",
            "ignore = [{ form = \"a\" }, { form = \"b\" }]",
        ],
    );
}

#[test]
fn paths_are_checked_and_a_parameter_that_is_read_is_in_them() {
    check_field(
        &[
            ("path = 7", "path: expected a path such as \"/orders/{id}\", found the number 7"),
            ("path = \"orders\"", "the path \"orders\" must start with a slash"),
            ("path = \"/orders/{id\"", "the path \"/orders/{id\" cannot be used"),
            (
                "path = \"/orders\"\nidentity = { path = \"id\" }",
                "path parameter id is read from the rule's own path, and \"/orders\" has no parameter {id}",
            ),
            (
                "identity = { path = \"id\" }",
                "path parameter id is read from the rule's own path, and the rule has none",
            ),
            (
                "path = \"/orders\"\nidentity = [{ json = \"/a\" }, { path = \"id\" }]",
                "path parameter id is read",
            ),
            ("path = \"/orders\"\ncompare = [{ path = \"id\" }]", "path parameter id is read"),
        ],
        &["path = \"/orders/{id}\"\nidentity = { path = \"id\" }"],
    );
}

#[test]
fn two_rules_are_not_for_the_same_requests_and_have_names_of_their_own() {
    let two = |second: &str| {
        rules(&format!(
            "[[rules]]\nname = \"a\"\npath = \"/x/{{id}}\"\n{API}\n[[rules]]\n{second}\n{API}"
        ))
    };
    let error = two("name = \"b\"\npath = \"/x/{id}\"").unwrap_err();
    assert!(error.starts_with("rules \"a\" and \"b\" are both for POST /x/{id}"), "{error}");
    let error = two("name = \"a\"\npath = \"/y\"").unwrap_err();
    assert!(error.starts_with("two rules are called \"a\""), "{error}");
    assert!(two("name = \"b\"\npath = \"/x/new\"").is_ok());
    assert!(two("name = \"b\"\npath = \"/x/{id}\"\nmethods = [\"PUT\"]").is_ok());
}

#[test]
fn a_hook_that_is_not_registered_is_answered_with_those_that_are() {
    for (field, setter) in [
        ("verify", "verify"),
        ("keep_if", "keep_if"),
        ("on_mismatch", "on_mismatch"),
        ("refuse_with", "refuse_with"),
        ("resolve_abandoned", "resolver"),
        ("ledger", "ledger"),
    ] {
        check_field(
            &[
                (
                    &format!("{field} = \"x\""),
                    &format!(
                        "{field}: no {} is registered as \"x\" (none is); register it: Registry::new().{setter}(\"x\", ..)",
                        if ["resolver", "ledger"].contains(&setter) { setter } else { "hook" }
                    ),
                ),
                (
                    &format!("{field} = 7"),
                    &format!("{field}: expected a name that was registered, found the number 7"),
                ),
            ],
            &[],
        );
    }
    let registry = Registry::new().keep_if("good", |_| true).keep_if("better", |_| true);
    let with = |name: &str| rules_with(&registry, &one(&format!("{API}keep_if = \"{name}\"")));
    let error = with("best").unwrap_err();
    assert!(error.contains("\"best\" (these are: better, good)"), "{error}");
    assert!(with("good").is_ok());
}

#[test]
#[should_panic(expected = "Registry::keep_if: the name \"good\" is taken already")]
fn a_name_is_registered_once() {
    let _ = Registry::new().keep_if("good", |_| true).keep_if("good", |_| false);
}

#[test]
#[should_panic(expected = "Registry::scope: the name \"everyone\" is taken already")]
fn the_crates_own_names_are_taken() {
    let _ = Registry::new().scope("everyone", tower_idempotency::Scope::header("X-Tenant"));
}

#[test]
#[should_panic(expected = "Registry::policy: the name is empty")]
fn a_registered_name_is_not_empty() {
    let _ = Registry::new()
        .policy("", tower_idempotency::Policy::webhook(tower_idempotency::json("/id")));
}

#[test]
fn the_place_in_the_file_is_told_too() {
    let text = "listen = \"x\"\n\n[[rules]]\nname = \"r\"\npolicy = \"api\"\nscope = \"everyone\"\nlease = 30\n";
    let error = toml::from_str::<crate::support::Config>(text).err().unwrap();
    assert!(error.to_string().contains("line 3"), "{error}");
}
