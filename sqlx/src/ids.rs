//! What identifies a row: the plain identity under an explicit scope.

use tower_idempotency::{Abandoned, IDENTITY_BYTES_AT_MOST, Operation};

use crate::error::{Error, Kind};

const RULE_BYTES_AT_MOST: usize = 255;
const SCOPE_BYTES_AT_MOST: usize = 1024;

/// Deliberately no hash, and nothing that a secret goes into: a new secret must not make rows
/// invisible.
#[derive(Clone, Copy, Debug)]
pub struct Ids<'a> {
    pub rule: &'a [u8],
    pub scope: &'a [u8],
    /// The identity of the operation, where it is not the delivery id itself.
    pub business_key: Option<&'a [u8]>,
    pub delivery_id: &'a [u8],
}

impl<'a> Ids<'a> {
    pub(crate) fn of(rule: Option<&'a str>, operation: &'a Operation) -> Result<Self, Error> {
        let (business_key, delivery_id) = match operation.delivery_id_bytes() {
            Some(delivery_id) => (Some(operation.key_bytes()), delivery_id),
            None => (None, operation.key_bytes()),
        };
        let rule = rule.unwrap_or_else(|| operation.rule()).as_bytes();
        Self { rule, scope: operation.scope_bytes(), business_key, delivery_id }.checked()
    }

    /// The same of an abandoned operation, whose identities are only known as texts.
    pub(crate) fn of_abandoned(
        rule: Option<&'a str>,
        abandoned: &'a Abandoned,
    ) -> Result<Self, Error> {
        let (business_key, delivery_id) = match &abandoned.delivery_id {
            Some(delivery_id) => (Some(abandoned.key.as_str()), delivery_id.as_str()),
            None => (None, abandoned.key.as_str()),
        };
        let texts = [Some(abandoned.scope.as_str()), business_key, Some(delivery_id)];
        if texts.into_iter().flatten().any(|text| text.contains(char::REPLACEMENT_CHARACTER)) {
            return Err(Error::new(Kind::Inexact));
        }
        Self {
            rule: rule.unwrap_or(&abandoned.rule).as_bytes(),
            scope: abandoned.scope.as_bytes(),
            business_key: business_key.map(str::as_bytes),
            delivery_id: delivery_id.as_bytes(),
        }
        .checked()
    }

    /// MySQL outside of its strict mode would cut what is too long, and make two identities one.
    fn checked(self) -> Result<Self, Error> {
        let parts = [
            ("name of the rule", self.rule, RULE_BYTES_AT_MOST),
            ("scope", self.scope, SCOPE_BYTES_AT_MOST),
            ("business key", self.business_key.unwrap_or_default(), IDENTITY_BYTES_AT_MOST),
            ("delivery id", self.delivery_id, IDENTITY_BYTES_AT_MOST),
        ];
        for (what, bytes, at_most) in parts {
            if bytes.len() > at_most {
                return Err(Error::new(Kind::TooLong { what, length: bytes.len(), at_most }));
            }
        }
        Ok(self)
    }
}
