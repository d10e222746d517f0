//! Where the layer can stand in an axum app, and which paths it sees there.

use axum::{
    Router,
    body::Body,
    extract::{MatchedPath, Request},
    middleware::{Next, from_fn},
    response::Response,
    routing::post as routed,
};
use http::{Method, StatusCode};
use tower::ServiceBuilder;
use tower_http::map_request_body::MapRequestBodyLayer;
use tower_idempotency::{
    IdempotencyLayer, MemoryStore, Operation, OperationMissing, Policy, Rule, Rules, Scope,
};
use tower_idempotency_stack_tests::{BOTH, Protocol, send, serve};
use tower_idempotency_test_support::{Http2Answer, Server};

use crate::{is_replay, layer};

const FULL: &str = "/api/acme/orders/7/fulfil";

/// Rules for two patterns: the whole path, and what is left of it inside of the router under `/api`.
fn by_path() -> IdempotencyLayer {
    let policy = || Policy::api(Scope::everyone());
    let rules = Rules::new()
        .add(Rule::new("full", policy()).path("/api/{tenant}/orders/{id}/fulfil"))
        .add(Rule::new("stripped", policy()).path("/{tenant}/orders/{id}/fulfil"));
    IdempotencyLayer::new(MemoryStore::new(), rules)
}

/// Says which rule it runs under, and which route axum matched.
async fn handler(
    operation: Option<Operation>,
    matched: Option<MatchedPath>,
    request: Request,
) -> String {
    let rule = operation.as_ref().map_or("none", Operation::rule).to_owned();
    let matched = matched.as_ref().map_or("none", MatchedPath::as_str);
    format!("{rule} {matched} {}", request.method())
}

fn orders() -> Router {
    Router::new().route("/{tenant}/orders/{id}/fulfil", routed(handler))
}

async fn ask(server: &Server, protocol: Protocol, path: &str) -> Http2Answer {
    let request = http::Request::post(path).header("idempotency-key", "k").body("x").unwrap();
    send(server.address(), protocol, request).await
}

/// Two deliveries: which rule the handler ran under, and that the second is a replay if it did.
async fn assert_rule(router: Router, path: &str, rule: &str) {
    let server = Server::start(router).await;
    for protocol in BOTH {
        for delivery in 0..2 {
            let answer = ask(&server, protocol, path).await;
            assert_eq!(answer.status, StatusCode::OK);
            let body = String::from_utf8_lossy(&answer.body).into_owned();
            assert_eq!(body.split(' ').next(), Some(rule), "{body}");
            let first = delivery == 0 && protocol == Protocol::Http1;
            assert_eq!(is_replay(&answer), rule != "none" && !first);
        }
    }
}

#[tokio::test]
async fn on_a_route_and_around_a_router_it_sees_the_whole_path() {
    let flat = || Router::new().route("/api/{tenant}/orders/{id}/fulfil", routed(handler));
    assert_rule(flat().route_layer(by_path()), FULL, "full").await;
    assert_rule(flat().layer(by_path()), FULL, "full").await;
    let on_the_method = routed(handler).layer(by_path());
    let router = Router::new().route("/api/{tenant}/orders/{id}/fulfil", on_the_method);
    assert_rule(router, FULL, "full").await;
    assert_rule(Router::new().merge(flat()).layer(by_path()), FULL, "full").await;
}

#[tokio::test]
async fn around_a_router_that_nests_it_sees_the_whole_path() {
    assert_rule(Router::new().nest("/api", orders()).layer(by_path()), FULL, "full").await;
    let nested_service = Router::new().nest_service("/api", orders()).layer(by_path());
    assert_rule(nested_service, FULL, "full").await;
}

#[tokio::test]
async fn on_a_nested_router_it_sees_the_path_without_the_prefix() {
    let nested = Router::new().nest("/api", orders().layer(by_path()));
    assert_rule(nested, FULL, "stripped").await;
    let nested = Router::new().nest("/api", orders().route_layer(by_path()));
    assert_rule(nested, FULL, "stripped").await;
    let nested = Router::new().nest_service("/api", orders().layer(by_path()));
    assert_rule(nested, FULL, "stripped").await;
}

#[tokio::test]
async fn around_a_fallback_it_sees_the_whole_path() {
    let router = Router::new().fallback(handler).layer(by_path());
    assert_rule(router, FULL, "full").await;
}

#[tokio::test]
async fn around_the_finished_router_it_sees_the_whole_path() {
    let app = Router::new().nest("/api", orders());
    let server = serve(ServiceBuilder::new().layer(by_path()).service(app)).await;
    for protocol in BOTH {
        let request =
            || http::Request::post(FULL).header("idempotency-key", "k").body("x").unwrap();
        let answer = server.send(protocol, request()).await;
        assert_eq!(answer.body, "full /api/{tenant}/orders/{id}/fulfil POST");
        assert!(is_replay(&server.send(protocol, request()).await));
    }
}

