//! Runs each operation once, and answers every other delivery from the store.
//!
//! A payment gateway may deliver one notification five times, and a client whose connection broke
//! sends its order again. The handler behind such a route runs each time. [`IdempotencyLayer`] stands
//! in front of it: it reads the *identity* of the operation from the request, *claims* it in a store
//! that all processes share, lets exactly one delivery through to the handler, stores the *answer*,
//! and gives that answer to every other delivery.
//!
//! It is a [`tower`](https://docs.rs/tower) layer for everything that is a `Service<Request<B>>`:
//! axum, hyper, tonic. It needs a Tokio runtime with time enabled.
//!
//! # Example: five deliveries, one charge
//!
//! ```
//! use std::sync::atomic::{AtomicU32, Ordering};
//!
//! use bytes::Bytes;
//! use http::{Request, Response};
//! use http_body_util::{BodyExt, Full};
//! use tower::{ServiceBuilder, ServiceExt};
//! use tower_idempotency::{IdempotencyLayer, MemoryStore, Policy, RequestBody, Rule, json};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! static CHARGES: AtomicU32 = AtomicU32::new(0);
//!
//! async fn fulfil(_: Request<RequestBody<Full<Bytes>>>) -> Result<Response<String>, std::io::Error> {
//!     let number = CHARGES.fetch_add(1, Ordering::Relaxed) + 1;
//!     Ok(Response::new(format!("charge {number}")))
//! }
//!
//! let rule = Rule::new("fulfil", Policy::webhook(json("/notifyId")));
//! let service = ServiceBuilder::new()
//!     .layer(IdempotencyLayer::new(MemoryStore::new(), rule))
//!     .service_fn(fulfil);
//!
//! for delivery in 1..=5 {
//!     let body = Full::from(r#"{"notifyId": "N-1", "orderId": "O-1", "amount": 960}"#);
//!     let answer = service.clone().oneshot(Request::post("/fulfil").body(body)?).await?;
//!     let replayed = answer.headers().contains_key("idempotent-replayed");
//!     assert_eq!(replayed, delivery > 1);
//!     assert_eq!(answer.into_body().collect().await?.to_bytes(), "charge 1");
//! }
//! assert_eq!(CHARGES.load(Ordering::Relaxed), 1);
//! # Ok(())
//! # }
//! ```
//!
//! # What it promises
//!
//! For each key at most one execution is *granted* while its record is kept and the store loses no
//! acknowledged write. Every other delivery gets the first one's answer, or is told plainly why not
//! yet. In particular:
//!
//! * A handler is started only with a grant. A store that is down refuses with 503; it never lets
//!   through.
//! * The answer is stored before the client sees it. One that could not be stored, was too large or
//!   was a stream is sent all the same, and its operation is not run again.
//! * From the grant on the handler outlives its client: it runs to its end and its answer is stored
//!   for the retry.
//! * A process that dies leaves its operations *abandoned*, which is refused, never *absent*, which
//!   would run. What nobody knows is never taken for "it did not happen".
//! * No answer is given to another rule, another scope or another request.
//!
//! What counts as "it did not happen, run it again" is the handler's word: by its status (the table
//! at [`Policy`]), or by an [`Outcome`] in its answer's extensions.
//!
//! # What it does not promise
//!
//! * A store that loses what it acknowledged forgets runs: a failover to a replica that lagged, an
//!   eviction, a flush, a restart without persistence. Owners that are alive write their records
//!   again, and an event tells of it; but a delivery may have run meanwhile.
//! * After [`Policy::retention`], and for unfinished operations after [`Policy::hold`], an identity
//!   is new.
//! * [`Policy::observe`], [`Policy::rerun_abandoned`], [`Policy::run_unprotected`] and a verdict that is wrong
//!   ([`Policy::resolve_abandoned`], [`Store::resolve`]) run twice what they run twice.
//! * A handler that has an effect and then says that it did not happen has it again.
//! * The same operation under another identity is another operation.
//! * A request that no rule is for, or that has no identity under [`Policy::optional`], passes
//!   unprotected.
//!
//! With a row in the handler's own transaction the effect happens once, whatever the store loses:
//! [`Ledger`], set by [`Policy::ledger`].
//!
//! An effect in somebody else's hands, such as a charge at a payment provider, is made once for good
//! by sending [`Operation::downstream_key`] along with it.
//!
//! # Where to go from here
//!
//! * [`IdempotencyLayer`], [`Rule`] and [`Policy`]: what is protected, and how.
//! * [`Source`] and [`Field`]: where an identity stands, and what must be the same when it comes again.
//! * [`sender`]: policies that know the sender of a notification.
//! * [`Operation`] and [`Outcome`]: what a handler can ask and say.
//! * [`Idempotent`]: the same for work that is not HTTP.
//! * `client`: the caller's side.
//! * [`Refusal`] and [`problems`]: what clients are told, and what they can do.
//! * [`MemoryStore`], `RedisStore`, and [`Store`] for one of your own.
//! * [`Tokens`] and [`Policy::token`]: one-time tokens, for callers that can be made to ask first.
//! * [`Ledger`]: a durable truth beside the store. [`operations`]: settling by hand.
//! * [`operating`]: what the log says and what to do about it; settling by hand; stopping.
//!   `on_redis`: setting Redis up, and what becomes of it.
//!
//! # Features
//!
//! None is on by default, and each only adds.
//!
//! | feature | what it adds |
//! |---|---|
//! | `axum` | [`Operation`] as an extractor, [`Answer`] as a response; depends on `axum-core` alone |
//! | `client` | the caller's side: keys for outgoing requests, kept through every resend |
//! | `metrics` | counters, times and gauges through the [`metrics`](https://docs.rs/metrics) facade: [what each is](crate::operating#what-is-counted) |
//! | `recent` | `IdempotencyLayer::recent`: answers of the last minute from the process's own memory |
//! | `redis` | `RedisStore`: records in Redis or Valkey, shared by all processes |
//! | `redis-cluster` | a cluster of Redis or Valkey, its slots followed by the store itself |
//! | `redis-sentinel` | a primary that sentinels name, followed through failovers |
//! | `redis-tls` | `rediss://`, authorities and client certificates of your own, with `ring` |
//! | `serde` | `Rules` from a configuration file, in any format that serde reads |
//! | `test-util` | the contract of [`Store`] as a test suite, and a store that fails on demand |
//! | `xml` | `xml(..)`: identities and fields in XML bodies; WeChat Pay v2 |
//!
//! The lowest Rust version is 1.88.

