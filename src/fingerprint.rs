//! What must be equal when an identity comes again.

use bytes::Bytes;
use http::request::Parts;

use crate::record::{Fingerprint, Secret};

/// Method, path, query and body, hashed under the deployment's secret or a fixed context.
///
/// Headers are left out: a retry may come over another connection, through another proxy, with another
/// trace. So is the framing of the body.
pub(crate) fn whole_request(secret: Option<&Secret>, head: &Parts, body: &Bytes) -> Fingerprint {
    let mut hasher = match secret {
        Some(secret) => blake3::Hasher::new_keyed(secret.fingerprint_key()),
        None => blake3::Hasher::new_derive_key("tower-idempotency 2026-11 fingerprint"),
    };
    let query = head.uri.query();
    // A query that is empty and one that is absent are different requests to a handler.
    let fields = [head.method.as_str().as_bytes(), head.uri.path().as_bytes()];
    for field in fields {
        hasher.update(&(field.len() as u64).to_le_bytes());
        hasher.update(field);
    }
    match query {
        None => hasher.update(&[0]),
        Some(query) => {
            hasher.update(&[1]);
            hasher.update(&(query.len() as u64).to_le_bytes());
            hasher.update(query.as_bytes())
        }
    };
    hasher.update(body);
    Fingerprint::from_bytes(*hasher.finalize().as_bytes())
}
