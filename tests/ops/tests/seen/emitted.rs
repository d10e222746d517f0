//! The series that a layer makes, by a recorder that writes them down.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
};

use metrics::{
    Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit,
    with_local_recorder,
};
use tower_idempotency::{IdempotencyLayer, MemoryStore, Policy, Rule, json};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// One metric: its kind, and the values of each of its labels.
#[derive(Debug)]
pub(crate) struct Metric {
    pub(crate) kind: Kind,
    pub(crate) labels: BTreeMap<String, BTreeSet<String>>,
}

/// All metrics by their names.
pub(crate) type Emitted = BTreeMap<String, Metric>;

/// Those of a layer with the rule `fulfil`. Each is described, and there before the first request.
pub(crate) fn emitted() -> Emitted {
    let seen = Seen::default();
    with_local_recorder(&seen, || {
        let rule = Rule::new("fulfil", Policy::webhook(json("/notifyId")));
        let _ = IdempotencyLayer::new(MemoryStore::new(), rule).recent(1024 * 1024);
    });
    let made = seen.made.lock().unwrap();
    let described = seen.described.lock().unwrap();
    assert!(made.len() >= 22, "{:?}", made.keys());
    assert_eq!(made.keys().collect::<Vec<_>>(), described.keys().collect::<Vec<_>>());
    let with_kind = made.iter().map(|(name, (kind, labels))| {
        assert_eq!(*kind, described[name], "{name}");
        (name.clone(), Metric { kind: *kind, labels: labels.clone() })
    });
    with_kind.collect()
}

type Labels = BTreeMap<String, BTreeSet<String>>;

#[derive(Clone, Default)]
struct Seen {
    made: Arc<Mutex<BTreeMap<String, (Kind, Labels)>>>,
    described: Arc<Mutex<BTreeMap<String, Kind>>>,
}

impl Seen {
    fn describe(&self, name: &KeyName, kind: Kind, words: &SharedString) {
        assert!(!words.is_empty());
        let before = self.described.lock().unwrap().insert(name.as_str().to_owned(), kind);
        assert_eq!(before, None, "{name:?} is described once");
    }

    fn make(&self, key: &Key, kind: Kind) {
        let mut made = self.made.lock().unwrap();
        let (known, labels) =
            made.entry(key.name().to_owned()).or_insert_with(|| (kind, Labels::new()));
        assert_eq!(*known, kind, "{key}");
        for label in key.labels() {
            let values = labels.entry(label.key().to_owned()).or_default();
            values.insert(label.value().to_owned());
        }
    }
}

impl Recorder for Seen {
    fn describe_counter(&self, name: KeyName, _: Option<Unit>, words: SharedString) {
        self.describe(&name, Kind::Counter, &words);
    }
    fn describe_gauge(&self, name: KeyName, _: Option<Unit>, words: SharedString) {
        self.describe(&name, Kind::Gauge, &words);
    }
    fn describe_histogram(&self, name: KeyName, _: Option<Unit>, words: SharedString) {
        self.describe(&name, Kind::Histogram, &words);
    }
    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        self.make(key, Kind::Counter);
        Counter::noop()
    }
    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        self.make(key, Kind::Gauge);
        Gauge::noop()
    }
    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        self.make(key, Kind::Histogram);
        Histogram::noop()
    }
}
