//! The handler of the READMEs before and after it enters a table: both compile, are the text that is printed
//! there, and do what is said.

mod after;
mod before;
mod shop;

use axum::{Router, body::Body, routing::post};
use http::Request;
use http_body_util::BodyExt;
use sqlx::postgres::PgPoolOptions;
use tower::ServiceExt;
use tower_idempotency::{IdempotencyLayer, MemoryStore, Policy, Rule};
use tower_idempotency_test_support::PostgresServer;

use shop::App;

const README: &str = include_str!("../../README.md");
const MAIN_README: &str = include_str!("../../../README.md");
const BEFORE: &str = include_str!("before.rs");
const AFTER: &str = include_str!("after.rs");

/// The lines of the README's diff.
fn diff(readme: &str) -> Vec<&str> {
    let (_, diff) = readme.split_once("```diff\n").expect("there is a diff");
    diff.split_once("```").expect("it has an end").0.lines().collect()
}

/// The lines on this side of a diff stand in the file, one after the other.
#[track_caller]
fn stands_in(file: &str, diff: &[&str], side: char) {
    let mut file_lines = file.lines().map(str::trim);
    for line in diff {
        let Some(sign) = line.chars().next() else { continue };
        let line = line[1..].trim();
        if (sign == ' ' || sign == side) && !line.is_empty() {
            assert!(file_lines.any(|is| is == line), "{line:?} is not there, or not in its place");
        }
    }
}

#[test]
fn the_diffs_of_the_readmes_are_one_and_about_25_lines() {
    let diff = diff(README);
    assert_eq!(diff, self::diff(MAIN_README));
    assert!((20..=25).contains(&diff.len()), "{}", diff.len());
    stands_in(BEFORE, &diff, '-');
    stands_in(AFTER, &diff, '+');
}

#[test]
#[should_panic(expected = "is not there")]
fn a_line_that_is_not_in_the_file_is_found() {
    stands_in(BEFORE, &diff(README), '+');
}

/// What a delivery of the order `O-1` under this id hears.
async fn deliver(app: &Router, id: &str) -> (u16, String) {
    let body = format!(r#"{{"notifyId":"{id}","orderId":"O-1","event":"PAID","amount":960}}"#);
    let request = Request::post("/notify").header("content-type", "application/json");
    let request = request.body(Body::from(body)).unwrap();
    let answer = app.clone().oneshot(request).await.unwrap();
    let status = answer.status().as_u16();
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

fn behind(policy: Policy, app: &App, route: axum::routing::MethodRouter<App>) -> Router {
    let layer = IdempotencyLayer::new(MemoryStore::new(), Rule::new("fulfil", policy));
    Router::new().route("/notify", route).layer(layer).with_state(app.clone())
}

#[tokio::test]
async fn after_it_an_order_is_charged_once_whatever_the_store_forgets() {
    let server = PostgresServer::start().await;
    let db = PgPoolOptions::new().connect(&server.url()).await.unwrap();
    after::DEDUP.migrate(&db).await.unwrap();
    let app = App::open(&db).await;
    for store in ["its first store", "one that has forgotten everything"] {
        let router = behind(after::policy(&db), &app, post(after::notify));
        for id in ["N-1", "N-1", "N-2", "N-3"] {
            let told = deliver(&router, id).await;
            assert_eq!(told, (200, "success".to_owned()), "{store}: {id}");
        }
        assert_eq!(app.charges().await, 1, "{store}");
    }
    // Before it, each store charges once.
    for charges in [2, 3] {
        let router = behind(before::policy(), &app, post(before::notify));
        for id in ["N-1", "N-2"] {
            assert_eq!(deliver(&router, id).await, (200, "success".to_owned()));
        }
        assert_eq!(app.charges().await, charges);
    }
}
