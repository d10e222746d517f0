//! Each problem is provoked, and answered as its page says.

use std::{
    collections::BTreeSet,
    io,
    pin::Pin,
    sync::{Arc, atomic::AtomicU16},
    task::{Context, Poll},
    time::Duration,
};

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, StatusCode, header::CONTENT_TYPE, response::Parts};
use http_body::Frame;
use tower_idempotency::{
    ClaimToken, Delivery, MemoryStore, OneTimeToken, Policy, Refusal, Rule, Scope, Store, json,
    store::{Cursor, Kept, Resolve, StoreErrorKind, Verdict},
    test_util::FaultyStore,
};

use crate::app::{App, NEVER, answering, post};

/// A body that breaks off, or never comes.
enum Faulty {
    Breaks,
    Hangs,
}

impl http_body::Body for Faulty {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        match *self {
            Self::Breaks => Poll::Ready(Some(Err(io::ErrorKind::ConnectionReset.into()))),
            Self::Hangs => Poll::Pending,
        }
    }
}

/// Sends what is refused for this reason under this policy, with these headers.
async fn provoke(problem: &str, policy: Policy, headers: &HeaderMap) -> (Parts, Bytes) {
    let store = Arc::new(FaultyStore::new(MemoryStore::new()));
    let status = Arc::new(AtomicU16::new(200));
    let policy = policy.body_limit(64).body_within(Duration::from_secs(1)).answer_limit(9);
    let policy = match problem {
        "not-verified" => {
            policy.verify(async |_: Delivery| Err(Refusal::not_verified("no signature")))
        }
        "business-key-missing" => policy.business_key(json("/order")),
        "token-missing" | "token-unknown" => policy.token(tower_idempotency::header("X-Once"), "/"),
        _ => policy,
    };
    let app = answering(&store, Rule::new("words", policy), &status);
    let with = |mut request: Request<Body>| {
        request.headers_mut().extend(headers.clone());
        request
    };
    let keyed = |body| with(post("k").map(|_| body));
    let first = async |answered: u16| {
        status.store(answered, std::sync::atomic::Ordering::Relaxed);
        app.send(with(post("k"))).await;
    };
    let request = match problem {
        "identity-missing" => with(Request::post("/").body(Body::from("{}")).unwrap()),
        "identity-malformed" => {
            let request = Request::post("/").header("Idempotency-Key", "\"k");
            with(request.body(Body::from(r#"{"id": null}"#)).unwrap())
        }
        "body-cut-short" => keyed(Body::new(Faulty::Breaks)),
        "body-too-slow" => keyed(Body::new(Faulty::Hangs)),
        "body-too-large" => keyed(Body::from(vec![b' '; 65])),
        "mismatch" => {
            first(200).await;
            keyed(Body::from(r#"{"id": "k", "more": 1}"#))
        }
        "in-progress" => {
            // Dropped while its handler runs, it goes on in a task.
            let _ = tokio::time::timeout(Duration::from_secs(3), first(NEVER)).await;
            with(post("k"))
        }
        "outcome-unknown" => {
            first(504).await;
            with(post("k"))
        }
        "answer-not-kept" => {
            first(200).await;
            with(post("k"))
        }
        "token-unknown" => {
            let mut request = post("k");
            let token = OneTimeToken::random().to_text();
            request.headers_mut().insert("X-Once", token.try_into().unwrap());
            with(request)
        }
        "store-unavailable" => {
            store.faults().down(StoreErrorKind::Unreachable);
            with(post("k"))
        }
        "record-unreadable" => {
            first(504).await;
            let found = only_record(&store).await;
            let verdict = Verdict::Done(Kept::new("no answer".into(), Duration::from_secs(60)));
            let resolve = Resolve::new(found.key, found.mark, verdict, ClaimToken::random());
            store.resolve(resolve).await.unwrap();
            with(post("k"))
        }
        "shutting-down" => {
            assert!(app.layer.drain(Duration::ZERO).await.is_clean());
            with(post("k"))
        }
        "scope-missing" | "not-verified" | "token-missing" => with(post("k")),
        "business-key-missing" => {
            status.store(503, std::sync::atomic::Ordering::Relaxed);
            app.send(keyed(Body::from(r#"{"id": "k", "order": "o"}"#))).await;
            keyed(Body::from(r#"{"id": "k"}"#))
        }
        unknown => panic!("{unknown} is not provoked here"),
    };
    send_refused(&app, request).await
}

/// What is refused is not run.
async fn send_refused(app: &App, request: Request<Body>) -> (Parts, Bytes) {
    let runs = app.runs();
    let answer = app.send(request).await;
    assert_eq!(app.runs(), runs);
    answer
}

async fn only_record(store: &impl Store) -> tower_idempotency::store::Listed {
    let mut page = store.scan(Cursor::START, 10).await.unwrap();
    assert_eq!(page.records.len(), 1);
    page.records.remove(0)
}

/// The pages, by name.
fn pages() -> Vec<(String, String)> {
    let pages = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/problems");
    let pages = std::fs::read_dir(pages).unwrap().map(|page| {
        let path = page.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        (name, std::fs::read_to_string(path).unwrap())
    });
    pages.collect()
}

/// The status and the `Retry-After` of one who asks, as the page has them.
fn row(page: &str, who: &str) -> (String, String) {
    let line = page.lines().find(|line| line.starts_with(&format!("| {who} | "))).unwrap();
    let cells: Vec<_> = line.split('|').map(str::trim).collect();
    let [_, _, status, after, _] = cells[..] else { panic!("{line}") };
    (status.to_owned(), after.to_owned())
}

fn numbers(cell: &str) -> Vec<u64> {
    cell.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse().ok()).collect()
}

fn header(head: &Parts, name: &str) -> Option<u64> {
    head.headers.get(name).map(|value| value.to_str().unwrap().parse().unwrap())
}

fn assert_refused(head: &Parts, body: &Bytes, problem: &str, page: &str, who: &str) {
    let (status, mut after) = row(page, who);
    let api = row(page, "API");
    let status = if status == "the same" { api.0 } else { status };
    if after == "the same" {
        after = api.1;
    }
    assert!(
        numbers(&status).contains(&u64::from(head.status.as_u16())),
        "{problem} {who}: {head:?}"
    );
    let said = header(head, "retry-after");
    match after.as_str() {
        "none" => assert_eq!(said, None, "{problem} {who}"),
        exact if exact.ends_with(" s") => {
            assert_eq!(said, Some(numbers(exact)[0]), "{problem} {who}");
        }
        // The run of three seconds, which is between one second and the rest of its lease.
        _ => assert_eq!(said, Some(3), "{problem} {who}"),
    }
    assert_eq!(head.headers["content-type"], "application/problem+json");
    assert_eq!(head.headers["cache-control"], "no-store");
    let body: serde_json::Value = serde_json::from_slice(body).unwrap();
    let module = problem.replace('-', "_");
    let kind = body["type"].as_str().unwrap();
    assert!(kind.ends_with(&format!("/problems/{module}/index.html")), "{kind}");
    assert_eq!(body["status"], head.status.as_u16());
    let refusal = head.extensions.get::<Refusal>().unwrap();
    assert_eq!(refusal.kind().name(), problem);
}

fn api() -> Policy {
    Policy::api(Scope::everyone())
}

fn webhook() -> Policy {
    Policy::webhook(json("/id"))
}

#[derive(Clone)]
struct User(String);

impl AsRef<str> for User {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

/// The scopes under which this problem is to be seen.
fn scopes(problem: &str) -> Vec<Scope> {
    match problem {
        "scope-missing" => vec![Scope::header("Tenant"), Scope::extension::<User>()],
        _ => vec![Scope::everyone()],
    }
}

#[tokio::test(start_paused = true)]
async fn an_apis_client_hears_what_the_page_says() {
    for (problem, page) in &pages() {
        let mut heard = BTreeSet::new();
        for scope in scopes(problem) {
            let (head, body) = provoke(problem, api().scope(scope), &HeaderMap::new()).await;
            assert_refused(&head, &body, problem, page, "API");
            heard.insert(u64::from(head.status.as_u16()));
        }
        let named: BTreeSet<_> = numbers(&row(page, "API").0).into_iter().collect();
        assert_eq!(heard, named, "{problem}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_notifications_sender_hears_what_the_page_says() {
    let others = ["answer-not-kept", "mismatch"];
    for (problem, page) in pages().iter().filter(|(problem, _)| !others.contains(&problem.as_str()))
    {
        for scope in scopes(problem) {
            let (head, body) = provoke(problem, webhook().scope(scope), &HeaderMap::new()).await;
            assert_refused(&head, &body, problem, page, "webhook");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_grpc_client_hears_what_the_page_says() {
    let grpc = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static("application/grpc"))]);
    for (problem, page) in &pages() {
        let (status, after) = row(page, "gRPC");
        let mut heard = BTreeSet::new();
        for scope in scopes(problem) {
            let (head, body) = provoke(problem, api().scope(scope), &grpc).await;
            assert_eq!((head.status, body.len()), (StatusCode::OK, 0), "{problem}");
            heard.insert(header(&head, "grpc-status").unwrap());
            let pushed_back = header(&head, "grpc-retry-pushback-ms").is_some();
            let expected = after != "none" && !after.starts_with("from a webhook");
            assert_eq!(pushed_back, expected, "{problem}");
        }
        let named: BTreeSet<_> = numbers(&status).into_iter().collect();
        assert_eq!(heard, named, "{problem}");
    }
    let (head, _) = provoke("outcome-unknown", webhook(), &grpc).await;
    assert_eq!(header(&head, "grpc-retry-pushback-ms"), Some(60_000));
}

#[tokio::test(start_paused = true)]
async fn a_sender_whose_answer_was_not_kept_hears_its_status_and_nothing_else() {
    let (head, body) = provoke("answer-not-kept", webhook(), &HeaderMap::new()).await;
    assert_eq!((head.status, body.len()), (StatusCode::OK, 0));
    assert_eq!(head.headers["idempotent-replayed"], "true");
}

#[tokio::test(start_paused = true)]
async fn a_sender_that_sends_another_body_is_not_refused() {
    let (head, _) = provoke("mismatch", webhook().answer_limit(64), &HeaderMap::new()).await;
    assert_eq!(head.status, StatusCode::OK);
}
