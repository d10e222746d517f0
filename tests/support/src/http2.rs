//! HTTP/2 with prior knowledge, a frame at a time: bodies in pieces, trailers, resets.

use std::{net::SocketAddr, time::Duration};

use bytes::{Bytes, BytesMut};
use h2::{Reason, SendStream, client};
use http::{HeaderMap, Request, StatusCode, header::HOST};
use tokio::{net::TcpStream, task::JoinHandle, time::timeout};

/// Longer than any answer takes on a busy machine: a test that waits in vain ends.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);

/// A connection. Dropped, it is cut.
#[derive(Debug)]
pub struct Http2Client {
    requests: client::SendRequest<Bytes>,
    address: SocketAddr,
    connection: JoinHandle<()>,
}

/// A whole answer.
#[derive(Clone, Debug)]
pub struct Http2Answer {
    /// The status.
    pub status: StatusCode,
    /// The fields of the head.
    pub headers: HeaderMap,
    /// The body.
    pub body: Bytes,
    /// The fields after the body, if there were any.
    pub trailers: Option<HeaderMap>,
}

/// One request, in the course of being sent.
#[derive(Debug)]
pub struct Http2Stream {
    response: client::ResponseFuture,
    body: SendStream<Bytes>,
}

impl Http2Client {
    /// Connects.
    ///
    /// # Panics
    ///
    /// When nobody listens, or speaks HTTP/2.
    pub async fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.expect("the server listens");
        stream.set_nodelay(true).expect("a socket that is open has options");
        let (requests, connection) =
            client::handshake(stream).await.expect("the server speaks HTTP/2");
        let connection = tokio::spawn(async move {
            // How it ended is seen by the streams.
            let _ = connection.await;
        });
        Self { requests, address, connection }
    }

    /// Sends the head of a request whose target is a path; the body is to come.
    ///
    /// # Panics
    ///
    /// When the connection is gone.
    pub async fn open(&self, request: Request<()>) -> Http2Stream {
        self.start(request, false).await
    }

    /// Sends a whole request, and reads the whole answer. Without a `Content-Length` but where the
    /// request has one.
    ///
    /// # Panics
    ///
    /// When there is no answer.
    pub async fn send(&self, request: Request<impl Into<Bytes>>) -> Http2Answer {
        let (head, body) = request.into_parts();
        let body = body.into();
        let mut stream = self.start(Request::from_parts(head, ()), body.is_empty()).await;
        if !body.is_empty() {
            stream.send(body, true);
        }
        stream.answer().await
    }

    /// Cuts the connection.
    pub fn cut(self) {
        drop(self);
    }

    async fn start(&self, request: Request<()>, end: bool) -> Http2Stream {
        let (mut head, ()) = request.into_parts();
        head.headers.remove(HOST);
        let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
        let uri = format!("http://{}{path}", self.address);
        head.uri = uri.parse().expect("an address and a path are a URI");
        let ready = self.requests.clone().ready();
        let mut requests = ready.await.expect("the connection is open");
        let (response, body) = requests
            .send_request(Request::from_parts(head, ()), end)
            .expect("the head of the request can be sent");
        Http2Stream { response, body }
    }
}

impl Drop for Http2Client {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

impl Http2Stream {
    /// Sends a piece of the body, perhaps the last one.
    ///
    /// # Panics
    ///
    /// When the stream is closed.
    pub fn send(&mut self, data: impl Into<Bytes>, last: bool) {
        self.body.send_data(data.into(), last).expect("the stream is open");
    }

    /// Ends the request with trailers.
    ///
    /// # Panics
    ///
    /// When the stream is closed.
    pub fn send_trailers(&mut self, trailers: HeaderMap) {
        self.body.send_trailers(trailers).expect("the stream is open");
    }

    /// Resets the stream. What has not left this side by then never does.
    pub fn reset(mut self, reason: Reason) {
        self.body.send_reset(reason);
    }

    /// Reads the whole answer.
    ///
    /// # Panics
    ///
    /// When there is none within 20 s.
    pub async fn answer(self) -> Http2Answer {
        self.try_answer().await.expect("a whole answer")
    }

    /// The same, where it may be that there is no answer.
    ///
    /// # Errors
    ///
    /// With what ended the stream.
    ///
    /// # Panics
    ///
    /// When the answer takes longer than 20 s.
    pub async fn try_answer(self) -> Result<Http2Answer, h2::Error> {
        // The sending half stays open until the end: dropped, it would reset the stream.
        let Self { response, body: _sending } = self;
        let read = async {
            let (head, mut body) = response.await?.into_parts();
            let mut whole = BytesMut::new();
            while let Some(data) = body.data().await {
                let data = data?;
                body.flow_control().release_capacity(data.len())?;
                whole.extend_from_slice(&data);
            }
            let trailers = body.trailers().await?;
            Ok(Http2Answer {
                status: head.status,
                headers: head.headers,
                body: whole.freeze(),
                trailers,
            })
        };
        timeout(ANSWER_WITHIN, read).await.expect("an answer, or its end, within 20 s")
    }
}
