//! Rules from a configuration where apps place the layer: whole routers, nested and merged ones,
//! fallbacks, a plain service. What no rule names passes untouched.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll},
};

use axum::{
    Router,
    body::Body,
    routing::{any, post},
};
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use tower::{Service, ServiceBuilder, ServiceExt};
use tower_idempotency::{
    IdempotencyLayer, MemoryStore, RequestBody,
    test_util::{Faults, FaultyStore, Transition},
};

use crate::support::rules;

const RULES: &str = r#"
    [[rules]]
    name = "pay"
    path = "/api/payments/{id}"
    policy = "api"
    scope = "everyone"
    methods = ["POST", "PUT"]

    [[rules]]
    name = "fulfil"
    path = "/fulfil"
    policy = "webhook"
    identity = { json = "/id" }
"#;

fn layer(toml: &str) -> (IdempotencyLayer, Faults) {
    let store = FaultyStore::new(MemoryStore::new());
    let faults = store.faults();
    (IdempotencyLayer::new(store, rules(toml).unwrap()), faults)
}

#[derive(Clone, Default)]
struct Runs(Arc<AtomicUsize>);

impl Runs {
    fn handler(&self) -> axum::routing::MethodRouter {
        let runs = self.0.clone();
        any(async move || format!("run {}", runs.fetch_add(1, SeqCst) + 1))
    }

    fn count(&self) -> usize {
        self.0.load(SeqCst)
    }
}

