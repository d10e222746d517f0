//! Runs each operation once, and answers every other delivery from the store.

#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "axum")]
mod axum;
mod body;
mod fingerprint;
mod future;
mod identity;
mod layer;
mod ledger;
mod operation;
mod policy;
mod record;
mod refusal;
mod rule;
mod service;
pub mod store;
mod telemetry;
#[cfg(feature = "test-util")]
pub mod test_util;
mod verify;

#[cfg(feature = "axum")]
pub use axum::OperationMissing;
pub use body::{RequestBody, ResponseBody};
pub use fingerprint::{BodyPart, Field, FieldValue};
pub use future::ResponseFuture;
pub use identity::{
    Each, Extension, Form, Header, IDENTITY_BYTES_AT_MOST, Identity, Input, Json, Path, Query,
    Sent, Source, each, extension, form, header, json, path, query, sent,
};
#[cfg(feature = "xml")]
pub use identity::{Xml, xml};
pub use layer::IdempotencyLayer;
pub use ledger::{Abandoned, Resolution, Resolver};
pub use operation::{Drained, Handled, Operation};
pub use policy::{Mismatch, Policy, PolicyError, Scope};
pub use record::{
    Answer, ClaimToken, Fence, Fingerprint, Grant, Mark, OneTimeToken, Outcome, Previous,
    RecordKey, State,
};
pub use refusal::{Refusal, RefusalKind};
pub use rule::{Rule, RuleError, Rules};
pub use service::Idempotency;
#[cfg(feature = "redis")]
pub use store::RedisStore;
pub use store::{MemoryStore, Store, StoreError};
pub use verify::{Deciphered, Delivery, Verified, Verify};
