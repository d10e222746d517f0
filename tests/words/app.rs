//! A small app under one rule, whose handler answers as it is told.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicU16, AtomicUsize, Ordering::Relaxed},
    },
};

use axum::body::Body;
use bytes::Bytes;
use http::{Request, Response, StatusCode, response::Parts};
use http_body_util::BodyExt;
use tower::{ServiceBuilder, ServiceExt, util::BoxCloneSyncService};
use tower_idempotency::{IdempotencyLayer, RequestBody, ResponseBody, Rule, Store};

type Service = BoxCloneSyncService<Request<Body>, Response<ResponseBody<String>>, Infallible>;

/// The status with which a handler never answers.
pub(crate) const NEVER: u16 = 0;

pub(crate) struct App {
    pub(crate) layer: IdempotencyLayer,
    service: Service,
    runs: Arc<AtomicUsize>,
}

/// An app whose handler answers this status and ten bytes.
pub(crate) fn answering(store: &(impl Store + Clone), rule: Rule, status: &Arc<AtomicU16>) -> App {
    let layer = IdempotencyLayer::new(store.clone(), rule);
    let runs = Arc::<AtomicUsize>::default();
    let (counted, status) = (runs.clone(), status.clone());
    let handler = move |_: Request<RequestBody<Body>>| {
        counted.fetch_add(1, Relaxed);
        let status = status.load(Relaxed);
        async move {
            if status == NEVER {
                std::future::pending::<()>().await;
            }
            let mut response = Response::new("ten bytes.".to_owned());
            *response.status_mut() = StatusCode::from_u16(status).unwrap();
            Ok(response)
        }
    };
    let service = ServiceBuilder::new().layer(layer.clone()).service_fn(handler);
    App { layer, service: BoxCloneSyncService::new(service), runs }
}

impl App {
    pub(crate) async fn send(&self, request: Request<Body>) -> (Parts, Bytes) {
        let response = self.service.clone().oneshot(request).await.unwrap();
        let (head, body) = response.into_parts();
        (head, body.collect().await.unwrap().to_bytes())
    }

    pub(crate) fn runs(&self) -> usize {
        self.runs.load(Relaxed)
    }
}

/// A request with this id, in a header and in its JSON body.
pub(crate) fn post(id: &str) -> Request<Body> {
    let body = Body::from(format!(r#"{{"id": "{id}"}}"#));
    Request::post("/").header("Idempotency-Key", id).body(body).unwrap()
}
