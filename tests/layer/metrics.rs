//! What is counted and measured, with a recorder of the test's own.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit, set_default_local_recorder,
};
use tokio::time::sleep;
use tower_idempotency::{
    Grant, Idempotent, MemoryStore, Policy, Rule, Store, StoreError,
    store::{
        Claim, Claimed, Cursor, Issue, Issued, Kept, Page, Release, Resolve, Resolved,
        StoreErrorKind, Written,
    },
    test_util::{Fault, Transition},
};

use crate::house::{
    Asked, Door, House, SECOND, api, leave, operation, request, settle, text, with_door,
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
