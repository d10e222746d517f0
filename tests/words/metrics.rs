//! Every metric is in `docs/operations.md`, the dashboard and the alert rules speak of those alone, and
//! each alert is explained.

use std::collections::{BTreeMap, BTreeSet};

use regex_lite::Regex;
use serde_json::Value;
use yaml_rust2::{Yaml, YamlLoader};

const DOCUMENT: &str = include_str!("../../docs/operations.md");
const SOURCE: &str = include_str!("../../src/telemetry/metrics.rs");
const DASHBOARD: &str = include_str!("../../ops/dashboard.json");
const ALERTS: &str = include_str!("../../ops/alerts.yml");

/// The name and the kind of each metric that the source describes.
fn in_source() -> BTreeMap<String, String> {
    let named = Regex::new(r#"const ([A-Z_]+): &str = "(idempotency_[a-z_]+)";"#).unwrap();
    let names: BTreeMap<_, _> = named
        .captures_iter(SOURCE)
        .map(|found| (found[1].to_owned(), found[2].to_owned()))
        .collect();
    let described = Regex::new(r"describe_(counter|gauge|histogram)!\(\s*([A-Z_]+),").unwrap();
    let kinds: BTreeMap<_, _> = described
        .captures_iter(SOURCE)
        .map(|found| (names[&found[2]].clone(), found[1].to_owned()))
        .collect();
    assert_eq!(kinds.len(), names.len(), "each is described");
    assert!(kinds.len() >= 19);
    kinds
}

/// The first cells of the rows that begin so.
fn rows(begin: &str) -> Vec<Vec<&'static str>> {
    let rows = DOCUMENT.lines().filter(|line| line.starts_with(&format!("| {begin}")));
    rows.map(|row| row.trim_matches('|').split(" | ").map(str::trim).collect()).collect()
}

/// The metrics that an expression speaks of, as they are in the source: a histogram has three names.
fn spoken_of(expression: &str) -> BTreeSet<String> {
    let kinds = in_source();
    let name = Regex::new("idempotency_[a-z_]+").unwrap();
    name.find_iter(expression)
        .map(|found| {
            let found = found.as_str();
            let part =
                ["_bucket", "_sum", "_count"].iter().find_map(|part| found.strip_suffix(part));
            match part.filter(|base| kinds.get(*base).is_some_and(|kind| kind == "histogram")) {
                Some(base) => base.to_owned(),
                None => {
                    assert!(kinds.contains_key(found), "no such metric: {found}");
                    assert_ne!(kinds[found], "histogram", "{found} alone is no series");
                    found.to_owned()
                }
            }
        })
        .collect()
}

/// The labels in braces and after `by`.
fn check_labels(expression: &str) {
    let label = Regex::new(r#"([a-z]+)(?:=~|!~|!=|=)""#).unwrap();
    let by = Regex::new(r"by \(([a-z, ]+)\)").unwrap();
    let mut labels: Vec<_> =
        label.captures_iter(expression).map(|found| found[1].to_owned()).collect();
    for found in by.captures_iter(expression) {
        labels.extend(found[1].split(", ").map(str::to_owned));
    }
    for label in labels {
        assert!(
            ["rule", "handled", "would", "le", "instance"].contains(&label.as_str()),
            "{label}: {expression}"
        );
    }
}

/// Outcomes that an expression names are some that there are.
fn check_outcomes(expression: &str) {
    let named = Regex::new(r#"(?:handled|would)(?:=~|!~|=)"([a-z|-]+)""#).unwrap();
    for found in named.captures_iter(expression) {
        for outcome in found[1].split('|') {
            let page = format!("{}/docs/problems/{outcome}.md", env!("CARGO_MANIFEST_DIR"));
            let known = ["executed", "replayed", "passed", "observed", "waited"].contains(&outcome);
            assert!(known || std::path::Path::new(&page).exists(), "{outcome}: {expression}");
        }
    }
}

#[test]
fn every_metric_is_in_the_document_with_its_kind() {
    let documented: BTreeMap<_, _> = rows("`idempotency_")
        .into_iter()
        .map(|cells| {
            assert_eq!(cells.len(), 4, "{cells:?}");
            assert!(!cells[3].is_empty());
            (cells[0].trim_matches('`').to_owned(), cells[1].to_owned())
        })
        .collect();
    assert_eq!(documented, in_source());
}

/// Every `expr` in it, however deep.
fn expressions(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                match value.as_str() {
                    Some(text) if name == "expr" => found.push(text.to_owned()),
                    _ => expressions(value, found),
                }
            }
        }
        Value::Array(values) => values.iter().for_each(|value| expressions(value, found)),
        _ => {}
    }
}

