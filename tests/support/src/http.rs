//! HTTP over real sockets: a server around a router, a client that speaks HTTP, and one that sends
//! and reads bytes as they are.

use std::{
    error::Error,
    io,
    net::{Ipv4Addr, SocketAddr},
    str,
    time::Duration,
};

use axum::Router;
use bytes::{Buf, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, header::HOST};
use http_body::Body;
use http_body_util::BodyExt;
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
    time::timeout,
};

/// Longer than any answer takes on a busy machine: a test that waits in vain ends.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);

/// Serves a router on a free port of 127.0.0.1, over HTTP/1.1, and over HTTP/2 with prior knowledge.
/// Takes no more connections when it is dropped.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    serving: JoinHandle<()>,
}

impl Server {
    /// Starts it.
    ///
    /// # Panics
    ///
    /// When it cannot listen.
    pub async fn start(router: Router) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
        let listener = listener.expect("127.0.0.1 has a free port");
        let address = listener.local_addr().expect("a bound listener has an address");
        let serving = tokio::spawn(async move {
            axum::serve(listener, router).await.expect("axum::serve has no end of its own");
        });
        Self { address, serving }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sends a request over a connection of its own, and reads the whole answer.
    ///
    /// # Panics
    ///
    /// When there is no answer.
    pub async fn send<B>(&self, request: Request<B>) -> Response<Bytes>
    where
        B: Body + Send + 'static,
        B::Data: Send,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        Self::exchange(self.address, request).await
    }

    /// The same with a server that is known by its address, for a task of its own.
    ///
    /// # Panics
    ///
    /// When there is no answer.
    pub async fn exchange<B>(address: SocketAddr, request: Request<B>) -> Response<Bytes>
    where
        B: Body + Send + 'static,
        B::Data: Send,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        match Self::try_exchange(address, request).await {
            Ok(response) => response,
            Err(error) => panic!("no answer: {error}"),
        }
    }

    /// The same, where it may be that there is no answer, or none to its end.
    ///
    /// Dropped, it closes its connection.
    ///
    /// # Errors
    ///
    /// With what the client met.
    ///
    /// # Panics
    ///
    /// When the answer takes longer than 20 s.
    pub async fn try_send<B>(&self, request: Request<B>) -> Result<Response<Bytes>, hyper::Error>
    where
        B: Body + Send + 'static,
        B::Data: Send,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        Self::try_exchange(self.address, request).await
    }

    /// [`Server::exchange`], where it may be that there is no answer, or none to its end.
    ///
    /// # Errors
    ///
    /// With what the client met.
    ///
    /// # Panics
    ///
    /// When the answer takes longer than 20 s, or nobody listens.
    pub async fn try_exchange<B>(
        address: SocketAddr,
        request: Request<B>,
    ) -> Result<Response<Bytes>, hyper::Error>
    where
        B: Body + Send + 'static,
        B::Data: Send,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        let stream = TcpStream::connect(address).await.expect("the server listens");
        let exchange = timeout(ANSWER_WITHIN, exchange_over(stream, address, request));
        exchange.await.expect("an answer, or its end, within 20 s")
    }

    /// The same with a server that may be dead, or die before it has answered, or take longer than
    /// this: then there is no answer.
    pub async fn attempt<B>(
        address: SocketAddr,
        request: Request<B>,
        within: Duration,
    ) -> Option<Response<Bytes>>
    where
        B: Body + Send + 'static,
        B::Data: Send,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        let attempt = async {
            let stream = TcpStream::connect(address).await.ok()?;
            exchange_over(stream, address, request).await.ok()
        };
        timeout(within, attempt).await.ok()?
    }

    /// A connection on which the test says every byte itself.
    pub async fn connect(&self) -> RawClient {
        RawClient::connect(self.address).await
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// Sends a request over this connection, reads the whole answer, and closes.
async fn exchange_over<B>(
    stream: TcpStream,
    address: SocketAddr,
    mut request: Request<B>,
) -> Result<Response<Bytes>, hyper::Error>
where
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let host = HeaderValue::try_from(address.to_string()).expect("an address is ASCII");
    request.headers_mut().entry(HOST).or_insert(host);
    let (mut client, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let exchange = async {
        let (head, body) = client.send_request(request).await?.into_parts();
        Ok(Response::from_parts(head, body.collect().await?.to_bytes()))
    };
    // The connection is polled here and not in a task, so that it ends with this future.
    tokio::pin!(connection);
    tokio::select! {
        answer = exchange => answer,
        Err(error) = &mut connection => Err(error),
    }
}

/// A connection that sends exactly the bytes it is given, and shows exactly those that came.
///
/// Dropped, it closes its side politely; [`RawClient::reset`] does not.
#[derive(Debug)]
pub struct RawClient {
    stream: TcpStream,
    unread: BytesMut,
}

/// An answer with its bytes as they came.
#[derive(Clone, Debug)]
pub struct RawAnswer {
    /// From the status line to the last byte of the body's framing.
    pub bytes: Bytes,
    /// The status.
    pub status: StatusCode,
    /// The fields of the head; each line is an entry of its own.
    pub headers: HeaderMap,
    /// The body without its framing.
    pub body: Bytes,
    /// The fields after a chunked body.
    pub trailers: HeaderMap,
}

impl RawAnswer {
    /// The same as a response, to be looked at like any other. Without the trailers.
    pub fn into_response(self) -> Response<Bytes> {
        let mut response = Response::new(self.body);
        *response.status_mut() = self.status;
        *response.headers_mut() = self.headers;
        response
    }
}

impl RawClient {
    /// Connects.
    ///
    /// # Panics
    ///
    /// When nobody listens.
    pub async fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.expect("the server listens");
        stream.set_nodelay(true).expect("a socket that is open has options");
        Self { stream, unread: BytesMut::new() }
    }

    /// Sends these bytes.
    ///
    /// # Panics
    ///
    /// When the connection is gone.
    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).await.expect("the connection is open");
    }

    /// Reads one final answer; interim ones (1xx) before it are skipped.
    ///
    /// # Panics
    ///
    /// When none comes, or it is no HTTP/1.1.
    pub async fn answer(&mut self) -> RawAnswer {
        loop {
            let answer = self.any_answer().await;
            if !answer.status.is_informational() {
                return answer;
            }
        }
    }

    /// Reads one answer, which may be an interim one.
    ///
    /// # Panics
    ///
    /// When none comes, or it is no HTTP/1.1.
    pub async fn any_answer(&mut self) -> RawAnswer {
        let read = timeout(ANSWER_WITHIN, self.read_answer(true)).await;
        read.expect("an answer within 20 s").expect("an answer before the connection ends")
    }

    /// Reads the answer to a HEAD request: its head alone.
    ///
    /// # Panics
    ///
    /// When none comes, or it is no HTTP/1.1.
    pub async fn answer_to_head(&mut self) -> RawAnswer {
        let read = timeout(ANSWER_WITHIN, self.read_answer(false)).await;
        read.expect("an answer within 20 s").expect("an answer before the connection ends")
    }

    /// Reads until these bytes have come, and gives back everything up to them, as text.
    ///
    /// # Panics
    ///
    /// When they do not come within 20 s.
    pub async fn read_until(&mut self, end: &str) -> String {
        let read = timeout(ANSWER_WITHIN, self.read_through(end.as_bytes())).await;
        let bytes = read.expect("it comes within 20 s").expect("it comes before the end");
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Reads whatever comes until the server closes the connection.
    ///
    /// # Panics
    ///
    /// When it is not closed within 20 s.
    pub async fn rest(&mut self) -> Bytes {
        let read = async { while let Ok(1..) = self.stream.read_buf(&mut self.unread).await {} };
        timeout(ANSWER_WITHIN, read).await.expect("the server closes within 20 s");
        self.unread.split().freeze()
    }

    /// Ends the connection with a reset in place of a polite end.
    pub fn reset(self) {
        #[expect(deprecated, reason = "zero seconds of linger do not block; they make it a reset")]
        self.stream.set_linger(Some(Duration::ZERO)).expect("a socket that is open has options");
    }

    /// Says that nothing more will be sent; answers can still be read.
    ///
    /// # Panics
    ///
    /// When the connection is gone.
    pub async fn finish_sending(&mut self) {
        self.stream.shutdown().await.expect("the connection is open");
    }

    async fn read_answer(&mut self, with_body: bool) -> io::Result<RawAnswer> {
        let head = self.read_through(b"\r\n\r\n").await?;
        let mut lines = lines(&head);
        let status_line = lines.next().unwrap_or_default();
        let status = status_line.strip_prefix(b"HTTP/1.1 ").and_then(|rest| rest.get(..3));
        let status = status.and_then(|code| StatusCode::from_bytes(code).ok());
        let status = status.unwrap_or_else(|| panic!("{:?} is no status line", status_line));
        let headers = fields(lines);
        let mut answer = RawAnswer {
            bytes: Bytes::new(),
            status,
            headers,
            body: Bytes::new(),
            trailers: HeaderMap::new(),
        };
        let mut bytes = head;
        if with_body {
            self.read_body(&mut answer, &mut bytes).await?;
        }
        answer.bytes = bytes.freeze();
        Ok(answer)
    }

    /// RFC 9112, section 6.3.
    async fn read_body(&mut self, answer: &mut RawAnswer, bytes: &mut BytesMut) -> io::Result<()> {
        let none = answer.status.is_informational()
            || matches!(answer.status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
        if none {
            return Ok(());
        }
        if answer.headers.get("transfer-encoding").is_some_and(|coding| coding == "chunked") {
            return self.read_chunks(answer, bytes).await;
        }
        answer.body = match answer.headers.get("content-length") {
            Some(length) => {
                let length = length.to_str().ok().and_then(|length| length.parse().ok());
                self.read_exactly(length.expect("Content-Length is a number")).await?
            }
            None => self.rest().await,
        };
        bytes.extend_from_slice(&answer.body);
        Ok(())
    }

    async fn read_chunks(
        &mut self,
        answer: &mut RawAnswer,
        bytes: &mut BytesMut,
    ) -> io::Result<()> {
        let mut body = BytesMut::new();
        loop {
            let line = self.read_through(b"\r\n").await?;
            bytes.extend_from_slice(&line);
            let length = str::from_utf8(line.trim_ascii()).ok();
            let length = length.and_then(|length| usize::from_str_radix(length, 16).ok());
            let length = length.unwrap_or_else(|| panic!("{line:?} is no length of a chunk"));
            if length == 0 {
                break;
            }
            let mut chunk = self.read_exactly(length + 2).await?;
            bytes.extend_from_slice(&chunk);
            body.extend_from_slice(&chunk.split_to(length));
        }
        let mut trailers = BytesMut::new();
        loop {
            let line = self.read_through(b"\r\n").await?;
            bytes.extend_from_slice(&line);
            if line.len() == 2 {
                break;
            }
            trailers.extend_from_slice(&line);
        }
        answer.trailers = fields(lines(&trailers));
        answer.body = body.freeze();
        Ok(())
    }

    async fn read_through(&mut self, end: &[u8]) -> io::Result<BytesMut> {
        loop {
            if let Some(at) = self.unread.windows(end.len()).position(|window| window == end) {
                return Ok(self.unread.split_to(at + end.len()));
            }
            self.read_more().await?;
        }
    }

    async fn read_exactly(&mut self, length: usize) -> io::Result<Bytes> {
        while self.unread.remaining() < length {
            self.read_more().await?;
        }
        Ok(self.unread.split_to(length).freeze())
    }

    async fn read_more(&mut self) -> io::Result<()> {
        match self.stream.read_buf(&mut self.unread).await? {
            0 => Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                format!("the connection ended after {:?}", self.unread),
            )),
            _ => Ok(()),
        }
    }
}

fn lines(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    bytes.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii_end)
}

fn fields<'a>(lines: impl Iterator<Item = &'a [u8]>) -> HeaderMap {
    let mut fields = HeaderMap::new();
    for line in lines.filter(|line| !line.is_empty()) {
        let colon = line.iter().position(|byte| *byte == b':');
        let (name, value) = line.split_at(colon.unwrap_or_else(|| panic!("{line:?} is no field")));
        let name = HeaderName::from_bytes(name).expect("the name of a field");
        let value = HeaderValue::from_bytes(value[1..].trim_ascii()).expect("the value of a field");
        fields.append(name, value);
    }
    fields
}
