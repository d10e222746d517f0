//! One HTTP request on a connection of its own.

use std::net::SocketAddr;

use axum::http::{
    Method, Request, StatusCode,
    header::{CONTENT_TYPE, HOST},
};
use http_body_util::BodyExt;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::Error;

/// Sends this JSON and waits for the whole answer.
pub(crate) async fn send(
    server: SocketAddr,
    method: Method,
    path: &str,
    json: String,
) -> Result<(StatusCode, String), Error> {
    let stream = TokioIo::new(TcpStream::connect(server).await?);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await?;
    tokio::spawn(connection);
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(HOST, server.to_string())
        .header(CONTENT_TYPE, "application/json")
        .body(json)?;
    let (head, body) = sender.send_request(request).await?.into_parts();
    let body = body.collect().await?.to_bytes();
    Ok((head.status, String::from_utf8_lossy(&body).into_owned()))
}
