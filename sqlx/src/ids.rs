//! What identifies a row, the plain identity under an explicit scope, and what stands beside it from its
//! first moment.

use std::borrow::Cow;

use tower_idempotency::{IDENTITY_BYTES_AT_MOST, LedgerEntry, Operation, RowPrint};

use crate::error::{Error, Kind};

const RULE_BYTES_AT_MOST: usize = 255;
const SCOPE_BYTES_AT_MOST: usize = 1024;

/// What jobs stand under, before the name of their rule.
const JOB: &str = "job:";
/// What requests stand under whose rule is called as if it were one of jobs, or as this.
const REQUEST: &str = "request:";

/// Deliberately no hash in what identifies it, and nothing that a secret goes into: a new secret must not
/// make rows invisible.
#[derive(Clone, Debug)]
pub struct Ids<'a> {
    pub rule: Cow<'a, str>,
    pub scope: &'a [u8],
    /// The identity of the operation, where it is not the delivery id itself.
    pub business_key: Option<&'a [u8]>,
    pub delivery_id: &'a [u8],
    /// What must be the same when the identity comes again; it identifies nothing.
    pub fingerprint: Option<Vec<u8>>,
}

impl<'a> Ids<'a> {
    pub(crate) fn of(rule: Option<&'a str>, operation: &'a Operation) -> Result<Self, Error> {
        let (business_key, delivery_id) = match operation.delivery_id_bytes() {
            Some(delivery_id) => (Some(operation.key_bytes()), delivery_id),
            None => (None, operation.key_bytes()),
        };
        let rule = stands_under(rule.unwrap_or_else(|| operation.rule()), operation.is_job());
        let fingerprint = operation.ledger_print().as_ref().map(bytes);
        let scope = operation.scope_bytes();
        Self { rule, scope, business_key, delivery_id, fingerprint }.checked()
    }

    /// The same of an operation that somebody else names.
    pub(crate) fn of_entry(
        rule: Option<&'a str>,
        entry: &'a LedgerEntry,
        print: Option<&RowPrint>,
    ) -> Result<Self, Error> {
        let (business_key, delivery_id) = match &entry.delivery_id {
            Some(delivery_id) => (Some(&entry.key[..]), &delivery_id[..]),
            None => (None, &entry.key[..]),
        };
        let rule = stands_under(rule.unwrap_or(&entry.rule), entry.job);
        let fingerprint = print.map(bytes);
        Self { rule, scope: &entry.scope, business_key, delivery_id, fingerprint }.checked()
    }

    /// MySQL outside of its strict mode would cut what is too long, and make two identities one.
    fn checked(self) -> Result<Self, Error> {
        let parts = [
            ("name of the rule", self.rule.as_bytes(), RULE_BYTES_AT_MOST),
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

fn bytes(print: &RowPrint) -> Vec<u8> {
    print.to_bytes().into()
}

/// A rule for jobs and one for requests may have one name, and never share a row.
fn stands_under(rule: &str, job: bool) -> Cow<'_, str> {
    match job {
        true => format!("{JOB}{rule}").into(),
        false if rule.starts_with(JOB) || rule.starts_with(REQUEST) => {
            format!("{REQUEST}{rule}").into()
        }
        false => rule.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::stands_under;

    #[test]
    fn no_rule_of_jobs_stands_where_one_of_requests_does() {
        let names = ["a", "job:a", "request:a", "request:job:a", "job:request:a", "job:", ""];
        let under = |job| names.map(|name| stands_under(name, job).into_owned());
        let mut all = [under(true), under(false)].concat();
        assert_eq!((&*all[0], &*all[7]), ("job:a", "a"));
        all.sort();
        all.dedup();
        assert_eq!(all.len(), 2 * names.len());
    }
}
