//! Every event the crate has is in `docs/operations.md`, with its level, and no other is.

use std::collections::BTreeSet;

const DOCUMENT: &str = include_str!("../../docs/operations.md");
const SOURCE: &str = include_str!("../../src/telemetry.rs");

/// The level and the first words of each event in the source: what stands before the colon.
fn in_source() -> BTreeSet<(String, String)> {
    let mut events = BTreeSet::new();
    for level in ["error", "warn", "info", "debug", "trace"] {
        for event in SOURCE.split(&format!(" {level}!(")).skip(1) {
            let message = event.split('"').nth(1).unwrap();
            let words = message.split(':').next().unwrap();
            events.insert((level.to_uppercase(), words.to_owned()));
        }
    }
    events
}

/// The level and the first words of each row of the document's table.
fn in_document() -> BTreeSet<(String, String)> {
    let rows = DOCUMENT.lines().filter(|line| line.starts_with("| *"));
    rows.map(|row| {
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        assert_eq!(cells.len(), 6, "{row}");
        assert!(!cells[3].is_empty() && !cells[4].is_empty(), "{row}");
        (cells[2].to_owned(), cells[1].trim_matches('*').to_owned())
    })
    .collect()
}

#[test]
fn every_event_is_in_the_document_with_its_level() {
    let source = in_source();
    assert!(source.len() >= 16, "{source:?}");
    assert_eq!(in_document(), source);
}

#[test]
fn events_come_from_one_file_alone() {
    let mut left = vec![std::path::PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/src"))];
    let mut files = 0;
    while let Some(path) = left.pop() {
        if path.is_dir() {
            left.extend(std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            files += 1;
            let has_events = ["error!(", "warn!(", "info!(", "debug!(", "trace!("]
                .iter()
                .any(|event| text.contains(&format!(" {event}")));
            assert_eq!(has_events, path.ends_with("telemetry.rs"), "{}", path.display());
        }
    }
    assert!(files > 40);
}
