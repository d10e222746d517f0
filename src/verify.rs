//! Who may deliver at all: a hook that sees a request before anything is claimed.

use std::{fmt, future::Future, pin::Pin, sync::Arc};

use bytes::Bytes;
use http::request::Parts;

use crate::refusal::Refusal;

/// A request as it came: its head and its whole body.
#[derive(Clone, Debug)]
pub struct Delivery {
    head: Arc<Parts>,
    body: Bytes,
}

impl Delivery {
    pub(crate) fn new(head: Parts, body: Bytes) -> Self {
        Self { head: Arc::new(head), body }
    }

    /// Method, URI, headers and extensions.
    pub fn head(&self) -> &Parts {
        &self.head
    }

    /// The body, byte by byte as it was sent: what a signature is over.
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// The head again, without a copy if the hook kept none.
    pub(crate) fn into_head(self) -> Parts {
        Arc::unwrap_or_clone(self.head)
    }
}

/// A delivery that may go on.
#[derive(Clone, Debug)]
pub struct Verified {
    pub(crate) plain: Option<Bytes>,
}

impl Verified {
    /// It may go on as it is.
    pub fn as_sent() -> Self {
        Self { plain: None }
    }

    /// It may go on, and this is what its body says deciphered.
    ///
    /// Identities and fields are read from it; [`sent`](crate::sent) reads from the body as it
    /// came. The handler gets the body as it came, and this as the request extension
    /// [`Deciphered`].
    pub fn deciphered(plain: impl Into<Bytes>) -> Self {
        Self { plain: Some(plain.into()) }
    }
}

/// What the body of a request says deciphered: an extension of the request, where a
/// [`Verify`] hook has deciphered it.
#[derive(Clone, Debug)]
pub struct Deciphered(pub Bytes);

/// Decides whether a delivery may go on, before anything is claimed: checks its signature, deciphers
/// its body.
///
/// Implemented by every closure or function `Fn(Delivery) -> Future<Output = Result<Verified,
/// Refusal>>`. What it refuses claims nothing and learns nothing: not whether its identity is known.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot decide whether a delivery may go on",
    label = "this is no `Verify`",
    note = "it is `async fn verify(delivery: Delivery) -> Result<Verified, Refusal>`, or a closure like it"
)]
pub trait Verify: Send + Sync + 'static {
    /// Decides whether `delivery` may go on.
    ///
    /// # Errors
    ///
    /// [`Refusal::not_verified`], or an answer of its own by [`Refusal::with_answer`].
    ///
    /// # Cancel safety
    ///
    /// The future is dropped when the client leaves.
    fn verify(&self, delivery: Delivery) -> impl Future<Output = Result<Verified, Refusal>> + Send;
}

impl<F, Fut> Verify for F
where
    F: Fn(Delivery) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Verified, Refusal>> + Send,
{
    fn verify(&self, delivery: Delivery) -> impl Future<Output = Result<Verified, Refusal>> + Send {
        self(delivery)
    }
}

type Verdict = Pin<Box<dyn Future<Output = Result<Verified, Refusal>> + Send>>;

/// A hook as a policy holds it.
#[derive(Clone)]
pub(crate) struct AnyVerify(Arc<dyn DynVerify>);

trait DynVerify: Send + Sync {
    fn verify(self: Arc<Self>, delivery: Delivery) -> Verdict;
}

impl<V: Verify> DynVerify for V {
    fn verify(self: Arc<Self>, delivery: Delivery) -> Verdict {
        Box::pin(async move { Verify::verify(&*self, delivery).await })
    }
}

impl AnyVerify {
    pub(crate) fn new(verify: impl Verify) -> Self {
        Self(Arc::new(verify))
    }

    pub(crate) fn verify(&self, delivery: Delivery) -> Verdict {
        self.0.clone().verify(delivery)
    }
}

impl fmt::Debug for AnyVerify {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Verify")
    }
}
