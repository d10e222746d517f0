//! What is counted and measured, with a recorder of the test's own.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit, set_default_local_recorder,
};
use tokio::time::sleep;
use tower::service_fn;
use tower_idempotency::{
    Grant, Idempotent, MemoryStore, Policy, RefusalKind, Rule, Store, StoreError,
    store::{
        Claim, Claimed, Cursor, Issue, Issued, Kept, Page, Release, Resolve, Resolved,
        StoreErrorKind, Written,
    },
    test_util::{Fault, Transition},
};

use crate::house::{
    Asked, Body, Door, House, SECOND, Sent, api, leave, operation, request, respond, settle, text,
    with_door,
};

/// What a gauge or a counter is, or each time that was recorded.
#[derive(Debug, Default)]
struct Series(Mutex<Vec<f64>>);

impl Series {
    fn add(&self, by: f64) {
        let mut values = self.0.lock().unwrap();
        let now = values.first().copied().unwrap_or_default() + by;
        *values = vec![now];
    }
}

impl CounterFn for Series {
    fn increment(&self, by: u64) {
        self.add(by as f64);
    }
    fn absolute(&self, _: u64) {
        panic!("only increments are expected");
    }
}

impl GaugeFn for Series {
    fn increment(&self, by: f64) {
        self.add(by);
    }
    fn decrement(&self, by: f64) {
        self.add(-by);
    }
    fn set(&self, _: f64) {
        panic!("several layers share a gauge");
    }
}

impl HistogramFn for Series {
    fn record(&self, value: f64) {
        self.0.lock().unwrap().push(value);
    }
}

/// All series by their name and labels, as `name{label="value"}`.
#[derive(Clone, Debug, Default)]
struct Seen {
    series: Arc<Mutex<BTreeMap<String, Arc<Series>>>>,
    described: Arc<AtomicU64>,
}

impl Seen {
    fn of(&self, key: &Key) -> Arc<Series> {
        let labels: Vec<_> =
            key.labels().map(|label| format!("{}={:?}", label.key(), label.value())).collect();
        let name = format!("{}{{{}}}", key.name(), labels.join(","));
        self.series.lock().unwrap().entry(name).or_default().clone()
    }

    #[track_caller]
    fn value(&self, name: &str) -> f64 {
        let series = self.series.lock().unwrap();
        let one = series.get(name).unwrap_or_else(|| panic!("{name}: {:?}", series.keys()));
        one.0.lock().unwrap()[0]
    }

    fn times(&self, name: &str) -> Vec<f64> {
        self.series.lock().unwrap()[name].0.lock().unwrap().clone()
    }

    /// The series that are not zero, and no times.
    fn counted(&self) -> Vec<(String, f64)> {
        let series = self.series.lock().unwrap();
        let values = series.iter().filter(|(name, _)| !name.contains("_seconds{"));
        values
            .map(|(name, one)| (name.clone(), one.0.lock().unwrap()[0]))
            .filter(|(_, value)| *value != 0.0)
            .collect()
    }
}

impl Recorder for Seen {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {
        self.described.fetch_add(1, Relaxed);
    }
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {
        self.described.fetch_add(1, Relaxed);
    }
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {
        self.described.fetch_add(1, Relaxed);
    }
    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.of(key))
    }
    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.of(key))
    }
    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.of(key))
    }
}

fn requests(handled: &str) -> String {
    format!(r#"idempotency_requests_total{{rule="pay",handled="{handled}"}}"#)
}

fn of_rule(name: &str) -> String {
    format!(r#"idempotency_{name}{{rule="pay"}}"#)
}

/// Each name once.
fn names(seen: &Seen) -> Vec<String> {
    let series = seen.series.lock().unwrap();
    let mut names: Vec<_> =
        series.keys().map(|key| key.split('{').next().unwrap().to_owned()).collect();
    names.dedup();
    names
}

#[tokio::test(start_paused = true)]
async fn all_there_is_is_known_and_zero_before_the_first_request() {
    let seen = Seen::default();
    let _guard = set_default_local_recorder(&seen);
    let house = House::new(api());
    let at_first = seen.series.lock().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&seen).len() as u64, seen.described.load(Relaxed));
    assert_eq!(seen.counted(), []);
    house.send("k").await.is_executed();
    house.send("k").await.is_replayed();
    house.call(request("k", "another")).await;
    house.call(request("", "nothing")).await;
    assert_ne!(seen.counted(), []);
    let later = seen.series.lock().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(at_first, later, "what clients send makes no series");
}