#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "axum")]
mod axum;
mod body;
#[cfg(feature = "client")]
pub mod client;
#[cfg(feature = "serde")]
mod config;
pub mod execute;
mod fingerprint;
mod future;
mod identity;
mod in_words;
mod layer;
mod ledger;
mod operation;
pub mod operations;
#[doc = include_str!("../docs/operations.md")]
pub mod operating {}
#[cfg(all(feature = "redis-cluster", feature = "redis-sentinel", feature = "redis-tls"))]
#[doc = include_str!("../docs/redis.md")]
pub mod on_redis {}
mod policy;
pub mod problems;
mod record;
mod refusal;
mod rule;
pub mod sender;
mod service;
pub mod store;
mod telemetry;
#[cfg(feature = "test-util")]
pub mod test_util;
pub mod token;

mod usage;
mod verify;

#[cfg(feature = "axum")]
pub use axum::OperationMissing;
pub use body::{RequestBody, ResponseBody};
#[cfg(feature = "serde")]
pub use config::{Registry, RulesConfig};
pub use execute::Idempotent;
pub use fingerprint::{BodyPart, Field, FieldValue};
pub use future::ResponseFuture;
pub use identity::{
    Each, Extension, Form, Header, IDENTITY_BYTES_AT_MOST, Identity, Input, Json, Path, Query,
    Sent, Source, each, extension, form, header, json, path, query, sent,
};
#[cfg(feature = "xml")]
pub use identity::{Xml, xml};
pub use layer::IdempotencyLayer;
pub use ledger::{
    Abandoned, Ledger, LedgerEntry, LedgerError, LedgerRow, Resolution, Resolver, RowPrint, Sealed,
};
pub use operation::{Drained, Handled, Operation, Would};
pub use policy::{Mismatch, Policy, PolicyError, Scope};
pub use record::{
    Answer, ClaimToken, Fence, Fingerprint, Grant, Mark, OneTimeToken, Outcome, Previous,
    RecordKey, State, UnreadableAnswer, ValueError,
};
pub use refusal::{Refusal, RefusalKind};
pub use rule::{Rule, RuleError, Rules};
pub use service::Idempotency;
#[cfg(feature = "redis")]
pub use store::RedisStore;
pub use store::{MemoryStore, Store, StoreError};
pub use token::{Issuance, IssueError, IssueErrorKind, TokenRequest, Tokens};
pub use verify::{Deciphered, Delivery, Verified, Verify};

// The README's examples are compiled and run with the others.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

/// The trap that the README warns of: where this compiles one day, the warning can go.
///
/// ```compile_fail,E0277
/// use axum::{Router, extract::Request, middleware::{Next, from_fn}, response::Response, routing::post};
/// use tower::ServiceBuilder;
/// use tower_idempotency::{IdempotencyLayer, MemoryStore, Policy, Rule, json};
///
/// async fn log(request: Request, next: Next) -> Response {
///     next.run(request).await
/// }
///
/// let rule = Rule::new("fulfil", Policy::webhook(json("/notifyId")));
/// let layers = ServiceBuilder::new()
///     .layer(IdempotencyLayer::new(MemoryStore::new(), rule))
///     .layer(from_fn(log));
/// let app: Router = Router::new().route("/fulfil", post(async || "success")).route_layer(layers);
/// ```
#[cfg(doctest)]
mod from_fn_inside {}
