//! Where an identity stands in a request, and what is refused as none.
//!
//! Cases with a number are those of the idempotency-key field and of notifications.

mod composite;
mod each;
mod extension;
mod form;
mod header;
mod json;
mod path;
mod property;
mod property_sources;
mod query;
mod xml;

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request};
use tower_idempotency::{Input, RefusalKind, Source};

/// What a source makes of a request: the identity's bytes, nothing, or the refusal's detail.
type Read = Result<Option<Vec<u8>>, String>;

const KEY: HeaderName = HeaderName::from_static("idempotency-key");

fn read(source: &impl Source, headers: HeaderMap, body: impl Into<Bytes>) -> Read {
    let mut request = Request::new(body.into());
    *request.headers_mut() = headers;
    read_request(source, request, None)
}

/// What a source makes of this request, for a rule with this pattern.
fn read_request(source: &impl Source, request: Request<Bytes>, pattern: Option<&str>) -> Read {
    let (head, body) = request.into_parts();
    let mut from = Input::new(&head, &body);
    if let Some(pattern) = pattern {
        from = from.matched_by(pattern);
    }
    match source.read(&from) {
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

/// Whether the work was done in a time that does not depend on how hostile the input is. The machine
/// may be busy, so the bound is generous: what is quadratic takes minutes.
#[track_caller]
fn in_bounded_time<T>(work: impl FnOnce() -> T) -> T {
    let started = Instant::now();
    let made = work();
    assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
    made
}

/// These lines of the `Idempotency-Key` field.
fn lines(values: &[&[u8]]) -> HeaderMap {
    let value = |v: &&[u8]| HeaderValue::from_bytes(v).expect("what hyper lets through");
    values.iter().map(|v| (KEY, value(v))).collect()
}

fn found(identity: impl Into<Vec<u8>>) -> Read {
    Ok(Some(identity.into()))
}
