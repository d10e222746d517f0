//! Answers of the last minute from memory, switched on by the file that has the rules.

use axum::{Router, body::Body, routing::post};
use http::{Request, StatusCode};
use serde::Deserialize;
use tower::ServiceExt;
use tower_idempotency::{
    Handled, IdempotencyLayer, MemoryStore, Registry, Rules, RulesConfig,
    test_util::{FaultyStore, Transition},
};

/// A rule of the table `idempotency`.
const RULE: &str = "[[idempotency.rules]]
name = \"r\"
policy = \"webhook\"
identity = { json = \"/id\" }
";

/// What is read of `[idempotency]` with these lines and a rule, or what is wrong with it.
fn read(lines: &str) -> Result<Rules, String> {
    read_file(&format!("[idempotency]\n{lines}\n{RULE}"))
}

/// Both ways to read it say the same.
fn read_file(file: &str) -> Result<Rules, String> {
    #[derive(Deserialize)]
    struct Named {
        idempotency: RulesConfig,
    }
    #[derive(Deserialize)]
    struct Direct {
        idempotency: Rules,
    }
    let message = |error: toml::de::Error| error.message().to_owned();
    let named = toml::from_str::<Named>(file).map_err(message);
    let named = named.and_then(|file| {
        Registry::new().rules(file.idempotency).map_err(|error| error.to_string())
    });
    let direct = toml::from_str::<Direct>(file).map(|file| file.idempotency).map_err(message);
    assert_eq!(format!("{named:?}"), format!("{direct:?}"));
    direct
}

/// How often the store is claimed for an operation that comes three times, and is run once.
async fn claims(rules: Rules, chosen: fn(IdempotencyLayer) -> IdempotencyLayer) -> usize {
    let store = FaultyStore::new(MemoryStore::new());
    let faults = store.faults();
    let layer = chosen(IdempotencyLayer::new(store, rules));
    let app = Router::new().route("/", post(|| async { "done" })).route_layer(layer);
    for times in 1..=3 {
        let request = Request::post("/").body(Body::from("{\"id\": \"k\"}")).unwrap();
        let answer = app.clone().oneshot(request).await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK);
        let handled = *answer.extensions().get::<Handled>().unwrap();
        assert_eq!(matches!(handled, Handled::Executed { .. }), times == 1, "{handled:?}");
    }
    faults.calls(Transition::Claim)
}

#[tokio::test]
async fn a_file_that_says_recent_keeps_answers_and_one_that_does_not_keeps_none() {
    for (lines, expected) in [
        ("recent = \"1MiB\"", 1),
        ("recent = 1_048_576", 1),
        ("recent = 0", 3),
        ("recent = \"0\"", 3),
        ("", 3),
    ] {
        assert_eq!(claims(read(lines).unwrap(), |layer| layer).await, expected, "{lines}");
    }
    // As a list, as ever.
    let list = RULE.replace("idempotency.rules", "idempotency");
    assert_eq!(claims(read_file(&list).unwrap(), |layer| layer).await, 3);
}

#[tokio::test]
async fn what_the_program_says_counts_over_the_file() {
    let kept = || read("recent = \"1MiB\"").unwrap();
    assert_eq!(claims(kept(), |layer| layer.recent(0)).await, 3);
    assert_eq!(claims(kept(), |layer| layer.secret(&[7; 32])).await, 1);
    assert_eq!(claims(read("").unwrap(), |layer| layer.recent(1024 * 1024)).await, 1);
}

#[tokio::test]
async fn rules_that_are_copied_or_added_to_keep_what_their_file_said() {
    let rules = read("recent = \"1MiB\"").unwrap();
    assert_eq!(claims(rules.clone(), |layer| layer).await, 1);
    let more = tower_idempotency::Policy::webhook(tower_idempotency::json("/id"));
    let more = tower_idempotency::Rule::new("more", more).path("/more");
    assert_eq!(claims(rules.add(more), |layer| layer).await, 1);
}

#[test]
fn a_table_that_cannot_be_is_refused_with_what_would_be_right() {
    for (lines, message) in [
        ("recnet = \"2MiB\"", "unknown field `recnet`; there may be rules and recent, and a rule"),
        ("recent = true", "recent: expected a number of bytes, or a size such as"),
        ("recent = -1", "recent: expected a number of bytes"),
        ("recent = \"2 megabytes\"", "recent: expected a number of bytes"),
        ("recent = 2", "recent: 2 bytes have no room for a single answer"),
        ("recent = \"8191\"", "recent: 8191 bytes have no room"),
    ] {
        let error = read(lines).expect_err(lines);
        assert!(error.starts_with(message), "{lines}: {error}");
    }
    assert!(read("recent = \"8KiB\"").is_ok());
    for (file, message) in [
        ("[idempotency]\nrecent = \"2MiB\"", "rules is missing"),
        ("[idempotency]\nrules = 7", "rules: expected a list of rules, found the number 7"),
        ("[idempotency]\nrules = [7]", "rule number 1: expected a table with name"),
        ("idempotency = 7", "invalid type: integer `7`, expected a list of rules, or a table"),
        // One bracket too few.
        (
            "[idempotency]\nname = \"r\"\npolicy = \"api\"",
            "unknown field `name`; there may be rules",
        ),
    ] {
        let error = read_file(file).expect_err(file);
        assert!(error.starts_with(message), "{file}: {error}");
    }
    let twice = "{\"rules\": [], \"recent\": 0, \"recent\": 65536}";
    let error = serde_json::from_str::<Rules>(twice).unwrap_err().to_string();
    assert!(error.starts_with("the field `recent` stands twice; keep one"), "{error}");
}
