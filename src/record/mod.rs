//! What the store remembers of an operation, and the values it is made of.

mod answer;
mod codec;
mod grant;
mod key;
mod one_time;
mod value;

pub use answer::{Answer, UnreadableAnswer};
pub(crate) use codec::{FieldDigest, Unreadable, decode, encode};
pub use grant::{ClaimToken, Fence, Fingerprint, Grant, Mark, Outcome, Previous, State};
pub use key::RecordKey;
#[cfg(feature = "client")]
pub(crate) use key::uuid;
pub(crate) use key::{Kind, Secret, downstream_id};
pub use one_time::OneTimeToken;
pub use value::ValueError;
