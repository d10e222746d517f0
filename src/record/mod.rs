//! What the store remembers of an operation, and the values it is made of.

mod answer;
mod codec;
mod grant;
mod key;
mod one_time;

pub use answer::{Answer, UnreadableAnswer};
pub(crate) use codec::{FieldDigest, Unreadable, decode, encode};
pub use grant::{ClaimToken, Fence, Fingerprint, Grant, Mark, Outcome, Previous, State};
pub use key::RecordKey;
pub(crate) use key::{Kind, Secret, downstream_id};
pub use one_time::OneTimeToken;
