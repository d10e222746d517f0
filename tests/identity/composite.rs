//! Identities made of several.

use http::{HeaderMap, HeaderValue};
use tower_idempotency::{Identity, Input, Refusal, Source, form, header, json, path, query};

use crate::{KEY, Read, found, read};

fn event(body: &str) -> Read {
    read(&(json("/orderId"), json("/status")), HeaderMap::new(), body.to_owned())
}

#[test]
fn all_parts_are_one_identity() {
    assert_eq!(event(r#"{"status": "PAID", "orderId": 7}"#), found("7,PAID"));
    assert_ne!(event(r#"{"orderId": 7, "status": "SENT"}"#), found("7,PAID"));
    let body = r#"{"a": 1, "b": 2, "c": 3, "d": 4, "e": 5}"#;
    let at = |name: &str| json(name);
    let none = HeaderMap::new;
    assert_eq!(read(&(at("/a"), at("/b"), at("/c")), none(), body), found("1,2,3"));
    assert_eq!(read(&(at("/a"), at("/b"), at("/c"), at("/d")), none(), body), found("1,2,3,4"));
    let five = (at("/e"), at("/d"), at("/c"), at("/b"), at("/a"));
    assert_eq!(read(&five, none(), body), found("5,4,3,2,1"));
    let nested = ((at("/a"), at("/b")), at("/c"));
    assert_eq!(read(&nested, none(), body), found("1\\,2,3"));
}

#[test]
fn parts_of_several_kinds_go_together() {
    let mut headers = HeaderMap::new();
    headers.insert(KEY, HeaderValue::from_static("k"));
    let mixed = (header("Idempotency-Key"), form("id"));
    assert_eq!(read(&mixed, headers, "id=7"), found("k,7"));
    let closure =
        |_: &Input<'_>| -> Result<Option<Identity>, Refusal> { Ok(Some(Identity::new("fixed"))) };
    assert_eq!(read(&(closure, json("/id")), HeaderMap::new(), r#"{"id": 1}"#), found("fixed,1"));
}

#[test]
fn no_two_lists_of_parts_are_one_identity() {
    let body = |order: &str, status: &str| {
        event(&serde_json::json!({ "orderId": order, "status": status }).to_string())
    };
    assert_eq!(body("a,b", "c"), found("a\\,b,c"));
    assert_eq!(body("a", "b,c"), found("a,b\\,c"));
    assert_eq!(body("a\\", "b"), found("a\\\\,b"));
    assert_eq!(body("a", "\\,b"), found("a,\\\\\\,b"));
}

#[test]
fn some_parts_without_the_others_are_refused_and_none_are_absent() {
    assert_eq!(event("{}"), Ok(None));
    let whole = "the identity is made of JSON field /orderId and JSON field /status";
    for (body, wrong) in [
        (r#"{"orderId": 7}"#, "JSON field /status is missing"),
        (r#"{"status": "PAID"}"#, "JSON field /orderId is missing"),
        (r#"{"orderId": "", "status": "PAID"}"#, "JSON field /orderId is empty"),
        (r#"{"orderId": "", "status": ""}"#, "JSON field /orderId is empty"),
        (r#"{"status": ""}"#, "JSON field /status is empty"),
    ] {
        assert_eq!(event(body), Err(format!("{wrong}; {whole}")), "{body}");
    }
    for malformed in [r#"{"orderId": 7, "status": null}"#, r#"{"orderId": 1.5}"#, "", "[]"] {
        assert!(event(malformed).is_err(), "{malformed}");
    }
}

#[test]
fn what_reads_the_body_says_so() {
    assert!((query("a"), json("/b")).reads_body());
    assert!((json("/b"), query("a")).reads_body());
    assert!(!(query("a"), header("B"), path("c")).reads_body());
    assert_eq!((query("a"), header("B")).describe(), "query parameter a and header B");
    let three = (query("a"), form("b"), json("/c"));
    assert_eq!(three.describe(), "query parameter a, form field b and JSON field /c");
}
