//! What a monitoring system counts and measures, through the facade of the crate `metrics`.
//!
//! Labels are the names of rules and of outcomes alone, so that nothing a client sends makes a series.
//! Each is listed in `docs/operations.md`.

use std::sync::OnceLock;

use metrics::{
    Counter, Gauge, Histogram, SharedString, Unit, counter, describe_counter, describe_gauge,
    describe_histogram, gauge, histogram,
};
use tokio::time::Instant;

use crate::{operation::Would, refusal::RefusalKind, rule::Rule};

const REQUESTS: &str = "idempotency_requests_total";
const OBSERVED: &str = "idempotency_observed_total";
const EXECUTED_AGAIN: &str = "idempotency_executed_again_total";
const ABANDONED: &str = "idempotency_abandoned_total";
const RERUN: &str = "idempotency_rerun_total";
const UNCERTAIN: &str = "idempotency_uncertain_total";
const UNPROTECTED: &str = "idempotency_unprotected_total";
const STORED_BYTES: &str = "idempotency_stored_bytes_total";
const CLAIM: &str = "idempotency_claim_seconds";
const COMPLETE: &str = "idempotency_complete_seconds";
const HANDLER: &str = "idempotency_handler_seconds";
const IN_FLIGHT: &str = "idempotency_in_flight";
const WAITING: &str = "idempotency_waiting";
const FENCED_OFF: &str = "idempotency_fenced_off_total";
const NOT_STORED: &str = "idempotency_not_stored_total";
const NEVER_STORED: &str = "idempotency_never_stored_total";
const DATA_LOST: &str = "idempotency_data_lost_total";
const RECORDS_LOST: &str = "idempotency_records_lost_total";
const STORE_SUSPENDED: &str = "idempotency_store_suspended";
#[cfg(feature = "recent")]
const RECENT_REPLAYS: &str = "idempotency_recent_replays_total";
#[cfg(feature = "recent")]
const RECENT_BYTES: &str = "idempotency_recent_bytes";
#[cfg(feature = "recent")]
const RECENT_EVICTED: &str = "idempotency_recent_evicted_total";

/// How a request can be handled, besides being refused.
const HANDLED: [&str; 4] = ["executed", "replayed", "passed", "observed"];

/// What is counted without a rule, since whoever notices it knows only the grant, or less.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Count {
    FencedOff,
    NotStored,
    NeverStored,
    DataLost,
    RecordsLost,
}

impl Count {
    const ALL: [Self; 5] =
        [Self::FencedOff, Self::NotStored, Self::NeverStored, Self::DataLost, Self::RecordsLost];

    const fn name(self) -> &'static str {
        match self {
            Self::FencedOff => FENCED_OFF,
            Self::NotStored => NOT_STORED,
            Self::NeverStored => NEVER_STORED,
            Self::DataLost => DATA_LOST,
            Self::RecordsLost => RECORDS_LOST,
        }
    }
}

/// One more.
pub(crate) fn count(what: Count) {
    counter!(what.name()).increment(1);
}

/// A server is asked no more, or again.
#[cfg(feature = "redis")]
pub(crate) fn store_suspended(suspended: bool) {
    let servers = gauge!(STORE_SUSPENDED);
    if suspended { servers.increment(1.0) } else { servers.decrement(1.0) }
}

/// The metrics of a rule, made when they are first asked for. A copy of the rule has its own.
#[derive(Debug, Default)]
pub(crate) struct RuleMetrics(OnceLock<Box<Metrics>>);

