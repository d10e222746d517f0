//! The fingerprint of a one-time token: half of it says whose it is, half of it what must match.

use crate::record::{Fingerprint, OneTimeToken, Secret};

const CONTEXT: &str = "tower-idempotency 2026-11 one-time token";
const CALLER_CONTEXT: &str = "tower-idempotency 2026-11 caller of a one-time token";

/// The first half: the token and its caller. No caller is another than one with an empty name.
fn whose(secret: Option<&Secret>, token: &OneTimeToken, caller: Option<&[u8]>) -> [u8; 16] {
    let mut hasher = match secret {
        Some(secret) => blake3::Hasher::new_keyed(secret.fingerprint_key()),
        None => blake3::Hasher::new_derive_key(CONTEXT),
    };
    // Under a secret it shares its key with the fingerprints of requests, which begin otherwise.
    hasher.update(CONTEXT.as_bytes()).update(token.as_bytes());
    match caller {
        None => hasher.update(&[0]),
        Some(caller) => hasher.update(&[1]).update(caller),
    };
    first_half(hasher.finalize().as_bytes())
}

/// The fingerprint of a request that brings a token and has these things to match.
pub(crate) fn of_claim(
    secret: Option<&Secret>,
    token: &OneTimeToken,
    caller: Option<&[u8]>,
    matches: Option<Fingerprint>,
) -> Fingerprint {
    let what = matches.map_or([0; 16], |print| first_half(print.as_bytes()));
    Fingerprint::of_halves(whose(secret, token, caller), what)
}

/// Whose the token is, whichever token it is, for rows that outlive it.
pub(crate) fn of_caller(secret: Option<&Secret>, caller: &[u8]) -> [u8; 16] {
    let mut hasher = match secret {
        Some(secret) => blake3::Hasher::new_keyed(secret.fingerprint_key()),
        None => blake3::Hasher::new_derive_key(CALLER_CONTEXT),
    };
    hasher.update(CALLER_CONTEXT.as_bytes()).update(caller);
    first_half(hasher.finalize().as_bytes())
}

fn first_half(hash: &[u8; 32]) -> [u8; 16] {
    let mut half = [0; 16];
    half.copy_from_slice(&hash[..16]);
    half
}
