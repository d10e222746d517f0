//! Identities in the query.

use bytes::Bytes;
use http::Request;
use tower_idempotency::{Source, query};

use crate::{Read, found, in_bounded_time, read_request};

fn at(name: &str, uri: &str) -> Read {
    read_request(&query(name), Request::post(uri).body(Bytes::new()).unwrap(), None)
}

#[test]
fn a_parameter_is_its_bytes_with_its_escapes_undone() {
    for (uri, value) in [
        ("/hook?event=e-1", "e-1"),
        ("/hook?a=1&event=e%2D1&b", "e-1"),
        ("/hook?%65vent=e-1", "e-1"),
        ("/hook?event=a+b%20c%2B", "a b c+"),
        ("/hook?event=a=b", "a=b"),
        ("/hook?event=", ""),
        ("/hook?event", ""),
        ("http://host/hook?event=%FF", "\u{ff}"),
    ] {
        let value: Vec<u8> = value.chars().map(|character| character as u8).collect();
        assert_eq!(at("event", uri), found(value), "{uri}");
    }
}

#[test]
fn a_parameter_that_is_not_there_is_absent() {
    for uri in ["/hook", "/hook?", "/hook?a=1", "/hook?Event=1", "/event=1", "/hook?x=event=1"] {
        assert_eq!(at("event", uri), Ok(None), "{uri}");
    }
    let body = Request::post("/hook").body(Bytes::from("event=e-1")).unwrap();
    assert_eq!(read_request(&query("event"), body, None), Ok(None), "the body is not read");
}

#[test]
fn a_parameter_that_is_there_twice_is_refused_even_if_both_are_alike() {
    for uri in ["/hook?event=1&event=2", "/hook?event=1&event=1", "/hook?event&%65vent"] {
        let refused = at("event", uri).unwrap_err();
        assert_eq!(refused, "query parameter event is there twice; send it once");
    }
    assert_eq!(at("event", "/hook?event=1&a=1&a=2"), found("1"));
}

#[test]
fn a_long_query_takes_bounded_time() {
    in_bounded_time(|| {
        for piece in ["&", "=", "%", "+", "a=1&", "[%"] {
            let long = piece.repeat(60_000 / piece.len());
            assert_eq!(at("event", &format!("/hook?{long}&event=1")), found("1"), "{piece}");
        }
    });
}

#[test]
fn what_does_not_read_the_body_says_so() {
    assert_eq!(query("event").describe(), "query parameter event");
    assert!(!query("event").reads_body());
}

#[test]
#[should_panic(expected = "give the name of a parameter")]
fn no_name_is_refused_where_the_policy_is_built() {
    let _ = query("");
}
