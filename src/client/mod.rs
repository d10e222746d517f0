//! The caller's side: outgoing requests get a key, keep it through every resend, and are sent again when
//! the server says so.
//!
//! Whoever sends an order and hears nothing does not know whether it arrived. Sent again under the same
//! `Idempotency-Key`, a server that honours keys (this crate's layer, or any other) does it once; sent
//! again without one, or under a new one, it does it twice. The layers here see to that:
//!
//! | from the outside in | what it does |
//! |---|---|
//! | [`ClientLayer`] | a key for each POST and PATCH, and [`Resend`] in tower's own `Retry` |
//! | [`TokenLayer`], where the server demands one-time tokens | fetches one and sends it along |
//! | a `TimeoutLayer` of tower's | ends a send that hangs, so that it is sent again |
//! | the client | hyper's, or any `Service<Request<B>>` |
//!
//! # What is sent again
//!
//! A request that has a key, when its send ended in an error (the connection could not be made, broke, timed
//! out), with 409 and a `Retry-After` (somebody is at it), with 503 or with 502 or 504, which a proxy
//! answers that does not know what became of it. Not before the time that `Retry-After` says, in seconds or
//! as a date, and a jittered, growing pause after it. At most five sends, of which none begins later than
//! 60 s after the first.
//!
//! Everything else is an answer: 422 above all, which says that the key was used for another request, every
//! other 4xx, 500, a 409 without `Retry-After` (nobody knows what became of the operation), and what is
//! marked `Idempotent-Replayed`. So are all requests without a key.
//!
//! Danger: what is sent again to a server that does not honour keys may be done twice.
//!
//! # A retry of your own, around or inside
//!
//! Inside of [`ClientLayer`], or of a [`KeyLayer`], any `tower::retry` finds the key in the request and
//! keeps it. *Around* a [`ClientLayer`] it does not: it copies each request before there is a key in it, so
//! that each of its attempts would get one of its own. Put a [`KeyLayer`] around it, outermost; what is
//! inside keeps the key that is there, and the one-time token that was fetched under it:
//!
//! ```
//! use tower::{ServiceBuilder, retry::RetryLayer};
//! use tower_idempotency::client::{ClientLayer, KeyLayer};
//! # use tower_idempotency::client::Resend as YourPolicy;
//!
//! let client = ServiceBuilder::new()
//!     .layer(KeyLayer::new())
//!     .layer(RetryLayer::new(YourPolicy::new()))
//!     .layer(ClientLayer::new());
//! # let _ = client;
//! ```
//!
//! # Bodies
//!
//! A body is sent again by cloning it, which [`Resend`] demands: `Full<Bytes>`, `String` and `Bytes` can be,
//! a stream cannot. Collect it first.
//!
//! # Example: a server that drops its first two answers
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! use std::{collections::HashSet, io, sync::Mutex};
//!
//! use http::{Request, Response};
//! use tower::{ServiceBuilder, ServiceExt};
//! use tower_idempotency::client::ClientLayer;
//!
//! static SEEN: Mutex<Vec<String>> = Mutex::new(Vec::new());
//!
//! async fn server(request: Request<String>) -> Result<Response<String>, io::Error> {
//!     let mut seen = SEEN.lock().unwrap();
//!     seen.push(request.headers()["idempotency-key"].to_str().unwrap().to_owned());
//!     match seen.len() {
//!         1 | 2 => Err(io::ErrorKind::ConnectionReset.into()),
//!         _ => Ok(Response::new("charged".to_owned())),
//!     }
//! }
//!
//! let client = ServiceBuilder::new().layer(ClientLayer::new()).service_fn(server);
//! let answer = client.oneshot(Request::post("/charge").body("960".to_owned())?).await?;
//! assert_eq!(answer.body(), "charged");
//! let seen = SEEN.lock().unwrap();
//! assert_eq!((seen.len(), seen.iter().collect::<HashSet<_>>().len()), (3, 1));
//! # Ok(())
//! # }
//! ```

mod key;
mod layer;
mod resend;
mod retry_after;
mod token;

pub use key::{Key, KeyError};
pub use layer::{ClientLayer, KeyLayer, WithKey};
pub use resend::Resend;
pub use token::{FetchToken, Fetched, Posted, TokenLayer, WithToken, posted, posted_to};
