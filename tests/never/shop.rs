//! A layer around a handler of the test's own, without a network.

use std::{convert::Infallible, future::Future};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode, response::Parts};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use tower::{ServiceBuilder, ServiceExt, service_fn, util::BoxCloneService};
use tower_idempotency::{
    IdempotencyLayer, Policy, Refusal, RefusalKind, RequestBody, ResponseBody, Rule, Scope, State,
    Store,
    store::{Cursor, Listed},
};
pub(crate) use tower_idempotency_test_support::Runs;

pub(crate) type Asked = Request<RequestBody<Full<Bytes>>>;
pub(crate) type AnswerBody = UnsyncBoxBody<Bytes, Infallible>;
pub(crate) type Answered = Response<AnswerBody>;
type Service =
    BoxCloneService<Request<Full<Bytes>>, Response<ResponseBody<AnswerBody>>, Infallible>;

pub(crate) fn api() -> Policy {
    Policy::api(Scope::everyone())
}

/// A layer and the handler in it.
#[derive(Clone)]
pub(crate) struct Shop {
    pub(crate) layer: IdempotencyLayer,
    pub(crate) runs: Runs,
    service: Service,
}

impl Shop {
    pub(crate) fn new<H, F>(store: impl Store, policy: Policy, handler: H) -> Self
    where
        H: Fn(Asked) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Answered> + Send + 'static,
    {
        let layer = IdempotencyLayer::new(store, Rule::new("shop", policy));
        let runs = Runs::new();
        let counted = runs.clone();
        let inner = service_fn(move |request: Asked| {
            counted.add();
            let answer = handler(request);
            async move { Ok::<_, Infallible>(answer.await) }
        });
        let service = ServiceBuilder::new().layer(layer.clone()).service(inner);
        Self { layer, runs, service: BoxCloneService::new(service) }
    }

    /// Sends a request, and waits for the whole answer.
    pub(crate) fn send(
        &self,
        request: Request<Full<Bytes>>,
    ) -> impl Future<Output = Reply> + Send + use<> {
        let service = self.service.clone();
        async move {
            let Ok(response) = service.oneshot(request).await;
            let (head, body) = response.into_parts();
            let collected = body.collect().await.expect("a whole answer");
            let trailers = collected.trailers().cloned();
            Reply { head, body: collected.to_bytes(), trailers }
        }
    }
}

/// A whole answer.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) head: Parts,
    pub(crate) body: Bytes,
    pub(crate) trailers: Option<HeaderMap>,
}

impl Reply {
    pub(crate) fn is_replay(&self) -> bool {
        self.head.headers.contains_key("idempotent-replayed")
    }

    pub(crate) fn refusal(&self) -> Option<RefusalKind> {
        self.head.extensions.get::<Refusal>().map(Refusal::kind)
    }

    #[track_caller]
    pub(crate) fn assert_text(&self, body: &str) {
        assert_eq!((self.refusal(), &self.body[..]), (None, body.as_bytes()), "{self:?}");
    }
}

/// A POST with this key.
pub(crate) fn keyed(key: &str) -> Request<Full<Bytes>> {
    Request::post("/pay")
        .header("idempotency-key", key)
        .body(Full::from("amount=20"))
        .expect("a request")
}

/// A notification.
pub(crate) fn notification(body: &'static str) -> Request<Full<Bytes>> {
    Request::post("/notify").body(Full::from(body)).expect("a request")
}

pub(crate) fn text(status: u16, body: impl Into<Bytes>) -> Answered {
    let mut response = Response::new(Full::new(body.into()).boxed_unsync());
    *response.status_mut() = StatusCode::from_u16(status).expect("a status");
    response
}

/// All records of a store.
pub(crate) async fn records(store: &impl Store) -> Vec<Listed> {
    store.scan(Cursor::START, 1000).await.expect("a page").records
}

/// The state of the only record.
pub(crate) async fn only_state(store: &impl Store) -> State {
    let records = records(store).await;
    assert_eq!(records.len(), 1, "{records:?}");
    records[0].state
}
