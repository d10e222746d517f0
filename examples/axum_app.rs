//! An axum app that was there already, with the layer around one of its routes and a graceful stop.
//!
//! ```sh
//! cargo run --example axum_app -- 127.0.0.1:8080
//! curl -i 127.0.0.1:8080/orders -H 'Idempotency-Key: "order-1"' -d '2 pizzas'
//! ```
//!
//! The second `curl` gets the first one's order, with `idempotent-replayed: true`.

use std::{
    error::Error,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::{Router, extract::State, http::StatusCode, routing::post};
use tokio::net::TcpListener;
use tower_idempotency::{IdempotencyLayer, MemoryStore, Policy, Rule, Scope};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // With users, a key is theirs alone: Scope::header("..") or Scope::extension::<UserId>().
    let rule = Rule::new("order", Policy::api(Scope::everyone()));
    let layer = IdempotencyLayer::new(MemoryStore::new(), rule);

    let app = Router::new()
        .route("/orders", post(order))
        .route_layer(layer.clone()) // the one line
        .with_state(Arc::new(AtomicU64::new(0)));

    let address = std::env::args().nth(1).unwrap_or("127.0.0.1:0".to_owned());
    let listener = TcpListener::bind(address).await?;
    println!("listening on http://{}", listener.local_addr()?);

    // First no new requests, then the layer's own work: orders whose client has hung up.
    axum::serve(listener, app).with_graceful_shutdown(stop_signal()).await?;
    let drained = layer.drain(Duration::from_secs(10)).await;
    println!("stopped; {} running, {} unsent", drained.running, drained.unsent);
    Ok(())
}

async fn order(State(orders): State<Arc<AtomicU64>>, what: String) -> (StatusCode, String) {
    let number = orders.fetch_add(1, Ordering::Relaxed) + 1;
    (StatusCode::CREATED, format!("order {number}: {what}\n"))
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
