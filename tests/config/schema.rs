//! The JSON Schema for editors says the same as the crate does: it has the same fields, and judges the
//! same files right and wrong.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use tower_idempotency::RulesConfig;

use crate::support::{Config, one};

const SCHEMA: &str = include_str!("../../docs/rules.schema.json");
const EXAMPLE: &str = include_str!("../../examples/configured.toml");

fn schema() -> Value {
    serde_json::from_str(SCHEMA).unwrap()
}

/// Whether `schema` takes `value`. It knows the keywords that the schema uses; another one is a panic,
/// so that nothing in the schema goes unjudged.
fn takes(root: &Value, schema: &Value, value: &Value) -> bool {
    let list = |argument: &Value| argument.as_array().unwrap().clone();
    schema.as_object().unwrap().iter().all(|(keyword, argument)| match keyword.as_str() {
        "$schema" | "$defs" | "title" | "description" => true,
        "$ref" => {
            let target = root.pointer(argument.as_str().unwrap().trim_start_matches('#'));
            takes(root, target.unwrap(), value)
        }
        "type" => match argument.as_str().unwrap() {
            "object" => value.is_object(),
            "array" => value.is_array(),
            "string" => value.is_string(),
            "boolean" => value.is_boolean(),
            "integer" => value.is_i64() || value.is_u64(),
            other => panic!("type {other}"),
        },
        "enum" => list(argument).contains(value),
        "const" => argument == value,
        "required" => value.as_object().is_none_or(|object| {
            list(argument).iter().all(|name| object.contains_key(name.as_str().unwrap()))
        }),
        "properties" => value.as_object().is_none_or(|object| {
            let schemas = argument.as_object().unwrap();
            schemas.iter().all(|(name, schema)| {
                object.get(name).is_none_or(|value| takes(root, schema, value))
            })
        }),
        "additionalProperties" => {
            assert_eq!(argument, false);
            let known = &schema["properties"];
            value.as_object().is_none_or(|o| o.keys().all(|name| known.get(name).is_some()))
        }
        "items" => value.as_array().is_none_or(|a| a.iter().all(|v| takes(root, argument, v))),
        "minItems" => value.as_array().is_none_or(|a| a.len() as u64 >= argument.as_u64().unwrap()),
        "minLength" => {
            value.as_str().is_none_or(|s| s.chars().count() as u64 >= argument.as_u64().unwrap())
        }
        "pattern" => {
            let pattern = regex_lite::Regex::new(argument.as_str().unwrap()).unwrap();
            value.as_str().is_none_or(|text| pattern.is_match(text))
        }
        "minimum" => value.as_f64().is_none_or(|number| number >= argument.as_f64().unwrap()),
        "maximum" => value.as_f64().is_none_or(|number| number <= argument.as_f64().unwrap()),
        "allOf" => list(argument).iter().all(|schema| takes(root, schema, value)),
        "anyOf" => list(argument).iter().any(|schema| takes(root, schema, value)),
        "not" => !takes(root, argument, value),
        other => panic!("the schema has the keyword {other}, which this test does not judge"),
    })
}

fn valid(file: &Value) -> bool {
    takes(&schema(), &schema(), file)
}

/// The fields that a rule may have, as the crate lists them in its error.
fn fields() -> BTreeSet<String> {
    let wrong = r#"[{"name": "r", "policy": "api", "no such field": 1}]"#;
    let error = serde_json::from_str::<RulesConfig>(wrong).unwrap_err().to_string();
    let listed = error.split("a rule may have ").nth(1).unwrap();
    let listed = listed.split(" at line").next().unwrap();
    listed.split(", ").map(str::to_owned).collect()
}

#[test]
fn the_schema_has_the_fields_of_a_rule_and_no_other() {
    let schema = schema();
    let in_schema = schema["$defs"]["rule"]["properties"].as_object().unwrap();
    assert!(in_schema.len() > 30);
    assert_eq!(in_schema.keys().cloned().collect::<BTreeSet<_>>(), fields());
    for (name, field) in in_schema {
        assert!(field["description"].as_str().is_some_and(|text| text.ends_with('.')), "{name}");
    }
}

#[test]
fn every_field_is_in_the_documentation_of_the_configuration() {
    let documentation = include_str!("../../src/config/mod.rs");
    for field in fields() {
        assert!(documentation.contains(&format!("`{field}`")), "{field}");
    }
}

#[test]
fn the_example_is_right() {
    let file: Value = toml::from_str(EXAMPLE).unwrap();
    assert!(file["rules"].as_array().unwrap().len() >= 4);
    assert!(valid(&file));
    assert!(toml::from_str::<Config>(EXAMPLE).is_ok());
}

