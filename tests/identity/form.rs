//! Identities in forms, in any charset that extends ASCII.

use http::{
    HeaderMap, HeaderValue,
    header::{CONTENT_ENCODING, CONTENT_TYPE},
};
use tower_idempotency::{Source, form};

use crate::{Read, found, in_bounded_time, read};

fn at(name: &str, body: impl Into<Vec<u8>>) -> Read {
    read(&form(name), HeaderMap::new(), body.into())
}

#[test]
fn a_field_is_its_bytes_with_its_escapes_undone() {
    for (body, value) in [
        ("notify_id=ac05", "ac05"),
        ("a=1&notify_id=ac05&b=2", "ac05"),
        ("notify_id=a+b%2Bc%26%3d", "a b+c&="),
        ("notify_id=a=b", "a=b"),
        ("notify%5Fid=ac05", "ac05"),
        ("%6eotify_id=%61c05", "ac05"),
        ("&&notify_id=ac05&", "ac05"),
        ("notify_id=%zz%4", "%zz%4"),
        ("notify_id=%00%0d%0A", "\0\r\n"),
    ] {
        assert_eq!(at("notify_id", body), found(value), "{body}");
    }
    assert_eq!(at("a b", "a+b=1"), found("1"));
    assert_eq!(at("a b", "a%20b=1"), found("1"));
}

#[test]
fn a_field_that_is_not_there_is_absent() {
    for body in [
        "",
        "&",
        "a=1",
        "Notify_id=1",
        "notify_id%20=1",
        "x=notify_id=1",
        "=1",
        r#"{"notify_id": "1"}"#,
    ] {
        assert_eq!(at("notify_id", body), Ok(None), "{body}");
    }
}

#[test]
fn an_empty_field_is_no_absent_one() {
    // The policy refuses what is empty: see the unit tests of the identity.
    for body in ["notify_id=", "notify_id", "a=1&notify_id=&b=2", "notify_id&a=1"] {
        assert_eq!(at("notify_id", body), found(""), "{body}");
    }
}

#[test]
fn a_field_that_is_there_twice_is_refused_even_if_both_are_alike() {
    for body in [
        "notify_id=a&notify_id=b",
        "notify_id=a&x=1&notify_id=a",
        "notify_id=a&notify_id",
        "notify_id=&notify_id=",
        "notify_id=a&notify%5fid=a",
    ] {
        let refused = at("notify_id", body).unwrap_err();
        assert_eq!(refused, "form field notify_id is there twice; send it once");
    }
    assert_eq!(at("notify_id", "notify_id=a&x=1&x=2"), found("a"));
}

#[test]
fn the_rest_of_the_body_is_never_decoded() {
    // "test" and "order" in GBK, raw and escaped, and bytes that are no text in any charset.
    let mut body =
        b"subject=\xb2\xe2\xca\xd4&body=%B6%A9%B5%A5&junk=\xff\xfe%FF&notify_id=ac05".to_vec();
    assert_eq!(at("notify_id", body.clone()), found("ac05"));
    assert_eq!(at("subject", body.clone()), found(b"\xb2\xe2\xca\xd4".as_slice()));
    assert_eq!(at("body", body.clone()), found(b"\xb6\xa9\xb5\xa5".as_slice()));
    body.extend_from_slice(b"&notify_id=ac05");
    assert!(at("notify_id", body).is_err());
    // Two charsets of one text are two identities.
    assert_ne!(at("s", "s=%B2%E2%CA%D4"), at("s", "s=%E6%B5%8B%E8%AF%95"));
}

#[test]
fn a_form_is_read_whatever_the_content_type_says() {
    for content_type in ["application/x-www-form-urlencoded; charset=GBK", "text/plain", ""] {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        assert_eq!(read(&form("id"), headers, "id=1"), found("1"));
    }
}

#[test]
fn a_body_that_is_encoded_is_refused_saying_which_layer_is_missing() {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    let refused = read(&form("id"), headers.clone(), vec![0x1f, 0x8b, 8, 0]).unwrap_err();
    assert!(refused.contains("Content-Encoding `gzip`"), "{refused}");
    assert!(refused.contains("a layer outside this one"), "{refused}");
    assert_eq!(read(&form("id"), headers, "id=1"), found("1"));
}

#[test]
fn ten_megabytes_of_anything_take_bounded_time() {
    const SIZE: usize = 10 << 20;
    in_bounded_time(|| {
        assert_eq!(at("id", vec![b'['; SIZE]), Ok(None));
        for byte in [b'&', b'=', b'%', b'+', 0, 0xff] {
            let mut body = vec![byte; SIZE / 4];
            assert_eq!(at("id", body.clone()), Ok(None));
            body.extend_from_slice(b"&id=1");
            assert_eq!(at("id", body), found("1"));
        }
        assert_eq!(at("id", "a=1&".repeat(SIZE / 4) + "id=1"), found("1"));
        assert!(at("id", "id=1&".repeat(SIZE / 5)).is_err());
        assert_eq!(
            at("id", "id=".to_owned() + &"%41".repeat(SIZE / 3)),
            found("A".repeat(SIZE / 3))
        );
    });
}

#[test]
fn what_reads_the_body_says_so() {
    assert_eq!(form("notify_id").describe(), "form field notify_id");
    assert!(form("notify_id").reads_body());
}

#[test]
#[should_panic(expected = "give the name of a field")]
fn no_name_is_refused_where_the_policy_is_built() {
    let _ = form("");
}
