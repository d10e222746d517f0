//! A payment provider, in somebody else's hands: it makes a charge once for each idempotency key, as the
//! large ones do. It runs in the story's own process, so that it survives the shop.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
};

use axum::{
    Json, Router,
    extract::State,
    http::{HeaderMap, Request, StatusCode, header::CONTENT_TYPE},
    routing::post,
};
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tower_idempotency_test_support::Server;

use crate::Error;

/// What it has charged, by the key that came with it.
type Charges = Arc<Mutex<HashMap<String, Charge>>>;

#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Charge {
    pub(crate) order_id: String,
    pub(crate) amount: i64,
}

pub(crate) struct Provider {
    address: SocketAddr,
    charges: Charges,
}

impl Provider {
    pub(crate) async fn start() -> Result<Self, Error> {
        let charges = Charges::default();
        let app = Router::new().route("/charges", post(make)).with_state(charges.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        tokio::spawn(async { axum::serve(listener, app).await });
        Ok(Self { address, charges })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// How often this order was charged, and how much.
    pub(crate) fn charged(&self, order_id: &str) -> (i64, i64) {
        let charges = self.charges.lock().unwrap_or_else(PoisonError::into_inner);
        let of_order = charges.values().filter(|charge| charge.order_id == order_id);
        of_order.fold((0, 0), |(count, sum), charge| (count + 1, sum + charge.amount))
    }
}

async fn make(
    State(charges): State<Charges>,
    headers: HeaderMap,
    Json(charge): Json<Charge>,
) -> StatusCode {
    let Some(key) = headers.get("Idempotency-Key").and_then(|key| key.to_str().ok()) else {
        return StatusCode::BAD_REQUEST;
    };
    let mut charges = charges.lock().unwrap_or_else(PoisonError::into_inner);
    charges.entry(key.to_owned()).or_insert(charge);
    StatusCode::OK
}

/// What the shop does: charges there, under a key by which the provider knows it again.
pub(crate) async fn charge(provider: SocketAddr, key: &str, charge: &Charge) -> Result<(), Error> {
    let request = Request::post("/charges")
        .header(CONTENT_TYPE, "application/json")
        .header("Idempotency-Key", key)
        .body(serde_json::to_string(charge)?)?;
    let answer = Server::try_exchange(provider, request).await?;
    if answer.status() != StatusCode::OK {
        return Err(format!("the provider answered {}", answer.status()).into());
    }
    Ok(())
}