/// A value for each field, and some that are wrong.
fn values() -> Vec<(&'static str, Value, Vec<Value>)> {
    let duration = || vec![json!(30), json!("30"), json!(""), json!(true), json!(null), json!("s")];
    let size = || vec![json!(-1), json!(1.5), json!("1mib"), json!("MiB"), json!([]), json!("")];
    let statuses = || vec![json!(409), json!([]), json!(["409"]), json!([600]), json!([199])];
    let switch = || vec![json!("true"), json!(1), json!(null)];
    let name = || vec![json!(""), json!(7), json!([]), json!(null)];
    let place = || {
        vec![
            json!("/id"),
            json!({}),
            json!([]),
            json!({"jsno": "/a"}),
            json!({"json": "a"}),
            json!({"json": "/~2"}),
            json!({"json": 7}),
            json!({"form": ""}),
            json!({"query": 7}),
            json!({"header": "a b"}),
            json!({"header": "a", "strict": 7}),
            json!({"xml": "a"}),
            json!({"header": "a", "strickt": true}),
            json!({"each": "/i"}),
            json!({"sent": 7}),
            json!({"each": "/i", "read": 7}),
            json!({"json": "/a", "form": "a"}),
            json!({"source": ""}),
            json!([[{"json": "/a"}]]),
        ]
    };
    let places = || {
        vec![
            json!([]),
            json!({"json": "/a"}),
            json!([[{"json": "/a"}]]),
            json!([{"sent": [{"json": "/a"}]}]),
        ]
    };
    vec![
        ("name", json!("other"), name()),
        ("path", json!("/orders/{id}"), name()),
        ("methods", json!(["PUT"]), vec![json!("PUT"), json!([]), json!(["put"]), json!([7])]),
        ("policy", json!("api"), name()),
        (
            "scope",
            json!({"header": "X-Tenant"}),
            vec![json!({"header": "a b"}), json!({}), json!(""), json!(7)],
        ),
        (
            "identity",
            json!([{"each": "/i", "read": [{"json": "/a"}, {"header": "b", "strict": true}]}, {"sent": {"form": "c"}}, {"xml": "/a/b"}, {"query": "d"}, {"path": "e"}, {"source": "f"}]),
            place(),
        ),
        (
            "token",
            json!({"read": {"header": "X-Once-Token"}, "from": "POST /tokens"}),
            vec![
                json!("x"),
                json!({"read": {"header": "X-Once-Token"}}),
                json!({"from": "POST /tokens"}),
                json!({"read": {"header": "a b"}, "from": "POST /tokens"}),
                json!({"read": [{"form": "a"}], "from": "POST /tokens"}),
                json!({"read": {"form": "a"}, "from": ""}),
                json!({"read": {"form": "a"}, "from": 7}),
                json!({"read": {"form": "a"}, "from": "b", "more": true}),
            ],
        ),
        (
            "token_bound_to",
            json!({"header": "X-User"}),
            vec![json!({"header": "a b"}), json!({}), json!(""), json!(7)],
        ),
        ("business_key", json!({"json": "/order"}), place()),
        ("compare", json!([{"json": ""}, {"source": "a"}]), places()),
        (
            "ignore",
            json!([{"form": "sign"}]),
            [places(), vec![json!([{"header": "x"}]), json!([{"sent": {"json": "/a"}}])]].concat(),
        ),
        ("verify", json!("x"), name()),
        ("on_mismatch", json!("x"), name()),
        ("refuse_with", json!("x"), name()),
        ("keep_if", json!("x"), name()),
        ("resolve_abandoned", json!("x"), name()),
        ("ledger", json!("x"), name()),
        ("wait", json!("0s"), duration()),
        ("call_within", json!("500ms"), duration()),
        ("claim_within", json!("1s 500ms"), duration()),
        ("lease", json!("1min"), duration()),
        ("retention", json!("7 days"), duration()),
        ("hold", json!("1h30m"), duration()),
        ("max_run", json!("1M"), duration()),
        ("body_within", json!("10s"), duration()),
        ("body_limit", json!("64KiB"), size()),
        ("answer_limit", json!(0), size()),
        ("keep", json!([409, 200]), statuses()),
        ("release", json!([599]), statuses()),
        ("uncertain", json!([500]), statuses()),
        ("strict", json!(true), switch()),
        ("optional", json!(false), switch()),
        ("no_fingerprint", json!(true), switch()),
        ("rerun_abandoned", json!(true), switch()),
        ("run_unprotected", json!(true), switch()),
        ("observe", json!(true), switch()),
        ("keep_cookies", json!(true), switch()),
        ("private_label", json!(true), switch()),
    ]
}

