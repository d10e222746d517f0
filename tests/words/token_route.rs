//! The README's routes around one-time tokens do what it says of them.

use axum::body::Body;
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use tower::ServiceExt;

#[rustfmt::skip]
#[path = "snippets/token_route.rs"]
mod shown;

#[test]
fn the_readme_shows_what_is_run_here() {
    let run = include_str!("snippets/token_route.rs").split_once("\n\n").unwrap().1;
    let run = run.replace("pub(crate) ", "");
    assert!(include_str!("../../README.md").contains(&format!("```rust\n{run}```\n")));
}

#[tokio::test]
async fn the_routes_issue_a_token_that_pays_once() {
    let app = shown::app();
    let post = async |path: &str, token: &str| {
        let mut request = Request::post(path);
        if !token.is_empty() {
            request = request.header("X-Once-Token", token);
        }
        let request = request.body(Body::empty()).unwrap();
        let (head, body) = app.clone().oneshot(request).await.unwrap().into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        (head.status, head.headers, String::from_utf8(body.to_vec()).unwrap())
    };
    let (status, headers, token) = post("/orders/7/token", "").await;
    assert_eq!(
        (status, headers["cache-control"].to_str().unwrap()),
        (StatusCode::CREATED, "no-store")
    );
    assert_eq!(post("/orders/7/token", "").await.2, token);
    let (status, _, said) = post("/orders/7/payment", "").await;
    assert_eq!(status, StatusCode::PRECONDITION_REQUIRED);
    assert!(said.contains("POST /orders/{order}/token"), "{said}");
    assert_eq!(post("/orders/8/payment", &token).await.0, StatusCode::FORBIDDEN);
    for replayed in [false, true] {
        let (status, headers, paid) = post("/orders/7/payment", &token).await;
        assert_eq!((status, &*paid), (StatusCode::OK, "paid"));
        assert_eq!(headers.contains_key("idempotent-replayed"), replayed);
    }
    let (status, _, said) = post("/orders/7/token", "").await;
    assert_eq!((status, &*said), (StatusCode::CONFLICT, "this is done already"));
}

#[tokio::test]
async fn whoever_asks_without_end_is_told_to_stop() {
    let app = shown::app();
    let mut asking = tokio::task::JoinSet::new();
    for order in 0..300 {
        let request = Request::post(format!("/orders/{order}/token")).body(Body::empty()).unwrap();
        asking.spawn(app.clone().oneshot(request));
    }
    let answers = asking.join_all().await;
    let with = |status| answers.iter().filter(|a| a.as_ref().unwrap().status() == status).count();
    let (issued, refused) = (with(StatusCode::CREATED), with(StatusCode::TOO_MANY_REQUESTS));
    assert_eq!(issued + refused, 300);
    assert!(issued >= 50 && refused >= 1, "{issued} issued, {refused} refused");
}
