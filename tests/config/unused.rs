//! A rule that no request meets is told: a typing error in a path protects nothing.

use std::{convert::Infallible, time::Duration};

use axum::body::Body;
use http::{Request, Response};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_idempotency::{IdempotencyLayer, MemoryStore, RequestBody, Rules};
use tower_idempotency_test_support::Log;

use crate::support::rules;

const RULES: &str = r#"
    [[rules]]
    name = "fulfil"
    path = "/fulfil"
    policy = "webhook"
    identity = { json = "/id" }

    [[rules]]
    name = "typo"
    path = "/paymnets"
    policy = "webhook"
    identity = { json = "/id" }
"#;

fn layer() -> IdempotencyLayer {
    IdempotencyLayer::new(MemoryStore::new(), rules(RULES).unwrap())
}

/// What was said of rules, once.
fn rules_told(log: &Log) -> Vec<String> {
    let told = log.of("rule never hit");
    log.take();
    told
}

async fn send(layer: &IdempotencyLayer, path: &str, times: usize) {
    let handler = service_fn(async |_: Request<RequestBody<Body>>| {
        Ok::<_, Infallible>(Response::new(String::new()))
    });
    let mut service = layer.layer(handler);
    for _ in 0..times {
        let request = Request::post(path).body(Body::from(r#"{"id": 1}"#)).unwrap();
        service.ready().await.unwrap().call(request).await.unwrap();
    }
}

fn unused(layer: &IdempotencyLayer) -> Vec<&str> {
    layer.unused_rules().iter().map(|rule| rule.name()).collect()
}

#[tokio::test]
async fn unused_rules_are_those_that_no_request_met() {
    let layer = layer();
    assert_eq!(unused(&layer), ["fulfil", "typo"]);
    send(&layer, "/else", 1).await;
    assert_eq!(unused(&layer), ["fulfil", "typo"]);
    send(&layer.clone(), "/fulfil", 1).await;
    assert_eq!(unused(&layer), ["typo"], "clones count together");
    send(&layer, "/paymnets", 1).await;
    assert!(unused(&layer).is_empty());
}

#[tokio::test]
async fn a_rule_that_is_never_hit_is_told_once_after_ten_thousand_requests_that_passed() {
    let (log, _guard) = Log::listen();
    let layer = layer();
    send(&layer, "/fulfil", 1).await;
    send(&layer, "/payments", 9_999).await;
    assert!(rules_told(&log).is_empty());
    send(&layer, "/payments", 1).await;
    let [told] = &rules_told(&log)[..] else { panic!("one warning") };
    assert!(told.starts_with("WARN ") && told.contains("rule=\"typo\""), "{told}");
    assert!(told.contains("path=\"/paymnets\" passed=10000"), "{told}");
    send(&layer, "/payments", 10_000).await;
    assert!(rules_told(&log).is_empty());
}

#[tokio::test]
async fn a_rule_that_is_never_hit_is_told_once_when_the_layer_is_drained() {
    let (log, _guard) = Log::listen();
    let layer = layer();
    send(&layer, "/fulfil", 1).await;
    for times in [1, 0] {
        layer.drain(Duration::ZERO).await;
        let told = rules_told(&log);
        assert_eq!(told.len(), times, "{told:?}");
        assert!(told.iter().all(|told| told.contains("rule=\"typo\"")), "{told:?}");
    }
}

#[tokio::test]
async fn nothing_is_told_where_every_rule_was_hit_or_no_request_came() {
    let (log, _guard) = Log::listen();
    layer().drain(Duration::ZERO).await;
    let layer = layer();
    send(&layer, "/fulfil", 1).await;
    send(&layer, "/paymnets", 1).await;
    send(&layer, "/else", 10_000).await;
    layer.drain(Duration::ZERO).await;
    assert!(rules_told(&log).is_empty());
}

/// What was said of a layer with the rules of this file, in either format.
fn told_at_start(toml: &str, json: &str) -> Vec<String> {
    let json: Rules = serde_json::from_str(json).unwrap();
    let [told, same] = [rules(toml).unwrap(), json].map(|rules| {
        let (log, _guard) = Log::listen();
        let layer = IdempotencyLayer::new(MemoryStore::new(), rules);
        let _ = layer.clone();
        log.of("no rule")
    });
    assert_eq!(told, same);
    told
}

#[test]
fn a_file_without_a_rule_is_told_when_its_layer_is_made_whatever_else_it_says() {
    for (toml, json) in [
        ("rules = []", "[]"),
        ("rules = { rules = [] }", r#"{"rules": []}"#),
        ("rules = { recent = '2MiB', rules = [] }", r#"{"recent": "2MiB", "rules": []}"#),
    ] {
        let [told] = &told_at_start(toml, json)[..] else { panic!("one warning: {toml}") };
        assert!(told.starts_with("WARN ") && told.contains("it protects nothing"), "{told}");
    }
    // To forget the list is no way to say so.
    for wrong in [r#"{"recent": "2MiB"}"#, "{}", "null"] {
        assert!(serde_json::from_str::<Rules>(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn of_a_file_with_a_rule_nothing_is_told_when_its_layer_is_made() {
    let rule = r#"[{ "name": "r", "policy": "api", "scope": "everyone" }]"#;
    let toml = "rules = [{ name = 'r', policy = 'api', scope = 'everyone' }]";
    assert!(told_at_start(toml, rule).is_empty());
}
