//! Bodies with several notifications: one identity made of all, and never silently the first.

use http::HeaderMap;
use tower_idempotency::{Each, Json, Source, each, header, json};

use crate::{Read, found, in_bounded_time, read};

fn adyen() -> Each<(Json, Json)> {
    each(
        "/notificationItems",
        (json("/NotificationRequestItem/pspReference"), json("/NotificationRequestItem/eventCode")),
    )
}

fn item(reference: &str, code: &str) -> String {
    format!(
        r#"{{"NotificationRequestItem":{{"eventCode":"{code}","pspReference":"{reference}"}}}}"#
    )
}

fn items(items: &[String]) -> Read {
    let body = format!(r#"{{"live": "false", "notificationItems": [{}]}}"#, items.join(" , "));
    read(&adyen(), HeaderMap::new(), body)
}

fn ids(body: impl Into<Vec<u8>>) -> Read {
    read(&each("", json("/id")), HeaderMap::new(), body.into())
}

#[test]
fn all_items_are_one_identity_in_their_order() {
    let (one, two) = (item("A1", "CAPTURE"), item("B2", "REFUND"));
    assert_eq!(items(std::slice::from_ref(&one)), found("A1\\,CAPTURE"));
    assert_eq!(items(&[one.clone(), two.clone()]), found("A1\\,CAPTURE,B2\\,REFUND"));
    assert_eq!(items(&[two, one]), found("B2\\,REFUND,A1\\,CAPTURE"));
    assert_eq!(ids(r#"[{"id": 1}, {"id": 2}]"#), found("1,2"));
    assert_eq!(ids(r#"[{"id": "1,2"}]"#), found("1\\,2"));
    assert_eq!(
        read(&each("/a/0", json("")), HeaderMap::new(), r#"{"a": [["x", 7]]}"#),
        found("x,7")
    );
}

#[test]
fn what_is_too_long_is_hashed_and_still_made_of_all() {
    let many = |last: &str| {
        let all: Vec<String> =
            (0..50).map(|n| format!("EVENT-{n}")).chain([last.to_owned()]).collect();
        items(&all.iter().map(|id| item(id, "CAPTURE")).collect::<Vec<_>>())
    };
    let hashed = many("x").unwrap().unwrap();
    assert_eq!(hashed.len(), "\\blake3:".len() + 64);
    assert!(hashed.starts_with(b"\\blake3:"));
    assert_eq!(many("x"), found(hashed.clone()));
    assert_ne!(many("y"), found(hashed.clone()));
    // Nobody can send one item whose identity it is.
    let text = String::from_utf8(hashed.clone()).unwrap();
    assert_ne!(ids(serde_json::json!([{ "id": text }]).to_string()), found(hashed));
    // 255 bytes are not hashed, 256 are.
    let of =
        |length: usize| ids(format!(r#"[{{"id": "a"}}, {{"id": "{}"}}]"#, "b".repeat(length - 2)));
    assert_eq!(of(255).unwrap().unwrap().len(), 255);
    assert_eq!(of(256).unwrap().unwrap().len(), 72);
}

#[test]
fn the_place_where_a_hash_begins_does_not_matter_to_what_is_hashed() {
    // The same text with its parts cut elsewhere is other items.
    let of = |ids: &[String]| {
        let all: Vec<String> = ids.iter().map(|id| format!(r#"{{"id": "{id}"}}"#)).collect();
        self::ids(format!("[{}]", all.join(","))).unwrap().unwrap()
    };
    let (long, short) = ("a".repeat(300), "b".to_owned());
    let one = of(&[long.clone(), short.clone()]);
    assert_ne!(one, of(&[format!("{long},{short}")]));
    assert_ne!(one, of(&[short, long]));
}

#[test]
fn a_body_without_items_is_refused_or_absent() {
    assert_eq!(read(&adyen(), HeaderMap::new(), r#"{"live": "false"}"#), Ok(None));
    let refused = items(&[]).unwrap_err();
    assert!(refused.contains("JSON field /notificationItems is an empty array"), "{refused}");
    for (body, wrong) in [
        ("{}", "the document is an object; it must be an array"),
        ("null", "the document is null"),
        ("7", "the document is a number"),
        ("[]", "the JSON document is an empty array"),
        ("", "it is empty"),
        ("[{\"id\": 1}", "no JSON document"),
        ("[{\"id\": 1}] [{\"id\": 2}]", "no JSON document"),
    ] {
        let refused = ids(body).unwrap_err();
        assert!(refused.contains(wrong), "{refused}");
    }
}

#[test]
fn an_item_without_identity_is_refused_and_named() {
    for (second, wrong) in [
        ("{}", "item 1 of the JSON document: JSON field /id is missing"),
        (r#"{"id": ""}"#, "item 1 of the JSON document: JSON field /id is empty"),
        (r#"{"id": null}"#, "item 1 of the JSON document: in the JSON body, /id is null"),
        (r#"{"id": 1, "id": 2}"#, "/id is there twice"),
        ("7", "the document is a number"),
        ("[]", "the document is an array"),
    ] {
        let refused = ids(format!(r#"[{{"id": 1}}, {second}]"#)).unwrap_err();
        assert!(refused.contains(wrong), "{refused}");
    }
    let refused = items(&[
        item("A1", "CAPTURE"),
        r#"{"NotificationRequestItem": {"pspReference": "B"}}"#.into(),
    ]);
    let refused = refused.unwrap_err();
    assert!(refused.contains("item 1 of JSON field /notificationItems"), "{refused}");
    assert!(refused.contains("/NotificationRequestItem/eventCode is missing"), "{refused}");
}

#[test]
fn hostile_batches_take_bounded_time() {
    in_bounded_time(|| {
        let many = |item: &str, n: usize| format!("[{}{item}]", format!("{item},").repeat(n));
        assert!(ids(many("[]", 3 << 20)).is_err());
        assert_eq!(ids(many(r#"{"id":7}"#, 1 << 18)).unwrap().unwrap().len(), 72);
        assert!(ids("[".repeat(10 << 20)).is_err());
        assert!(ids(format!("{}{}", "[".repeat(5 << 20), "]".repeat(5 << 20))).is_err());
    });
}

#[test]
fn what_reads_the_body_says_so() {
    assert!(each("/items", header("A")).reads_body());
    assert_eq!(
        each("/items", json("/id")).describe(),
        "JSON field /id of each item of JSON field /items"
    );
}
