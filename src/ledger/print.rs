//! What the request of a row had of what must match, as bytes for a column.
//!
//! ```text
//! 1    version, 1
//! 1    flags: 1 there is a caller, 2 there is a fingerprint
//! 8    which secret the hashes are made with; zeros for none
//! 16   the caller that its one-time token was bound to, if there is one
//! 32   the fingerprint, if there is one
//! ..   a digest of each compared field, 8 bytes each, to the end
//! ```

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::LedgerError;
use crate::record::{FieldDigest, Fingerprint};

const VERSION: u8 = 1;
const HAS_CALLER: u8 = 1;
const HAS_WHOLE: u8 = 2;
/// A policy that compares more has no digests in its rows, which only costs it the names.
const FIELDS_AT_MOST: usize = 255;

/// What a request has of what must be the same when its identity comes again: keyed hashes of what the
/// policy compares and of the caller that a one-time token was bound to. A ledger keeps it beside the answer,
/// so that no answer is given to another request, whatever the store has lost.
///
/// To a ledger it is bytes, at most 2,098 of them: [`RowPrint::to_bytes`] into a column that may be null, and
/// [`RowPrint::from_bytes`] out of it.
///
/// One-time tokens themselves are not in it: another one for the same business key, issued to the same
/// caller, is the same request. A print that was made under another secret of the layer says nothing, and
/// matches.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct RowPrint {
    pub(crate) secret: [u8; 8],
    pub(crate) caller: Option<[u8; 16]>,
    pub(crate) whole: Option<Fingerprint>,
    /// One for each compared field, in the policy's order.
    pub(crate) fields: Vec<FieldDigest>,
}

/// How a request differs from the one that a row was written for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Differs {
    /// Its one-time token was issued to another caller.
    Caller,
    /// What must match does not. It has the digests of the row's fields.
    Request(Vec<FieldDigest>),
    /// Its delivery id is another name of another operation.
    Business,
}

impl RowPrint {
    /// As bytes for a row, the same for every request that is the same.
    pub fn to_bytes(&self) -> Bytes {
        let fields = if self.fields.len() > FIELDS_AT_MOST { &[] } else { &self.fields[..] };
        let mut out = BytesMut::with_capacity(58 + size_of_val(fields));
        out.put_u8(VERSION);
        let caller = if self.caller.is_some() { HAS_CALLER } else { 0 };
        out.put_u8(caller | if self.whole.is_some() { HAS_WHOLE } else { 0 });
        out.put_slice(&self.secret);
        if let Some(caller) = &self.caller {
            out.put_slice(caller);
        }
        if let Some(whole) = &self.whole {
            out.put_slice(whole.as_bytes());
        }
        out.put_slice(fields.as_flattened());
        out.freeze()
    }

    /// What these bytes of a row say.
    ///
    /// # Errors
    ///
    /// When they are none of this version's: then nobody can tell whether the row's answer may be given.
    pub fn from_bytes(bytes: impl AsRef<[u8]>) -> Result<Self, LedgerError> {
        let mut bytes = bytes.as_ref();
        Self::read(&mut bytes).ok_or_else(|| {
            LedgerError::new(
                "the fingerprint in the row is none of this version's: a newer version wrote it, or it was \
                 changed",
            )
        })
    }

    fn read(bytes: &mut &[u8]) -> Option<Self> {
        if bytes.try_get_u8().ok()? != VERSION {
            return None;
        }
        let flags = bytes.try_get_u8().ok()?;
        if flags & !(HAS_CALLER | HAS_WHOLE) != 0 {
            return None;
        }
        let secret = take(bytes)?;
        let caller = if flags & HAS_CALLER == 0 { None } else { Some(take(bytes)?) };
        let whole = if flags & HAS_WHOLE == 0 { None } else { Some(take(bytes)?) };
        let (fields, rest) = bytes.as_chunks();
        (rest.is_empty() && fields.len() <= FIELDS_AT_MOST).then(|| Self {
            secret,
            caller,
            whole: whole.map(Fingerprint::from_bytes),
            fields: fields.to_vec(),
        })
    }

