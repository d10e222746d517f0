//! What breaks a run in the places where hardly anything runs: a handler's own code that panics while it is
//! dropped, a client that leaves at each single poll, a caller without a runtime.

use std::{
    fmt::Debug,
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::Bytes;
use http::Response;
use http_body::{Frame, SizeHint};
use tokio::{
    task::yield_now,
    time::{sleep, timeout},
};
use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
use tower_idempotency::{
    Grant, IdempotencyLayer, MemoryStore, RefusalKind, Rule, State, Store, StoreError,
    store::{
        Claim, Claimed, Cursor, Issue, Issued, Kept, Page, Release, Resolve, Resolved,
        StoreErrorKind, Written,
    },
};
use tracing::{
    Event, Id, Metadata, Subscriber,
    field::Field,
    span::{Attributes, Record},
    subscriber::set_default,
};

use crate::house::{
    Answered, Asked, Body, House, Reply, SECOND, api, request, respond, settle, text,
};

/// Panics when it is dropped, once it is told to.
struct Bomb(Arc<AtomicBool>);

impl Drop for Bomb {
    fn drop(&mut self) {
        if self.0.swap(false, Ordering::SeqCst) {
            panic!("the handler's own panic");
        }
    }
}

/// Where the handler panics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Where {
    Call,
    Poll,
    FutureDrop,
    ServiceDrop,
    BodyDrop,
    BodyPoll,
    BodyHint,
    BodyEnd,
}

struct Blasted {
    service: Bomb,
    place: Where,
    armed: Arc<AtomicBool>,
    runs: Arc<AtomicUsize>,
}

impl Clone for Blasted {
    fn clone(&self) -> Self {
        Self {
            service: Bomb(Arc::default()),
            place: self.place,
            armed: self.armed.clone(),
            runs: self.runs.clone(),
        }
    }
}

impl Service<Asked> for Blasted {
    type Response = Response<Body>;
    type Error = String;
    type Future = BlastedFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), String>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Asked) -> BlastedFuture {
        self.runs.fetch_add(1, Ordering::SeqCst);
        let armed = self.armed.swap(false, Ordering::SeqCst);
        if armed && self.place == Where::Call {
            panic!("the handler's own panic");
        }
        self.service.0.store(armed && self.place == Where::ServiceDrop, Ordering::SeqCst);
        let dropped = Arc::new(AtomicBool::new(armed && self.place == Where::FutureDrop));
        BlastedFuture { _dropped: Bomb(dropped), armed, place: self.place }
    }
}

struct BlastedFuture {
    _dropped: Bomb,
    armed: bool,
    place: Where,
}

impl Future for BlastedFuture {
    type Output = Answered;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Answered> {
        if self.armed && self.place == Where::Poll {
            panic!("the handler's own panic");
        }
        let body =
            BlastedBody { left: 2, place: self.place, armed: Bomb(Arc::new(self.armed.into())) };
        if self.place != Where::BodyDrop {
            let told = body.armed.0.swap(false, Ordering::SeqCst);
            return Poll::Ready(respond(200, Told { body, told }));
        }
        Poll::Ready(respond(200, Told { body, told: false }))
    }
}

struct BlastedBody {
    left: u32,
    place: Where,
    armed: Bomb,
}

struct Told {
    body: BlastedBody,
    told: bool,
}

impl http_body::Body for Told {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        assert!(!self.told || self.body.place != Where::BodyPoll, "the handler's own panic");
        if self.body.left == 0 {
            return Poll::Ready(None);
        }
        self.body.left -= 1;
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"a")))))
    }

    fn is_end_stream(&self) -> bool {
        assert!(!self.told || self.body.place != Where::BodyEnd, "the handler's own panic");
        false
    }

    fn size_hint(&self) -> SizeHint {
        assert!(!self.told || self.body.place != Where::BodyHint, "the handler's own panic");
        SizeHint::default()
    }
}

