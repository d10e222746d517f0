//! Names of records: keyed hashes over scope, kind and identity, so that they are bounded, printable,
//! and cannot be steered by what a caller sends.

use std::{fmt, sync::LazyLock};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use blake3::{
    Hasher,
    hazmat::{ContextKey, HasherExt, hash_derive_key_context},
};

/// Changing this context would make every stored record invisible.
const KEY_CONTEXT: &str = "tower-idempotency 2026-11 record key";
/// Hashed once: it is half of what a key takes.
static HASHED_KEY_CONTEXT: LazyLock<ContextKey> =
    LazyLock::new(|| hash_derive_key_context(KEY_CONTEXT));
const SECRET_ID_CONTEXT: &str = "tower-idempotency 2026-11 secret id";
const DOWNSTREAM_CONTEXT: &str = "tower-idempotency 2026-11 downstream key";

/// The name of one record in a store: 32 bytes that say nothing about who or what they stand for.
///
/// It is derived from the rule's name, the scope, the kind of identity and the identity itself, each
/// with its length in front, so that no two different combinations share a name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RecordKey([u8; 32]);

impl RecordKey {
    /// A key of these bytes. The layer derives its own; this is for stores and their tests.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The bytes of the key.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The first eight bytes as 16 hexadecimal digits: enough to find a request in a log, and safe
    /// to write there.
    pub fn digest(&self) -> String {
        self.0[..8].iter().map(|byte| format!("{byte:02x}")).collect()
    }

    pub(crate) fn derive(secret: Option<&Secret>, scope: &[&[u8]], kind: Kind, id: &[u8]) -> Self {
        let material = material(scope, kind, id);
        let hash = match secret {
            Some(secret) => blake3::keyed_hash(&secret.record_key, &material),
            None => Hasher::new_from_context_key(&HASHED_KEY_CONTEXT).update(&material).finalize(),
        };
        Self(*hash.as_bytes())
    }
}

impl fmt::Display for RecordKey {
    /// Writes the key in base64url without padding: 43 characters.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&URL_SAFE_NO_PAD.encode(self.0))
    }
}

impl fmt::Debug for RecordKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RecordKey({self})")
    }
}

/// What an identity is: equal texts of different kinds are different identities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// An id of one delivery or request: `Idempotency-Key`, `notifyId`.
    Delivery,
    /// What the delivery is about, whatever its id: an order and an event.
    Business,
    /// The key of work that is no request.
    Job,
}

/// A secret of the deployment that makes record keys and fingerprints unguessable.
#[derive(Clone)]
pub(crate) struct Secret {
    record_key: [u8; 32],
    fingerprint: [u8; 32],
    id: [u8; 8],
}

impl Secret {
    pub(crate) fn new(secret: &[u8; 32]) -> Self {
        let mut id = [0; 8];
        id.copy_from_slice(&blake3::derive_key(SECRET_ID_CONTEXT, secret)[..8]);
        // Two uses, two keys: a fingerprint can then never be read as a record's name.
        Self {
            id,
            record_key: blake3::derive_key(KEY_CONTEXT, secret),
            fingerprint: blake3::derive_key("tower-idempotency 2026-11 fingerprint", secret),
        }
    }

    /// What tells it from other secrets, and says nothing of what it is.
    pub(crate) fn id(&self) -> [u8; 8] {
        self.id
    }

    pub(crate) fn fingerprint_key(&self) -> &[u8; 32] {
        &self.fingerprint
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// A UUID for one step of an operation: the same on every attempt, in every process, under every secret.
pub(crate) fn downstream_id(scope: &[&[u8]], kind: Kind, id: &[u8], step: &str) -> String {
    let mut material = material(scope, kind, id);
    part(&mut material, step.as_bytes());
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&blake3::derive_key(DOWNSTREAM_CONTEXT, &material)[..16]);
    // RFC 9562, section 5.8: custom.
    uuid(bytes, 8)
}

/// These bytes as a UUID of this version, RFC 9562.
pub(crate) fn uuid(mut bytes: [u8; 16], version: u8) -> String {
    bytes[6] = (bytes[6] & 0x0f) | (version << 4);
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    let n = u128::from_be_bytes(bytes);
    format!(
        "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
        n >> 96,
        (n >> 80) & 0xffff,
        (n >> 64) & 0xffff,
        (n >> 48) & 0xffff,
        n & 0xffff_ffff_ffff
    )
}

/// What is hashed, in one piece: hashing it piece by piece takes longer than the hash itself.
fn material(scope: &[&[u8]], kind: Kind, id: &[u8]) -> Vec<u8> {
    let kind: &[u8] = match kind {
        Kind::Delivery => b"delivery",
        Kind::Business => b"business",
        Kind::Job => b"job",
    };
    // Most have room.
    let mut material = Vec::with_capacity(256);
    material.extend_from_slice(&(scope.len() as u64).to_le_bytes());
    for bytes in scope {
        part(&mut material, bytes);
    }
    part(&mut material, kind);
    part(&mut material, id);
    material
}

/// Length first, so that `a` + `bc` and `ab` + `c` differ.
fn part(material: &mut Vec<u8>, bytes: &[u8]) {
    material.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
    material.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(scope: &[&[u8]], id: &str) -> RecordKey {
        RecordKey::derive(None, scope, Kind::Delivery, id.as_bytes())
    }

    #[test]
    fn no_two_ways_of_cutting_the_same_bytes_share_a_key() {
        assert_ne!(key(&[b"u:1"], "2"), key(&[b"u"], "1:2"));
        assert_ne!(key(&[b"a", b"b"], "c"), key(&[b"a"], "bc"));
        assert_ne!(key(&[b"a", b""], "c"), key(&[b"a"], "c"));
        assert_eq!(key(&[b"a"], "c"), key(&[b"a"], "c"));
    }

    #[test]
    fn a_secret_changes_every_key() {
        let secret = Secret::new(&[7; 32]);
        let hidden = RecordKey::derive(Some(&secret), &[b"a"], Kind::Delivery, b"c");
        assert_ne!(hidden, key(&[b"a"], "c"));
    }

    /// A key that changes is a record that is not found, and a run that comes again.
    #[test]
    fn keys_are_the_same_in_every_build() {
        let open = key(&[b"fulfil", b""], "n-1");
        assert_eq!(open.to_string(), "TPBpkrRmnD3JErFWq3C5PS3ZbNRCwy8oNr17Thm0Q8w");
        assert_eq!(open.digest(), "4cf06992b4669c3d");
        let secret = Secret::new(&[7; 32]);
        let hidden = RecordKey::derive(Some(&secret), &[b"fulfil", b""], Kind::Delivery, b"n-1");
        assert_eq!(hidden.to_string(), "1YVxcD19dZDwNLhkAKztV-jLN87P_trx8XlKF9mreGY");
        let downstream = downstream_id(&[b"fulfil", b""], Kind::Delivery, b"n-1", "charge");
        assert_eq!(downstream, "ca052ab9-9e37-80e0-8f56-2d27f589f9ef");
    }

    #[test]
    fn downstream_ids_are_uuids_that_differ_by_step() {
        let id = |step| downstream_id(&[b"fulfil"], Kind::Delivery, b"n-1", step);
        assert_eq!(id("charge").len(), 36);
        assert_eq!(&id("charge")[14..15], "8");
        assert_eq!(id("charge"), id("charge"));
        assert_ne!(id("charge"), id("refund"));
    }
}
