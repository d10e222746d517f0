//! Fetches a one-time token before the first send, and sends it along with each.

use std::{
    fmt,
    future::{Future, poll_fn},
    mem,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Buf;
use http::{
    HeaderName, HeaderValue, Method, Request, Response, Uri,
    header::{EXPECT, TRAILER, TRANSFER_ENCODING},
    request::Parts,
    uri::PathAndQuery,
};
use http_body::Body;
use tower_layer::Layer;
use tower_service::Service;

use super::key::{Key, Keyed};
use crate::body::BoxError;

/// The most bytes of an answer that a token is looked for in.
const ANSWER_AT_MOST: usize = 64 * 1024;

/// Fetches a one-time token for each operation and sends it along, for servers that demand one
/// ([`Policy::token`](crate::Policy) of this crate, or any other).
///
/// It stands inside of a [`ClientLayer`](super::ClientLayer) or a [`KeyLayer`](super::KeyLayer): a request
/// that has no key gets no token. The token of an operation is fetched once; each further send of it has the
/// same. Whatever ends a fetch ends that send: an error is an error, and what the server answers in place of
/// a token is the answer, so that a 503 with `Retry-After` is obeyed.
///
/// A token that the server takes no more (403) is an answer too, and no other is fetched: with another one
/// the operation might be done twice.
///
/// # Example: a token from the same server
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// use http::{Request, Response};
/// use tower::{ServiceBuilder, ServiceExt};
/// use tower_idempotency::client::{ClientLayer, TokenLayer, posted_to};
///
/// async fn server(request: Request<String>) -> Result<Response<String>, std::io::Error> {
///     let answer = match request.uri().path() {
///         "/orders/7/payment-token" => "t-1",
///         _ => request.headers()["x-once-token"].to_str().unwrap(),
///     };
///     Ok(Response::new(answer.to_owned()))
/// }
///
/// let token = posted_to(|head| format!("{}-token", head.uri.path()));
/// let client = ServiceBuilder::new()
///     .layer(ClientLayer::new())
///     .layer(TokenLayer::new("X-Once-Token", token))
///     .service_fn(server);
/// let answer = client.oneshot(Request::post("/orders/7/payment").body("960".to_owned())?).await?;
/// assert_eq!(answer.body(), "t-1");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct TokenLayer<F> {
    header: HeaderName,
    fetch: F,
}

impl<F> TokenLayer<F> {
    /// Sends what `fetch` gives under this header: [`posted`], [`posted_to`], or a closure
    /// `Fn(Parts) -> Future<Output = Result<String, E>>`, which is told the head of the request.
    ///
    /// # Panics
    ///
    /// When `header` is no name of a header field.
    #[track_caller]
    pub fn new<N>(header: N, fetch: F) -> Self
    where
        N: TryInto<HeaderName>,
        N::Error: fmt::Display,
    {
        match header.try_into() {
            Ok(header) => Self { header, fetch },
            Err(error) => panic!("TokenLayer::new(..): {error}; give the name of a header field"),
        }
    }
}

impl<F> fmt::Debug for TokenLayer<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenLayer").field("header", &self.header).finish_non_exhaustive()
    }
}

impl<S, F: Clone> Layer<S> for TokenLayer<F> {
    type Service = WithToken<S, F>;

    fn layer(&self, inner: S) -> WithToken<S, F> {
        WithToken { inner, layer: self.clone() }
    }
}

/// What came of a fetch.
#[derive(Debug)]
#[non_exhaustive]
pub enum Fetched<A> {
    /// The token.
    Token(String),
    /// The server has answered this in place of a token: it is the answer of the operation.
    Answer(A),
}

/// Fetches a one-time token through the service that the request is for, `S`, or in any other way.
///
/// Implemented by [`Posted`], and by every closure `Fn(Parts) -> Future<Output = Result<String, E>>`.
pub trait FetchToken<S, B>
where
    S: Service<Request<B>>,
{
    /// Fetches a token for the request with this head. `service` is ready for one call.
    ///
    /// # Errors
    ///
    /// When there is none.
    ///
    /// # Cancel safety
    ///
    /// The future is dropped when its caller leaves.
    fn fetch(
        &self,
        service: &mut S,
        head: &Parts,
    ) -> impl Future<Output = Result<Fetched<S::Response>, BoxError>> + Send;
}

