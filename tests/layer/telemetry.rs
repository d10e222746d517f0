//! What an operator sees: one span a protected request, and an event for whatever needs a person.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex},
};

use tokio::time::sleep;
use tower_idempotency::{
    RefusalKind,
    store::{Claimed, StoreErrorKind},
    test_util::{Fault, Transition, contract::World},
};
use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
    subscriber::{DefaultGuard, set_default},
};

use crate::house::{House, SECOND, api, request, text, with_door};

type Fields = BTreeMap<&'static str, String>;

#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    spans: Vec<(&'static str, Fields)>,
    events: Vec<(Level, Fields)>,
}

struct Collect<'a>(&'a mut Fields);

impl Visit for Collect<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }
}

impl Subscriber for Seen {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("tower_idempotency")
    }
    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut fields = Fields::new();
        span.record(&mut Collect(&mut fields));
        let mut inner = self.0.lock().unwrap();
        inner.spans.push((span.metadata().name(), fields));
        Id::from_u64(inner.spans.len() as u64)
    }
    fn record(&self, span: &Id, values: &Record<'_>) {
        let nth = span.into_u64() as usize - 1;
        values.record(&mut Collect(&mut self.0.lock().unwrap().spans[nth].1));
    }
    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::new();
        event.record(&mut Collect(&mut fields));
        self.0.lock().unwrap().events.push((*event.metadata().level(), fields));
    }
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

impl Seen {
    /// Sees what happens on this thread until the guard is dropped.
    fn new() -> (Self, DefaultGuard) {
        let seen = Self::default();
        let guard = set_default(seen.clone());
        (seen, guard)
    }

    fn spans(&self) -> Vec<(&'static str, Fields)> {
        self.0.lock().unwrap().spans.clone()
    }

    /// The beginnings of what an operator must see.
    fn alarms(&self) -> Vec<(Level, String)> {
        let inner = self.0.lock().unwrap();
        let alarms = inner.events.iter().filter(|(level, _)| *level <= Level::WARN);
        alarms
            .map(|(level, fields)| {
                let beginning = fields["message"].split(':').next().unwrap();
                (*level, beginning.to_owned())
            })
            .collect()
    }

    /// What the event that begins so shows of whose run it was.
    #[track_caller]
    fn label_of(&self, beginning: &str) -> String {
        let inner = self.0.lock().unwrap();
        let event =
            inner.events.iter().find(|(_, fields)| fields["message"].starts_with(beginning));
        event.expect(beginning).1["label"].clone()
    }

