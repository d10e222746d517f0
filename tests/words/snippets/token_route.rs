//! The routes that the README shows around one-time tokens.

use axum::{Router, extract::{Path, State}, http::{StatusCode, header::CACHE_CONTROL}, response::{IntoResponse, Response}, routing::post};
use std::time::Duration;
use tower::ServiceBuilder;
use tower_idempotency::{IdempotencyLayer, Issuance, MemoryStore, Policy, Rule, Scope, TokenRequest, Tokens, header, path};

async fn token(State(tokens): State<Tokens>, Path(order): Path<String>) -> Response {
    match tokens.issue(TokenRequest::new("pay").business_key(order)).await {
        Ok(Issuance::Token { token, .. }) => (StatusCode::CREATED, [(CACHE_CONTROL, "no-store")], token.to_text()).into_response(),
        Ok(none) => (StatusCode::CONFLICT, none.to_string()).into_response(), // "this is done already", and so on
        Err(_) => StatusCode::SERVICE_UNAVAILABLE.into_response(),
    }
}

pub(crate) fn app() -> Router {
    let store = MemoryStore::new(); // or a RedisStore, which all processes share
    let policy = Policy::api(Scope::everyone())
        .token(header("X-Once-Token"), "POST /orders/{order}/token")
        .business_key(path("order")); // the token must be one for this order
    let rule = Rule::new("pay", policy).path("/orders/{order}/payment");
    // Each token is a record in the store: nobody is to fill that by asking.
    let limit = ServiceBuilder::new()
        .layer(axum::error_handling::HandleErrorLayer::new(async |_: axum::BoxError| StatusCode::TOO_MANY_REQUESTS))
        .load_shed()
        .buffer(64)
        .rate_limit(50, Duration::from_secs(1));
    Router::new()
        .route("/orders/{order}/payment", post(async || "paid"))
        .route_layer(IdempotencyLayer::new(store.clone(), rule))
        .route("/orders/{order}/token", post(token).layer(limit))
        .with_state(Tokens::new(store))
}
