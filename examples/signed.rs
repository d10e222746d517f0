//! Notifications signed as Standard Webhooks has it: HMAC-SHA256 over id, time and body. What is not
//! signed, or was signed too long ago, claims nothing and learns nothing.
//!
//! ```sh
//! cargo run --example signed -- serve 127.0.0.1:8080
//! cargo run --example signed -- sign 127.0.0.1:8080 msg_1 '{"orderId":"O-1","amount":960}'
//! ```
//!
//! The second prints the `curl` call of a delivery, signed anew each time, as a sender does. Run it
//! twice, and send both: the second is answered from the first.

use std::{
    error::Error,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use axum::{Router, extract::State, routing::post};
use base64::{Engine, engine::general_purpose::STANDARD};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use tokio::net::TcpListener;
use tower_idempotency::{
    Delivery, IdempotencyLayer, MemoryStore, Refusal, Rule, Verified, Verify, sender,
};

/// What sender and receiver share. Yours comes from the sender, and not from your code.
const SECRET: &str = "whsec_bm90IGEgc2VjcmV0LCBhbiBleGFtcGxl";
/// How far the sender's clock may be from ours, and how long a delivery that was overheard can be
/// sent again.
const TOLERANCE: Duration = Duration::from_secs(5 * 60);

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments.iter().map(String::as_str).collect::<Vec<_>>()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: &[&str]) -> Result<(), Box<dyn Error>> {
    let key = Key::new(SECRET)?;
    match *arguments {
        ["serve", address] => serve(address, key).await,
        ["sign", address, id, body] => {
            print_curl(address, id, body, &key);
            Ok(())
        }
        _ => Err("usage: signed serve ADDRESS | signed sign ADDRESS ID BODY".into()),
    }
}

async fn serve(address: &str, key: Key) -> Result<(), Box<dyn Error>> {
    let policy = sender::standard_webhooks().verify(check(key));
    let layer = IdempotencyLayer::new(MemoryStore::new(), Rule::new("paid", policy));

    let app = Router::new()
        .route("/paid", post(paid))
        .route_layer(layer.clone())
        .with_state(Arc::new(AtomicU64::new(0)));

    let listener = TcpListener::bind(address).await?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, app).with_graceful_shutdown(stop_signal()).await?;
    let drained = layer.drain(Duration::from_secs(10)).await;
    println!("stopped; {} running, {} unsent", drained.running, drained.unsent);
    Ok(())
}

async fn paid(State(parcels): State<Arc<AtomicU64>>) -> String {
    format!("parcel {}\n", parcels.fetch_add(1, Ordering::Relaxed) + 1)
}

/// The hook: the layer asks it before anything else.
fn check(key: Key) -> impl Verify {
    move |delivery: Delivery| {
        let verdict = key.verify(&delivery, now());
        async move { verdict.map(|()| Verified::as_sent()).map_err(Refusal::not_verified) }
    }
}

struct Key(Vec<u8>);

impl Key {
    fn new(secret: &str) -> Result<Self, Box<dyn Error>> {
        let base64 = secret.strip_prefix("whsec_").ok_or("a secret begins with whsec_")?;
        Ok(Self(STANDARD.decode(base64)?))
    }

    fn mac(&self, id: &str, timestamp: &str, body: &[u8]) -> Hmac<Sha256> {
        let mut mac = Hmac::new_from_slice(&self.0).expect("HMAC takes keys of every length");
        for part in [id.as_bytes(), b".", timestamp.as_bytes(), b".", body] {
            mac.update(part);
        }
        mac
    }

    /// Says what is wrong, but not which signature would have been right.
    fn verify(&self, delivery: &Delivery, now: u64) -> Result<(), &'static str> {
        let header = |name| delivery.head().headers.get(name).and_then(|value| value.to_str().ok());
        let (Some(id), Some(timestamp), Some(signatures)) =
            (header("webhook-id"), header("webhook-timestamp"), header("webhook-signature"))
        else {
            return Err("webhook-id, webhook-timestamp or webhook-signature is missing");
        };
        let signed_at: u64 = timestamp.parse().map_err(|_| "webhook-timestamp is no time")?;
        if now.abs_diff(signed_at) > TOLERANCE.as_secs() {
            return Err("webhook-timestamp is too far from this server's clock");
        }
        // A sender that changes its secret signs with both for a while.
        let is_right = signatures.split(' ').any(|signature| {
            let Some(Ok(code)) = signature.strip_prefix("v1,").map(|code| STANDARD.decode(code))
            else {
                return false;
            };
            // In constant time.
            self.mac(id, timestamp, delivery.body()).verify_slice(&code).is_ok()
        });
        if is_right { Ok(()) } else { Err("webhook-signature has no signature that is right") }
    }
}

fn print_curl(address: &str, id: &str, body: &str, key: &Key) {
    let timestamp = now().to_string();
    let code = key.mac(id, &timestamp, body.as_bytes()).finalize().into_bytes();
    let signature = STANDARD.encode(code);
    println!(
        "curl -i {address}/paid -H 'webhook-id: {id}' -H 'webhook-timestamp: {timestamp}' \
         -H 'webhook-signature: v1,{signature}' -H 'content-type: application/json' -d '{body}'"
    );
}

/// Seconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
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