    /// Whether a request with this print may have the answer of the other's, and the other way round. For
    /// ledgers whose rows may be there without an answer: one may be given by the same request alone.
    pub fn is_same_request(&self, other: &Self) -> bool {
        self.differs_from(other).is_none()
    }

    /// How a request with this print differs from that of a row. What one of them does not say does not
    /// differ, as in a record of the store.
    pub(crate) fn differs_from(&self, row: &Self) -> Option<Differs> {
        fn differ<T: PartialEq>(one: &Option<T>, other: &Option<T>) -> bool {
            matches!((one, other), (Some(one), Some(other)) if one != other)
        }
        if self.secret != row.secret {
            return None;
        }
        // The caller first: whose it is not learns nothing of what was sent.
        if differ(&self.caller, &row.caller) {
            return Some(Differs::Caller);
        }
        differ(&self.whole, &row.whole).then(|| Differs::Request(row.fields.clone()))
    }

    /// Whether it says anything.
    pub(crate) fn says_nothing(&self) -> bool {
        self.caller.is_none() && self.whole.is_none()
    }
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn print() -> RowPrint {
        RowPrint {
            secret: [1; 8],
            caller: Some([2; 16]),
            whole: Some(Fingerprint::from_bytes([3; 32])),
            fields: vec![[4; 8], [5; 8]],
        }
    }

    #[test]
    fn a_print_comes_back_as_it_went_and_its_bytes_are_these() {
        let whole = print();
        let golden = [&[1, 3][..], &[1; 8], &[2; 16], &[3; 32], &[4; 8], &[5; 8]].concat();
        assert_eq!(whole.to_bytes(), golden);
        let bare = RowPrint { caller: None, whole: None, ..RowPrint::default() };
        let unbound = RowPrint { caller: None, ..print() };
        let most = RowPrint { fields: vec![[7; 8]; 255], ..print() };
        assert_eq!(most.to_bytes().len(), 2098);
        for print in [whole, bare, unbound, most] {
            assert_eq!(RowPrint::from_bytes(print.to_bytes()).unwrap(), print);
        }
        let too_many = RowPrint { fields: vec![[7; 8]; 256], ..print() };
        assert!(RowPrint::from_bytes(too_many.to_bytes()).unwrap().fields.is_empty());
    }

    #[test]
    fn what_is_no_print_is_an_error_and_never_matches() {
        let bytes = print().to_bytes();
        for cut in (0..bytes.len()).filter(|cut| ![58, 66].contains(cut)) {
            assert!(RowPrint::from_bytes(&bytes[..cut]).is_err(), "cut at {cut}");
        }
        for (at, byte) in [(0, 0), (0, 2), (1, 4), (1, 255)] {
            let mut other = bytes.to_vec();
            other[at] = byte;
            assert!(RowPrint::from_bytes(&other).is_err(), "{byte} at {at}");
        }
    }

    #[test]
    fn what_both_say_must_be_the_same_and_what_one_does_not_say_is() {
        let row = print();
        assert_eq!(print().differs_from(&row), None);
        let other = || Some(Fingerprint::from_bytes([9; 32]));
        let caller = RowPrint { caller: Some([9; 16]), whole: other(), ..print() };
        assert_eq!(caller.differs_from(&row), Some(Differs::Caller));
        let body = RowPrint { whole: other(), ..print() };
        assert_eq!(body.differs_from(&row), Some(Differs::Request(row.fields.clone())));
        assert!(!body.is_same_request(&row) && !row.is_same_request(&body));
        for silent in [
            RowPrint { whole: None, ..print() },
            RowPrint { caller: None, ..print() },
            RowPrint { secret: [9; 8], caller: Some([9; 16]), whole: other(), ..print() },
            RowPrint::default(),
        ] {
            assert!(silent.is_same_request(&row) && row.is_same_request(&silent), "{silent:?}");
        }
        // No caller and another body: it is the body that counts.
        let unbound = RowPrint { caller: None, whole: other(), ..print() };
        assert!(!unbound.is_same_request(&row));
    }
}
