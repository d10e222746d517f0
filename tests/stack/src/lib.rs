//! A server around any service, and a client that asks it over HTTP/1.1 or HTTP/2.

use std::{
    error::Error,
    net::{Ipv4Addr, SocketAddr},
};

use bytes::{BufMut, Bytes, BytesMut};
use http::{Request, Response};
use http_body::Body;
use hyper::body::Incoming;
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
    service::TowerToHyperService,
};
use tokio::{net::TcpListener, task::JoinHandle};
use tower::Service;
use tower_idempotency_test_support::{Http2Answer, Http2Client, RawClient};

type BoxError = Box<dyn Error + Send + Sync>;

/// A server on a free port of 127.0.0.1. Takes no more connections when it is dropped.
#[derive(Debug)]
pub struct Serving {
    address: SocketAddr,
    accepting: JoinHandle<()>,
}

/// How a request is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2, with prior knowledge.
    Http2,
}

/// Each of them.
pub const BOTH: [Protocol; 2] = [Protocol::Http1, Protocol::Http2];

/// Serves this service to whoever connects, as hyper does it: no router, no framework.
///
/// # Panics
///
/// When it cannot listen.
pub async fn serve<S, B>(service: S) -> Serving
where
    S: Service<Request<Incoming>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
    let listener = listener.expect("127.0.0.1 has a free port");
    let address = listener.local_addr().expect("a bound listener has an address");
    let accepting = tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let service = TowerToHyperService::new(service.clone());
            tokio::spawn(async move {
                let server = auto::Builder::new(TokioExecutor::new());
                let io = TokioIo::new(stream);
                // How a connection ended is seen by its client.
                let _ = server.serve_connection_with_upgrades(io, service).await;
            });
        }
    });
    Serving { address, accepting }
}

impl Serving {
    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sends a request over a connection of its own, and reads the whole answer.
    ///
    /// # Panics
    ///
    /// When there is no answer.
    pub async fn send(
        &self,
        protocol: Protocol,
        request: Request<impl Into<Bytes>>,
    ) -> Http2Answer {
        send(self.address, protocol, request).await
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Sends a request over a connection of its own, and reads the whole answer.
///
/// # Panics
///
/// When there is no answer.
pub async fn send(
    address: SocketAddr,
    protocol: Protocol,
    request: Request<impl Into<Bytes>>,
) -> Http2Answer {
    if protocol == Protocol::Http2 {
        return Http2Client::connect(address).await.send(request).await;
    }
    let (head, body) = request.into_parts();
    let body = body.into();
    let mut bytes = BytesMut::new();
    let start = format!("{} {} HTTP/1.1\r\nhost: {address}\r\n", head.method, head.uri);
    bytes.put_slice(start.as_bytes());
    for (name, value) in &head.headers {
        bytes.put_slice(name.as_str().as_bytes());
        bytes.put_slice(b": ");
        bytes.put_slice(value.as_bytes());
        bytes.put_slice(b"\r\n");
    }
    bytes.put_slice(format!("content-length: {}\r\n\r\n", body.len()).as_bytes());
    bytes.put_slice(&body);
    let mut client = RawClient::connect(address).await;
    client.send(bytes).await;
    let answer = client.answer().await;
    let trailers = (!answer.trailers.is_empty()).then_some(answer.trailers);
    Http2Answer { status: answer.status, headers: answer.headers, body: answer.body, trailers }
}
