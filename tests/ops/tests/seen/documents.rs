//! Every metric and every alert is explained in `docs/operations.md`, and no other is.

use std::collections::BTreeMap;

use crate::{
    alerts::{alerts, text},
    emitted::emitted,
};

const DOCUMENT: &str = include_str!("../../../../docs/operations.md");

/// The cells of the rows that begin so.
fn rows(begin: &str) -> Vec<Vec<&'static str>> {
    let rows = DOCUMENT.lines().filter(|line| line.starts_with(&format!("| {begin}")));
    rows.map(|row| {
        let cells: Vec<_> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        assert_eq!(cells.len(), 4, "{cells:?}");
        assert!(!cells[2].is_empty() && !cells[3].is_empty(), "{cells:?}");
        cells
    })
    .collect()
}

#[test]
fn every_metric_is_in_the_document_with_its_kind_and_its_labels() {
    let rows = rows("`idempotency_");
    let documented: BTreeMap<_, _> = rows
        .iter()
        .map(|cells| {
            let labels = match cells[2] {
                "none" => Vec::new(),
                labels => {
                    labels.split(", ").map(|label| label.trim_matches('`').to_owned()).collect()
                }
            };
            (cells[0].trim_matches('`').to_owned(), (cells[1], labels))
        })
        .collect();
    assert_eq!(documented.len(), rows.len(), "each is there once");
    let emitted = emitted();
    let expected: BTreeMap<_, _> = emitted
        .iter()
        .map(|(name, metric)| {
            // The rule stands first.
            let mut labels: Vec<_> = metric.labels.keys().cloned().collect();
            labels.sort_by_key(|label| (label != "rule", label.clone()));
            (name.clone(), (metric.kind.name(), labels))
        })
        .collect();
    assert_eq!(documented, expected);
}

#[test]
fn every_alert_is_in_the_document_with_its_severity() {
    let documented: BTreeMap<_, _> =
        rows("`Idempotency").iter().map(|cells| (cells[0].trim_matches('`'), cells[1])).collect();
    let alerts = alerts();
    let known: BTreeMap<_, _> = alerts
        .iter()
        .map(|alert| (text(alert, "alert"), text(&alert["labels"], "severity")))
        .collect();
    assert_eq!(documented, known);
}

#[test]
fn a_run_for_what_was_done_already_is_an_alert_at_once() {
    for name in ["IdempotencyDuplicateRan", "IdempotencyFencedOff", "IdempotencyExecutedAgain"] {
        let alerts = alerts();
        let alert = alerts.iter().find(|alert| alert["alert"].as_str() == Some(name)).unwrap();
        assert!(alert["for"].is_badvalue(), "it waits for nothing");
        assert!(text(alert, "expr").ends_with("> 0"), "one is enough");
        let section = DOCUMENT.split("## Alerts").nth(1).unwrap().split("\n## ").next().unwrap();
        assert!(
            section.split("\n|").next().unwrap().contains(name),
            "it is named before the table"
        );
    }
}
