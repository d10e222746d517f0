//! A payment that needs a one-time token: the route that issues it behind a rate limit, and the route that
//! uses it up. With a Redis several processes share both.
//!
//! ```sh
//! cargo run --example one_time_token -- 127.0.0.1:8080 redis://127.0.0.1:6379
//! curl -i -X POST 127.0.0.1:8080/orders/O-1/payment-token -H 'X-User: ann'
//! curl -i -X POST 127.0.0.1:8080/orders/O-1/payment -H 'X-User: ann' -H 'X-Once-Token: ...' -d 960
//! ```
//!
//! The second `curl` may be sent twice: the second gets the first one's receipt. Without a Redis the tokens
//! are in the memory of this process.

use std::{
    error::Error,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use axum::{
    BoxError, Router,
    error_handling::HandleErrorLayer,
    extract::{Path, State},
    http::{HeaderMap, StatusCode, header::CACHE_CONTROL},
    response::{IntoResponse, Response},
    routing::post,
};
use tokio::net::TcpListener;
use tower::ServiceBuilder;
use tower_idempotency::{
    IdempotencyLayer, Issuance, MemoryStore, Operation, Policy, RedisStore, Rule, Scope, Store,
    TokenRequest, Tokens, header, json, path,
};

const PAY: &str = "pay";

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let listener = TcpListener::bind(arguments.next().unwrap_or("127.0.0.1:0".to_owned())).await?;
    let (app, layer) = match arguments.next() {
        Some(redis) => app(RedisStore::connect(&redis).await?.prefix("shop")),
        None => app(MemoryStore::new()),
    };
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, app).with_graceful_shutdown(stop_signal()).await?;
    let drained = layer.drain(Duration::from_secs(10)).await;
    println!("stopped; {} running, {} unsent", drained.running, drained.unsent);
    Ok(())
}

fn app<S: Store + Clone>(store: S) -> (Router, IdempotencyLayer) {
    // A gateway in front says who the user is; in an app of its own that is an extension of the request.
    let policy = Policy::api(Scope::everyone())
        .token(header("X-Once-Token"), "POST /orders/{order}/payment-token")
        .token_bound_to(Scope::header("X-User"))
        .business_key(path("order"))
        .compare([json("")])
        .wait(Duration::from_secs(5));
    let rule = Rule::new(PAY, policy).path("/orders/{order}/payment");
    let layer = IdempotencyLayer::new(store.clone(), rule);

    // Each token is a record: nobody is to fill the store by asking. Here all callers have one limit
    // together; one for each of them is the gateway's.
    let limit = ServiceBuilder::new()
        .layer(HandleErrorLayer::new(async |_: BoxError| StatusCode::TOO_MANY_REQUESTS))
        .load_shed()
        .buffer(64)
        .rate_limit(50, Duration::from_secs(1));

    let app = Router::new()
        .route("/orders/{order}/payment", post(pay))
        .route_layer(layer.clone())
        .route("/orders/{order}/payment-token", post(token).layer(limit))
        .with_state(Tokens::new(store));
    (app, layer)
}

/// Gives a token for the payment of this order to this user.
async fn token(
    State(tokens): State<Tokens>,
    Path(order): Path<String>,
    headers: HeaderMap,
) -> Response {
    // Whether the order is the user's is to be looked up here, before one is issued.
    let Some(user) = headers.get("X-User") else { return StatusCode::UNAUTHORIZED.into_response() };
    let request = TokenRequest::new(PAY).business_key(order).bound_to(user.as_bytes().to_vec());
    match tokens.issue(request).await {
        Ok(Issuance::Token { token, remaining }) => {
            let seconds = [("x-expires-in", remaining.as_secs().to_string())];
            let no_store = [(CACHE_CONTROL, "no-store")];
            (StatusCode::CREATED, seconds, no_store, token.to_text()).into_response()
        }
        Ok(none) => (StatusCode::CONFLICT, none.to_string()).into_response(),
        Err(_) => StatusCode::SERVICE_UNAVAILABLE.into_response(),
    }
}

/// Takes the money; the amount is the body.
async fn pay(operation: Operation, amount: String) -> String {
    static RECEIPTS: AtomicU64 = AtomicU64::new(0);
    let number = RECEIPTS.fetch_add(1, Ordering::Relaxed) + 1;
    // Slow enough for an impatient finger.
    tokio::time::sleep(Duration::from_millis(100)).await;
    let process = std::process::id();
    format!("receipt {process}-{number}: {amount} for order {}\n", operation.key())
}

/// Ends on ctrl-c, or on SIGTERM as process managers send it.
async fn stop_signal() {
    #[cfg(unix)]
    let terminated = async {
        use tokio::signal::unix::{SignalKind, signal};
        signal(SignalKind::terminate()).expect("tokio's signals are on").recv().await
    };
    #[cfg(not(unix))]
    let terminated = std::future::pending::<()>();
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminated => {}
    }
}
