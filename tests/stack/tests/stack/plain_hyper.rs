//! A hyper service without a framework: the layer through `ServiceBuilder`.

use std::convert::Infallible;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full, combinators::BoxBody};
use hyper::body::Incoming;
use tower::{ServiceBuilder, service_fn};
use tower_idempotency::RequestBody;
use tower_idempotency_stack_tests::{BOTH, serve};
use tower_idempotency_test_support::Runs;

use crate::{is_replay, layer, post};

#[tokio::test]
async fn a_handler_of_request_bodies_runs_once() {
    for protocol in BOTH {
        let runs = Runs::new();
        let counted = runs.clone();
        let handler = move |request: Request<RequestBody<Incoming>>| {
            counted.add();
            async move {
                let body = request.into_body().collect().await.expect("it is whole");
                Ok::<_, Infallible>(Response::new(Full::new(body.to_bytes())))
            }
        };
        let server = serve(ServiceBuilder::new().layer(layer()).service_fn(handler)).await;
        for delivery in 0..3 {
            let answer = server.send(protocol, post("k")).await;
            assert_eq!((&answer.body[..], is_replay(&answer)), (&b"a payment"[..], delivery > 0));
        }
        assert_eq!(runs.count(), 1);
        // What no rule is for keeps its own body.
        let put = Request::put("/pay").body("untouched").unwrap();
        assert_eq!(server.send(protocol, put).await.body, "untouched");
        assert_eq!(runs.count(), 2);
    }
}

#[tokio::test]
async fn a_handler_of_boxed_bodies_runs_once_behind_a_box_at_the_door() {
    async fn handler(
        request: Request<BoxBody<Bytes, hyper::Error>>,
    ) -> Result<Response<BoxBody<Bytes, hyper::Error>>, Infallible> {
        Ok(Response::new(request.into_body()))
    }
    for protocol in BOTH {
        let service = ServiceBuilder::new()
            .layer(layer())
            .map_request(|request: Request<RequestBody<Incoming>>| request.map(BodyExt::boxed))
            .service(service_fn(handler));
        let server = serve(service).await;
        for delivery in 0..2 {
            let answer = server.send(protocol, post("k")).await;
            assert_eq!((&answer.body[..], is_replay(&answer)), (&b"a payment"[..], delivery > 0));
        }
    }
}
