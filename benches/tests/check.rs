//! The bench works: it is run as a person runs it, only shorter.

use std::process::{Command, Output};

/// Each with the number of tables that it is in.
const VARIANTS: [(&str, usize); 7] = [
    ("bare", 9),
    ("body-type", 9),
    ("minimum", 9),
    ("layer", 9),
    ("layer-api", 9),
    ("layer-mux", 6),
    ("recent", 9),
];

fn bench(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tower-idempotency-benches"))
        .args(arguments)
        .output()
        .expect("cargo has built the bench")
}

#[test]
fn every_table_has_every_variant_with_figures_in_it() {
    let output = bench(&["--check"]);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{out}\n{err}");
    for name in ["pass-through", "first", "replay"] {
        for store in ["memory, 1 at once", "redis, 50 at once", "redis, served on 50 connections"] {
            assert!(out.contains(&format!("### {name}, {store}\n")), "{name}, {store}:\n{out}");
        }
    }
    for (variant, tables) in VARIANTS {
        let rows: Vec<_> =
            out.lines().filter(|l| l.starts_with(&format!("| {variant} |"))).collect();
        assert_eq!(rows.len(), tables, "{variant}:\n{out}");
        assert!(!rows.concat().contains("NaN"), "{rows:?}");
    }
}

#[test]
fn a_cell_alone_can_be_run_for_whoever_measures_from_outside() {
    let sent = bench(&["--cell", "memory/replay/layer", "--requests", "10"]);
    assert!(sent.status.success(), "{}", text(&sent.stderr));
    // Without a Redis there is no such cell.
    assert!(!bench(&["--cell", "redis/first/layer"]).status.success());
}

#[test]
fn one_table_alone_can_be_run_and_on_cores_of_its_own_where_there_are_two() {
    let output = bench(&["--check", "--only", "served/redis/replay", "--pin"]);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    if !output.status.success() {
        // A machine with one core, or one that is not Linux.
        assert!(
            err.starts_with("--pin takes two cores") || err.starts_with("--pin is for"),
            "{err}"
        );
        return;
    }
    let tables: Vec<_> = out.lines().filter(|line| line.starts_with("### ")).collect();
    assert_eq!(tables, ["### replay, redis, served on 50 connections"], "{out}");
}

#[test]
fn what_it_does_not_know_it_refuses() {
    let refused = bench(&["--fast"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("`--fast` is no argument"));
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
