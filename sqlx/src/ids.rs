//! What identifies a row: the plain identity under an explicit scope.

use tower_idempotency::{IDENTITY_BYTES_AT_MOST, LedgerEntry, Operation};

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

    /// The same of an operation that somebody else names.
    pub(crate) fn of_entry(rule: Option<&'a str>, entry: &'a LedgerEntry) -> Result<Self, Error> {
        let (business_key, delivery_id) = match &entry.delivery_id {
            Some(delivery_id) => (Some(&entry.key[..]), &delivery_id[..]),
            None => (None, &entry.key[..]),
        };
        let rule = rule.unwrap_or(&entry.rule).as_bytes();
        Self { rule, scope: &entry.scope, business_key, delivery_id }.checked()
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
