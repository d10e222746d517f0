//! Where an identity stands in a request, and what is refused as none.
//!
//! Cases with a number are those of the idempotency-key field and of notifications.

mod header;
mod json;
mod property;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request};
use tower_idempotency::{Input, RefusalKind, Source};

/// What a source makes of a request: the identity's bytes, nothing, or the refusal's detail.
type Read = Result<Option<Vec<u8>>, String>;

const KEY: HeaderName = HeaderName::from_static("idempotency-key");

fn read(source: &impl Source, headers: HeaderMap, body: impl Into<Bytes>) -> Read {
    let (mut head, body) = Request::new(body.into()).into_parts();
    head.headers = headers;
    match source.read(&Input::new(&head, &body)) {
        Ok(found) => Ok(found.map(|identity| identity.as_bytes().to_vec())),
        Err(refusal) => {
            assert_eq!(refusal.kind(), RefusalKind::IdentityMalformed);
            assert_eq!(refusal.status(), 400);
            let detail = refusal.detail().to_owned();
            assert!(detail.len() < 400, "{detail}");
            assert!(detail.bytes().all(|b| b == b' ' || b.is_ascii_graphic()), "{detail:?}");
            Err(detail)
        }
    }
}

/// These lines of the `Idempotency-Key` field.
fn lines(values: &[&[u8]]) -> HeaderMap {
    let value = |v: &&[u8]| HeaderValue::from_bytes(v).expect("what hyper lets through");
    values.iter().map(|v| (KEY, value(v))).collect()
}

fn found(identity: impl Into<Vec<u8>>) -> Read {
    Ok(Some(identity.into()))
}