const PLACES: [Where; 8] = [
    Where::Call,
    Where::Poll,
    Where::FutureDrop,
    Where::ServiceDrop,
    Where::BodyDrop,
    Where::BodyPoll,
    Where::BodyHint,
    Where::BodyEnd,
];

#[tokio::test(start_paused = true)]
async fn wherever_a_handler_panics_its_key_is_unknown_at_once_and_its_client_hears_the_panic() {
    for place in PLACES {
        let (armed, runs) = (Arc::new(AtomicBool::new(true)), Arc::<AtomicUsize>::default());
        let inner = Blasted { service: Bomb(Arc::default()), place, armed, runs: runs.clone() };
        let house = House::around(MemoryStore::new(), Rule::new("pay", api()), inner, runs);
        let first = house.client("k").await;
        assert!(first.is_err_and(|error| error.is_panic()), "{place:?}");
        settle().await;
        house.send("k").await.is_refused(RefusalKind::OutcomeUnknown);
        assert_eq!(house.runs(), 1, "{place:?}");
        house.send("other").await.is_executed();
        assert_eq!(house.store_states().await, [State::Completed, State::InProgress]);
    }
}

/// Takes events, and panics at one that begins with these words, once.
struct Trap(&'static str, AtomicBool);

impl Subscriber for Trap {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut said = String::new();
        event.record(&mut |field: &Field, value: &dyn Debug| {
            if field.name() == "message" {
                said = format!("{value:?}");
            }
        });
        if said.starts_with(self.0) && self.1.swap(false, Ordering::SeqCst) {
            panic!("the panic of whoever takes events");
        }
    }

    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[tokio::test(start_paused = true)]
async fn what_was_granted_is_called_off_where_whoever_takes_events_panics_before_the_handler_runs()
{
    let statuses = Mutex::new(vec![200, 504]);
    let statuses = Arc::new(statuses);
    let house = House::with(api().rerun_abandoned(), move |_| {
        let status = statuses.lock().unwrap().pop().unwrap();
        async move { text(status, "done") }
    });
    house.send("k").await.is_executed();
    let panicked = {
        let _guard = set_default(Trap("rerun", AtomicBool::new(true)));
        house.client("k").await
    };
    assert!(panicked.is_err_and(|error| error.is_panic()));
    settle().await;
    assert_eq!(house.runs(), 1);
    // Not for a lease: nobody runs it.
    assert!(house.record().await.is_abandoned());
    house.send("k").await.is_executed();
    assert_eq!(house.runs(), 2);
}

#[test]
fn without_a_runtime_nothing_is_claimed() {
    let memory = MemoryStore::new();
    let layer = IdempotencyLayer::new(memory.clone(), Rule::new("pay", api()));
    let service = ServiceBuilder::new()
        .layer(layer)
        .service(service_fn(|_: Asked| async { text(200, "done") }));
    let mut response = Box::pin(service.clone().oneshot(request("k", "body")));
    let mut cx = Context::from_waker(Waker::noop());
    let polled = catch_unwind(AssertUnwindSafe(|| response.as_mut().poll(&mut cx).is_ready()));
    assert!(polled.is_err(), "it is documented to panic");
    drop(response);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        assert_eq!(memory.len(), 0, "nothing was claimed");
        Reply::of(service.oneshot(request("k", "body")).await).await.is_executed();
    });
}

/// A store whose calls take some polls before they reach it and some after, and may fail.
#[derive(Clone)]
struct Slow {
    memory: MemoryStore,
    before: usize,
    after: usize,
    /// Of the calls in order, these come to nothing: before they reach it, or after.
    faults: Arc<Vec<(usize, bool)>>,
    calls: Arc<AtomicUsize>,
    alone: bool,
}

impl Slow {
    async fn call<T>(
        &self,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let nth = self.calls.fetch_add(1, Ordering::SeqCst);
        let fault = self.faults.iter().find(|(fault, _)| *fault == nth);
        let fails = || Err(StoreError::new(StoreErrorKind::Unreachable, "away"));
        for _ in 0..self.before {
            yield_now().await;
        }
        if matches!(fault, Some((_, false))) {
            return fails();
        }
        let answer = call.await;
        for _ in 0..self.after {
            yield_now().await;
        }
        if fault.is_some() { fails() } else { answer }
    }
}

