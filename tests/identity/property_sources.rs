//! What holds for every form, query, path, XML body and composite: no panics, one identity for all
//! spellings, no two for one.

use bytes::Bytes;
use http::{HeaderMap, Request};
use proptest::{collection::vec, prelude::*};
use tower_idempotency::{each, form, json, path, query, xml};

use crate::{Read, found, read, read_request};

fn in_form(body: impl Into<Vec<u8>>) -> Read {
    read(&form("id"), HeaderMap::new(), body.into())
}

fn in_xml(body: impl Into<Vec<u8>>) -> Read {
    read(&xml("/x/id"), HeaderMap::new(), body.into())
}

fn at(uri: &str) -> Request<Bytes> {
    Request::post(uri).body(Bytes::new()).unwrap()
}

/// Each byte escaped, or, where it may stand as it is, as it is.
fn spelled(bytes: &[u8], escape: &[bool]) -> String {
    let mut escape = escape.iter().cycle();
    let mut out = String::new();
    for byte in bytes {
        if byte.is_ascii_alphanumeric() && !*escape.next().unwrap() {
            out.push(char::from(*byte));
        } else {
            out.push_str(&format!("%{byte:02x}"));
        }
    }
    out
}

fn spelling() -> impl Strategy<Value = Vec<bool>> {
    vec(any::<bool>(), 1..9)
}

/// Text as CDATA, as references, or as it is, piece by piece.
fn as_xml(text: &str, ways: &[u8]) -> String {
    let mut ways = ways.iter().cycle();
    let piece = |character: char| match *ways.next().unwrap() % 4 {
        0 if !matches!(character, '<' | '&' | '>') => character.to_string(),
        1 => format!("<![CDATA[{character}]]>"),
        2 => format!("<!-- - -->&#{};", character as u32),
        _ => format!("&#x{:X};", character as u32),
    };
    text.chars().map(piece).collect()
}

fn almost_xml() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "<x>",
        "</x>",
        "<id>",
        "</id>",
        "<id/>",
        "<x",
        ">",
        "<",
        "&",
        ";",
        "&amp;",
        "&#65;",
        "&#xD800;",
        "<![CDATA[",
        "]]>",
        "<!--",
        "-->",
        "<?xml ",
        "encoding=\"gbk\"",
        "?>",
        "<!DOCTYPE x>",
        "\0",
        "T",
        "\u{e9}",
        " ",
        "\"",
        "=",
    ]);
    vec(piece, 0..24).prop_map(|pieces| pieces.concat())
}

fn almost_form() -> impl Strategy<Value = String> {
    let piece =
        prop::sample::select(vec!["id", "=", "&", "%", "%69", "%6", "+", "a", "\u{e9}", "["]);
    vec(piece, 0..24).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn no_body_makes_the_form_and_xml_sources_panic(
        bytes in vec(any::<u8>(), 0..200),
        form in almost_form(),
        xml in almost_xml(),
        wrong in any::<u8>(),
    ) {
        for body in [bytes, form.into_bytes(), xml.into_bytes()] {
            let _ = in_form(body.clone());
            let _ = in_xml(body.clone());
            let mut not_utf8 = body;
            not_utf8.push(wrong | 0x80);
            let _ = in_xml(not_utf8);
        }
    }

    #[test]
    fn no_path_or_query_makes_their_sources_panic(text in "[!-~&&[^#?]]{0,40}", q in "[!-~&&[^#]]{0,40}") {
        if let Ok(request) = Request::post(format!("/{text}?{q}")).body(Bytes::new()) {
            let _ = read_request(&query("id"), request.clone(), None);
            for pattern in ["/{id}", "/{id}/{b}", "/{*id}", "/x{id", "/{{id}}", "{id}", ""] {
                let _ = read_request(&path("id"), request.clone(), Some(pattern));
            }
        }
    }

    #[test]
    fn all_spellings_of_a_value_are_one_identity(
        value in vec(any::<u8>(), 1..40),
        one in spelling(),
        other in spelling(),
    ) {
        let (one, other) = (spelled(&value, &one), spelled(&value, &other));
        for spelling in [&one, &other] {
            prop_assert_eq!(in_form(format!("a=1&id={spelling}&b")), found(value.clone()));
            prop_assert_eq!(in_form(format!("%69d={spelling}")), found(value.clone()));
            let in_query = read_request(&query("id"), at(&format!("/?id={spelling}")), None);
            prop_assert_eq!(in_query, found(value.clone()));
            let in_path = read_request(&path("id"), at(&format!("/o/{spelling}/x")), Some("/o/{id}/x"));
            prop_assert_eq!(in_path, found(value.clone()));
        }
    }

    #[test]
    fn all_spellings_of_an_element_are_one_identity(text in "[ -~\u{e9}\u{4e2d}]{1,20}", ways in vec(any::<u8>(), 1..9)) {
        let body = format!("<x><a/><id>{}</id></x>", as_xml(&text, &ways));
        prop_assert_eq!(in_xml(body), found(text));
    }

    #[test]
    fn two_values_are_two_identities(one in vec(any::<u8>(), 1..4), two in vec(any::<u8>(), 1..4)) {
        prop_assume!(one != two);
        let of = |value: &[u8]| in_form(format!("id={}", spelled(value, &[false])));
        prop_assert_ne!(of(&one), of(&two));
    }

    #[test]
    fn two_lists_of_parts_are_two_identities(
        one in (r"[a,\\]{1,4}", r"[a,\\]{1,4}", r"[a,\\]{1,4}"),
        two in (r"[a,\\]{1,4}", r"[a,\\]{1,4}", r"[a,\\]{1,4}"),
    ) {
        prop_assume!(one != two);
        let of = |parts: &(String, String, String)| {
            let body = serde_json::json!({ "a": parts.0, "b": parts.1, "c": parts.2 });
            read(&(json("/a"), json("/b"), json("/c")), HeaderMap::new(), body.to_string())
        };
        prop_assert!(of(&one).is_ok());
        prop_assert_ne!(of(&one), of(&two));
    }

    #[test]
    fn two_batches_are_two_identities(
        one in vec(r"[a,\\]{1,4}", 1..5),
        two in vec(r"[a,\\]{1,4}", 1..5),
        long in prop::sample::select(vec![0_usize, 300]),
    ) {
        prop_assume!(one != two);
        let of = |ids: &[String]| {
            let ids: Vec<String> = ids.iter().cloned().chain(["b".repeat(long + 1)]).collect();
            read(&each("", json("")), HeaderMap::new(), serde_json::json!(ids).to_string())
        };
        prop_assert!(of(&one).is_ok());
        prop_assert_ne!(of(&one), of(&two));
    }
}
