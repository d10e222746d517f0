//! What must be equal when an identity comes again.

mod canonical;
mod field;
mod fields;
mod rest;

use std::{
    fmt,
    sync::{Arc, LazyLock},
};

use blake3::hazmat::{ContextKey, HasherExt, hash_derive_key_context};
use bytes::Bytes;
use http::request::Parts;

pub use field::{Field, FieldValue};
pub use rest::BodyPart;
pub(crate) use rest::Rest;

use crate::{
    identity::Input,
    record::{FieldDigest, Fingerprint, Secret},
    refusal::Refusal,
};

/// Hashed once: it is half of what a hash of a small request takes.
static CONTEXT: LazyLock<ContextKey> =
    LazyLock::new(|| hash_derive_key_context("tower-idempotency 2026-11 fingerprint"));

/// What a policy compares.
#[derive(Clone, Debug)]
pub(crate) enum Compared {
    /// Nothing.
    Nothing,
    /// Method, path, query and body bytes.
    WholeRequest,
    /// These fields, by their meaning.
    Fields(Vec<AnyField>),
    /// Method, path, query, and the body by its meaning, but for parts of it.
    Rest(Rest),
}

/// A field as a policy holds it.
#[derive(Clone)]
pub(crate) struct AnyField(Arc<dyn Field>);

impl AnyField {
    pub(crate) fn new(field: impl Field) -> Self {
        Self(Arc::new(field))
    }

    pub(crate) fn name(&self) -> String {
        self.0.name()
    }
}

#[cfg(feature = "serde")]
impl Field for AnyField {
    fn value(&self, from: &Input<'_>) -> Result<Option<FieldValue>, Refusal> {
        self.0.value(from)
    }

    fn name(&self) -> String {
        self.0.name()
    }

    fn fits_pattern(&self, pattern: Option<&str>) -> Result<(), String> {
        self.0.fits_pattern(pattern)
    }
}

impl Compared {
    /// Why this cannot be compared, and the mend.
    pub(crate) fn wrong(&self) -> Option<String> {
        match self {
            Self::Nothing | Self::WholeRequest => None,
            Self::Fields(fields) if fields.is_empty() => Some(
                "compare(..) names nothing, so that nothing would be compared; name a field, or \
                 write .no_fingerprint()"
                    .to_owned(),
            ),
            Self::Fields(_) => None,
            Self::Rest(rest) => rest.wrong(),
        }
    }

    /// Whether it can be read where the rule has this path pattern.
    pub(crate) fn fits_pattern(&self, pattern: Option<&str>) -> Result<(), String> {
        match self {
            Self::Nothing | Self::WholeRequest | Self::Rest(_) => Ok(()),
            Self::Fields(fields) => {
                fields.iter().try_for_each(|field| field.0.fits_pattern(pattern))
            }
        }
    }
}

impl fmt::Debug for AnyField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}

/// What a request has of what is compared.
#[derive(Clone, Debug, Default)]
pub(crate) struct Print {
    pub(crate) whole: Option<Fingerprint>,
    /// One for each field, in the policy's order; empty where no fields are compared.
    pub(crate) fields: Vec<FieldDigest>,
}

impl Compared {
    pub(crate) fn print(
        &self,
        secret: Option<&Secret>,
        from: &Input<'_>,
    ) -> Result<Print, Refusal> {
        match self {
            Self::Nothing => Ok(Print::default()),
            Self::WholeRequest => Ok(Print {
                whole: Some(whole_request(secret, from.head(), from.sent())),
                fields: Vec::new(),
            }),
            Self::Fields(fields) => print_fields(secret, fields, from),
            Self::Rest(rest) => {
                let mut hasher = hasher(secret);
                hasher.update(b"rest");
                add_target(&mut hasher, from.head());
                hasher.update(rest.meaning(from)?.as_bytes());
                Ok(Print { whole: Some(finish(&hasher)), fields: Vec::new() })
            }
        }
    }