#[test]
fn the_dashboard_shows_every_metric_and_no_other() {
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let mut found = Vec::new();
    expressions(&dashboard, &mut found);
    let panels = dashboard["panels"].as_array().unwrap();
    assert!(panels.iter().all(|panel| !panel["description"].as_str().unwrap().is_empty()));
    let ids: BTreeSet<_> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len());
    let mut shown = BTreeSet::new();
    for expression in &found {
        check_labels(expression);
        check_outcomes(expression);
        shown.extend(spoken_of(expression));
    }
    assert_eq!(shown, in_source().into_keys().collect());
    // What picks the rule asks a metric that there is, by its label.
    let picked = dashboard["templating"]["list"][1]["definition"].as_str().unwrap();
    assert_eq!(picked, "label_values(idempotency_requests_total, rule)");
    assert_eq!(spoken_of(picked).len(), 1);
}

fn alerts() -> Vec<Yaml> {
    let files = YamlLoader::load_from_str(ALERTS).unwrap();
    let [file] = &files[..] else { panic!("one document") };
    let groups = file["groups"].as_vec().unwrap();
    groups.iter().flat_map(|group| group["rules"].as_vec().unwrap().clone()).collect()
}

#[test]
fn each_alert_speaks_of_metrics_that_there_are_and_is_explained() {
    let documented: BTreeMap<_, _> = rows("`Idempotency")
        .into_iter()
        .map(|cells| {
            assert_eq!(cells.len(), 4, "{cells:?}");
            (cells[0].trim_matches('`').to_owned(), cells[1].to_owned())
        })
        .collect();
    let mut known = BTreeMap::new();
    for alert in alerts() {
        let text = |name: &str| alert[name].as_str().unwrap_or_else(|| panic!("{name}: {alert:?}"));
        let expression = text("expr");
        assert!(!spoken_of(expression).is_empty(), "{expression}");
        check_labels(expression);
        check_outcomes(expression);
        for words in ["summary", "description"] {
            assert!(!alert["annotations"][words].as_str().unwrap().is_empty());
        }
        let severity = alert["labels"]["severity"].as_str().unwrap();
        assert!(["critical", "warning"].contains(&severity), "{severity}");
        let before = known.insert(text("alert").to_owned(), severity.to_owned());
        assert_eq!(before, None, "each alert has a name of its own");
    }
    assert!(known.len() >= 15);
    assert_eq!(documented, known);
}

#[test]
fn a_run_for_what_was_done_already_is_an_alert_at_once() {
    for name in ["IdempotencyDuplicateRan", "IdempotencyFencedOff", "IdempotencyExecutedAgain"] {
        let alerts = alerts();
        let alert = alerts.iter().find(|alert| alert["alert"].as_str() == Some(name)).unwrap();
        assert!(alert["for"].is_badvalue(), "it waits for nothing");
        assert!(alert["expr"].as_str().unwrap().ends_with("> 0"), "one is enough");
        let section = DOCUMENT.split("## Alerts").nth(1).unwrap().split("\n## ").next().unwrap();
        assert!(
            section.split("\n|").next().unwrap().contains(name),
            "it is named before the table"
        );
    }
}
