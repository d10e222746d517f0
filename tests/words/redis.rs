//! The guide to Redis names tests that are there.

use std::{collections::BTreeSet, fs, path::Path};

const GUIDE: &str = include_str!("../../docs/redis.md");

/// The names of all tests of the package.
fn tests() -> BTreeSet<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (mut left, mut tests) = (
        ["tests/store_redis", "tests/never", "src"].map(|folder| root.join(folder)).to_vec(),
        BTreeSet::new(),
    );
    while let Some(path) = left.pop() {
        if path.is_dir() {
            left.extend(fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            let mut is_test = false;
            for line in text.lines().map(str::trim) {
                if line.starts_with("#[tokio::test") || line == "#[test]" {
                    is_test = true;
                } else if let Some((_, rest)) = line.split_once("fn ") {
                    let name = rest.split('(').next().unwrap();
                    if std::mem::take(&mut is_test) {
                        tests.insert(name.to_owned());
                    }
                }
            }
        }
    }
    tests
}

#[test]
fn every_finding_has_a_remedy_and_tests_that_are_there() {
    let tests = tests();
    assert!(tests.len() > 100);
    let (_, table) = GUIDE.split_once("| finding | remedy | test |").expect("the table");
    let rows: Vec<_> = table.lines().skip(2).take_while(|line| line.starts_with('|')).collect();
    assert!(rows.len() >= 20, "{}", rows.len());
    for row in rows {
        let cells: Vec<_> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        let [finding, remedy, named] = cells[..] else { panic!("{row}") };
        assert!(!finding.is_empty() && !remedy.is_empty(), "{row}");
        let named: Vec<_> = named.split(", ").map(|name| name.trim_matches('`')).collect();
        for name in named {
            assert!(tests.contains(name), "there is no test {name}");
        }
    }
}