async fn send(app: &Router, method: Method, path: &str) -> (StatusCode, bool) {
    let request = Request::builder().method(method).uri(path).header("Idempotency-Key", "k");
    let request = request.body(Body::from(r#"{"id": "n"}"#)).unwrap();
    let response = app.clone().oneshot(request).await.unwrap();
    (response.status(), response.headers().contains_key("idempotent-replayed"))
}

const FRESH: (StatusCode, bool) = (StatusCode::OK, false);
const REPLAYED: (StatusCode, bool) = (StatusCode::OK, true);

#[tokio::test]
async fn one_layer_around_a_whole_router_protects_what_the_rules_name() {
    let (layer, faults) = layer(RULES);
    let runs = Runs::default();
    let nested = Router::new().route("/payments/{id}", runs.handler());
    let merged = Router::new().route("/fulfil", runs.handler());
    let app = Router::new()
        .nest("/api", nested)
        .merge(merged)
        .route("/login", runs.handler())
        .nest_service("/files", Router::new().route("/{name}", runs.handler()))
        .layer(layer);
    for path in ["/api/payments/7", "/fulfil"] {
        assert_eq!(send(&app, Method::POST, path).await, FRESH, "{path}");
        assert_eq!(send(&app, Method::POST, path).await, REPLAYED, "{path}");
    }
    assert_eq!(
        send(&app, Method::PUT, "/api/payments/8").await.0,
        StatusCode::UNPROCESSABLE_ENTITY
    );
    let claims = faults.calls(Transition::Claim);
    assert_eq!((runs.count(), claims), (2, 5));
    for (method, path) in [
        (Method::POST, "/login"),
        (Method::GET, "/api/payments/7"),
        (Method::POST, "/files/fulfil"),
        (Method::PUT, "/fulfil"),
    ] {
        for _ in 0..2 {
            assert_eq!(send(&app, method.clone(), path).await, FRESH, "{method} {path}");
        }
    }
    assert_eq!(send(&app, Method::POST, "/nowhere").await.0, StatusCode::NOT_FOUND);
    assert_eq!(runs.count(), 10);
    assert_eq!(faults.calls(Transition::Claim), claims, "what passes does not ask the store");
}

#[tokio::test]
async fn inside_a_nested_router_the_path_has_no_prefix() {
    let runs = Runs::default();
    let nested = |path: &str| {
        let (layer, _) = layer(&RULES.replace("/api/payments/{id}", path));
        let nested = Router::new().route("/payments/{id}", runs.handler()).layer(layer);
        Router::new().nest("/api", nested)
    };
    let app = nested("/payments/{id}");
    assert_eq!(send(&app, Method::POST, "/api/payments/7").await, FRESH);
    assert_eq!(send(&app, Method::POST, "/api/payments/7").await, REPLAYED);
    let app = nested("/api/payments/{id}");
    assert_eq!(send(&app, Method::POST, "/api/payments/7").await, FRESH);
    assert_eq!(
        send(&app, Method::POST, "/api/payments/7").await,
        FRESH,
        "another path: unprotected"
    );
}

#[tokio::test]
async fn a_fallback_is_protected_by_its_path_as_routes_are() {
    let runs = Runs::default();
    let (layer, _) = layer(RULES);
    let app =
        Router::new().route("/else", post(async || "else")).fallback(runs.handler()).layer(layer);
    assert_eq!(send(&app, Method::POST, "/fulfil").await, FRESH);
    assert_eq!(send(&app, Method::POST, "/fulfil").await, REPLAYED);
    assert_eq!(send(&app, Method::POST, "/fulfil/").await, FRESH);
    assert_eq!(send(&app, Method::POST, "/fulfil/").await, FRESH);
    assert_eq!(runs.count(), 3);
}

#[tokio::test]
async fn a_route_layer_leaves_paths_that_do_not_exist_alone() {
    let (layer, faults) =
        layer("[[rules]]\nname = \"all\"\npolicy = \"api\"\nscope = \"everyone\"");
    let app = Router::new().route("/pay", post(async || "paid")).route_layer(layer);
    assert_eq!(send(&app, Method::POST, "/nowhere").await.0, StatusCode::NOT_FOUND);
    assert_eq!(faults.calls(Transition::Claim), 0);
    assert_eq!(send(&app, Method::POST, "/pay").await, FRESH);
    assert_eq!(send(&app, Method::POST, "/pay").await, REPLAYED);
}

#[tokio::test]
async fn rules_stand_around_a_finished_router_and_a_plain_service() {
    let runs = Runs::default();
    let (outside, _) = layer(RULES);
    let router = Router::new().route("/fulfil", runs.handler());
    let app = Router::new().fallback_service(ServiceBuilder::new().layer(outside).service(router));
    assert_eq!(send(&app, Method::POST, "/fulfil").await, FRESH);
    assert_eq!(send(&app, Method::POST, "/fulfil").await, REPLAYED);

    let (plain, _) = layer(RULES);
    let counted = Arc::<AtomicUsize>::default();
    let runs = counted.clone();
    let service =
        ServiceBuilder::new().layer(plain).service_fn(move |_: Request<RequestBody<Body>>| {
            let run = runs.fetch_add(1, SeqCst) + 1;
            async move { Ok::<_, Infallible>(Response::new(format!("run {run}"))) }
        });
    for (path, expected) in
        [("/fulfil", "run 1"), ("/fulfil", "run 1"), ("/", "run 2"), ("/", "run 3")]
    {
        let request = Request::post(path).body(Body::from(r#"{"id": "n"}"#)).unwrap();
        let answer = service.clone().oneshot(request).await.unwrap();
        assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), expected);
    }
    assert_eq!(counted.load(SeqCst), 3);
}

#[tokio::test]
async fn a_hyper_server_without_axum_is_protected_by_the_same_file() {
    let (layer, _) = layer(RULES);
    let runs = Arc::<AtomicUsize>::default();
    let handler = move |_: Request<RequestBody<hyper::body::Incoming>>| {
        let run = runs.fetch_add(1, SeqCst) + 1;
        async move { Ok::<_, Infallible>(Response::new(format!("run {run}"))) }
    };
    let service = ServiceBuilder::new().layer(layer).service_fn(handler);
    let (client, server) = tokio::io::duplex(4096);
    let connection = hyper::server::conn::http1::Builder::new()
        .serve_connection(TokioIo::new(server), TowerToHyperService::new(service));
    let server = tokio::spawn(connection);
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(client)).await.unwrap();
    let client = tokio::spawn(connection);
    for (path, expected) in
        [("/fulfil", "run 1"), ("/fulfil", "run 1"), ("/else", "run 2"), ("/else", "run 3")]
    {
        let request = Request::post(path).header("Host", "localhost");
        let request = request.body(r#"{"id": "n"}"#.to_owned()).unwrap();
        let answer = sender.send_request(request).await.unwrap();
        assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), expected, "{path}");
    }
    drop(sender);
    client.await.unwrap().unwrap();
    server.await.unwrap().unwrap();
}

/// A body that tells when it is read.
struct Watched(Arc<AtomicUsize>);

impl http_body::Body for Watched {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Infallible>>> {
        self.0.fetch_add(1, SeqCst);
        Poll::Ready(None)
    }
}

#[tokio::test]
async fn what_no_rule_names_reaches_the_service_at_once_with_its_body_unread() {
    let (layer, faults) = layer(RULES);
    let mut service = ServiceBuilder::new().layer(layer).service_fn(
        |request: Request<RequestBody<Watched>>| async move {
            drop(request);
            Ok::<_, Infallible>(Response::new(String::new()))
        },
    );
    let polls = Arc::<AtomicUsize>::default();
    for (path, read) in [("/else", false), ("/fulfil", true)] {
        let request = Request::post(path).body(Watched(polls.clone())).unwrap();
        let _ = service.ready().await.unwrap().call(request).await.unwrap();
        assert_eq!(polls.load(SeqCst) > 0, read, "{path}");
        let asked = faults.calls(Transition::Claim) + faults.calls(Transition::Release);
        assert_eq!(asked, 0, "{path}: an empty body has no identity");
    }
}
