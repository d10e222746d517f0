//! The shop: it is told that an order was paid for, and charges it. The layer is in `layer` and
//! `app`; all the rest was there before.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::{
    Json, Router,
    extract::State,
    http::{Method, StatusCode},
    routing::{get, post},
};
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tower_idempotency::{
    Delivery, IdempotencyLayer, MemoryStore, Policy, RedisStore, Refusal, Rule, Verified, json,
};

use crate::{Error, arguments::Serve, http, notification::Notification};

/// How long the payment provider takes to charge.
const CHARGING: Duration = Duration::from_millis(250);
/// How long a stopping server waits for what it has begun.
const DRAIN: Duration = Duration::from_secs(10);

/// One order charged, as `GET /charges` lists it.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Charge {
    pub(crate) order_id: String,
    pub(crate) notify_id: String,
    pub(crate) amount: u64,
}

/// What this process has charged.
#[derive(Clone, Default)]
struct Shop(Arc<Mutex<Vec<Charge>>>);

/// Serves until it is told to stop, then finishes what it has begun.
pub(crate) async fn run(serve: Serve) -> Result<(), Error> {
    let layer = if serve.protected { Some(layer(serve.redis.as_deref()).await?) } else { None };
    let listener = TcpListener::bind(&serve.listen)
        .await
        .map_err(|error| format!("cannot listen on {}: {error}", serve.listen))?;
    println!("listening on http://{}", listener.local_addr()?);

    // First no new requests, then the layer's own work: runs whose client has gone, and answers
    // that the store did not take yet.
    axum::serve(listener, app(layer.clone())).with_graceful_shutdown(stop_signal()).await?;
    if let Some(layer) = layer {
        let drained = layer.drain(DRAIN).await;
        println!("stopped; {} running, {} unsent", drained.running, drained.unsent);
    }
    Ok(())
}

/// Each order is charged once, whatever the `notifyId`, and with its amount alone.
async fn layer(redis: Option<&str>) -> Result<IdempotencyLayer, Error> {
    let policy = Policy::webhook(json("/notifyId"))
        // This gateway tells one thing of an order: that it was paid for.
        .business_key(json("/orderId"))
        .compare([json("/amount")])
        .verify(signed);
    let rule = Rule::new("fulfil", policy);
    Ok(match redis {
        None => IdempotencyLayer::new(MemoryStore::new(), rule),
        // All servers of the shop have this prefix, and no other application has it.
        Some(url) => {
            let store = RedisStore::connect(url).await?.prefix("fulfillment-example");
            IdempotencyLayer::new(store, rule)
        }
    })
}

fn app(layer: Option<IdempotencyLayer>) -> Router {
    let mut callback = Router::new().route("/fulfill/callback", post(fulfill));
    if let Some(layer) = layer {
        callback = callback.route_layer(layer);
    }
    callback.route("/charges", get(list)).with_state(Shop::default())
}

/// Checks the signature before anything is claimed. The handler is not asked when the layer answers, so
/// that a forged delivery would hear `success`, and could bind an id that the gateway has yet to use to
/// another order.
async fn signed(delivery: Delivery) -> Result<Verified, Refusal> {
    match serde_json::from_slice::<Notification>(delivery.body()) {
        Ok(notification) if notification.is_signed() => Ok(Verified::as_sent()),
        _ => Err(Refusal::not_verified("the signature is wrong")),
    }
}

async fn fulfill(
    State(shop): State<Shop>,
    Json(notification): Json<Notification>,
) -> Result<&'static str, (StatusCode, &'static str)> {
    // The shop without the layer checks it too: all that it charges for is signed.
    if !notification.is_signed() {
        return Err((StatusCode::UNAUTHORIZED, "the signature is wrong"));
    }
    shop.charge(notification).await;
    Ok("success")
}

async fn list(State(shop): State<Shop>) -> Json<Vec<Charge>> {
    Json(shop.0.lock().unwrap_or_else(PoisonError::into_inner).clone())
}

impl Shop {
    async fn charge(&self, Notification { order_id, notify_id, amount, .. }: Notification) {
        tokio::time::sleep(CHARGING).await;
        let mut charges = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        charges.push(Charge { order_id, notify_id, amount });
    }
}

/// Asks a server what it has charged.
pub(crate) async fn charges(server: SocketAddr) -> Result<Vec<Charge>, Error> {
    let (status, body) = http::send(server, Method::GET, "/charges", String::new()).await?;
    if status != StatusCode::OK {
        return Err(format!("GET /charges answered {status}: {body}").into());
    }
    Ok(serde_json::from_str(&body)?)
}

/// Ends when the process is asked to stop: by ctrl-c, or by SIGTERM as process managers do.
pub(crate) async fn stop_signal() {
    tokio::select! {
        Ok(()) = tokio::signal::ctrl_c() => {}
        () = terminated() => {}
    }
}

#[cfg(unix)]
async fn terminated() {
    use tokio::signal::unix::{SignalKind, signal};
    match signal(SignalKind::terminate()) {
        Ok(mut signal) => drop(signal.recv().await),
        Err(_) => std::future::pending().await,
    }
}

#[cfg(not(unix))]
async fn terminated() {
    std::future::pending().await
}
