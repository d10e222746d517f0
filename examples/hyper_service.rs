//! The layer around a plain hyper service, without a framework.
//!
//! ```sh
//! cargo run --example hyper_service -- 127.0.0.1:8080
//! curl -i 127.0.0.1:8080 -H 'Idempotency-Key: "ticket-1"' -d 'seat 12'
//! ```
//!
//! The second `curl` gets the first one's ticket, with `idempotent-replayed: true`.

use std::{
    convert::Infallible,
    error::Error,
    pin::pin,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use http::{Request, Response};
use hyper::{body::Incoming, server::conn::http1};
use hyper_util::{rt::TokioIo, server::graceful::GracefulShutdown, service::TowerToHyperService};
use tokio::{net::TcpListener, time::timeout};
use tower::ServiceBuilder;
use tower_idempotency::{IdempotencyLayer, MemoryStore, Policy, RequestBody, Rule, Scope};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let rule = Rule::new("ticket", Policy::api(Scope::everyone()));
    let layer = IdempotencyLayer::new(MemoryStore::new(), rule);
    let service = ServiceBuilder::new().layer(layer.clone()).service_fn(ticket);

    let address = std::env::args().nth(1).unwrap_or("127.0.0.1:0".to_owned());
    let listener = TcpListener::bind(address).await?;
    println!("listening on http://{}", listener.local_addr()?);
    let connections = GracefulShutdown::new();
    let mut stop = pin!(tokio::signal::ctrl_c());
    loop {
        let (stream, _) = tokio::select! {
            accepted = listener.accept() => accepted?,
            stopped = &mut stop => break stopped?,
        };
        let service = TowerToHyperService::new(service.clone());
        let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
        let connection = connections.watch(connection);
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                eprintln!("connection: {error}");
            }
        });
    }

    // First no new requests, then the layer's own work: tickets whose client has hung up.
    drop(listener);
    let _ = timeout(Duration::from_secs(10), connections.shutdown()).await;
    let drained = layer.drain(Duration::from_secs(10)).await;
    println!("stopped; {} running, {} unsent", drained.running, drained.unsent);
    Ok(())
}

async fn ticket(_: Request<RequestBody<Incoming>>) -> Result<Response<String>, Infallible> {
    static SOLD: AtomicU64 = AtomicU64::new(0);
    let number = SOLD.fetch_add(1, Ordering::Relaxed) + 1;
    Ok(Response::new(format!("ticket {number}\n")))
}
