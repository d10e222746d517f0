//! Every event the crate has is in `docs/operations.md`, with its level, and no other is.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicU16, Ordering::Relaxed},
    },
};

use http::{Request, StatusCode};
use tower_idempotency::{MemoryStore, Policy, Rule, Scope, json};
use tower_idempotency_test_support::Log;

use crate::app::answering;

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
fn targets_begin_with_the_crates_name_as_the_document_says() {
    // Those are the modules' paths, since no event names another.
    assert!(!SOURCE.contains("target:"));
    assert!(DOCUMENT.contains("targets that begin with `tower_idempotency`"));
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

/// What two deliveries of this identity log and are answered, the first of which ends uncertain.
async fn uncertain_twice(policy: Policy, identity: &str) -> (Log, StatusCode) {
    let (log, _guard) = Log::listen();
    let status = Arc::new(AtomicU16::new(504));
    let app = answering(&MemoryStore::new(), Rule::new("fulfil", policy), &status);
    let body = serde_json::json!({ "id": identity }).to_string();
    let deliver =
        async || app.send(Request::post("/").body(body.clone().into()).unwrap()).await.0.status;
    assert_eq!(deliver().await, StatusCode::GATEWAY_TIMEOUT);
    status.store(200, Relaxed);
    let answered = deliver().await;
    (log, answered)
}

#[tokio::test]
async fn a_line_break_in_an_identity_makes_no_line_of_its_own() {
    let identity = "N-1\nERROR all is lost";
    let (log, answered) = uncertain_twice(Policy::webhook(json("/id")), identity).await;
    assert_eq!(answered, StatusCode::SERVICE_UNAVAILABLE);
    let [abandoned] = &log.of("abandoned")[..] else { panic!("one event") };
    assert!(abandoned.starts_with("WARN ") && abandoned.contains(" attempt=1 "), "{abandoned}");
    assert!(abandoned.contains(r#"label="fulfil N-1\nERROR all is lost""#), "{abandoned}");
    assert!(log.all().iter().all(|line| !line.contains('\n')));
    assert_eq!(log.of("outcome uncertain").len(), 1);
}

#[tokio::test]
async fn a_private_label_shows_no_identity() {
    let policy = Policy::webhook(json("/id")).private_label();
    let (log, _) = uncertain_twice(policy, "user@example.com").await;
    assert_eq!(log.of("abandoned").len(), 1);
    assert!(log.all().iter().all(|line| !line.contains("example.com")));
}

/// What a delivery with this body logs, and is answered.
async fn refused(policy: Policy, body: &'static str) -> (Log, StatusCode) {
    let (log, _guard) = Log::listen();
    let status = Arc::new(AtomicU16::new(200));
    let app = answering(&MemoryStore::new(), Rule::new("fulfil", policy), &status);
    let (answer, _) = app.send(Request::post("/").body(body.into()).unwrap()).await;
    (log, answer.status)
}

#[tokio::test]
async fn what_a_sender_is_told_in_one_word_is_in_the_log_with_its_reason() {
    let (log, answered) = refused(tower_idempotency::sender::alipay(), "trade=1").await;
    assert_eq!(answered, StatusCode::BAD_REQUEST);
    let [refused] = &log.of("refused")[..] else { panic!("one event") };
    assert!(refused.starts_with("DEBUG "), "{refused}");
    assert!(refused.contains(r#"rule="fulfil" reason="identity-missing""#), "{refused}");
    assert!(refused.contains(" detail=\"form field notify_id is missing"), "{refused}");
}

#[tokio::test]
async fn a_mismatch_names_the_fields_that_differ_as_they_are() {
    let (log, _guard) = Log::listen();
    let policy = Policy::webhook(json("/id")).compare([json("/amount")]);
    let app = answering(&MemoryStore::new(), Rule::new("fulfil", policy), &Arc::new(200.into()));
    for body in [r#"{"id": 1, "amount": 960}"#, r#"{"id": 1, "amount": 961}"#] {
        app.send(Request::post("/").body(body.into()).unwrap()).await;
    }
    let [mismatch] = &log.of("mismatch")[..] else { panic!("one event") };
    assert!(mismatch.contains(r#" fields=["JSON field /amount"]"#), "{mismatch}");
}

#[tokio::test]
async fn the_reason_shows_no_part_of_a_private_identity() {
    let body = r#"{"id": 3.1415926}"#;
    let policy = || Policy::webhook(json("/id"));
    let (log, _) = refused(policy(), body).await;
    assert!(log.of("refused")[0].contains("3.1415926"), "{:?}", log.all());
    let (log, answered) = refused(policy().private_label(), body).await;
    assert_eq!(answered, StatusCode::BAD_REQUEST);
    let [refused] = &log.of("refused")[..] else { panic!("one event") };
    assert!(!refused.contains("detail="), "{refused}");
    assert!(log.all().iter().all(|line| !line.contains("3.1415926")), "{:?}", log.all());
}

#[tokio::test]
async fn a_scope_that_the_server_forgot_is_an_error_in_the_log_and_a_header_is_not() {
    #[derive(Clone)]
    struct Tenant;
    impl AsRef<str> for Tenant {
        fn as_ref(&self) -> &str {
            "t"
        }
    }
    let scoped = |scope| Policy::webhook(json("/id")).scope(scope);
    let (log, answered) = refused(scoped(Scope::extension::<Tenant>()), r#"{"id": 1}"#).await;
    assert_eq!(answered, StatusCode::INTERNAL_SERVER_ERROR);
    let [missing] = &log.of("scope missing")[..] else { panic!("one event") };
    assert!(missing.starts_with("ERROR ") && missing.contains("Tenant"), "{missing}");
    let (log, answered) = refused(scoped(Scope::header("X-Tenant")), r#"{"id": 1}"#).await;
    assert_eq!(answered, StatusCode::BAD_REQUEST);
    assert_eq!((log.of("scope missing").len(), log.of("refused").len()), (0, 1));
}

#[tokio::test]
async fn an_abandoned_operation_that_runs_again_is_told() {
    let policy = Policy::webhook(json("/id")).rerun_abandoned();
    let (log, answered) = uncertain_twice(policy, "N-1").await;
    assert_eq!(answered, StatusCode::OK);
    let [rerun] = &log.of("rerun")[..] else { panic!("one event") };
    assert!(rerun.starts_with("WARN ") && rerun.contains(" attempt=2 "), "{rerun}");
    assert_eq!(log.of("abandoned").len(), 0);
}