#[tokio::test(start_paused = true)]
async fn every_refusal_there_is_has_a_series_of_each_rule() {
    let seen = Seen::default();
    let _guard = set_default_local_recorder(&seen);
    let _house = House::new(api());
    let pages = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/problems")).unwrap();
    let kinds: Vec<_> = pages
        .map(|page| page.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    assert!(kinds.len() >= 17);
    for kind in &kinds {
        assert_eq!(seen.value(&requests(kind)), 0.0);
        let observed = format!(r#"idempotency_observed_total{{rule="pay",would="{kind}"}}"#);
        assert_eq!(seen.value(&observed), 0.0);
    }
    let series = seen.series.lock().unwrap();
    let all = series.keys().filter(|key| key.starts_with("idempotency_requests_total")).count();
    assert_eq!(all, kinds.len() + 4);
}

#[tokio::test(start_paused = true)]
async fn every_request_is_counted_once_by_its_rule_and_how_it_was_handled() {
    let seen = Seen::default();
    let _guard = set_default_local_recorder(&seen);
    let house = House::new(api().optional());
    house.send("k").await.is_executed();
    house.send("k").await.is_replayed();
    house.call(request("k", "another")).await;
    let without = http::Request::post("/pay").body(Default::default()).unwrap();
    house.call(without).await;
    let bytes = seen.value(&of_rule("stored_bytes_total"));
    assert!((32.0..200.0).contains(&bytes), "one stored answer: {bytes}");
    let expected = [
        (requests("executed"), 1.0),
        (requests("mismatch"), 1.0),
        (requests("passed"), 1.0),
        (requests("replayed"), 1.0),
        (of_rule("stored_bytes_total"), bytes),
    ];
    assert_eq!(seen.counted(), expected);
}

#[tokio::test(start_paused = true)]
async fn what_would_have_become_of_a_request_is_counted() {
    let seen = Seen::default();
    let _guard = set_default_local_recorder(&seen);
    let house = House::new(api().observe());
    for _ in 0..3 {
        house.send("k").await;
    }
    house.call(request("k", "another")).await;
    let would = |would| format!(r#"idempotency_observed_total{{rule="pay",would="{would}"}}"#);
    assert_eq!((seen.value(&requests("executed")), seen.value(&requests("observed"))), (1.0, 3.0));
    assert_eq!((seen.value(&would("replayed")), seen.value(&would("mismatch"))), (2.0, 1.0));
    assert_eq!(seen.value(&would("waited")), 0.0);
}

#[tokio::test(start_paused = true)]
async fn claims_handlers_and_completions_are_timed() {
    let seen = Seen::default();
    let _guard = set_default_local_recorder(&seen);
    let house = House::with(api(), |_| async {
        sleep(3 * SECOND).await;
        text(200, "done")
    });
    house.faults.next(Transition::Claim, Fault::Delay(Duration::from_millis(200)));
    house.faults.next(Transition::Complete, Fault::Delay(Duration::from_millis(100)));
    house.send("k").await.is_executed();
    house.send("k").await.is_replayed();
    assert_eq!(seen.times(&of_rule("claim_seconds")), [0.2, 0.0]);
    assert_eq!(seen.times(&of_rule("handler_seconds")), [3.0]);
    assert_eq!(seen.times(&of_rule("complete_seconds")), [0.1]);
}

/// A house that keeps answers in so many bytes; a handler's answer has the body `done` and more, as asked.
fn keeping(room: usize) -> House {
    let runs = Arc::new(AtomicUsize::new(0));
    let inner = service_fn(|asked: Asked| async move {
        let more =
            asked.headers().get("x-more").map_or(0, |more| more.to_str().unwrap().parse().unwrap());
        respond(
            200,
            http_body_util::Full::new(bytes::Bytes::from(format!("done{}", "+".repeat(more)))),
        )
    });
    let rule = Rule::new("pay", api());
    House::layered(MemoryStore::new(), rule, inner, runs, |layer| layer.recent(room))
}

fn large(key: &str, bytes: usize) -> http::Request<Body> {
    let mut request = request(key, "body");
    request.headers_mut().insert("x-more", bytes.to_string().parse().unwrap());
    request
}

const RECENT_BYTES: &str = "idempotency_recent_bytes{}";
const RECENT_EVICTED: &str = "idempotency_recent_evicted_total{}";

#[tokio::test(start_paused = true)]
async fn replays_from_memory_are_counted_among_all_and_by_themselves() {
    let seen = Seen::default();
    let _guard = set_default_local_recorder(&seen);
    let house = keeping(1024 * 1024);
    house.send("k").await.is_executed();
    assert_eq!(seen.value(&of_rule("recent_replays_total")), 0.0);
    for _ in 0..3 {
        house.send("k").await.is_replayed();
    }
    house.call(request("k", "another")).await;
    assert_eq!(house.sent(), [Sent::Claim, Sent::Complete, Sent::Claim]);
    assert_eq!(seen.value(&of_rule("recent_replays_total")), 3.0);
    assert_eq!(seen.value(&requests("replayed")), 3.0);
    assert_eq!((seen.value(&requests("executed")), seen.value(&requests("mismatch"))), (1.0, 1.0));
    // What the store replays is one of all, and not one of these.
    sleep(61 * SECOND).await;
    house.send("k").await.is_replayed();
    assert_eq!(seen.value(&requests("replayed")), 4.0);
    assert_eq!(seen.value(&of_rule("recent_replays_total")), 3.0);

    // Where nothing is kept there are none.
    let house = House::new(api());
    house.send("k").await.is_executed();
    house.send("k").await.is_replayed();
    assert_eq!(seen.value(&requests("replayed")), 5.0);
    assert_eq!(seen.value(&of_rule("recent_replays_total")), 3.0);
}

#[tokio::test(start_paused = true)]
async fn what_jobs_get_from_memory_is_counted_like_what_requests_get() {
    let seen = Seen::default();
    let _guard = set_default_local_recorder(&seen);
    let jobs = Idempotent::new(MemoryStore::new(), Rule::new("pay", Policy::job()));
    let jobs = jobs.recent(1024 * 1024);
    for _ in 0..3 {
        let done = jobs.run("k", None, async |_| Ok::<_, std::io::Error>(7)).await;
        assert_eq!(done.unwrap().into_value(), 7);
    }
    assert_eq!(seen.value(&of_rule("recent_replays_total")), 2.0);
    assert_eq!(seen.value(&requests("replayed")), 2.0);
    assert_eq!(seen.value(&requests("executed")), 1.0);
}

#[tokio::test(start_paused = true)]
async fn the_bytes_of_what_is_kept_in_memory_come_and_go_with_it() {
    let seen = Seen::default();
    let _guard = set_default_local_recorder(&seen);
    let (house, other) = (keeping(1024 * 1024), keeping(1024 * 1024));
    assert_eq!(seen.value(RECENT_BYTES), 0.0);
    house.call(large("k", 1000)).await.is_executed();
    let one = seen.value(RECENT_BYTES);
    assert!(
        (1256.0..1600.0).contains(&one),
        "1,004 bytes with their headers, and 256 beside: {one}"
    );
    // A replay is a copy, and takes nothing.
    house.call(large("k", 1000)).await.is_replayed();
    assert_eq!(seen.value(RECENT_BYTES), one);
    // Layers share the gauge.
    other.call(large("k", 1000)).await.is_executed();
    assert_eq!(seen.value(RECENT_BYTES), 2.0 * one);
    // What is over is let go when it is met, and taken again when the store has told it.
    sleep(61 * SECOND).await;
    house.call(request("k", "another")).await.is_refused(RefusalKind::Mismatch);
    assert_eq!(seen.value(RECENT_BYTES), one);
    house.call(large("k", 1000)).await.is_replayed();
    assert_eq!(seen.value(RECENT_BYTES), 2.0 * one);
    // What is too large is not kept.
    house.call(large("l", 32 * 1024)).await.is_executed();
    assert_eq!(seen.value(RECENT_BYTES), 2.0 * one);
    drop(house);
    sleep(61 * SECOND).await;
    assert_eq!(seen.value(RECENT_BYTES), one, "gone with its layer, once its keeper has ended");
    assert_eq!(seen.value(RECENT_EVICTED), 0.0);
}

#[tokio::test(start_paused = true)]
async fn what_must_make_room_in_memory_is_counted_but_not_what_is_over() {
    let seen = Seen::default();
    let _guard = set_default_local_recorder(&seen);
    let room = 64 * 1024;
    let house = keeping(room);
    let fill = async |kind: char| {
        for number in 0..200 {
            house.call(large(&format!("{kind}{number}"), 1000)).await.is_executed();
        }
    };
    fill('a').await;
    let (bytes, evicted) = (seen.value(RECENT_BYTES), seen.value(RECENT_EVICTED));
    assert!(bytes <= room as f64 && bytes > room as f64 / 2.0, "{bytes}");
    let one = seen.value(&of_rule("stored_bytes_total")) / 200.0 + 256.0;
    // What was put is kept, or was counted when it went.
    let kept = (bytes / one).round();
    assert_eq!(kept + evicted, 200.0, "{bytes} {evicted} {one}");
    // By now all that is kept is over, and makes room unseen; a few may be left.
    sleep(61 * SECOND).await;
    fill('b').await;
    let (bytes, evicted) = (seen.value(RECENT_BYTES), seen.value(RECENT_EVICTED) - evicted);
    let unseen = 200.0 - evicted - ((bytes / one).round() - kept);
    assert!(unseen >= kept * 3.0 / 4.0 && unseen <= kept, "{unseen} of {kept}");
}

#[tokio::test(start_paused = true)]
async fn gauges_go_up_and_come_down_again_whoever_leaves() {
    let seen = Seen::default();
    let _guard = set_default_local_recorder(&seen);
    let (house, door) = with_door(api().wait(60 * SECOND), 200);
    let owner = house.client("k");
    door.came().await;
    let (stays, leaves) = (house.client("k"), house.client("k"));
    settle().await;
    assert_eq!(seen.value(&of_rule("in_flight")), 1.0);
    assert_eq!(seen.value(&of_rule("waiting")), 2.0);
    leave(leaves).await;
    leave(owner).await;
    assert_eq!(seen.value(&of_rule("in_flight")), 1.0, "the run goes on without its client");
    assert_eq!(seen.value(&of_rule("waiting")), 1.0);
    door.let_one_in();
    stays.await.unwrap().is_replayed();
    assert_eq!(seen.value(&of_rule("in_flight")), 0.0);
    assert_eq!(seen.value(&of_rule("waiting")), 0.0);
    // Without a wait nobody waits, though a busy key is looked at once more.
    let (house, door) = with_door(api(), 200);
    let owner = house.client("k");
    door.came().await;
    house.send("k").await;
    assert_eq!(seen.value(&of_rule("waiting")), 0.0);
    leave(owner).await;
}

#[tokio::test(start_paused = true)]
async fn what_went_wrong_is_counted_where_its_event_is() {
    let seen = Seen::default();
    let _guard = set_default_local_recorder(&seen);
    let house = House::with(api(), |_| async { text(504, "") });
    house.send("k").await.is_executed();
    house.send("k").await;
    assert_eq!(seen.value(&of_rule("uncertain_total")), 1.0);
    assert_eq!(seen.value(&of_rule("abandoned_total")), 1.0);

    let house = House::with(api().rerun_abandoned(), |_| async { text(504, "") });
    house.send("k").await.is_executed();
    house.send("k").await.is_executed();
    assert_eq!(seen.value(&of_rule("rerun_total")), 1.0);
    assert_eq!(seen.value(&of_rule("executed_again_total")), 1.0);

    let house = House::new(api().run_unprotected());
    house.faults.down(StoreErrorKind::Unreachable);
    house.send("k").await.is_executed();
    assert_eq!(seen.value(&of_rule("unprotected_total")), 1.0);
    assert_eq!(seen.value("idempotency_not_stored_total{}"), 1.0);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_never_stored_is_counted_when_it_is_given_up() {
    let seen = Seen::default();
    let _guard = set_default_local_recorder(&seen);
    let house = House::new(api().lease(SECOND).retention(20 * SECOND).hold(20 * SECOND));
    house.faults.always(Transition::Complete, Fault::Fail(StoreErrorKind::Unreachable));
    house.send("k").await.is_executed();
    sleep(10 * SECOND).await;
    assert_eq!(seen.value("idempotency_not_stored_total{}"), 1.0);
    assert_eq!(seen.value("idempotency_never_stored_total{}"), 0.0);
    sleep(50 * SECOND).await;
    assert_eq!(seen.value("idempotency_never_stored_total{}"), 1.0);
}

#[tokio::test(start_paused = true)]
async fn an_execution_that_was_overtaken_and_a_record_that_was_lost_are_counted() {
    let seen = Seen::default();
    let _guard = set_default_local_recorder(&seen);
    let door = Door::new();
    let inside = door.clone();
    let policy = api().lease(3 * SECOND).rerun_abandoned();
    let house = House::with(policy, move |asked: Asked| {
        let (door, attempt) = (inside.clone(), operation(&asked).attempt());
        async move {
            if attempt == 1 {
                door.pass().await;
            }
            text(200, "done")
        }
    });
    let first = house.client("k");
    door.came().await;
    house.faults.always(Transition::Renew, Fault::Fail(StoreErrorKind::Unreachable));
    sleep(4 * SECOND).await;
    house.send("k").await.is_executed();
    assert_eq!(seen.value("idempotency_fenced_off_total{}"), 0.0);
    door.let_one_in();
    first.await.unwrap();
    assert_eq!(seen.value("idempotency_fenced_off_total{}"), 1.0);

    // A store of its own that has forgotten the grant when the answer comes.
    let (first, second) = (MemoryStore::new(), MemoryStore::new());
    let forgetful = Forgetful { first, second };
    let jobs = Idempotent::new(forgetful, Rule::new("job", Policy::job()));
    let done = jobs.run("k", None, async |_| Ok::<_, std::io::Error>(7)).await;
    assert!(done.is_ok());
    assert_eq!(seen.value("idempotency_data_lost_total{}"), 1.0);
    assert_eq!(seen.value(r#"idempotency_requests_total{rule="job",handled="executed"}"#), 1.0);
}

/// Grants in one store and looks for the grant in another.
struct Forgetful {
    first: MemoryStore,
    second: MemoryStore,
}

impl Store for Forgetful {
    async fn claim(&self, claim: Claim) -> Result<Claimed, StoreError> {
        self.first.claim(claim).await
    }
    async fn renew(&self, grant: &Grant) -> Result<Written, StoreError> {
        self.second.renew(grant).await
    }
    async fn complete(&self, grant: &Grant, kept: Kept) -> Result<Written, StoreError> {
        self.second.complete(grant, kept).await
    }
    async fn release(&self, release: Release) -> Result<Written, StoreError> {
        self.second.release(release).await
    }
    async fn resolve(&self, resolve: Resolve) -> Result<Resolved, StoreError> {
        self.second.resolve(resolve).await
    }
    async fn issue(&self, issue: Issue) -> Result<Issued, StoreError> {
        self.second.issue(issue).await
    }
    async fn scan(&self, from: Cursor, at_most: usize) -> Result<Page, StoreError> {
        self.second.scan(from, at_most).await
    }
}