    /// The names of what is compared, for messages.
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Nothing => "nothing".to_owned(),
            Self::WholeRequest => "method, path, query and body".to_owned(),
            Self::Fields(fields) => {
                fields.iter().map(AnyField::name).collect::<Vec<_>>().join(", ")
            }
            Self::Rest(rest) => rest.describe(),
        }
    }

    /// The names of the fields whose digests differ; `None` where they are not known.
    pub(crate) fn differing(
        &self,
        now: &[FieldDigest],
        then: &[FieldDigest],
    ) -> Option<Vec<String>> {
        let Self::Fields(fields) = self else { return None };
        // A policy that compared other fields then says nothing about these.
        if now.len() != fields.len() || then.len() != fields.len() {
            return None;
        }
        let pairs = fields.iter().zip(now.iter().zip(then));
        Some(pairs.filter(|(_, (now, then))| now != then).map(|(field, _)| field.name()).collect())
    }
}

/// The fields' values, each with its length, hashed together and each alone. A field that is absent
/// hashes as absent: leaving one out is a difference.
fn print_fields(
    secret: Option<&Secret>,
    fields: &[AnyField],
    from: &Input<'_>,
) -> Result<Print, Refusal> {
    let mut whole = hasher(secret);
    whole.update(b"fields");
    let mut digests = Vec::with_capacity(fields.len());
    for field in fields {
        let value = field.0.value(from)?;
        let mut alone = hasher(secret);
        alone.update(b"field");
        add_value(&mut whole, value.as_ref());
        add_value(&mut alone, value.as_ref());
        let mut digest = FieldDigest::default();
        let alone = alone.finalize();
        digest.copy_from_slice(&alone.as_bytes()[..size_of::<FieldDigest>()]);
        digests.push(digest);
    }
    Ok(Print { whole: Some(finish(&whole)), fields: digests })
}

/// The fingerprint of a request whose fields have these values.
pub(crate) fn of_values(secret: Option<&Secret>, values: &[Option<FieldValue>]) -> Fingerprint {
    let mut whole = hasher(secret);
    whole.update(b"fields");
    for value in values {
        add_value(&mut whole, value.as_ref());
    }
    finish(&whole)
}

fn add_value(hasher: &mut blake3::Hasher, value: Option<&FieldValue>) {
    match value {
        None => hasher.update(&[0]),
        Some(value) => {
            hasher.update(&[1]).update(&length(value.as_bytes())).update(value.as_bytes())
        }
    };
}

/// Method, path, query and body, hashed under the deployment's secret or a fixed context.
///
/// Headers are left out: a retry may come over another connection, through another proxy, with another
/// trace. So is the framing of the body.
fn whole_request(secret: Option<&Secret>, head: &Parts, body: &Bytes) -> Fingerprint {
    let mut hasher = hasher(secret);
    add_target(&mut hasher, head);
    hasher.update(body);
    finish(&hasher)
}

/// What a job is told must be the same.
pub(crate) fn of_job(secret: Option<&Secret>, compared: &[u8]) -> Fingerprint {
    let mut hasher = hasher(secret);
    hasher.update(b"job").update(compared);
    finish(&hasher)
}

fn add_target(hasher: &mut blake3::Hasher, head: &Parts) {
    for field in [head.method.as_str().as_bytes(), head.uri.path().as_bytes()] {
        hasher.update(&length(field)).update(field);
    }
    // A query that is empty and one that is absent are different requests to a handler.
    match head.uri.query() {
        None => hasher.update(&[0]),
        Some(query) => {
            hasher.update(&[1]).update(&length(query.as_bytes())).update(query.as_bytes())
        }
    };
}

fn finish(hasher: &blake3::Hasher) -> Fingerprint {
    Fingerprint::from_bytes(*hasher.finalize().as_bytes())
}

fn hasher(secret: Option<&Secret>) -> blake3::Hasher {
    match secret {
        Some(secret) => blake3::Hasher::new_keyed(secret.fingerprint_key()),
        None => blake3::Hasher::new_from_context_key(&CONTEXT),
    }
}

fn length(bytes: &[u8]) -> [u8; 8] {
    (bytes.len() as u64).to_le_bytes()
}