impl<S, B, F, Fut, E> FetchToken<S, B> for F
where
    S: Service<Request<B>>,
    F: Fn(Parts) -> Fut + Sync,
    Fut: Future<Output = Result<String, E>> + Send,
    E: Into<BoxError>,
{
    fn fetch(
        &self,
        _: &mut S,
        head: &Parts,
    ) -> impl Future<Output = Result<Fetched<S::Response>, BoxError>> + Send {
        let token = self(head.clone());
        async move { token.await.map(Fetched::Token).map_err(Into::into) }
    }
}

/// A token from the same server: POST to this path, and the text that it answers.
pub fn posted(path: impl Into<String>) -> Posted {
    let path = path.into();
    posted_to(move |_| path.clone())
}

/// The same with a path that depends on the request: `posted_to(|head| format!("{}/token",
/// head.uri.path()))`.
pub fn posted_to(path: impl Fn(&Parts) -> String + Send + Sync + 'static) -> Posted {
    Posted { path: Arc::new(path), place: Place::Text }
}

/// A token from the same server. Made by [`posted`] and [`posted_to`].
///
/// The request for it has an empty body, and the headers of the operation's own but its key, which names no
/// other request, and those about its body.
#[derive(Clone)]
pub struct Posted {
    path: Arc<dyn Fn(&Parts) -> String + Send + Sync>,
    place: Place,
}

/// Where in an answer the token stands.
#[derive(Clone, Debug)]
enum Place {
    Text,
    Json(String),
    Header(HeaderName),
}

impl Posted {
    /// The token stands at this JSON Pointer in the answer: `/token`. Default: it is the answer.
    #[must_use]
    pub fn json(self, pointer: impl Into<String>) -> Self {
        Self { place: Place::Json(pointer.into()), ..self }
    }

    /// The token stands in this header of the answer.
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
            Ok(name) => Self { place: Place::Header(name), ..self },
            Err(error) => panic!("Posted::header(..): {error}; give the name of a header field"),
        }
    }

    fn request<B: Default>(&self, head: &Parts) -> Result<Request<B>, BoxError> {
        let path = (self.path)(head);
        let mut uri = head.uri.clone().into_parts();
        uri.path_and_query = Some(PathAndQuery::try_from(path.as_str()).map_err(|error| {
            format!("{path:?} is no path to fetch a one-time token from: {error}")
        })?);
        let mut request = Request::new(B::default());
        *request.method_mut() = Method::POST;
        *request.uri_mut() = Uri::from_parts(uri)?;
        *request.version_mut() = head.version;
        let of_the_key = head.extensions.get().map_or(&[][..], |keyed: &Keyed| &keyed.headers);
        let headers = head.headers.iter();
        let of_its_own =
            headers.filter(|(name, _)| !of_the_key.contains(name) && !is_of_body(name));
        request.headers_mut().extend(of_its_own.map(|(name, value)| (name.clone(), value.clone())));
        *request.extensions_mut() = head.extensions.clone();
        // What stands further inside must not fetch a token for it, nor send it again by itself, nor give
        // it the operation's key: of two requests with one key a server refuses the second (the draft,
        // section 2.2), and that would be the operation.
        request.extensions_mut().remove::<Keyed>();
        request.extensions_mut().remove::<Key>();
        Ok(request)
    }

    async fn read<R>(&self, answer: Response<R>) -> Result<String, BoxError>
    where
        R: Body,
        R::Error: Into<BoxError>,
    {
        let (head, body) = answer.into_parts();
        match &self.place {
            Place::Header(name) => match head.headers.get(name) {
                Some(token) => Ok(token.to_str()?.to_owned()),
                None => {
                    Err(format!("the answer has no header {name} with a one-time token").into())
                }
            },
            Place::Text => Ok(String::from_utf8(whole(body).await?)?.trim().to_owned()),
            Place::Json(pointer) => {
                let json: serde_json::Value = serde_json::from_slice(&whole(body).await?)?;
                match json.pointer(pointer).and_then(serde_json::Value::as_str) {
                    Some(token) => Ok(token.to_owned()),
                    None => Err(format!(
                        "the answer has no text at {pointer} that could be a one-time token"
                    )
                    .into()),
                }
            }
        }
    }
}

