//! hyper's client over real connections, to a server with the layer: dropped answers, and runs that last.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{Router, routing::post};
use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use tower::{ServiceBuilder, ServiceExt, timeout::TimeoutLayer};
use tower_idempotency::{
    IdempotencyLayer, MemoryStore, Policy, Rule, Scope,
    client::{ClientLayer, Key, Resend},
};
use tower_idempotency_test_support::{Proxy, Server};

/// A server that charges, which takes this long, and the count of its charges.
async fn shop(takes: Duration) -> (Server, Arc<AtomicUsize>) {
    let charges = Arc::<AtomicUsize>::default();
    let counted = charges.clone();
    let charge = async move || {
        tokio::time::sleep(takes).await;
        format!("charge {}", counted.fetch_add(1, Ordering::SeqCst) + 1)
    };
    let rule = Rule::new("charge", Policy::api(Scope::everyone()));
    let layer = IdempotencyLayer::new(MemoryStore::new(), rule);
    let app = Router::new().route("/charge", post(charge)).route_layer(layer);
    (Server::start(app).await, charges)
}

fn hyper() -> Client<HttpConnector, Full<Bytes>> {
    Client::builder(TokioExecutor::new()).build_http()
}

fn order(to: SocketAddr, key: Option<Key>) -> Request<Full<Bytes>> {
    let mut request = Request::post(format!("http://{to}/charge"));
    if let Some(key) = key {
        request = request.extension(key);
    }
    request.body(Full::from("960")).unwrap()
}

/// What is heard of an order: status, headers and text.
async fn charge(
    resend: Resend,
    request: Request<Full<Bytes>>,
) -> Result<(StatusCode, HeaderMap, Bytes), String> {
    let client = ServiceBuilder::new()
        .layer(ClientLayer::new().resend(resend))
        .layer(TimeoutLayer::new(Duration::from_millis(500)))
        .service(hyper());
    let (head, body) =
        client.oneshot(request).await.map_err(|error| error.to_string())?.into_parts();
    Ok((head.status, head.headers, body.collect().await.unwrap().to_bytes()))
}

#[tokio::test]
async fn an_answer_that_is_dropped_comes_with_the_next_send_and_is_charged_once() {
    let (server, charges) = shop(Duration::ZERO).await;
    let proxy = Proxy::to(server.address()).await;
    proxy.cut_at_reply();
    let (status, headers, body) =
        charge(Resend::new(), order(proxy.address(), None)).await.unwrap();
    assert_eq!((status, &body[..]), (StatusCode::OK, &b"charge 1"[..]));
    assert_eq!(headers["idempotent-replayed"], "true");
    assert_eq!((charges.load(Ordering::SeqCst), proxy.counts().requests), (1, 2));

    // Without a resend the caller hears nothing of the charge that was made.
    proxy.cut_at_reply();
    let once = charge(Resend::new().sends(1), order(proxy.address(), None)).await;
    assert!(once.is_err(), "{once:?}");
    assert_eq!(charges.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_run_that_lasts_longer_than_a_send_is_waited_for() {
    let (server, charges) = shop(Duration::from_millis(1200)).await;
    // The first send is given up after 500 ms; the next is told to come again after a second.
    let (status, headers, body) =
        charge(Resend::new(), order(server.address(), None)).await.unwrap();
    assert_eq!((status, &body[..]), (StatusCode::OK, &b"charge 1"[..]));
    assert_eq!(headers["idempotent-replayed"], "true");
    assert_eq!(charges.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_server_that_comes_up_late_is_reached() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let request = order(address, None);
    let refused = charge(Resend::new().sends(2), request.clone()).await;
    assert!(refused.is_err(), "nobody listens: {refused:?}");

    let (server, charges) = shop(Duration::ZERO).await;
    let proxy = Proxy::to(server.address()).await;
    proxy.refuse();
    let resend =
        Resend::new().sends(1000).pauses(Duration::from_millis(10), Duration::from_millis(20));
    let sent = tokio::spawn(charge(resend, order(proxy.address(), None)));
    proxy.wait_until(|counts| counts.refused >= 3).await;
    proxy.heal();
    assert_eq!(sent.await.unwrap().unwrap().0, StatusCode::OK);
    assert_eq!(charges.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_key_of_ones_own_names_the_operation_after_a_restart_too() {
    let (server, charges) = shop(Duration::ZERO).await;
    for replayed in [false, true] {
        // Each a client of its own, as after a restart.
        let key = Key::new("order-7/charge").unwrap();
        let heard = charge(Resend::new(), order(server.address(), Some(key))).await.unwrap();
        assert_eq!(heard.2, "charge 1");
        assert_eq!(heard.1.contains_key("idempotent-replayed"), replayed);
    }
    assert_eq!(charges.load(Ordering::SeqCst), 1);
    let key = Key::new("order-7/charge").unwrap();
    let mut other = order(server.address(), Some(key));
    *other.body_mut() = Full::from("1");
    let heard = charge(Resend::new(), other).await.unwrap();
    assert_eq!(heard.0, StatusCode::UNPROCESSABLE_ENTITY);
}
