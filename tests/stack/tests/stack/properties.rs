//! What holds of the types, checked where this compiles.

use std::{error::Error, fmt::Debug};

use axum::body::Body as AxumBody;
use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use http_body_util::{Empty, Full};
use hyper::body::Incoming;
use tower::{Layer, Service, util::BoxCloneSyncService};
use tower_idempotency::{
    Answer, Handled, Idempotency, IdempotencyLayer, Operation, Policy, PolicyError, Refusal,
    RequestBody, ResponseBody, ResponseFuture, Rule, RuleError, Rules, StoreError,
};

use crate::{Handler, layer};

fn is_send<T: Send>() {}
fn is_sync<T: Sync>() {}
fn is_clone<T: Clone>() {}
fn is_debug<T: Debug>() {}
fn is_default<T: Default>() {}
fn is_static<T: 'static>() {}
fn is_unpin<T: Unpin>() {}
fn is_error<T: Error + Send + Sync + 'static>() {}

/// A body that is none of `Default`, `Clone`, `Sync`, `Unpin`.
struct Poor(std::cell::Cell<()>, std::marker::PhantomPinned);

#[test]
fn the_layer_and_its_service_are_what_their_inner_service_is() {
    is_send::<IdempotencyLayer>();
    is_sync::<IdempotencyLayer>();
    is_clone::<IdempotencyLayer>();
    is_debug::<IdempotencyLayer>();
    is_send::<Idempotency<Handler>>();
    is_sync::<Idempotency<Handler>>();
    is_clone::<Idempotency<Handler>>();
    is_debug::<Idempotency<Handler>>();
    is_static::<Idempotency<Handler>>();
    is_unpin::<Idempotency<Handler>>();
    is_send::<Idempotency<std::cell::Cell<()>>>();
    is_clone::<Idempotency<std::rc::Rc<()>>>();
}

#[test]
fn its_future_and_its_bodies_can_be_moved_between_threads() {
    type Inner = <Handler as Service<Request<RequestBody<Incoming>>>>::Future;
    is_send::<ResponseFuture<Inner, Full<Bytes>, std::convert::Infallible>>();
    is_debug::<ResponseFuture<Inner, Full<Bytes>, std::convert::Infallible>>();
    is_send::<RequestBody<Incoming>>();
    is_send::<ResponseBody<AxumBody>>();
    is_sync::<RequestBody<Incoming>>();
    is_sync::<ResponseBody<Full<Bytes>>>();
    is_unpin::<RequestBody<Incoming>>();
    is_unpin::<ResponseBody<AxumBody>>();
    is_send::<RequestBody<Poor>>();
}

#[test]
fn its_bodies_have_a_default_whatever_is_in_them() {
    is_default::<RequestBody<Poor>>();
    is_default::<ResponseBody<Poor>>();
    is_debug::<ResponseBody<Poor>>();
    is_debug::<RequestBody<Full<Bytes>>>();
    assert!(RequestBody::<Empty<Bytes>>::default().is_end_stream());
    assert_eq!(ResponseBody::<Empty<Bytes>>::default().size_hint().exact(), Some(0));
    let _ = Poor(std::cell::Cell::new(()), std::marker::PhantomPinned);
}

#[test]
fn what_handlers_and_operators_hold_can_be_shared_and_shown() {
    is_send::<Operation>();
    is_sync::<Operation>();
    is_clone::<Operation>();
    is_debug::<Operation>();
    is_clone::<Answer>();
    is_sync::<Refusal>();
    is_clone::<Refusal>();
    is_sync::<Handled>();
    is_sync::<Rule>();
    is_sync::<Rules>();
    is_clone::<Policy>();
    is_sync::<Policy>();
    is_error::<PolicyError>();
    is_error::<RuleError>();
    is_error::<StoreError>();
}

#[test]
fn its_future_may_be_held_as_any_future() {
    type Inner = <Handler as Service<Request<RequestBody<Incoming>>>>::Future;
    fn boxed<F: Future + Send + 'static>(future: F) -> Box<dyn Future<Output = F::Output> + Send> {
        Box::new(future)
    }
    let _ = boxed::<ResponseFuture<Inner, Full<Bytes>, std::convert::Infallible>>;
}

#[tokio::test]
async fn its_service_may_be_held_as_any_service() {
    type Any = BoxCloneSyncService<
        Request<Full<Bytes>>,
        Response<ResponseBody<Full<Bytes>>>,
        std::convert::Infallible,
    >;
    let mut service: Any = BoxCloneSyncService::new(layer().layer(Handler::default()));
    let request = crate::post("k").map(Full::from);
    let answer = tower::ServiceExt::ready(&mut service).await.unwrap().call(request).await.unwrap();
    assert_eq!(answer.status(), 200);
}