impl Clone for RuleMetrics {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl RuleMetrics {
    pub(crate) fn of(&self, rule: &str) -> &Metrics {
        self.0.get_or_init(|| Box::new(Metrics::of(rule.to_owned().into())))
    }
}

/// Handles to the metrics of one rule: to look them up for each request would cost more than to count.
pub(crate) struct Metrics {
    requests: Vec<(&'static str, Counter)>,
    observed: Vec<(&'static str, Counter)>,
    pub(crate) executed_again: Counter,
    pub(crate) abandoned: Counter,
    pub(crate) rerun: Counter,
    pub(crate) uncertain: Counter,
    pub(crate) unprotected: Counter,
    #[cfg(feature = "recent")]
    pub(crate) recent_replays: Counter,
    stored_bytes: Counter,
    claim: Histogram,
    complete: Histogram,
    handler: Histogram,
    in_flight: Gauge,
    waiting: Gauge,
}

impl Metrics {
    /// Each counter begins at zero here, for a monitoring system sees no increase where a series begins
    /// at one.
    fn of(rule: SharedString) -> Self {
        let refusals = || RefusalKind::ALL.into_iter().map(RefusalKind::name);
        let by = |name: &'static str, label: &'static str, outcome: &'static str| {
            let one = counter!(name, "rule" => rule.clone(), label => outcome);
            one.increment(0);
            (outcome, one)
        };
        let of_rule = |name: &'static str| {
            let one = counter!(name, "rule" => rule.clone());
            one.increment(0);
            one
        };
        let time = |name: &'static str| histogram!(name, "rule" => rule.clone());
        let now = |name: &'static str| {
            let one = gauge!(name, "rule" => rule.clone());
            one.increment(0.0);
            one
        };
        let handled = HANDLED.into_iter().chain(refusals());
        let would = [Would::Replay.name(), Would::Wait.name()].into_iter().chain(refusals());
        Self {
            requests: handled.map(|outcome| by(REQUESTS, "handled", outcome)).collect(),
            observed: would.map(|outcome| by(OBSERVED, "would", outcome)).collect(),
            executed_again: of_rule(EXECUTED_AGAIN),
            abandoned: of_rule(ABANDONED),
            rerun: of_rule(RERUN),
            uncertain: of_rule(UNCERTAIN),
            unprotected: of_rule(UNPROTECTED),
            #[cfg(feature = "recent")]
            recent_replays: of_rule(RECENT_REPLAYS),
            stored_bytes: of_rule(STORED_BYTES),
            claim: time(CLAIM),
            complete: time(COMPLETE),
            handler: time(HANDLER),
            in_flight: now(IN_FLIGHT),
            waiting: now(WAITING),
        }
    }

    pub(crate) fn handled(&self, how: &str) {
        increment(&self.requests, how);
    }

    pub(crate) fn observed(&self, would: &str) {
        increment(&self.observed, would);
    }

    pub(crate) fn stored(&self, bytes: usize) {
        self.stored_bytes.increment(bytes as u64);
    }

    pub(crate) fn claimed(&self, since: Timer) {
        self.claim.record(since.0.elapsed());
    }

    pub(crate) fn completed(&self, since: Timer) {
        self.complete.record(since.0.elapsed());
    }

    pub(crate) fn ran(&self, since: Timer) {
        self.handler.record(since.0.elapsed());
    }

    /// One more execution, until this is dropped.
    pub(crate) fn in_flight(&self) -> During {
        During::begin(&self.in_flight)
    }

    /// One more request that waits for another's run, until this is dropped.
    pub(crate) fn waiting(&self) -> During {
        During::begin(&self.waiting)
    }
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Metrics")
    }
}

