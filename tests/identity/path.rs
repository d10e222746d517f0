//! Identities in the path, where the rule's own pattern names them.

use bytes::Bytes;
use http::Request;
use tower_idempotency::{Policy, Rule, Rules, Scope, Source, form, json, path};

use crate::{Read, found, read_request};

fn at(parameter: &str, pattern: &str, uri: &str) -> Read {
    let request = Request::post(uri).body(Bytes::new()).unwrap();
    read_request(&path(parameter), request, Some(pattern))
}

#[test]
fn a_parameter_is_found_where_the_pattern_has_it() {
    assert_eq!(at("id", "/orders/{id}/fulfil", "/orders/7/fulfil?id=8"), found("7"));
    assert_eq!(at("b", "/{a}/{b}", "/1/2"), found("2"));
    assert_eq!(at("rest", "/files/{*rest}", "/files/a/b"), found("a/b"));
    assert_eq!(at("id", "/{{id}}/{id}", "/{id}/7"), found("7"));
    assert_eq!(at("id", "/orders/{id}", "/orders/7/"), Ok(None), "another path");
    assert_eq!(at("id", "/orders/{id}", "/orders/"), Ok(None));
}

#[test]
fn two_spellings_of_a_parameter_are_one_identity() {
    for uri in ["/orders/a-b", "/orders/a%2Db", "/orders/%61%2d%62"] {
        assert_eq!(at("id", "/orders/{id}", uri), found("a-b"), "{uri}");
    }
    assert_eq!(at("id", "/orders/{id}", "/orders/a%2Fb"), found("a/b"));
    assert_eq!(at("id", "/orders/{id}", "/orders/a+b"), found("a+b"), "no form");
    assert_ne!(at("id", "/orders/{id}", "/orders/A-b"), found("a-b"));
    assert_eq!(at("id", "/orders/{id}", "/orders/%FF"), found(vec![0xff]));
}

#[test]
fn a_rule_that_has_no_such_parameter_is_an_error_when_it_starts() {
    let error = |rule: Rule| Rules::new().try_add(rule).unwrap_err().to_string();
    let api = || Policy::api(Scope::everyone());
    let by_id = || Rule::new("fulfil", api().identity(path("id")));
    assert_eq!(
        error(by_id()),
        "rule \"fulfil\": path parameter id is read from the rule's own path, and the rule has \
         none; give it one, such as .path(\"/orders/{id}\")"
    );
    let other = error(by_id().path("/orders/{order}"));
    assert!(other.contains("\"/orders/{order}\" has no parameter {id}"), "{other}");
    assert!(error(by_id().path("/orders/{{id}}")).contains("has no parameter {id}"));
    assert!(error(by_id().path("/orders/id")).contains("has no parameter {id}"));
    for right in ["/orders/{id}", "/orders/{id}/x", "/{{x}}/{id}", "/a/{*id}", "/{a}/{id}"] {
        Rules::new().try_add(by_id().path(right)).unwrap();
    }
}

#[test]
fn a_parameter_is_looked_for_wherever_the_policy_reads_one() {
    let error = |policy: Policy| {
        let rule = Rule::new("fulfil", policy).path("/orders/{order}");
        Rules::new().try_add(rule).map_err(|error| error.to_string())
    };
    let webhook = || Policy::webhook(json("/id"));
    for policy in [
        Policy::webhook((json("/id"), path("id"))),
        webhook().business_key(path("id")),
        webhook().business_key((path("order"), path("id"), json("/status"))),
        webhook().compare([path("id")]),
        webhook().compare([form("x")]).compare([path("id")]),
    ] {
        assert!(error(policy).unwrap_err().contains("has no parameter {id}"));
    }
    for policy in
        [webhook(), webhook().business_key(path("order")), webhook().compare([path("order")])]
    {
        assert_eq!(error(policy), Ok(()));
    }
}

#[test]
fn without_a_pattern_nothing_is_guessed() {
    let request = Request::post("/orders/7").body(Bytes::new()).unwrap();
    assert!(read_request(&path("id"), request, None).is_err());
}

#[test]
fn what_does_not_read_the_body_says_so() {
    assert_eq!(path("id").describe(), "path parameter id");
    assert!(!path("id").reads_body());
}

#[test]
#[should_panic(expected = "give the name of a parameter")]
fn no_name_is_refused_where_the_policy_is_built() {
    let _ = path("");
}
