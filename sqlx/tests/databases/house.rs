//! A handler behind the layer, and what a test wants to know of the layer's ledger.

use std::{
    future::Future,
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use tokio::sync::Semaphore;
use tower::{ServiceBuilder, ServiceExt, service_fn, util::BoxCloneSyncService};
use tower_idempotency::{
    Answer, IdempotencyLayer, Ledger, LedgerEntry, LedgerError, LedgerRow, Operation, Policy,
    RequestBody, Rule, Sealed, Store,
};

use crate::operation::Delivery;

/// What a client was told: the status, the text, and whether it is a replay.
pub(crate) type Told = (u16, String, bool);

pub(crate) fn executed(status: u16, text: &str) -> Told {
    (status, text.to_owned(), false)
}

pub(crate) fn replayed(status: u16, text: &str) -> Told {
    (status, text.to_owned(), true)
}

/// What a process that dies in its handler looks like from outside.
pub(crate) fn dies<T>() -> io::Result<T> {
    Err(io::Error::other("the process dies here"))
}

#[derive(Clone)]
pub(crate) struct House(BoxCloneSyncService<Request<String>, Told, io::Error>);

impl House {
    /// The rule `fulfil` with this policy around this handler.
    pub(crate) fn new<H, F>(store: impl Store, policy: Policy, handler: H) -> Self
    where
        H: Fn(Operation) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = io::Result<Answer>> + Send + 'static,
    {
        let handler = service_fn(move |request: Request<RequestBody<String>>| {
            let operation = request.extensions().get::<Operation>().cloned();
            let answer = handler(operation.expect("the layer is around this"));
            async move { Ok::<_, io::Error>(answer.await?.into_http().map(Full::new)) }
        });
        let layer = IdempotencyLayer::new(store, Rule::new("fulfil", policy));
        let service = ServiceBuilder::new().layer(layer).service(handler);
        Self(BoxCloneSyncService::new(service_fn(move |request: Request<String>| {
            let answer = service.clone().oneshot(request);
            async move {
                let answer: Response<_> = answer.await?;
                let replayed = answer.headers().contains_key("idempotent-replayed");
                let status = answer.status().as_u16();
                let body = answer.into_body().collect().await.map_err(io::Error::other)?;
                let text = String::from_utf8(body.to_bytes().to_vec()).unwrap();
                Ok((status, text, replayed))
            }
        })))
    }

    pub(crate) async fn send(&self, delivery: Delivery) -> Told {
        self.try_send(delivery).await.unwrap()
    }

    pub(crate) async fn try_send(&self, delivery: Delivery) -> io::Result<Told> {
        self.0.clone().oneshot(delivery.request()).await
    }

    /// The same of any request.
    pub(crate) async fn call(&self, request: Request<String>) -> Told {
        self.try_call(request).await.unwrap()
    }

    pub(crate) async fn try_call(&self, request: Request<String>) -> io::Result<Told> {
        self.0.clone().oneshot(request).await
    }
}

/// A door at which a handler waits until a test lets it go on.
#[derive(Clone)]
pub(crate) struct Door {
    came: Arc<Semaphore>,
    may_go: Arc<Semaphore>,
}

impl Door {
    pub(crate) fn new() -> Self {
        let closed = || Arc::new(Semaphore::new(0));
        Self { came: closed(), may_go: closed() }
    }

    /// The handler's part.
    pub(crate) async fn pass(&self) {
        self.came.add_permits(1);
        self.may_go.acquire().await.unwrap().forget();
    }

    /// Waits until somebody is at the door.
    pub(crate) async fn came(&self) {
        self.came.acquire().await.unwrap().forget();
    }

    pub(crate) fn let_one_in(&self) {
        self.may_go.add_permits(1);
    }
}

/// A ledger that counts what the layer asks it.
#[derive(Clone)]
pub(crate) struct Counted<L> {
    ledger: L,
    finds: Arc<AtomicUsize>,
    seals: Arc<AtomicUsize>,
}

impl<L> Counted<L> {
    pub(crate) fn new(ledger: L) -> Self {
        Self { ledger, finds: Arc::default(), seals: Arc::default() }
    }

    /// Rows that were looked for, and seals.
    pub(crate) fn asked(&self) -> (usize, usize) {
        (self.finds.load(Ordering::SeqCst), self.seals.load(Ordering::SeqCst))
    }
}

impl<L: Ledger> Ledger for Counted<L> {
    async fn find(&self, entry: &LedgerEntry) -> Result<Option<LedgerRow>, LedgerError> {
        self.finds.fetch_add(1, Ordering::SeqCst);
        self.ledger.find(entry).await
    }

    async fn seal(&self, entry: &LedgerEntry, row: &LedgerRow) -> Result<Sealed, LedgerError> {
        self.seals.fetch_add(1, Ordering::SeqCst);
        self.ledger.seal(entry, row).await
    }
}
