//! The conformance cases that are about framing, resets and disconnects (28, 29, 34, 35, 36), over
//! HTTP/2.

mod framing;
mod resets;

#[allow(
    dead_code,
    unreachable_pub,
    reason = "the shop of the cases over HTTP/1.1; these need less of it"
)]
#[path = "../../../http/tests/conformance/shop.rs"]
mod shop;

use bytes::Bytes;
use http::{Request, Response};
use tower_idempotency_test_support::{Http2Answer, Http2Client};

use crate::shop::Shop;

async fn connect(shop: &Shop) -> Http2Client {
    Http2Client::connect(shop.server.address()).await
}

/// The head of `POST /pay` with the key `k`.
fn head(length: Option<usize>) -> Request<()> {
    let head = Request::post("/pay").header("idempotency-key", "\"k\"");
    let head = match length {
        Some(length) => head.header("content-length", length),
        None => head,
    };
    head.body(()).unwrap()
}

/// `POST /pay` with the key `k` and this body, whose length is not told.
fn pay(body: &'static str) -> Request<&'static str> {
    head(None).map(|()| body)
}

fn response(answer: Http2Answer) -> Response<Bytes> {
    let mut response = Response::new(answer.body);
    *response.status_mut() = answer.status;
    *response.headers_mut() = answer.headers;
    response
}
