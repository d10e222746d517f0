//! What an execution is about: the operation, by its identity, and what must match.

use std::{borrow::Cow, sync::Arc};

use bytes::Bytes;
use percent_encoding::{NON_ALPHANUMERIC, percent_encode};

use crate::{
    identity::Identity,
    ledger::{Differs, LedgerEntry, RowPrint},
    record::{Kind, RecordKey},
    rule::Rule,
};

/// What an execution is about: known before it is granted.
#[derive(Clone)]
pub(crate) struct Subject {
    pub(crate) rule: Arc<Rule>,
    pub(crate) scope: Bytes,
    /// The identity of the operation: the business key where there is one, else the delivery id.
    pub(crate) identity: Identity,
    pub(crate) kind: Kind,
    /// The delivery id, where the operation has another identity.
    pub(crate) delivery: Option<Identity>,
    /// The record that the request names by its identity.
    pub(crate) named: RecordKey,
    /// The record of the operation: another one where that name is an alias.
    pub(crate) record: RecordKey,
    /// What it has of what must match.
    pub(crate) print: RowPrint,
}

impl Subject {
    /// Its delivery alone, where the record is the delivery's own: what a run under that record was told
    /// of itself.
    pub(crate) fn of_its_delivery(&self) -> Option<Self> {
        if self.record == self.named {
            return None;
        }
        let identity = self.delivery.clone()?;
        let (kind, delivery) = (Kind::Delivery, None);
        Some(Self { identity, kind, delivery, named: self.record, ..self.clone() })
    }

    /// Whether the record is of another identity, of which the one in the request is another name.
    pub(crate) fn is_by_alias(&self) -> bool {
        self.record != self.named && self.delivery.is_none()
    }

    /// The identity as text, for people.
    pub(crate) fn identity_text(&self) -> Cow<'_, str> {
        to_text(self.identity.as_bytes())
    }

    pub(crate) fn delivery_text(&self) -> Option<Cow<'_, str>> {
        self.delivery.as_ref().map(|delivery| to_text(delivery.as_bytes()))
    }

    /// The row of this operation in a ledger.
    pub(crate) fn ledger_entry(&self) -> LedgerEntry {
        LedgerEntry {
            rule: self.rule.name().to_owned(),
            scope: self.scope.clone(),
            key: Bytes::copy_from_slice(self.identity.as_bytes()),
            delivery_id: self
                .delivery
                .as_ref()
                .map(|delivery| Bytes::copy_from_slice(delivery.as_bytes())),
            job: self.kind == Kind::Job,
        }
    }

    /// What is to stand beside its answer in that row.
    pub(crate) fn row_print(&self) -> Option<RowPrint> {
        (!self.print.says_nothing()).then(|| self.print.clone())
    }

    /// How this request differs from the one that a row with this print was written for. What one of
    /// them does not say does not differ.
    pub(crate) fn differs_from(&self, row: Option<&RowPrint>) -> Option<Differs> {
        self.print.differs_from(row?)
    }

    pub(crate) fn scope_text(&self) -> Cow<'_, str> {
        to_text(&self.scope)
    }
}

/// Bytes that are no text are escaped as a whole and not replaced: two identities in another charset
/// must not read alike to whoever looks them up.
pub(super) fn to_text(bytes: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.into(),
        Err(_) => percent_encode(bytes, NON_ALPHANUMERIC).into(),
    }
}
