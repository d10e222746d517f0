//! Identities in JSON bodies.

use std::time::{Duration, Instant};

use http::{
    HeaderMap, HeaderValue,
    header::{CONTENT_ENCODING, CONTENT_TYPE},
};
use tower_idempotency::{Source, json};

use crate::{Read, found, read};

fn at(pointer: &str, body: impl Into<Vec<u8>>) -> Read {
    read(&json(pointer), HeaderMap::new(), body.into())
}

#[track_caller]
fn refused_saying(pointer: &str, body: impl Into<Vec<u8>>, wrong: &str) {
    let detail = at(pointer, body).expect_err("not refused");
    assert!(detail.contains(wrong), "{detail}");
}

#[test]
fn case_92_a_field_of_another_type_is_refused_and_never_a_common_key() {
    let body = |value: &str| format!(r#"{{"userId": 1, "notifyId": {value}}}"#);
    for (value, wrong) in [
        ("null", "/notifyId is null"),
        ("true", "/notifyId is a boolean"),
        ("false", "/notifyId is a boolean"),
        ("{}", "/notifyId is an object"),
        (r#"{"id": "N-1"}"#, "/notifyId is an object"),
        ("[]", "/notifyId is an array"),
        ("1.0", "/notifyId is `1.0`, with a fraction or an exponent"),
        ("1e3", "/notifyId is `1e3`, with a fraction or an exponent"),
        ("1E400", "/notifyId is `1E400`, with a fraction or an exponent"),
        ("-0", "/notifyId is -0"),
        (r#""\ud800""#, "/notifyId has an escape that is no character"),
    ] {
        refused_saying("/notifyId", body(value), wrong);
        refused_saying("/notifyId", body(value), "/notifyId must be one string or integer");
    }
    assert_eq!(at("/notifyId", body("7")), found("7"));
}

#[test]
fn case_92_a_field_that_is_not_there_is_absent() {
    for body in [r#"{"userId": 1}"#, "{}", r#"{"notifyid": 1}"#, r#"{"a": {"notifyId": 1}}"#] {
        assert_eq!(at("/notifyId", body), Ok(None), "{body}");
    }
    assert_eq!(at("/a/b", r#"{"a": {}, "b": 1}"#), Ok(None));
    assert_eq!(at("/a/1", r#"{"a": ["x"]}"#), Ok(None));
    assert_eq!(at("/a/99999999999999999999", r#"{"a": {}}"#), Ok(None));
    assert_eq!(at("/a/0", r#"{"a": ["x"]}"#), found("x"));
}

#[test]
fn case_92_a_field_of_what_has_none_is_refused() {
    refused_saying("/a/b", r#"{"a": "text"}"#, "/a is a string; /a/b must be");
    refused_saying("/a/b", r#"{"a": null}"#, "/a is null");
    refused_saying("/a/b/c", r#"{"a": {"b": 1e999}}"#, "/a/b is a number");
    refused_saying("/a/b", r#"{"a": [{"b": 1}]}"#, "/a is an array");
    refused_saying("/a/01", r#"{"a": ["x", "y"]}"#, "/a is an array");
    refused_saying("/a/-", r#"{"a": ["x", "y"]}"#, "/a is an array");
    refused_saying("/a/99999999999999999999", r#"{"a": []}"#, "/a is an array");
    refused_saying("/a", "\"text\"", "the document is a string");
    refused_saying("/a", "[1]", "the document is an array");
}

#[test]
fn case_17_and_b47_a_string_is_taken_as_it_is() {
    for key in ["a:b", "*", "{a}", " a ", "%0d%0a", "\u{1f4b0}", "Abc", "abc", "0123456789abcdef"] {
        assert_eq!(at("/id", format!(r#"{{"id": "{key}"}}"#)), found(key));
    }
    assert_eq!(at("/id", r#"{"id": "a\u0000\r\nb"}"#), found("a\0\r\nb"));
}

#[test]
fn b48_and_b50_what_is_no_document_is_refused_saying_where() {
    refused_saying("/id", "", "it is empty");
    refused_saying("/id", " \r\n\t", "it is empty");
    refused_saying("/id", "notify_id=1&x=2", "line 1 column 2");
    refused_saying("/id", "<xml/>", "line 1 column 1");
    refused_saying("/id", "{\"id\": 1,\n \"x\": }", "line 2 column 7");
    refused_saying("/id", "{\"id\": 1", "line 1 column 8");
    refused_saying("/id", r#"{"id": 1} {"id": 2}"#, "trailing characters at line 1 column 11");
    refused_saying("/id", "{\"id\": 1}\0", "trailing characters at line 1 column 10");
    refused_saying("", "1 2", "trailing characters");
    refused_saying("/id", "{\"id\": 01}", "line 1 column 9");
    refused_saying("/id", b"{\"id\": 1, \"x\": \"\xff\"}", "byte 16 is not UTF-8");
    refused_saying("/id", "\u{feff}{\"id\": 1}", "it begins with a byte order mark");
    refused_saying("/id", "{\"id\": 1} \u{a0}", "trailing characters");
    assert_eq!(at("/id", " \r\n\t{\"id\": 1}\n \r\t"), found("1"));
}

#[test]
fn b51_two_large_integers_are_two_identities() {
    for digits in [
        "9007199254740993",
        "9007199254740992",
        "18446744073709551616",
        "-7",
        "0",
        &"9".repeat(255),
    ] {
        assert_eq!(at("/id", format!(r#"{{"id": {digits}}}"#)), found(digits));
        assert_eq!(at("/id", format!(r#"{{"id": "{digits}"}}"#)), found(digits));
    }
}

#[test]
fn b52_a_member_of_the_path_that_is_there_twice_is_refused() {
    refused_saying("/id", r#"{"id": "old", "id": "new"}"#, "/id is there twice");
    refused_saying("/id", r#"{"id": "a", "x": {}, "id": "a"}"#, "/id is there twice");
    refused_saying("/id", r#"{"id": null, "id": "new"}"#, "/id is there twice");
    refused_saying("/id", r#"{"id": 1, "id": 2, "id": 3}"#, "/id is there twice");
    refused_saying("/notifyId", r#"{"notifyId": 1, "notif\u0079Id": 2}"#, "is there twice");
    refused_saying("/a/id", r#"{"a": {"id": 1}, "a": {}}"#, "/a is there twice; /a/id must be");
    refused_saying("/a/id", r#"{"a": {"id": 1, "id": 2}}"#, "/a/id is there twice");
    refused_saying("/a/0/id", r#"{"a": [{"id": 1, "id": 2}]}"#, "/a/0/id is there twice");
    assert_eq!(at("/notifyId", r#"{"notif\u0079Id": "new"}"#), found("new"));
    assert_eq!(at("/a/id", r#"{"id": 1, "x": 1, "x": 2, "a": {"id": 3}}"#), found("3"));
}

#[test]
fn a_body_that_is_encoded_is_refused_saying_which_layer_is_missing() {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    let gzip = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3];
    let refused = read(&json("/id"), headers.clone(), gzip).unwrap_err();
    assert!(refused.contains("encoded (Content-Encoding `gzip`)"), "{refused}");
    assert!(refused.contains("decompress it in a layer outside this one"), "{refused}");
    // What can be read is read: some layers decompress and leave the field where it was.
    assert_eq!(read(&json("/id"), headers, r#"{"id": 1}"#), found("1"));
}

#[test]
fn json_is_read_whatever_the_content_type_says() {
    for content_type in ["text/plain; charset=UTF-8", "application/x-www-form-urlencoded", ""] {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        assert_eq!(read(&json("/MessageId"), headers, r#"{"MessageId": "m"}"#), found("m"));
    }
}

#[test]
fn pointers_are_those_of_rfc_6901() {
    let document =
        r#"{"": 0, "a/b": 1, "m~n": 2, "~1": 3, "a": [{"b": 4}, 5], "0": 6, " ": 7, "c%d": 8}"#;
    for (pointer, value) in [
        ("/", "0"),
        ("/a~1b", "1"),
        ("/m~0n", "2"),
        ("/~01", "3"),
        ("/a/0/b", "4"),
        ("/a/1", "5"),
        ("/0", "6"),
        ("/ ", "7"),
        ("/c%d", "8"),
    ] {
        assert_eq!(at(pointer, document), found(value), "{pointer}");
    }
    assert_eq!(at("", " \"N-1\" "), found("N-1"));
    assert_eq!(at("", "17"), found("17"));
    refused_saying("", "{}", "the document is an object");
}

#[test]
fn bodies_nested_without_end_neither_overflow_the_stack_nor_take_long() {
    const DEPTH: usize = 10 << 20;
    let started = Instant::now();
    let brackets = |depth| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    assert_eq!(at("/id", format!(r#"{{"x": {}, "id": 1}}"#, brackets(DEPTH))), found("1"));
    refused_saying("/id", format!(r#"{{"id": {}}}"#, brackets(DEPTH / 10)), "/id is an array");
    refused_saying("/0/0/0", brackets(DEPTH / 10), "/0/0/0 is an array");
    refused_saying("/id", brackets(DEPTH / 10), "the document is an array");
    refused_saying("/0/0", "[".repeat(DEPTH), "EOF while parsing");
    refused_saying("/a/a", r#"{"a":"#.repeat(DEPTH / 10), "EOF while parsing");
    // A stack is not what this thread is short of; time is what it would take.
    assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
}

#[test]
fn a_long_pointer_into_a_deep_body_needs_no_stack() {
    let depth = 2_000;
    let body = format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
    let walk = move || at(&"/0".repeat(depth), body);
    let thread = std::thread::Builder::new().stack_size(128 << 10).spawn(walk).unwrap();
    assert_eq!(thread.join().unwrap(), found("1"));
}

#[test]
fn what_reads_the_body_says_so() {
    assert_eq!(json("/notifyId").describe(), "JSON field /notifyId");
    assert!(json("/notifyId").reads_body());
}

#[test]
#[should_panic(expected = "a JSON Pointer begins with `/`; write \"/data/notifyId\"")]
fn a_json_path_panics_with_the_pointer_that_was_meant() {
    let _ = json("$.data.notifyId");
}

#[test]
#[should_panic(expected = "a JSON Pointer begins with `/`; write \"/notifyId\"")]
fn a_pointer_without_its_slash_is_refused_where_the_policy_is_built() {
    let _ = json("notifyId");
}

#[test]
#[should_panic(expected = "`~` must be followed by `0` or `1`")]
fn a_pointer_with_a_bad_escape_is_refused_where_the_policy_is_built() {
    let _ = json("/a~b");
}

#[test]
#[should_panic(expected = "`~` must be followed by `0` or `1`")]
fn a_pointer_that_ends_in_an_escape_is_refused_where_the_policy_is_built() {
    let _ = json("/a~");
}
