//! Bodies that no server or client of HTTP makes.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body::{Body, Frame};
use http_body_util::Full;
use tower::{ServiceBuilder, ServiceExt, service_fn};
use tower_idempotency::{IdempotencyLayer, MemoryStore, Refusal, RefusalKind, RequestBody, Rule};

use crate::shop::{api, records};

/// Trailers, and trailers again, without an end.
struct Trailers;

impl Body for Trailers {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(Some(Ok(Frame::trailers(HeaderMap::new()))))
    }
}

#[tokio::test]
async fn a_body_of_endless_trailers_holds_no_thread_and_claims_nothing() {
    let store = MemoryStore::new();
    let policy = api().body_within(Duration::from_millis(50));
    let service = ServiceBuilder::new()
        .layer(IdempotencyLayer::new(store.clone(), Rule::new("pay", policy)))
        .service_fn(|_: Request<RequestBody<Trailers>>| async {
            Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
        });
    let request = Request::post("/pay").header("idempotency-key", "k").body(Trailers);
    let Ok(answer) = service.oneshot(request.expect("a request")).await;
    let refusal = answer.extensions().get::<Refusal>().map(Refusal::kind);
    assert_eq!(refusal, Some(RefusalKind::BodyTooSlow));
    assert_eq!(records(&store).await, []);
}

#[tokio::test]
async fn an_answer_of_endless_trailers_holds_no_thread_and_is_never_run_again() {
    let runs = crate::shop::Runs::new();
    let counted = runs.clone();
    let inner = service_fn(move |_: Request<RequestBody<Full<Bytes>>>| {
        counted.add();
        async { Ok::<_, Infallible>(Response::new(Trailers)) }
    });
    let layer = IdempotencyLayer::new(MemoryStore::new(), Rule::new("pay", api()));
    let service = ServiceBuilder::new().layer(layer).service(inner);
    let asked = Instant::now();
    let Ok(first) = service.clone().oneshot(crate::shop::keyed("k")).await;
    assert_eq!(first.status(), 200);
    assert!(asked.elapsed() < Duration::from_secs(10), "it is sent on after 5 s");
    let Ok(second) = service.oneshot(crate::shop::keyed("k")).await;
    let refusal = second.extensions().get::<Refusal>().map(Refusal::kind);
    assert_eq!((refusal, runs.count()), (Some(RefusalKind::AnswerNotKept), 1));
}
