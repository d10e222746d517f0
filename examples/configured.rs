//! An axum app whose routes are protected as `configured.toml` says: one file and one line.
//!
//! ```sh
//! cargo run --example configured -- serve 127.0.0.1:8080
//! curl -i 127.0.0.1:8080/payments -H 'Idempotency-Key: "p-1"' -H 'X-Tenant: acme' -d '960'
//! ```
//!
//! The second `curl` gets the first one's payment, with `idempotent-replayed: true`. With `describe` in
//! place of `serve ..` it prints what the API has to publish about its keys.

use std::{
    error::Error,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    extract::{Request, State},
    http::StatusCode,
    middleware::{Next, from_fn},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use serde::Deserialize;
use tokio::net::TcpListener;
use tower_idempotency::{
    Delivery, IdempotencyLayer, MemoryStore, Mismatch, Refusal, Registry, Rules, RulesConfig,
    Scope, Verified,
};

/// The program's own configuration, of which the rules are a part.
#[derive(Deserialize)]
struct Config {
    rules: RulesConfig,
}

/// Whose request it is, as the layer that authenticates found out.
#[derive(Clone)]
struct Tenant(String);

impl AsRef<str> for Tenant {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    match run(&arguments.iter().map(String::as_str).collect::<Vec<_>>()).await {
        Ok(()) => ExitCode::SUCCESS,
        // Not returned: Rust would print the parser's error as its `Debug`, which nobody can read.
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: &[&str]) -> Result<(), Box<dyn Error>> {
    let rules = rules(include_str!("configured.toml"))?;
    match *arguments {
        ["describe"] => println!("{}", rules.describe()),
        ["serve", address] => serve(rules, address).await?,
        _ => return Err("usage: configured describe | configured serve 127.0.0.1:8080".into()),
    }
    Ok(())
}

/// The rules of this file. What is code is registered under the names that the file uses.
fn rules(file: &str) -> Result<Rules, Box<dyn Error>> {
    let config: Config = toml::from_str(file)?;
    let rules = Registry::new()
        .scope("tenant", Scope::extension::<Tenant>())
        .verify("signature", verify)
        .on_mismatch("alarm", |mismatch: &Mismatch| {
            eprintln!("{}: {:?} differ", mismatch.key, mismatch.fields);
        })
        .rules(config.rules)?;
    Ok(rules)
}

/// In place of a real signature: `examples/fulfillment` has one.
async fn verify(delivery: Delivery) -> Result<Verified, Refusal> {
    match delivery.head().headers.get("x-signature") {
        Some(signature) if signature == "valid" => Ok(Verified::as_sent()),
        _ => Err(Refusal::not_verified("the header X-Signature is missing or wrong")),
    }
}

async fn serve(rules: Rules, address: &str) -> Result<(), Box<dyn Error>> {
    let layer = IdempotencyLayer::new(MemoryStore::new(), rules);
    let app = Router::new()
        .route("/payments", post(count))
        .route("/payments/{id}/refund", post(count))
        .route("/fulfil/callback", post(count))
        .route("/alipay/notify", post(async || "success"))
        .route("/health", get(async || "well"))
        .layer(layer.clone()) // the one line; what no rule names passes untouched
        .layer(from_fn(authenticate))
        .with_state(Arc::new(AtomicU64::new(0)));

    let listener = TcpListener::bind(address).await?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, app).with_graceful_shutdown(stop_signal()).await?;
    let drained = layer.drain(Duration::from_secs(10)).await;
    println!("stopped; {} running, {} unsent", drained.running, drained.unsent);
    Ok(())
}

async fn count(State(runs): State<Arc<AtomicU64>>) -> String {
    format!("run {}\n", runs.fetch_add(1, Ordering::Relaxed) + 1)
}

/// In place of real authentication: a request says whose it is, and payments must.
async fn authenticate(mut request: Request, next: Next) -> Response {
    let tenant = request.headers().get("x-tenant").and_then(|value| value.to_str().ok());
    match tenant.map(|tenant| Tenant(tenant.to_owned())) {
        Some(tenant) => {
            request.extensions_mut().insert(tenant);
        }
        None if request.uri().path().starts_with("/payments") => {
            return (StatusCode::UNAUTHORIZED, "say who you are: X-Tenant\n").into_response();
        }
        None => {}
    }
    next.run(request).await
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
