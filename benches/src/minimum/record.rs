//! An answer as one binary string, read without copying: status, headers, body.

use axum::body::Body;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::{HeaderName, HeaderValue, Response, StatusCode, response::Parts};

/// What a record begins with; what does not is the token of a claim.
pub(super) const ANSWER: u8 = b'A';

pub(super) fn encode(head: &Parts, body: &Bytes) -> Bytes {
    let headers: usize =
        head.headers.iter().map(|(name, value)| 6 + name.as_str().len() + value.len()).sum();
    let mut out = BytesMut::with_capacity(5 + headers + body.len());
    out.put_u8(ANSWER);
    out.put_u16(head.status.as_u16());
    out.put_u16(head.headers.len() as u16);
    for (name, value) in &head.headers {
        out.put_u16(name.as_str().len() as u16);
        out.put_slice(name.as_str().as_bytes());
        out.put_u32(value.len() as u32);
        out.put_slice(value.as_bytes());
    }
    out.put_slice(body);
    out.freeze()
}

pub(super) fn replay(mut answer: Bytes) -> Response<Body> {
    const OURS: &str = "the bench reads what the bench has written";
    answer.advance(1);
    let status = StatusCode::from_u16(answer.get_u16()).expect(OURS);
    let count = answer.get_u16() as usize;
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    response.headers_mut().reserve(count + 1);
    for _ in 0..count {
        let length = answer.get_u16() as usize;
        let name = HeaderName::from_bytes(&answer.split_to(length)).expect(OURS);
        let length = answer.get_u32() as usize;
        let value = HeaderValue::from_maybe_shared(answer.split_to(length)).expect(OURS);
        response.headers_mut().append(name, value);
    }
    let replayed = HeaderName::from_static("idempotent-replayed");
    response.headers_mut().insert(replayed, HeaderValue::from_static("true"));
    *response.body_mut() = Body::from(answer);
    response
}
