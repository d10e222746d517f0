//! What holds for every input: no panics, one identity for all its spellings, and no two for one.

use http::HeaderMap;
use proptest::{collection::vec, prelude::*};
use tower_idempotency::{header, json};

use crate::{Read, found, lines, read};

fn key(value: &[u8]) -> Read {
    read(&header("Idempotency-Key"), lines(&[value]), "")
}

fn at(pointer: &str, body: impl Into<Vec<u8>>) -> Read {
    read(&json(pointer), HeaderMap::new(), body.into())
}

/// A structured-field string of this text.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

/// A JSON string of this text in which every character is escaped.
fn escaped(text: &str) -> String {
    let units: String = text.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect();
    format!("\"{units}\"")
}

/// Bytes that a header value may have, so that no case is wasted.
fn field_bytes() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![0x20..=0x7eu8, Just(b'"'), Just(b'\\'), Just(b'\t'), 0x80..=0xffu8];
    vec(byte, 0..80)
}

/// Text with the characters in it that JSON is made of.
fn almost_json() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "{", "}", "[", "]", ":", ",", "\"", "\"id\"", "\"id\":", "\"a\":", "\\", "\\u0069", "7",
        "-0", "1e9", "null", "true", " ", "\n", "\u{feff}", "\u{e9}",
    ]);
    vec(piece, 0..24).prop_map(|pieces| pieces.concat())
}

/// `id` in two spellings, and another.
fn member_name() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["id", "\\u0069d", "a", "a", "a"])
}

fn member_value() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "\"7\"",
        "7",
        "-12",
        "\"\\u00e9\"",
        "null",
        "1.5",
        "[{}]",
        "{\"id\": 3}",
    ])
}

proptest! {
    #[test]
    fn no_field_makes_the_header_source_panic(value in field_bytes()) {
        let _ = key(&value);
        let _ = read(&header("Idempotency-Key").strict(), lines(&[&value]), "");
    }

    #[test]
    fn no_body_makes_the_json_source_panic(
        bytes in vec(any::<u8>(), 0..200),
        text in almost_json(),
        pointer in prop::sample::select(vec!["", "/id", "/a/id", "/0", "/a/0/id"]),
    ) {
        let _ = at(pointer, bytes);
        let _ = at(pointer, text);
    }

    #[test]
    fn all_spellings_of_a_header_key_are_one_identity(text in "[!#-+\\--:<-~]{1,60}", n in 0..99u8) {
        prop_assume!(!text.starts_with('\''));
        let same = found(text.as_str());
        prop_assert_eq!(&key(text.as_bytes()), &same);
        prop_assert_eq!(&key(format!("  {text} ").as_bytes()), &same);
        prop_assert_eq!(&key(quoted(&text).as_bytes()), &same);
        prop_assert_eq!(&key(format!("{};v={n}", quoted(&text)).as_bytes()), &same);
    }

    #[test]
    fn every_printable_text_can_be_a_header_key(text in "[ -~]{1,60}") {
        prop_assert_eq!(key(quoted(&text).as_bytes()), found(text.as_str()));
    }

    #[test]
    fn two_header_keys_are_two_identities(one in "[ -~]{1,4}", two in "[ -~]{1,4}") {
        prop_assume!(one != two);
        prop_assert_ne!(key(quoted(&one).as_bytes()), key(quoted(&two).as_bytes()));
    }

    #[test]
    fn all_spellings_of_a_json_string_are_one_identity(text in ".{1,40}", member in "[a-z]{1,8}") {
        let plain = serde_json::to_string(&text).unwrap();
        let pointer = format!("/{member}");
        let bodies = [
            format!("{{\"{member}\": {plain}}}"),
            format!("{{\"{member}\": {}}}", escaped(&text)),
            format!("\t{{\"{}\":{plain} , \"\": [{plain}]}}\r\n", member.to_uppercase() + "\":0,\"" + &member),
            format!("{{{}: {plain}}}", escaped(&member)),
        ];
        for body in bodies {
            prop_assert_eq!(at(&pointer, body), found(text.as_str()));
        }
    }

    #[test]
    fn an_integer_and_its_digits_are_one_identity(digits in "-?[1-9][0-9]{0,40}") {
        prop_assert_eq!(at("/id", format!("{{\"id\": {digits}}}")), found(digits.as_str()));
        prop_assert_eq!(at("/id", format!("{{\"id\": \"{digits}\"}}")), found(digits.as_str()));
    }

    #[test]
    fn two_json_identities_are_two(one in ".{1,3}", two in ".{1,3}", n in any::<u128>(), m in any::<u128>()) {
        let body = |value: &str| format!("{{\"id\": {value}}}");
        if one != two {
            prop_assert_ne!(at("/id", body(&escaped(&one))), at("/id", body(&escaped(&two))));
        }
        if n != m {
            prop_assert_ne!(at("/id", body(&n.to_string())), at("/id", body(&m.to_string())));
        }
    }

    #[test]
    fn one_reader_more_finds_the_same_and_what_it_could_not_settle_is_refused(
        members in vec((member_name(), member_value()), 0..6),
    ) {
        let member = |(name, value): &(&str, &str)| format!("\"{name}\": {value}");
        let text = format!("{{{}}}", members.iter().map(member).collect::<Vec<_>>().join(","));
        let document: serde_json::Value = serde_json::from_str(&text).unwrap();
        let named = members.iter().filter(|(name, _)| *name != "a").count();
        let expected = match (named, &document["id"]) {
            (0, _) => Some(Ok(None)),
            (1, serde_json::Value::String(text)) => Some(found(text.as_str())),
            (1, serde_json::Value::Number(n)) if n.is_i64() => Some(found(n.to_string())),
            _ => None,
        };
        match expected {
            Some(expected) => prop_assert_eq!(at("/id", text), expected),
            None => prop_assert!(at("/id", text).is_err()),
        }
    }
}