#[tokio::test]
async fn a_path_that_is_no_rule_s_passes_unprotected() {
    let router = Router::new().fallback(handler).layer(by_path());
    for path in ["/api/acme/orders/7/fulfil/", "/api/acme/orders", "/api/acme/orders/7/refund"] {
        assert_rule(router.clone(), path, "none").await;
    }
    // A test of one line says so of an app's own paths.
    let rule = Rule::new("full", Policy::api(Scope::everyone())).path("/orders/{id}");
    let rules = Rules::from(rule);
    assert!(rules.find(&Method::POST, "/orders/7").is_some());
    assert!(rules.find(&Method::POST, "/orders/7/").is_none());
}

#[tokio::test]
async fn a_rule_for_one_route_is_none_for_its_twin() {
    let app = Router::new().route("/a/{id}", routed(handler)).route("/b/{id}", routed(handler));
    let rule = Rule::new("a", Policy::api(Scope::everyone())).path("/a/{id}");
    let router = app.layer(IdempotencyLayer::new(MemoryStore::new(), rule));
    assert_rule(router.clone(), "/a/1", "a").await;
    assert_rule(router, "/b/1", "none").await;
}

#[tokio::test]
async fn a_route_layer_leaves_what_is_no_route_alone() {
    let app = || Router::new().route("/pay", routed(handler));
    let nowhere = || http::Request::post("/nowhere").body("x").unwrap();
    let server = Server::start(app().route_layer(layer())).await;
    assert_eq!(send(server.address(), Protocol::Http1, nowhere()).await.status, 404);
    let server = Server::start(app().layer(layer())).await;
    assert_eq!(send(server.address(), Protocol::Http1, nowhere()).await.status, 400);
}

#[tokio::test]
async fn a_handler_that_demands_an_operation_says_what_is_missing() {
    async fn demanding(operation: Operation) -> String {
        operation.key().to_owned()
    }
    let server = Server::start(Router::new().route("/pay", routed(demanding))).await;
    let answer = ask(&server, Protocol::Http1, "/pay").await;
    assert_eq!(answer.status, StatusCode::INTERNAL_SERVER_ERROR);
    assert!(String::from_utf8_lossy(&answer.body).contains("IdempotencyLayer"));
    let _: Option<OperationMissing> = None;
    let server =
        Server::start(Router::new().route("/pay", routed(demanding)).route_layer(layer())).await;
    assert_eq!(ask(&server, Protocol::Http1, "/pay").await.body, "k");

    // A rule is there, and what it only observes may have no identity.
    let observing = Rule::new("pay", Policy::api(Scope::everyone()).observe());
    let observing = IdempotencyLayer::new(MemoryStore::new(), observing);
    let server =
        Server::start(Router::new().route("/pay", routed(demanding)).route_layer(observing)).await;
    assert_eq!(ask(&server, Protocol::Http1, "/pay").await.body, "k");
    let keyless = http::Request::post("/pay").body("x").unwrap();
    let answer = send(server.address(), Protocol::Http1, keyless).await;
    assert_eq!(answer.status, StatusCode::INTERNAL_SERVER_ERROR);
    assert!(String::from_utf8_lossy(&answer.body).contains("Policy::observe"));
}

async fn marking(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    response.headers_mut().append("x-passed", "1".parse().unwrap());
    response
}

/// How often `marking` had its way with the first answer and with the replay.
async fn marks(router: Router) -> [usize; 2] {
    let server = Server::start(router).await;
    let mut marks = [0; 2];
    for (delivery, marks) in marks.iter_mut().enumerate() {
        let answer = ask(&server, Protocol::Http1, "/pay").await;
        assert_eq!((answer.status, is_replay(&answer)), (StatusCode::OK, delivery > 0));
        *marks = answer.headers.get_all("x-passed").iter().count();
    }
    marks
}

#[tokio::test]
async fn from_fn_stands_outside_and_inside() {
    let app = || Router::new().route("/pay", routed(handler));
    // The last `.layer` is the outermost.
    assert_eq!(marks(app().layer(layer()).layer(from_fn(marking))).await, [1, 1]);
    assert_eq!(marks(app().layer(from_fn(marking)).layer(layer())).await, [1, 1], "it is stored");
    let both = app().layer(from_fn(marking)).layer(layer()).layer(from_fn(marking));
    assert_eq!(marks(both).await, [2, 2]);
}

#[tokio::test]
async fn from_fn_stands_inside_in_one_builder_with_the_body_mapped() {
    let app = || Router::new().route("/pay", routed(handler));
    let stack = ServiceBuilder::new()
        .layer(from_fn(marking))
        .layer(layer())
        .layer(MapRequestBodyLayer::new(Body::new))
        .layer(from_fn(marking));
    assert_eq!(marks(app().layer(stack)).await, [2, 2]);
}

#[tokio::test]
async fn the_layer_on_the_router_and_on_the_route_runs_once() {
    let outer = layer();
    let app = Router::new().route("/pay", routed(handler).layer(outer.clone())).layer(outer);
    assert_rule(app, "/pay", "pay").await;
}