/// Every outcome is in the list: it is made of all there are.
fn increment(counters: &[(&'static str, Counter)], outcome: &str) {
    if let Some((_, counter)) = counters.iter().find(|(known, _)| *known == outcome) {
        counter.increment(1);
    }
}

/// Since when something lasts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timer(Instant);

impl Timer {
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }
}

/// As long as it lives, its gauge has one more.
pub(crate) struct During(Gauge);

impl During {
    fn begin(gauge: &Gauge) -> Self {
        gauge.increment(1.0);
        Self(gauge.clone())
    }
}

impl Drop for During {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}

/// What one layer keeps in the process beside the store. Several layers share the gauge.
#[cfg(feature = "recent")]
#[derive(Clone)]
pub(crate) struct RecentMetrics {
    bytes: Gauge,
    evicted: Counter,
}

#[cfg(feature = "recent")]
impl RecentMetrics {
    /// Both are there before anything is kept.
    pub(crate) fn begin() -> Self {
        let (bytes, evicted) = (gauge!(RECENT_BYTES), counter!(RECENT_EVICTED));
        bytes.increment(0.0);
        evicted.increment(0);
        Self { bytes, evicted }
    }

    /// So many bytes more, until this is dropped.
    pub(crate) fn hold(&self, bytes: u64) -> Held {
        let held = Held { gauge: self.bytes.clone(), bytes: bytes as f64 };
        held.gauge.increment(held.bytes);
        held
    }

    /// An answer had to make room for another before its time was over.
    pub(crate) fn evicted(&self) {
        self.evicted.increment(1);
    }
}

/// As long as it lives, the gauge has its bytes. A copy has none: what is copied is on its way to a client,
/// and what was kept is kept still.
#[cfg(feature = "recent")]
pub(crate) struct Held {
    gauge: Gauge,
    bytes: f64,
}

#[cfg(feature = "recent")]
impl Clone for Held {
    fn clone(&self) -> Self {
        Self { gauge: Gauge::noop(), bytes: 0.0 }
    }
}

#[cfg(feature = "recent")]
impl Drop for Held {
    fn drop(&mut self) {
        self.gauge.decrement(self.bytes);
    }
}

/// Tells a recorder all that there is to know before the first request: what each metric is, and that
/// each counter is zero.
pub(crate) fn begin<'r>(rules: impl Iterator<Item = &'r Rule>) {
    describe();
    for what in Count::ALL {
        counter!(what.name()).increment(0);
    }
    gauge!(STORE_SUSPENDED).increment(0.0);
    #[cfg(feature = "recent")]
    RecentMetrics::begin();
    for rule in rules {
        rule.metrics();
    }
}

fn describe() {
    let count = Unit::Count;
    describe_counter!(REQUESTS, count, "Requests that a rule is for, by how they were handled");
    describe_counter!(
        OBSERVED,
        count,
        "Requests that were only observed and not granted, by what would have become of them"
    );
    describe_counter!(
        EXECUTED_AGAIN,
        count,
        "Executions that were not the first of their operation"
    );
    describe_counter!(
        ABANDONED,
        count,
        "Deliveries refused because nobody knows whether their operation happened"
    );
    describe_counter!(RERUN, count, "Abandoned operations that were run again blindly");
    describe_counter!(
        UNCERTAIN,
        count,
        "Executions that ended without knowing whether they happened"
    );
    describe_counter!(
        UNPROTECTED,
        count,
        "Executions without a grant, because the store could not be asked"
    );
    describe_counter!(STORED_BYTES, Unit::Bytes, "Bytes of answers that were stored");
    describe_counter!(
        FENCED_OFF,
        count,
        "Executions that found their record not their own any more"
    );
    describe_counter!(NOT_STORED, count, "Answers that were not stored at once");
    describe_counter!(NEVER_STORED, count, "Answers that will not be stored");
    describe_counter!(DATA_LOST, count, "Acknowledged records that the store had forgotten");
    describe_counter!(RECORDS_LOST, count, "Times that a store was found to have lost its records");
    describe_histogram!(CLAIM, Unit::Seconds, "Time of a claim, with its resends");
    describe_histogram!(COMPLETE, Unit::Seconds, "Time to store an answer");
    describe_histogram!(HANDLER, Unit::Seconds, "Time of the handler, with its answer's body");
    #[cfg(feature = "recent")]
    describe_recent();
    describe_gauge!(IN_FLIGHT, count, "Executions now");
    describe_gauge!(WAITING, count, "Requests that wait for another's run now");
    describe_gauge!(
        STORE_SUSPENDED,
        count,
        "Servers that are not asked now, since they failed again and again"
    );
}

#[cfg(feature = "recent")]
fn describe_recent() {
    describe_counter!(
        RECENT_REPLAYS,
        Unit::Count,
        "Replays from the process's own memory, without asking the store"
    );
    describe_gauge!(RECENT_BYTES, Unit::Bytes, "Memory that answers of the last minute take now");
    describe_counter!(
        RECENT_EVICTED,
        Unit::Count,
        "Answers of the last minute that had to make room for others"
    );
}
