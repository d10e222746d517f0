//! Runs each operation once, and answers every other delivery from the store.

mod fingerprint;
mod identity;
mod record;
mod refusal;
pub mod store;
#[cfg(feature = "test-util")]
pub mod test_util;

pub use identity::{Header, IDENTITY_BYTES_AT_MOST, Identity, Input, Json, Source, header, json};
pub use record::{
    Answer, ClaimToken, Fence, Fingerprint, Grant, Mark, OneTimeToken, Outcome, Previous,
    RecordKey, State,
};
pub use refusal::{Refusal, RefusalKind};
#[cfg(feature = "redis")]
pub use store::RedisStore;
pub use store::{MemoryStore, Store, StoreError};