    #[track_caller]
    fn alarms_are(&self, expected: &[(Level, &str)]) {
        let alarms = self.alarms();
        let seen: Vec<_> = alarms.iter().map(|(level, text)| (*level, text.as_str())).collect();
        assert_eq!(seen, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_protected_request_has_one_span_that_says_how_it_ended_and_not_whose_it_was() {
    let (seen, _guard) = Seen::new();
    let house = House::new(api());
    house.send("a-secret-name").await.is_executed();
    house.send("a-secret-name").await.is_replayed();
    house.call(request("a-secret-name", "another body")).await;
    let mut unmatched = request("a-secret-name", "body");
    *unmatched.method_mut() = http::Method::GET;
    house.call(unmatched).await;
    let digest = house.record().await.key.digest();
    let handled: Vec<_> = seen
        .spans()
        .into_iter()
        .map(|(name, fields)| {
            assert_eq!((name, fields["rule"].as_str()), ("idempotency", "\"pay\""));
            assert!(fields["key"].contains(&digest), "{fields:?}");
            assert!(!format!("{fields:?}").contains("a-secret-name"), "{fields:?}");
            (fields["handled"].clone(), fields.get("attempt").cloned())
        })
        .collect();
    let attempt = Some("1".to_owned());
    let said = |text: &str, attempt: &Option<String>| (format!("{text:?}"), attempt.clone());
    assert_eq!(
        handled,
        [said("executed", &attempt), said("replayed", &None), said("mismatch", &None)]
    );
    seen.alarms_are(&[(Level::WARN, "mismatch")]);
}

#[tokio::test(start_paused = true)]
async fn a_run_that_went_well_and_one_that_was_given_back_alarm_nobody() {
    let (seen, _guard) = Seen::new();
    for status in [200, 503] {
        let (house, door) = with_door(api(), status);
        door.let_one_in();
        house.send("k").await.is_executed();
        sleep(60 * SECOND).await;
    }
    seen.alarms_are(&[]);
}

#[tokio::test(start_paused = true)]
async fn an_unknown_outcome_is_told_when_it_ends_so_and_each_time_it_is_met() {
    let (seen, _guard) = Seen::new();
    let house = House::with(api(), |_| async { text(504, "") });
    house.send("k").await.is_executed();
    seen.alarms_are(&[(Level::WARN, "outcome uncertain")]);
    house.send("k").await;
    seen.alarms_are(&[(Level::WARN, "outcome uncertain"), (Level::WARN, "abandoned")]);
    // Each has what the operator must know to find out: whose run it was.
    let inner = seen.0.lock().unwrap();
    let alarms = inner.events.iter().filter(|(level, _)| *level <= Level::WARN);
    let labels: Vec<_> = alarms.map(|(_, fields)| fields["label"].as_str()).collect();
    assert_eq!(labels, ["\"pay k\""; 2]);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_cannot_be_asked_is_told() {
    let (seen, _guard) = Seen::new();
    let house = House::new(api());
    house.faults.down(StoreErrorKind::Unreachable);
    house.send("k").await;
    seen.alarms_are(&[(Level::WARN, "store unavailable")]);
    let (seen, _guard) = Seen::new();
    let house = House::new(api().run_unprotected());
    house.faults.always(Transition::Claim, Fault::Fail(StoreErrorKind::Unreachable));
    house.send("k").await.is_executed();
    // Its answer is written where nothing was: no data was lost.
    seen.alarms_are(&[(Level::WARN, "run unprotected")]);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_not_stored_yet_or_not_whole_is_told() {
    let (seen, _guard) = Seen::new();
    let house = House::new(api());
    house.faults.next(Transition::Complete, Fault::Fail(StoreErrorKind::Timeout));
    house.send("k").await;
    sleep(SECOND).await;
    seen.alarms_are(&[(Level::WARN, "answer not stored yet")]);
    let (seen, _guard) = Seen::new();
    let house = House::new(api());
    house.faults.next(Transition::Complete, Fault::Fail(StoreErrorKind::Full));
    house.send("k").await;
    seen.alarms_are(&[(Level::WARN, "body not stored")]);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_never_stored_is_told_when_its_hold_is_over() {
    let (seen, _guard) = Seen::new();
    let policy = api().lease(SECOND).retention(20 * SECOND).hold(20 * SECOND);
    let house = House::new(policy);
    house.faults.always(Transition::Complete, Fault::Fail(StoreErrorKind::Unreachable));
    house.send("k").await;
    sleep(60 * SECOND).await;
    seen.alarms_are(&[
        (Level::WARN, "answer not stored yet"),
        (Level::ERROR, "answer never stored"),
    ]);
    assert_eq!(seen.label_of("answer never stored"), "\"pay k\"");
    house.drained().await;
    let (seen, _guard) = Seen::new();
    let house =
        House::with(api().lease(SECOND).retention(20 * SECOND).hold(20 * SECOND), |_| async {
            text(503, "")
        });
    house.faults.always(Transition::Release, Fault::Fail(StoreErrorKind::Unreachable));
    house.send("k").await;
    sleep(60 * SECOND).await;
    seen.alarms_are(&[(Level::ERROR, "late write given up")]);
}

#[tokio::test(start_paused = true)]
async fn data_that_the_store_lost_is_told_by_whoever_writes_it_again() {
    let (seen, _guard) = Seen::new();
    let (house, door) = with_door(api(), 200);
    let client = house.client("k");
    door.came().await;
    let key = house.record().await.key;
    house.memory.forget(&key).await;
    sleep(11 * SECOND).await;
    seen.alarms_are(&[(Level::ERROR, "data lost")]);
    house.memory.forget(&key).await;
    door.let_one_in();
    client.await.unwrap().is_executed();
    seen.alarms_are(&[(Level::ERROR, "data lost"), (Level::ERROR, "data lost")]);
}

#[tokio::test(start_paused = true)]
async fn a_run_that_was_fenced_off_is_told_and_its_handler_too() {
    let (seen, _guard) = Seen::new();
    let (house, door) = with_door(api().lease(3 * SECOND).rerun_abandoned(), 200);
    let first = house.client("k");
    door.came().await;
    house.faults.always(Transition::Renew, Fault::Fail(StoreErrorKind::Unreachable));
    sleep(6 * SECOND).await;
    seen.alarms_are(&[(Level::WARN, "lease lapsed")]);
    let second = house.client("k");
    door.came().await;
    house.faults.heal();
    sleep(2 * SECOND).await;
    seen.alarms_are(&[
        (Level::WARN, "lease lapsed"),
        (Level::WARN, "rerun"),
        (Level::ERROR, "fenced off"),
    ]);
    assert_eq!(seen.label_of("fenced off"), "\"pay k\"");
    {
        let inner = seen.0.lock().unwrap();
        let fenced_off = inner.events.iter().find(|(level, _)| *level == Level::ERROR);
        assert_eq!(fenced_off.unwrap().1["state"], "InProgress");
    }
    door.let_one_in();
    door.let_one_in();
    let _ = (first.await, second.await);
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_hangs_is_told_once() {
    let (seen, _guard) = Seen::new();
    let (house, door) = with_door(api().lease(3 * SECOND), 200);
    let _hangs = house.client("k");
    door.came().await;
    sleep(29 * SECOND).await;
    seen.alarms_are(&[]);
    sleep(60 * SECOND).await;
    seen.alarms_are(&[(Level::ERROR, "longest run passed")]);
    let inner = seen.0.lock().unwrap();
    let passed = inner.events.iter().find(|(level, _)| *level == Level::ERROR);
    assert_eq!(passed.unwrap().1["max_run_s"], "30");
}

#[tokio::test(start_paused = true)]
async fn a_record_that_cannot_be_read_is_told() {
    let (seen, _guard) = Seen::new();
    let house = House::new(api());
    house.store.answer_next(Claimed::Foreign);
    house.send("k").await;
    seen.alarms_are(&[(Level::ERROR, "record unreadable")]);
    // An answer that was stored for another key is one too, and is not shown.
    let house = House::new(api());
    house.send("a").await.is_executed();
    let key = house.record().await.key;
    let others = house.memory.snapshot(&key).await.unwrap();
    house.send("b").await.is_executed();
    let mut records = house.records().await;
    records.retain(|record| record.key != key);
    house.memory.put_back(&records[0].key, others).await;
    house.send("a").await.is_replayed();
    house.send("b").await.is_refused(RefusalKind::RecordUnreadable);
    assert_eq!(seen.alarms().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_run_in_a_task_of_its_own_keeps_its_span_and_its_alarms() {
    let (seen, _guard) = Seen::new();
    let (house, door) = with_door(api(), 504);
    let client = house.client("k");
    door.came().await;
    crate::house::leave(client).await;
    door.let_one_in();
    house.drained().await;
    seen.alarms_are(&[(Level::WARN, "outcome uncertain")]);
}
