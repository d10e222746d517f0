//! `ops/alerts_test.yml`, which promtool runs, tries every alert: with series as the crate makes them, once
//! so that it fires and once so that it does not.

use std::collections::BTreeSet;

use crate::{
    alerts::{alerts, document, text},
    emitted::emitted,
    promql::check_series,
};

const TESTS: &str = include_str!("../../../../ops/alerts_test.yml");

#[test]
fn every_alert_is_tried_both_ways_and_no_other() {
    let document = document(TESTS);
    assert_eq!(document["rule_files"].as_vec().unwrap().len(), 1);
    assert_eq!(document["rule_files"][0].as_str(), Some("alerts.yml"));
    let (mut fires, mut does_not) = (BTreeSet::new(), BTreeSet::new());
    for test in document["tests"].as_vec().unwrap() {
        assert!(!text(test, "name").is_empty());
        for tried in test["alert_rule_test"].as_vec().unwrap() {
            let name = text(tried, "alertname").to_owned();
            match tried["exp_alerts"].as_vec().unwrap().is_empty() {
                true => does_not.insert(name),
                false => fires.insert(name),
            };
        }
    }
    let all: BTreeSet<_> = alerts().iter().map(|alert| text(alert, "alert").to_owned()).collect();
    assert_eq!(fires, all);
    assert_eq!(does_not, all);
}

#[test]
fn the_alerts_are_tried_with_series_as_the_crate_makes_them() {
    let (document, emitted) = (document(TESTS), emitted());
    let mut count = 0;
    for test in document["tests"].as_vec().unwrap() {
        for input in test["input_series"].as_vec().unwrap() {
            let series = text(input, "series");
            check_series(series, &emitted).unwrap_or_else(|wrong| panic!("{series}: {wrong}"));
            count += 1;
        }
    }
    assert!(count >= 18);
    for wrong in [
        "idempotency_rerun_total",
        "idempotency_rerun_total{rule=\"a\",handled=\"replayed\"}",
        "idempotency_reruns_total{rule=\"a\"}",
        "idempotency_observed_total{rule=\"a\",would=\"replay\"}",
    ] {
        assert!(check_series(wrong, &emitted).is_err(), "{wrong}");
    }
}
