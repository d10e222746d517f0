//! Gives outgoing requests their key.

use std::{
    fmt,
    task::{Context, Poll},
};

use http::{HeaderName, Method, Request};
use tower::retry::{Retry, RetryLayer};
use tower_layer::Layer;
use tower_service::Service;

use super::{
    Resend,
    key::{Key, Keyed},
};

/// A key for each POST and PATCH, and tower's `Retry` with [`Resend`] inside of it: [`KeyLayer`] and
/// [`Resend`] with their defaults, unless told otherwise.
///
/// [The module](crate::client) says what is sent again, and what stands around and inside.
#[derive(Clone, Debug, Default)]
pub struct ClientLayer {
    key: KeyLayer,
    resend: Resend,
}

impl ClientLayer {
    /// Both with their defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// With keys as this layer makes them.
    #[must_use]
    pub fn key(self, key: KeyLayer) -> Self {
        Self { key, ..self }
    }

    /// Sent again as this says.
    #[must_use]
    pub fn resend(self, resend: Resend) -> Self {
        Self { resend, ..self }
    }
}

impl<S> Layer<S> for ClientLayer {
    type Service = WithKey<Retry<Resend, S>>;

    fn layer(&self, inner: S) -> Self::Service {
        self.key.layer(RetryLayer::new(self.resend.clone()).layer(inner))
    }
}

/// Gives each POST and PATCH a key, unless it has one: the header `Idempotency-Key` as a structured-field
/// string (draft-ietf-httpapi-idempotency-key-header-07), from the [`Key`] in the request's extensions or at
/// random.
///
/// A header that is there stays as it is. Nothing else about a request changes.
///
/// # Example: a provider with a header of its own
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// use http::Request;
/// use tower::{ServiceBuilder, ServiceExt};
/// use tower_idempotency::client::{Key, KeyLayer};
///
/// let keys = KeyLayer::new().header("X-Request-Key").bare();
/// let client = ServiceBuilder::new().layer(keys).service_fn(async |request: Request<()>| {
///     Ok::<_, std::io::Error>(request.headers()["x-request-key"].clone())
/// });
/// let key = Key::new("order-7")?;
/// assert_eq!(client.oneshot(Request::post("/").extension(key).body(())?).await?, "order-7");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct KeyLayer {
    header: HeaderName,
    bare: bool,
    methods: Vec<Method>,
}

impl Default for KeyLayer {
    fn default() -> Self {
        Self {
            header: HeaderName::from_static("idempotency-key"),
            bare: false,
            methods: vec![Method::POST, Method::PATCH],
        }
    }
}

impl KeyLayer {
    /// POST and PATCH, `Idempotency-Key`, in quotes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Under this name. Default: `Idempotency-Key`.
    ///
    /// # Panics
    ///
    /// When it is no name of a header field.
    #[must_use]
    #[track_caller]
    pub fn header<N>(self, name: N) -> Self
    where
        N: TryInto<HeaderName>,
        N::Error: fmt::Display,
    {
        match name.try_into() {
            Ok(header) => Self { header, ..self },
            Err(error) => panic!("KeyLayer::header(..): {error}; give the name of a header field"),
        }
    }

    /// Without quotes, as servers want it that came before the draft: Stripe, Adyen. Default: a
    /// structured-field string, in quotes.
    #[must_use]
    pub fn bare(self) -> Self {
        Self { bare: true, ..self }
    }

    /// For these methods, in place of POST and PATCH. A request of another method that has a [`Key`] or the
    /// header counts as one with a key all the same.
    #[must_use]
    pub fn methods(self, methods: impl IntoIterator<Item = Method>) -> Self {
        Self { methods: methods.into_iter().collect(), ..self }
    }

    fn give_key<B>(&self, request: &mut Request<B>) {
        let own = request.extensions().get::<Key>().cloned();
        let has_header = request.headers().contains_key(&self.header);
        if own.is_none() && !has_header && !self.methods.contains(request.method()) {
            return;
        }
        if !has_header {
            let key = own.unwrap_or_else(Key::random);
            request.headers_mut().insert(self.header.clone(), key.to_value(self.bare));
        }
        // One further out may have made it already, and its copies share it.
        let keyed = request.extensions_mut().get_or_insert_default::<Keyed>();
        if !keyed.headers.contains(&self.header) {
            keyed.headers.push(self.header.clone());
        }
    }
}

impl<S> Layer<S> for KeyLayer {
    type Service = WithKey<S>;

    fn layer(&self, inner: S) -> WithKey<S> {
        WithKey { inner, layer: self.clone() }
    }
}

/// Gives outgoing requests their key. Made by [`KeyLayer`] and [`ClientLayer`].
#[derive(Clone, Debug)]
pub struct WithKey<S> {
    inner: S,
    layer: KeyLayer,
}

impl<S> WithKey<S> {
    /// The inner service.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// The inner service.
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// The inner service.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S, B> Service<Request<B>> for WithKey<S>
where
    S: Service<Request<B>>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<B>) -> S::Future {
        self.layer.give_key(&mut request);
        self.inner.call(request)
    }
}
