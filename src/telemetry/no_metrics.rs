//! In place of `metrics` where the feature is off: nothing, at no cost.

#![expect(clippy::unused_self, reason = "it is the same with the feature")]

use crate::rule::Rule;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Count {
    FencedOff,
    NotStored,
    NeverStored,
    DataLost,
    #[cfg(feature = "redis")]
    RecordsLost,
}

pub(crate) fn count(_: Count) {}

#[cfg(feature = "redis")]
pub(crate) fn store_suspended(_: bool) {}

pub(crate) fn begin<'r>(_: impl Iterator<Item = &'r Rule>) {}

#[derive(Clone, Debug, Default)]
pub(crate) struct RuleMetrics(());

impl RuleMetrics {
    pub(crate) fn of(&self, _: &str) -> &'static Metrics {
        &Metrics {
            executed_again: Nothing,
            abandoned: Nothing,
            rerun: Nothing,
            uncertain: Nothing,
            unprotected: Nothing,
            #[cfg(feature = "recent")]
            recent_replays: Nothing,
        }
    }
}

pub(crate) struct Metrics {
    pub(crate) executed_again: Nothing,
    pub(crate) abandoned: Nothing,
    pub(crate) rerun: Nothing,
    pub(crate) uncertain: Nothing,
    pub(crate) unprotected: Nothing,
    #[cfg(feature = "recent")]
    pub(crate) recent_replays: Nothing,
}

impl Metrics {
    pub(crate) fn handled(&self, _: &str) {}
    pub(crate) fn observed(&self, _: &str) {}
    pub(crate) fn stored(&self, _: usize) {}
    pub(crate) fn claimed(&self, _: Timer) {}
    pub(crate) fn completed(&self, _: Timer) {}
    pub(crate) fn ran(&self, _: Timer) {}
    pub(crate) fn in_flight(&self) -> During {
        During
    }
    pub(crate) fn waiting(&self) -> During {
        During
    }
}

pub(crate) struct Nothing;

impl Nothing {
    pub(crate) fn increment(&self, _: u64) {}
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Timer;

impl Timer {
    pub(crate) fn start() -> Self {
        Self
    }
}

pub(crate) struct During;

#[cfg(feature = "recent")]
#[derive(Clone)]
pub(crate) struct RecentMetrics;

#[cfg(feature = "recent")]
impl RecentMetrics {
    pub(crate) fn begin() -> Self {
        Self
    }
    pub(crate) fn hold(&self, _: u64) -> Held {
        Held
    }
    pub(crate) fn evicted(&self) {}
}

#[cfg(feature = "recent")]
#[derive(Clone)]
pub(crate) struct Held;
