//! The app that is measured, and the requests that are sent to it.

use axum::{
    Json, Router,
    body::Body,
    routing::{MethodRouter, get},
};
use http::{Request, StatusCode, header::CONTENT_TYPE};
use serde::{Deserialize, Serialize};

/// Where the app takes deliveries (POST) and answers what passes through (GET).
pub const PATH: &str = "/fulfil";
/// The field that names the operation.
pub const KEY: &str = "idempotency-key";

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Notification {
    notify_id: String,
    order_id: u64,
    amount: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Charged {
    notify_id: String,
    order_id: u64,
    amount: String,
    status: &'static str,
    message: &'static str,
}

/// The only route, without any layer.
pub fn route() -> MethodRouter {
    get(async || "success").post(fulfil)
}

/// The route as an app, as `axum::serve` would have it: a router that has no state yet puts its
/// layers around its handlers anew for each request.
pub fn router(route: MethodRouter) -> Router {
    Router::new().route(PATH, route).with_state(())
}

/// A handler as there are many: a JSON body in, a status and some 200 bytes of JSON out.
async fn fulfil(Json(notification): Json<Notification>) -> (StatusCode, Json<Charged>) {
    let Notification { notify_id, order_id, amount } = notification;
    let (status, message) = ("charged", "the order is paid and will be sent; keep this answer");
    (StatusCode::CREATED, Json(Charged { notify_id, order_id, amount, status, message }))
}

/// A request that no rule is for.
pub fn pass_through() -> Request<Body> {
    Request::get(PATH).body(Body::empty()).expect("a path is a URI")
}

/// A delivery: 36 characters of key, and [`delivery_body`].
pub fn delivery(key: &str) -> Request<Body> {
    Request::post(PATH)
        .header(CONTENT_TYPE, "application/json")
        .header(KEY, key)
        .body(Body::from(delivery_body(key)))
        .expect("keys are visible ASCII")
}

/// About 120 bytes of JSON.
pub fn delivery_body(key: &str) -> String {
    format!(
        r#"{{"notifyId":"{key}","userId":"user-4711","orderId":90071992,"amount":"199.00","sign":"c2lnbg"}}"#
    )
}

/// The key of this number in this run: as long as a UUID.
pub fn key(run: u32, number: u64) -> String {
    format!("{run:08x}-0000-4000-8000-{number:012x}")
}
