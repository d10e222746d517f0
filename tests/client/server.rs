//! A server that answers as a test has written down, and writes down what it was sent and when.

use std::{
    collections::VecDeque,
    io,
    sync::{Arc, Mutex},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, request::Parts};
use http_body_util::Full;
use tokio::time::Instant;
use tower::{BoxError, Service, ServiceExt};

pub(crate) const SECOND: Duration = Duration::from_secs(1);

pub(crate) type Body = Full<Bytes>;

/// What is answered to one send.
#[derive(Clone)]
pub(crate) enum Answer {
    /// This status, with these headers.
    Status(u16, HeaderMap),
    /// The connection breaks.
    Breaks,
    /// There is never an answer.
    Hangs,
}

pub(crate) fn status(status: u16) -> Answer {
    Answer::Status(status, HeaderMap::new())
}

pub(crate) fn with(status: u16, header: &'static str, value: &str) -> Answer {
    let headers = [(header.parse().unwrap(), value.parse().unwrap())];
    Answer::Status(status, HeaderMap::from_iter(headers))
}

/// One that came, and when.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub(crate) at: Instant,
    pub(crate) head: Parts,
    pub(crate) body: Body,
}

impl Sent {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.headers.get(name).map(|value| value.to_str().unwrap())
    }

    pub(crate) fn key(&self) -> &str {
        self.header("idempotency-key").expect("it has a key")
    }
}

/// Answers as it is told, and 200 when there is nothing more to say.
#[derive(Clone, Default)]
pub(crate) struct Server {
    answers: Arc<Mutex<VecDeque<Answer>>>,
    sent: Arc<Mutex<Vec<Sent>>>,
}

impl Server {
    pub(crate) fn new(answers: impl IntoIterator<Item = Answer>) -> Self {
        let server = Self::default();
        server.answers.lock().unwrap().extend(answers);
        server
    }

    pub(crate) fn sent(&self) -> Vec<Sent> {
        self.sent.lock().unwrap().clone()
    }

    /// The keys that came, and that there is one at least.
    pub(crate) fn keys(&self) -> Vec<String> {
        let keys: Vec<_> = self.sent().iter().map(|sent| sent.key().to_owned()).collect();
        assert!(!keys.is_empty());
        keys
    }

    /// How long after the one before it each send came.
    pub(crate) fn pauses(&self) -> Vec<Duration> {
        self.sent().windows(2).map(|two| two[1].at - two[0].at).collect()
    }
}

impl Service<Request<Body>> for Server {
    type Response = Response<Body>;
    type Error = io::Error;
    type Future = std::pin::Pin<Box<dyn Future<Output = Result<Response<Body>, io::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), io::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let (head, body) = request.into_parts();
        let nth = {
            let mut sent = self.sent.lock().unwrap();
            sent.push(Sent { at: Instant::now(), head, body });
            sent.len()
        };
        let answer = self.answers.lock().unwrap().pop_front().unwrap_or_else(|| status(200));
        Box::pin(async move {
            match answer {
                Answer::Status(status, headers) => {
                    let mut response = Response::new(Full::from(format!("answer {nth}")));
                    *response.status_mut() = status.try_into().unwrap();
                    *response.headers_mut() = headers;
                    Ok(response)
                }
                Answer::Breaks => {
                    Err(io::Error::new(io::ErrorKind::ConnectionReset, format!("error {nth}")))
                }
                Answer::Hangs => std::future::pending().await,
            }
        })
    }
}

pub(crate) fn request(method: &str, path: &str) -> Request<Body> {
    Request::builder().method(method).uri(path).body(Full::from("960")).unwrap()
}

pub(crate) fn post() -> Request<Body> {
    request("POST", "/charge")
}

/// What a client hears: the status, or the error as text.
pub(crate) async fn hears<S>(client: S, request: Request<Body>) -> Result<u16, String>
where
    S: Service<Request<Body>, Response = Response<Body>>,
    S::Error: Into<BoxError>,
{
    let answer = client.oneshot(request).await.map_err(|error| error.into().to_string())?;
    Ok(answer.status().as_u16())
}
