//! The lowest Rust version that a crate promises is enough for all that it is built of. `scripts/test`
//! compiles with it, where it is installed.

use std::{collections::BTreeMap, process::Command};

use serde_json::Value;

type Version = [u64; 3];

fn version(text: &str) -> Version {
    let mut parts = text.split('.').map(|part| part.parse().expect(text));
    [(); 3].map(|()| parts.next().unwrap_or(0))
}

fn output(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO"))
        .args(arguments)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// What the lock file says, for this platform alone: of others not everything has been downloaded.
fn metadata() -> Value {
    let about = output(&["-vV"]);
    let host = about.lines().find_map(|line| line.strip_prefix("host: ")).expect("a host");
    let arguments =
        ["metadata", "--locked", "--offline", "--all-features", "--format-version", "1"];
    serde_json::from_str(&output(&[&arguments[..], &["--filter-platform", host]].concat())).unwrap()
}

fn list<'v>(value: &'v Value, name: &str) -> &'v [Value] {
    value[name].as_array().expect(name)
}

fn text<'v>(value: &'v Value, name: &str) -> &'v str {
    value[name].as_str().expect(name)
}

/// What this package promises, and what each needs that it is built of.
fn promised_and_needed<'m>(
    metadata: &'m Value,
    root: &str,
) -> (Version, BTreeMap<&'m str, Version>) {
    let by_id = |list: &'m [Value]| list.iter().map(|one| (text(one, "id"), one)).collect();
    let packages: BTreeMap<_, &Value> = by_id(list(metadata, "packages"));
    let nodes: BTreeMap<_, &Value> = by_id(list(&metadata["resolve"], "nodes"));
    // What says nothing needs nothing that is newer than its edition.
    let needs = |package: &Value| package["rust_version"].as_str().map_or([0; 3], version);
    let (root, package) =
        packages.iter().find(|(_, package)| text(package, "name") == root).expect(root);
    let (mut left, mut needed) = (vec![*root], BTreeMap::new());
    while let Some(id) = left.pop() {
        if needed.insert(id, needs(packages[id])).is_none() {
            let is_used = |dependency: &&Value| {
                list(dependency, "dep_kinds").iter().any(|kind| kind["kind"] != "dev")
            };
            let used = list(nodes[id], "deps").iter().filter(is_used);
            left.extend(used.map(|dependency| text(dependency, "pkg")));
        }
    }
    (needs(package), needed)
}

#[test]
fn no_crate_is_built_of_what_needs_a_newer_compiler_than_it_promises() {
    let metadata = metadata();
    for (root, at_least) in [("tower-idempotency", 50), ("tower-idempotency-sqlx", 100)] {
        let (promised, needed) = promised_and_needed(&metadata, root);
        assert!(promised > [1, 0, 0], "{root} promises a version");
        let says = needed.values().filter(|needs| **needs > [0; 3]).count();
        assert!(says > at_least, "{says} of {} say what they need", needed.len());
        for (package, needs) in needed {
            assert!(needs <= promised, "{package} needs {needs:?}, {root} promises {promised:?}");
        }
    }
}
