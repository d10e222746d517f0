//! Each alert rule asks what can be true, and its words speak of what it gives.

use std::collections::BTreeSet;

use regex_lite::Regex;
use yaml_rust2::{Yaml, YamlLoader};

use crate::{emitted::emitted, promql::read};

const ALERTS: &str = include_str!("../../../../ops/alerts.yml");

/// The only document of a file.
pub(crate) fn document(text: &str) -> Yaml {
    let mut documents = YamlLoader::load_from_str(text).unwrap();
    assert_eq!(documents.len(), 1);
    documents.remove(0)
}

/// The alert rules, one after the other.
pub(crate) fn alerts() -> Vec<Yaml> {
    let groups = document(ALERTS)["groups"].as_vec().unwrap().clone();
    groups.iter().flat_map(|group| group["rules"].as_vec().unwrap().clone()).collect()
}

pub(crate) fn text<'a>(table: &'a Yaml, field: &str) -> &'a str {
    table[field].as_str().unwrap_or_else(|| panic!("{field}: {table:?}"))
}

#[test]
fn each_alert_asks_what_can_be_true_and_speaks_of_what_it_gives() {
    let emitted = emitted();
    let label = Regex::new(r"\{\{ *\$labels\.([a-z_]+) *\}\}").unwrap();
    let mut names = BTreeSet::new();
    for alert in alerts() {
        let name = text(&alert, "alert");
        let expression = text(&alert, "expr");
        let read = read(expression, &emitted).unwrap_or_else(|wrong| panic!("{name}: {wrong}"));
        assert!(!read.metrics.is_empty(), "{name}");
        assert!(names.insert(name.to_owned()), "{name} has a name of its own");
        for words in ["summary", "description"] {
            let words = text(&alert["annotations"], words);
            assert!(!words.is_empty());
            let of_labels = label.captures_iter(words).map(|found| found[1].to_owned());
            for label in of_labels {
                assert!(read.labels.contains(&label), "{name}: {label} in {words:?}");
            }
            let braces = words.matches("{{").count();
            assert_eq!(braces, label.find_iter(words).count(), "{name}: {words:?}");
        }
        assert!(["critical", "warning"].contains(&text(&alert["labels"], "severity")), "{name}");
    }
    assert!(names.len() >= 18);
}
