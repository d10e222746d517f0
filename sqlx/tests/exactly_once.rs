//! The example `exactly_once` as a newcomer runs it, on every database: what its table says is what each
//! scheme can do.
#![cfg(unix)]

use std::{
    path::PathBuf,
    process::{Output, Stdio},
    sync::OnceLock,
    time::Duration,
};

use sqlx::{Connection, MySqlConnection, PgConnection};
use tokio::{process::Command, time::timeout};
use tower_idempotency_test_support::{MariadbServer, PostgresServer};

/// Longer than the example allows itself.
const STORY_AT_MOST: Duration = Duration::from_secs(150);

const SCHEMES: [&str; 6] = ["nothing", "token", "table", "states", "table+states", "outside"];

/// Scene by scene: how often each scheme charged, and a star where the gateway was not told.
const TABLE: [(&str, [&str; 6]); 9] = [
    ("delivered 5 times", ["5 times", "once", "once", "once*", "once", "once"]),
    ("5 times at once", ["5 times", "once", "once", "once*", "once", "once"]),
    ("under 5 ids", ["5 times", "5 times", "5 times", "once*", "once", "once"]),
    (
        "5 times, Redis flushed after the first",
        ["5 times", "2 times", "once", "once*", "once", "once"],
    ),
    (
        "killed before the commit, delivered again",
        ["once", "never*", "once", "once", "once", "once"],
    ),
    (
        "killed after the commit, delivered again",
        ["2 times", "once*", "once", "once*", "once", "once"],
    ),
    (
        "the same, Redis flushed, under a new id",
        ["2 times", "2 times", "2 times", "once*", "once", "once"],
    ),
    ("charged once", ["1 of 7", "3 of 7", "5 of 7", "7 of 7", "7 of 7", "7 of 7"]),
    ("held: charged once, and heard", ["1 of 7", "2 of 7", "5 of 7", "1 of 7", "7 of 7", "7 of 7"]),
];

/// The example's binary. It is built here as the whole workspace builds it: a stale one would tell of
/// another version.
fn binary() -> PathBuf {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    let binary = BINARY.get_or_init(|| {
        // target/<profile>/deps/exactly_once-<hash>
        let test = std::env::current_exe().unwrap();
        let profile = test.ancestors().nth(2).unwrap();
        let mut cargo = std::process::Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--workspace", "--all-features"]);
        cargo.args(["--example", "exactly_once", "--target-dir"]);
        cargo.arg(profile.parent().unwrap()).current_dir(env!("CARGO_MANIFEST_DIR"));
        if profile.ends_with("release") {
            cargo.arg("--release");
        }
        assert!(cargo.status().unwrap().success(), "the example does not build");
        profile.join("examples").join("exactly_once")
    });
    binary.clone()
}

async fn run(arguments: &[&str]) -> Output {
    let mut command = Command::new(binary());
    command.args(arguments).stdin(Stdio::null()).kill_on_drop(true);
    timeout(STORY_AT_MOST, command.output()).await.expect("it ends by itself").unwrap()
}

fn cells(line: &str) -> Vec<&str> {
    line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect()
}

/// Runs the story, and compares each figure.
async fn tells_of_every_scheme(arguments: &[&str]) {
    let output = run(arguments).await;
    let text = String::from_utf8(output.stdout).unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}\n{errors}");
    let mut lines = text.lines().skip_while(|line| cells(line) != SCHEMES).skip(2);
    for (scene, must_be) in TABLE {
        let is = cells(lines.next().expect(&text));
        assert_eq!((is[0], &is[1..]), (scene, &must_be[..]), "{text}");
    }
    assert_eq!(lines.next(), Some(""), "{text}");
}

#[tokio::test]
async fn on_sqlite_every_scheme_does_what_it_can() {
    tells_of_every_scheme(&[]).await;
}

#[tokio::test]
async fn on_postgresql_every_scheme_does_what_it_can() {
    let server = PostgresServer::start().await;
    let mut admin = PgConnection::connect(&server.url()).await.unwrap();
    sqlx::raw_sql("CREATE DATABASE shop").execute(&mut admin).await.unwrap();
    let url = format!("postgres://postgres@{}/shop", server.address());
    tells_of_every_scheme(&["--database", &url]).await;
}

#[tokio::test]
async fn on_mariadb_every_scheme_does_what_it_can() {
    let server = MariadbServer::start().await;
    let mut admin = MySqlConnection::connect(&server.url()).await.unwrap();
    sqlx::raw_sql("CREATE DATABASE shop").execute(&mut admin).await.unwrap();
    let url = format!("mysql://root@{}/shop", server.address());
    tells_of_every_scheme(&["--database", &url]).await;
}

#[tokio::test]
async fn what_it_cannot_do_is_said() {
    for (arguments, message) in [
        (&["--databse"][..], "`--databse` is nothing that this example does"),
        (&["serve", "oracle://x", "redis://127.0.0.1/", "127.0.0.1:1"], "oracle://x needs another"),
    ] {
        let output = run(arguments).await;
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && errors.contains(message), "{errors}");
    }
    let help = run(&["--help"]).await;
    assert!(help.status.success());
    assert!(String::from_utf8_lossy(&help.stdout).starts_with("Usage: exactly_once"));
}
