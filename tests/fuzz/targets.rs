//! What is fuzzed: each function takes any bytes and must come back, without a panic and with what it
//! promises kept. It says whether the bytes were taken for what they should be.

#![allow(dead_code, unreachable_pub, reason = "each fuzzer uses one of them")]

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Request, request::Parts};
use tower_idempotency::{
    Field, Identity, Input, Source, each, form, header, json, query, test_util::recode, xml,
};

const KEY: HeaderName = HeaderName::from_static("idempotency-key");

fn found(source: &impl Source, head: &Parts, body: &Bytes) -> Option<Identity> {
    let read = source.read(&Input::new(head, body));
    if let Err(refusal) = &read {
        assert!(refusal.detail().bytes().all(|b| b == b' ' || b.is_ascii_graphic()));
    }
    read.ok().flatten()
}

fn in_body(source: &impl Source, body: &Bytes) -> Option<Identity> {
    found(source, &Request::new(()).into_parts().0, body)
}

/// The lines of the bytes as lines of the field.
pub fn header_field(data: &[u8]) -> bool {
    let mut head = Request::new(()).into_parts().0;
    for line in data.split(|byte| *byte == b'\n') {
        let Ok(value) = HeaderValue::from_bytes(line) else { return false };
        head.headers.append(KEY, value);
    }
    let nothing = Bytes::new();
    let lenient = found(&header(KEY), &head, &nothing);
    let strict = found(&header(KEY).strict(), &head, &nothing);
    if strict.is_some() {
        assert_eq!(strict, lenient, "what is strict is lenient too");
    }
    let _ = header(KEY).value(&Input::new(&head, &nothing));
    lenient.is_some()
}

/// The bytes as a JSON body: identities at several places, and its meaning.
pub fn json_body(data: &[u8]) -> bool {
    let body = Bytes::copy_from_slice(data);
    let id = in_body(&json("/id"), &body);
    let _ = in_body(&json("/items/0/id"), &body);
    let _ = in_body(&each("/items", json("/id")), &body);
    let _ = in_body(&each("", (json("/id"), json("/id"))), &body);
    let head = Request::new(()).into_parts().0;
    let meaning = |body: &Bytes| json("").value(&Input::new(&head, body));
    if let Ok(Some(value)) = meaning(&body) {
        // What is written canonically is JSON, and means itself.
        match meaning(&Bytes::copy_from_slice(value.as_bytes())) {
            Ok(again) => assert_eq!(again, Some(value)),
            Err(refusal) => assert!(refusal.detail().contains("exponent"), "{}", refusal.detail()),
        }
    }
    id.is_some()
}

/// The bytes as a form.
pub fn form_body(data: &[u8]) -> bool {
    let body = Bytes::copy_from_slice(data);
    let id = in_body(&form("id"), &body);
    if let Some(id) = &id {
        // Each byte of what was found, escaped, is the same again.
        let escaped: String = id.as_bytes().iter().map(|byte| format!("%{byte:02X}")).collect();
        assert_eq!(in_body(&form("id"), &format!("id={escaped}").into()).as_ref(), Some(id));
        let request = Request::post(format!("/?id={escaped}")).body(());
        // A URI may be too long.
        if let Ok(request) = request {
            let head = request.into_parts().0;
            assert_eq!(found(&query("id"), &head, &Bytes::new()).as_ref(), Some(id));
        }
    }
    id.is_some()
}

/// The bytes as an XML body.
pub fn xml_body(data: &[u8]) -> bool {
    let body = Bytes::copy_from_slice(data);
    let _ = in_body(&xml("/a/a/a"), &body);
    let id = in_body(&xml("/xml/id"), &body);
    if let Some(id) = &id {
        // What stands around the element does not matter; in what is not UTF-8 a reference to another
        // character than ASCII is refused.
        let with = |tail: &[u8]| in_body(&xml("/xml/id"), &[&body, tail].concat().into());
        assert_eq!(with(b"<!-- . -->\n").as_ref(), Some(id));
        let not_utf8 = with(b"<!-- \xff -->\n");
        assert!(not_utf8.is_none() || not_utf8.as_ref() == Some(id));
    }
    id.is_some()
}

/// The bytes as a stored answer.
pub fn answer_codec(data: &[u8]) -> bool {
    let Some(stored) = recode(data) else { return false };
    assert_eq!(recode(&stored), Some(stored.clone()), "what was stored is read as it was written");
    true
}
