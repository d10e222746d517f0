//! What is registered is what runs: every hook, scope and source by its name.

use std::sync::{Arc, Mutex};

use axum::{Router, body::Body, routing::post};
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt;
use tower::ServiceExt;
use tower_idempotency::{
    Abandoned, Answer, Delivery, IdempotencyLayer, Ledger, LedgerEntry, LedgerError, LedgerRow,
    MemoryStore, Mismatch, Refusal, Registry, Resolution, Rules, Scope, Sealed, Verified,
    extension, json,
};

use crate::support::{one, rules_with};

#[derive(Clone)]
struct Tag(String);

impl AsRef<str> for Tag {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

/// An app that answers with its body's `/say` and the number of the run.
fn app(rules: Rules) -> Router {
    let runs = Arc::new(Mutex::new(0));
    let handler = move |body: String| async move {
        let body: serde_json::Value = serde_json::from_str(&body).unwrap();
        let mut runs = runs.lock().unwrap();
        *runs += 1;
        let status = body["status"].as_u64().unwrap_or(200);
        let status = StatusCode::from_u16(u16::try_from(status).unwrap()).unwrap();
        (status, format!("{}{}", body["say"].as_str().unwrap_or("run "), *runs))
    };
    let layer = IdempotencyLayer::new(MemoryStore::new(), rules);
    Router::new().route("/", post(handler)).route_layer(layer)
}

fn request(tag: &str, body: &str) -> Request<Body> {
    let request = Request::post("/").header("X-Tag", tag).extension(Tag(tag.to_owned()));
    request.body(Body::from(body.to_owned())).unwrap()
}

async fn text(response: Response<Body>) -> (u16, String) {
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

async fn deliver(app: &Router, tag: &str, body: &str) -> (u16, String) {
    text(app.clone().oneshot(request(tag, body)).await.unwrap()).await
}

fn made(registry: &Registry, lines: &str) -> Router {
    let identity = "policy = \"webhook\"\nidentity = { json = \"/id\" }\n";
    app(rules_with(registry, &one(&format!("{identity}{lines}"))).unwrap())
}

fn ran(number: u32) -> (u16, String) {
    (200, format!("run {number}"))
}

#[tokio::test]
async fn a_registered_scope_keeps_keys_apart() {
    let registry = Registry::new().scope("tag", Scope::extension::<Tag>());
    let scoped = made(&registry, "scope = \"tag\"");
    assert_eq!(deliver(&scoped, "a", r#"{"id": 1}"#).await, ran(1));
    assert_eq!(deliver(&scoped, "b", r#"{"id": 1}"#).await, ran(2));
    assert_eq!(deliver(&scoped, "a", r#"{"id": 1}"#).await, ran(1));
    let shared = made(&registry, "");
    assert_eq!(deliver(&shared, "a", r#"{"id": 1}"#).await, ran(1));
    assert_eq!(deliver(&shared, "b", r#"{"id": 1}"#).await, ran(1));
}

#[tokio::test]
async fn a_header_is_a_scope_without_a_name() {
    let app = made(&Registry::new(), "scope = { header = \"X-Tag\" }");
    assert_eq!(deliver(&app, "a", r#"{"id": 1}"#).await, ran(1));
    assert_eq!(deliver(&app, "b", r#"{"id": 1}"#).await, ran(2));
    assert_eq!(deliver(&app, "b", r#"{"id": 1}"#).await, ran(2));
}

#[tokio::test]
async fn a_registered_source_and_a_list_of_places_are_identities() {
    let registry = Registry::new().source("tag", extension::<Tag>());
    let lines = "policy = \"webhook\"\nidentity = [{ source = \"tag\" }, { json = \"/id\" }]";
    let app = app(rules_with(&registry, &one(lines)).unwrap());
    assert_eq!(deliver(&app, "a", r#"{"id": 1}"#).await, ran(1));
    assert_eq!(deliver(&app, "a", r#"{"id": 2}"#).await, ran(2));
    assert_eq!(deliver(&app, "b", r#"{"id": 1}"#).await, ran(3));
    assert_eq!(deliver(&app, "a", r#"{"id": 1, "more": 1}"#).await, ran(1));
    let (status, missing) = deliver(&app, "a", "{}").await;
    assert_eq!(status, 400);
    assert!(missing.contains("JSON field /id is missing"), "{missing}");
}

#[tokio::test]
async fn a_registered_hook_verifies() {
    let registry = Registry::new().verify("tagged", async |delivery: Delivery| {
        match delivery.head().headers.get("x-tag") {
            Some(tag) if tag == "good" => Ok(Verified::as_sent()),
            _ => Err(Refusal::not_verified("not from us")),
        }
    });
    let app = made(&registry, "verify = \"tagged\"");
    assert_eq!(deliver(&app, "bad", r#"{"id": 1}"#).await.0, 401);
    assert_eq!(deliver(&app, "good", r#"{"id": 1}"#).await, ran(1));
    assert_eq!(deliver(&made(&registry, ""), "bad", r#"{"id": 1}"#).await, ran(1));
}

#[tokio::test]
async fn a_registered_hook_is_told_of_a_mismatch_in_a_registered_field() {
    let told = Arc::new(Mutex::new(Vec::new()));
    let tell = told.clone();
    let registry = Registry::new()
        .field("tag", extension::<Tag>())
        .field("amount", json("/amount"))
        .on_mismatch("alarm", move |mismatch: &Mismatch| {
            tell.lock().unwrap().push(mismatch.fields.clone().unwrap());
        });
    let lines =
        "compare = [{ source = \"amount\" }, { source = \"tag\" }]\non_mismatch = \"alarm\"";
    let app = made(&registry, lines);
    assert_eq!(deliver(&app, "a", r#"{"id": 1, "amount": 960}"#).await, ran(1));
    assert_eq!(deliver(&app, "a", r#"{"id": 1, "amount": 960.0}"#).await, ran(1));
    assert!(told.lock().unwrap().is_empty());
    assert_eq!(deliver(&app, "a", r#"{"id": 1, "amount": 1}"#).await.0, 422);
    assert_eq!(*told.lock().unwrap(), [["JSON field /amount"]]);
    assert_eq!(deliver(&app, "b", r#"{"id": 1, "amount": 960}"#).await.0, 422);
    assert_eq!(told.lock().unwrap().len(), 2);
}

#[tokio::test]
async fn registered_hooks_say_what_is_kept_and_how_it_is_refused() {
    let registry = Registry::new()
        .keep_if("run", |answer: &Answer| {
            answer.body().is_some_and(|body| body.starts_with(b"run"))
        })
        .refuse_with("fail", |_: &Refusal| Some(Answer::text("fail")));
    let app = made(&registry, "keep_if = \"run\"\nrefuse_with = \"fail\"");
    assert_eq!(deliver(&app, "a", r#"{"id": 1, "say": "no "}"#).await.1, "no 1");
    assert_eq!(deliver(&app, "a", r#"{"id": 1}"#).await, ran(2), "what was not kept runs again");
    assert_eq!(deliver(&app, "a", r#"{"id": 1}"#).await, ran(2));
    assert_eq!(deliver(&app, "a", "{}").await, (200, "fail".to_owned()));
    let plain = made(&registry, "");
    assert_eq!(deliver(&plain, "a", r#"{"id": 1, "say": "no "}"#).await.1, "no 1");
    assert_eq!(deliver(&plain, "a", r#"{"id": 1}"#).await.1, "no 1");
    assert_eq!(deliver(&plain, "a", "{}").await.0, 400);
}

#[tokio::test]
async fn a_registered_resolver_is_asked() {
    let registry = Registry::new().resolver("ask", async |abandoned: Abandoned| {
        Resolution::Done(Answer::text(format!("{} was done", abandoned.key)))
    });
    let unknown = r#"{"id": 1, "status": 504}"#;
    let app = made(&registry, "resolve_abandoned = \"ask\"");
    assert_eq!(deliver(&app, "a", unknown).await.0, 504);
    assert_eq!(deliver(&app, "a", unknown).await, (200, "1 was done".to_owned()));
    let unasked = made(&registry, "");
    assert_eq!(deliver(&unasked, "a", unknown).await.0, 504);
    assert_eq!(deliver(&unasked, "a", unknown).await.0, 503);
}

/// A ledger of one row for every operation.
#[derive(Clone, Default)]
struct Row(Arc<Mutex<Option<LedgerRow>>>);

impl Ledger for Row {
    async fn find(&self, _: &LedgerEntry) -> Result<Option<LedgerRow>, LedgerError> {
        Ok(self.0.lock().unwrap().clone())
    }

    async fn seal(&self, _: &LedgerEntry, row: &LedgerRow) -> Result<Sealed, LedgerError> {
        *self.0.lock().unwrap() = Some(row.clone());
        Ok(Sealed::Written)
    }
}

#[tokio::test]
async fn a_registered_ledger_is_asked_and_sealed_and_a_resolver_beside_it_has_the_word() {
    let row = Row::default();
    let registry = Registry::new()
        .ledger("dedup", row.clone())
        .resolver("ask", async |_: Abandoned| Resolution::Done(Answer::text("asked")));
    let unknown = r#"{"id": 1, "status": 504}"#;
    let ledger = made(&registry, "ledger = \"dedup\"");
    assert_eq!(deliver(&ledger, "a", unknown).await.0, 504);
    assert_eq!(deliver(&ledger, "a", unknown).await, (504, "run 2".to_owned()), "no row: it runs");
    *row.0.lock().unwrap() = Some(Answer::text("charged").into());
    assert_eq!(deliver(&ledger, "a", unknown).await, (200, "charged".to_owned()));
    assert_eq!(deliver(&ledger, "a", r#"{"id": 2}"#).await, ran(3));
    assert_eq!(row.0.lock().unwrap().as_ref().unwrap().answer.body().unwrap(), "run 3");

    let both = made(&registry, "ledger = \"dedup\"\nresolve_abandoned = \"ask\"");
    assert_eq!(deliver(&both, "a", unknown).await.0, 504);
    assert_eq!(deliver(&both, "a", unknown).await, (200, "asked".to_owned()));
    assert_eq!(row.0.lock().unwrap().as_ref().unwrap().answer.body().unwrap(), "asked");
}

#[test]
fn what_is_registered_is_listed() {
    let registry =
        Registry::new().keep_if("good", |_| true).scope("tag", Scope::extension::<Tag>());
    let shown = format!("{registry:?}");
    assert!(shown.contains("scope: [\"tag\"]") && shown.contains("keep_if: [\"good\"]"), "{shown}");
}