impl Store for Slow {
    fn answers_within(&self) -> Option<Duration> {
        self.alone.then_some(Duration::ZERO)
    }
    async fn claim(&self, claim: Claim) -> Result<Claimed, StoreError> {
        self.call(self.memory.claim(claim)).await
    }
    async fn renew(&self, grant: &Grant) -> Result<Written, StoreError> {
        self.call(self.memory.renew(grant)).await
    }
    async fn complete(&self, grant: &Grant, kept: Kept) -> Result<Written, StoreError> {
        self.call(self.memory.complete(grant, kept)).await
    }
    async fn release(&self, release: Release) -> Result<Written, StoreError> {
        self.call(self.memory.release(release)).await
    }
    async fn resolve(&self, resolve: Resolve) -> Result<Resolved, StoreError> {
        self.call(self.memory.resolve(resolve)).await
    }
    async fn issue(&self, issue: Issue) -> Result<Issued, StoreError> {
        self.call(self.memory.issue(issue)).await
    }
    async fn scan(&self, from: Cursor, at_most: usize) -> Result<Page, StoreError> {
        self.memory.scan(from, at_most).await
    }
}

/// What a handler does that was left alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Kept,
    Released,
    Failed,
}

/// One request whose client leaves after so many polls; whether it was answered before.
async fn left_after(polls: usize, store: Slow, ending: Ending) -> bool {
    let (runs, ends) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
    let (counted, ended) = (runs.clone(), ends.clone());
    let first = Arc::new(AtomicBool::new(true));
    let inner = service_fn(move |_: Asked| {
        counted.fetch_add(1, Ordering::SeqCst);
        let (ended, first) = (ended.clone(), first.swap(false, Ordering::SeqCst));
        async move {
            yield_now().await;
            yield_now().await;
            ended.fetch_add(1, Ordering::SeqCst);
            match ending {
                _ if !first => text(200, "done"),
                Ending::Kept => text(200, "done"),
                Ending::Released => text(503, "not now"),
                Ending::Failed => Err("failed".to_owned()),
            }
        }
    });
    let what =
        format!("{polls} polls, {:?}, {ending:?}, {} {}", store.faults, store.before, store.after);
    let layer = IdempotencyLayer::new(store, Rule::new("pay", api()));
    let service = ServiceBuilder::new().layer(layer.clone()).service(inner);
    let mut client = Box::pin(service.clone().oneshot(request("k", "body")));
    let mut answered = false;
    for _ in 0..polls {
        let poll = std::future::poll_fn(|cx| Poll::Ready(client.as_mut().poll(cx))).await;
        if poll.is_ready() {
            answered = true;
            break;
        }
        // A timer may be what it waits for.
        sleep(Duration::from_millis(20)).await;
    }
    drop(client);
    sleep(10 * SECOND).await;
    let ran = runs.load(Ordering::SeqCst);
    assert!(ran <= 1, "{what}: {ran}");
    assert_eq!(ends.load(Ordering::SeqCst), ran, "{what}: what was begun went on to its end");
    let again = timeout(60 * SECOND, service.oneshot(request("k", "body"))).await.unwrap();
    let again = Reply::of(again).await;
    let runs = runs.load(Ordering::SeqCst);
    match (ran, ending) {
        (0, _) | (1, Ending::Released) => {
            assert_eq!((again.refused, runs), (None, ran + 1), "{what}: {again:?}");
        }
        (_, Ending::Kept) => {
            assert_eq!((again.refused, runs), (None, 1), "{what}: {again:?}");
            again.is_replayed();
        }
        (_, _) => {
            assert_eq!(
                (again.refused, runs),
                (Some(RefusalKind::OutcomeUnknown), 1),
                "{what}: {again:?}"
            );
        }
    }
    let left = layer.drain(600 * SECOND).await;
    assert!(left.is_clean(), "{what}: {left:?}");
    answered
}

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_after_any_poll_leaves_a_key_that_says_what_happened() {
    let all: Vec<Vec<(usize, bool)>> = vec![
        vec![],
        vec![(0, false)],
        vec![(0, true)],
        vec![(1, false)],
        vec![(1, true)],
        vec![(2, false)],
        vec![(2, true)],
        vec![(0, true), (1, true)],
        vec![(0, true), (1, false)],
        vec![(1, true), (2, true)],
        vec![(0, true), (2, true)],
        vec![(0, true), (2, false), (3, true)],
    ];
    let mut left = 0;
    for ending in [Ending::Kept, Ending::Released, Ending::Failed] {
        for faults in &all {
            for alone in [true, false] {
                for (before, after) in [(0, 0), (1, 1), (2, 0), (0, 2)] {
                    for polls in 0.. {
                        let store = Slow {
                            memory: MemoryStore::new(),
                            before,
                            after,
                            faults: Arc::new(faults.clone()),
                            calls: Arc::default(),
                            alone,
                        };
                        if left_after(polls, store, ending).await {
                            assert!(polls > 0);
                            break;
                        }
                        left += 1;
                        assert!(polls < 200, "it never ends");
                    }
                }
            }
        }
    }
    assert!(left > 500, "{left}");
}