/// Whether this header says something of the body, which a request for a token has not.
fn is_of_body(name: &HeaderName) -> bool {
    let of_the_body = [EXPECT, TRAILER, TRANSFER_ENCODING];
    // `Content-Digest` and `Repr-Digest` (RFC 9530) among them, and what came before these.
    name.as_str().starts_with("content-")
        || of_the_body.contains(name)
        || matches!(name.as_str(), "repr-digest" | "digest")
}

async fn whole<R>(body: R) -> Result<Vec<u8>, BoxError>
where
    R: Body,
    R::Error: Into<BoxError>,
{
    let (mut body, mut whole) = (pin!(body), Vec::new());
    while let Some(frame) = poll_fn(|cx| body.as_mut().poll_frame(cx)).await {
        let Ok(mut data) = frame.map_err(Into::into)?.into_data() else { continue };
        while data.has_remaining() {
            let chunk = data.chunk();
            let length = chunk.len();
            whole.extend_from_slice(chunk);
            data.advance(length);
        }
        if whole.len() > ANSWER_AT_MOST {
            return Err(format!("no one-time token has more than {ANSWER_AT_MOST} bytes").into());
        }
    }
    Ok(whole)
}

impl fmt::Debug for Posted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Posted").field("place", &self.place).finish_non_exhaustive()
    }
}

impl<S, B, R> FetchToken<S, B> for Posted
where
    S: Service<Request<B>, Response = Response<R>> + Send,
    S::Future: Send,
    S::Error: Into<BoxError>,
    B: Default,
    R: Body + Send,
    R::Data: Send,
    R::Error: Into<BoxError>,
{
    fn fetch(
        &self,
        service: &mut S,
        head: &Parts,
    ) -> impl Future<Output = Result<Fetched<S::Response>, BoxError>> + Send {
        let answer = self.request(head).map(|request| service.call(request));
        async move {
            let answer = answer?.await.map_err(Into::into)?;
            if answer.status().is_success() {
                self.read(answer).await.map(Fetched::Token)
            } else {
                Ok(Fetched::Answer(answer))
            }
        }
    }
}

/// Fetches one-time tokens and sends them along. Made by [`TokenLayer`].
#[derive(Clone, Debug)]
pub struct WithToken<S, F> {
    inner: S,
    layer: TokenLayer<F>,
}

type Answering<A> = Pin<Box<dyn Future<Output = Result<A, BoxError>> + Send>>;

impl<S, F, B> Service<Request<B>> for WithToken<S, F>
where
    S: Service<Request<B>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<BoxError>,
    F: FetchToken<S, B> + Clone + Send + Sync + 'static,
    B: Send + 'static,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = Answering<S::Response>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // The clone takes its place; the one that is ready goes along.
        let clone = self.inner.clone();
        let mut inner = mem::replace(&mut self.inner, clone);
        let has_one = request.headers().contains_key(&self.layer.header);
        let Some(keyed) = request.extensions().get::<Keyed>().filter(|_| !has_one).cloned() else {
            let answer = inner.call(request);
            return Box::pin(async move { answer.await.map_err(Into::into) });
        };
        let TokenLayer { header, fetch } = self.layer.clone();
        Box::pin(async move {
            let (mut head, body) = request.into_parts();
            if keyed.token.get().is_none() {
                let fetched = match fetch.fetch(&mut inner, &head).await? {
                    Fetched::Token(token) => value(&token)?,
                    Fetched::Answer(answer) => return Ok(answer),
                };
                // Of two that were fetched at once one counts.
                let _ = keyed.token.set(fetched);
                poll_fn(|cx| inner.poll_ready(cx)).await.map_err(Into::into)?;
            }
            head.headers.extend(keyed.token.get().map(|token| (header, token.clone())));
            inner.call(Request::from_parts(head, body)).await.map_err(Into::into)
        })
    }
}

/// The token as it is sent. It is shown in no log that heeds the mark of a secret.
fn value(token: &str) -> Result<HeaderValue, BoxError> {
    if token.trim().is_empty() {
        return Err("the one-time token that was fetched is empty".into());
    }
    let mut value = HeaderValue::from_str(token)?;
    value.set_sensitive(true);
    Ok(value)
}
