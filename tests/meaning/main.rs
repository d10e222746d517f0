//! What counts as the same request when an identity comes again: fields and bodies by their meaning.

mod fields;
mod layer;
mod property;
mod spelling;

use bytes::Bytes;
use http::{HeaderMap, Request};
use tower_idempotency::{Field, FieldValue, Input, RefusalKind, json};

/// What a field means in this body; the detail of the refusal where it cannot be said.
fn meaning(field: &impl Field, body: impl Into<Vec<u8>>) -> Result<Option<FieldValue>, String> {
    meaning_in(field, HeaderMap::new(), body)
}

fn meaning_in(
    field: &impl Field,
    headers: HeaderMap,
    body: impl Into<Vec<u8>>,
) -> Result<Option<FieldValue>, String> {
    let (mut head, body) = Request::new(Bytes::from(body.into())).into_parts();
    head.headers = headers;
    field.value(&Input::new(&head, &body)).map_err(|refusal| {
        assert_eq!(refusal.kind(), RefusalKind::IdentityMalformed);
        let detail = refusal.detail().to_owned();
        assert!(detail.len() < 400, "{detail}");
        assert!(detail.bytes().all(|b| b == b' ' || b.is_ascii_graphic()), "{detail:?}");
        detail
    })
}

/// What a whole JSON body means.
#[track_caller]
fn json_meaning(body: &str) -> FieldValue {
    match meaning(&json(""), body) {
        Ok(Some(value)) => value,
        other => panic!("{body}: {other:?}"),
    }
}