#[test]
fn the_table_around_the_rules_is_judged_alike() {
    let rules = || json!([{"name": "r", "policy": "api", "scope": "tenant"}]);
    let around = |table: Value| json!({ "rules": table });
    for recent in [json!(0), json!(65536), json!("2MiB"), json!("64 kB")] {
        let file = around(json!({"rules": rules(), "recent": recent}));
        assert!(valid(&file) && read(&file).is_ok(), "{file}: {:?}", read(&file));
    }
    for wrong in [
        json!({"rules": rules(), "recent": -1}),
        json!({"rules": rules(), "recent": "2mib"}),
        json!({"rules": rules(), "recent": true}),
        json!({"rules": rules(), "recent": null}),
        json!({"rules": rules(), "recnet": "2MiB"}),
        json!({"rules": {"rules": rules()}}),
        json!({"rules": [7]}),
        json!({"recent": "2MiB"}),
        json!({}),
    ] {
        let file = around(wrong);
        assert!(!valid(&file) && read(&file).is_err(), "{file}");
    }
    let in_schema = schema();
    let in_schema = in_schema["$defs"]["withRules"]["properties"].as_object().unwrap();
    let error = read(&around(json!({"x": 1}))).unwrap_err();
    for (name, _) in in_schema {
        assert!(error.contains(name), "{name}: {error}");
        let documentation = include_str!("../../src/config/mod.rs");
        assert!(documentation.contains(&format!("| `{name}` |")), "{name}");
    }
}

/// A right file with this in its rule.
fn with(field: &str, value: &Value) -> Value {
    let mut rule = json!({"name": "r", "policy": "api", "scope": "tenant"});
    rule[field] = value.clone();
    json!({ "rules": [rule] })
}

fn read(file: &Value) -> Result<RulesConfig, String> {
    serde_json::from_value(file["rules"].clone()).map_err(|error| error.to_string())
}

#[test]
fn what_each_field_takes_is_judged_alike() {
    let values = values();
    let tried: BTreeSet<_> = values.iter().map(|(field, ..)| (*field).to_owned()).collect();
    assert_eq!(tried, fields());
    for (field, right, wrong) in values {
        let file = with(field, &right);
        assert!(valid(&file), "{file}");
        assert!(read(&file).is_ok(), "{file}: {:?}", read(&file));
        assert!(wrong.len() >= 3);
        for value in wrong {
            let file = with(field, &value);
            assert!(!valid(&file), "{file}");
            let error = read(&file).expect_err(&file.to_string());
            assert!(error.contains(field) || field == "ignore", "{file}: {error}");
        }
    }
}

#[test]
fn what_does_not_go_together_is_judged_alike() {
    let field = json!([{"json": "/a"}]);
    for (one, other) in [
        (
            ("token", json!({"read": {"form": "a"}, "from": "b"})),
            ("identity", json!({"form": "a"})),
        ),
        (("no_fingerprint", json!(true)), ("compare", field.clone())),
        (("no_fingerprint", json!(true)), ("ignore", field.clone())),
        (("compare", field.clone()), ("ignore", field.clone())),
        (("rerun_abandoned", json!(true)), ("resolve_abandoned", json!("x"))),
        (("rerun_abandoned", json!(true)), ("ledger", json!("x"))),
    ] {
        let mut file = with(one.0, &one.1);
        assert!(valid(&file) && read(&file).is_ok(), "{file}");
        file["rules"][0][other.0] = other.1;
        assert!(!valid(&file) && read(&file).is_err(), "{file}");
    }
}

#[test]
fn what_is_missing_is_judged_alike() {
    for (lines, right) in [
        ("policy = \"api\"", false),
        ("policy = \"api\"\nscope = \"everyone\"", true),
        ("policy = \"webhook\"", false),
        ("policy = \"webhook\"\nidentity = { json = \"/id\" }", true),
        ("policy = \"webhook\"\ntoken = { read = { form = \"a\" }, from = \"b\" }", true),
        ("scope = \"everyone\"", false),
        ("policy = \"wechat_pay_v3\"", false),
        ("policy = \"wechat_pay_v2\"", true),
    ] {
        let file: Value = toml::from_str(&one(lines)).unwrap();
        assert_eq!(valid(&file), right, "{lines}");
        assert_eq!(crate::support::rules(&one(lines)).is_ok(), right, "{lines}");
    }
    for file in [
        json!({"rules": [{"policy": "api", "scope": "everyone"}]}),
        json!({"rules": [7]}),
        json!({"rules": "none"}),
    ] {
        assert!(!valid(&file) && read(&file).is_err(), "{file}");
    }
    assert!(valid(&json!({"rules": [], "listen": "127.0.0.1:8080"})));
}