/// A store whose renewals and completions panic, so often.
#[derive(Clone)]
struct Panicking {
    memory: MemoryStore,
    left: Arc<AtomicUsize>,
}

impl Panicking {
    fn panic(&self) {
        let left = &self.left;
        let panics =
            left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        assert!(panics.is_err(), "the store's own panic");
    }
}

impl Store for Panicking {
    async fn claim(&self, claim: Claim) -> Result<Claimed, StoreError> {
        self.memory.claim(claim).await
    }
    async fn renew(&self, grant: &Grant) -> Result<Written, StoreError> {
        self.panic();
        self.memory.renew(grant).await
    }
    async fn complete(&self, grant: &Grant, kept: Kept) -> Result<Written, StoreError> {
        self.panic();
        self.memory.complete(grant, kept).await
    }
    async fn release(&self, release: Release) -> Result<Written, StoreError> {
        self.memory.release(release).await
    }
    async fn resolve(&self, resolve: Resolve) -> Result<Resolved, StoreError> {
        self.memory.resolve(resolve).await
    }
    async fn issue(&self, issue: Issue) -> Result<Issued, StoreError> {
        self.memory.issue(issue).await
    }
    async fn scan(&self, from: Cursor, at_most: usize) -> Result<Page, StoreError> {
        self.memory.scan(from, at_most).await
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_panics_is_asked_again_but_not_all_the_time() {
    const MORE_THAN_IN_A_MINUTE: usize = 400;
    let left = Arc::new(AtomicUsize::new(MORE_THAN_IN_A_MINUTE));
    let store = Panicking { memory: MemoryStore::new(), left: left.clone() };
    let layer = IdempotencyLayer::new(store.clone(), Rule::new("pay", api()));
    let service =
        ServiceBuilder::new().layer(layer.clone()).service(service_fn(|_: Asked| async {
            sleep(60 * SECOND).await;
            text(200, "done")
        }));
    let first = tokio::spawn(service.clone().oneshot(request("k", "body"))).await;
    let panics = MORE_THAN_IN_A_MINUTE - left.load(Ordering::SeqCst);
    assert!((10..200).contains(&panics), "{panics} in a minute");
    assert!(first.is_err_and(|error| error.is_panic()), "the store's panic is the caller's");
    sleep(10 * SECOND).await;
    let more = MORE_THAN_IN_A_MINUTE - left.load(Ordering::SeqCst) - panics;
    assert!((3..30).contains(&more), "{more} in ten seconds");
    left.store(0, Ordering::SeqCst);
    sleep(10 * SECOND).await;
    Reply::of(service.oneshot(request("k", "body")).await).await.is_replayed();
    assert!(layer.drain(SECOND).await.is_clean());
}
