//! The dashboard shows every metric there is, and no other.

use std::collections::BTreeSet;

use regex_lite::Regex;
use serde_json::Value;

use crate::{
    emitted::{Emitted, emitted},
    promql::read,
};

const DASHBOARD: &str = include_str!("../../../../ops/dashboard.json");

fn dashboard() -> Value {
    serde_json::from_str(DASHBOARD).unwrap()
}

/// The metrics that a panel shows.
fn shown(panel: &Value, emitted: &Emitted) -> BTreeSet<String> {
    let field = Regex::new(r"\{\{ *([a-z_]+) *\}\}").unwrap();
    let mut shown = BTreeSet::new();
    let targets = panel["targets"].as_array().unwrap();
    assert!(!targets.is_empty());
    for target in targets {
        let text = target["expr"].as_str().unwrap();
        let read = read(text, emitted).unwrap_or_else(|wrong| panic!("{text}: {wrong}"));
        let legend = target["legendFormat"].as_str().unwrap();
        let named: BTreeSet<_> =
            field.captures_iter(legend).map(|found| found[1].to_owned()).collect();
        assert_eq!(named, read.labels, "the legend {legend:?} tells the series of {text} apart");
        shown.extend(read.metrics);
    }
    let ids: BTreeSet<_> = targets.iter().map(|target| target["refId"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), targets.len());
    shown
}

#[test]
fn the_dashboard_shows_every_metric_and_no_other() {
    let (dashboard, emitted) = (dashboard(), emitted());
    let panels = dashboard["panels"].as_array().unwrap();
    assert!(panels.iter().all(|panel| !panel["description"].as_str().unwrap().is_empty()));
    let ids: BTreeSet<_> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len());
    let all: BTreeSet<_> = panels.iter().flat_map(|panel| shown(panel, &emitted)).collect();
    assert_eq!(all.iter().collect::<Vec<_>>(), emitted.keys().collect::<Vec<_>>());
}

#[test]
fn what_picks_the_rule_asks_a_metric_that_there_is() {
    let (dashboard, emitted) = (dashboard(), emitted());
    let picks = &dashboard["templating"]["list"][1];
    let asked = picks["definition"].as_str().unwrap();
    assert_eq!(picks["query"]["query"], asked);
    let asked = asked.strip_prefix("label_values(").and_then(|rest| rest.strip_suffix(")"));
    let (metric, label) = asked.unwrap().split_once(", ").unwrap();
    assert_eq!(label, picks["name"].as_str().unwrap());
    assert!(emitted[metric].labels.contains_key(label));
}

#[test]
fn no_two_panels_lie_on_each_other() {
    let dashboard = dashboard();
    let mut taken = BTreeSet::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        let at = |field: &str| panel["gridPos"][field].as_u64().unwrap();
        assert!(at("x") + at("w") <= 24);
        for x in at("x")..at("x") + at("w") {
            for y in at("y")..at("y") + at("h") {
                assert!(taken.insert((x, y)), "{}", panel["title"]);
            }
        }
    }
}
