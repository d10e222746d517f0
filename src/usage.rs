//! Which rules of a layer no request has met yet: a path with a typing error protects nothing.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use crate::{
    rule::{Rule, Rules},
    telemetry,
};

/// How many requests pass before rules that none has met are told.
const PASSED_BEFORE_TELLING: u64 = 10_000;

/// What a layer has seen of its rules.
#[derive(Debug)]
pub(crate) struct Usage {
    /// By the places of the rules.
    hit: Box<[AtomicBool]>,
    passed: AtomicU64,
    told_at_drain: AtomicBool,
}

impl Usage {
    pub(crate) fn new(rules: &Rules) -> Self {
        Self {
            hit: rules.iter().map(|_| AtomicBool::new(false)).collect(),
            passed: AtomicU64::new(0),
            told_at_drain: AtomicBool::new(false),
        }
    }

    /// A request met the rule at this place.
    pub(crate) fn hit(&self, place: usize) {
        // Looked at first: to write each time would take the cache line from the other cores.
        if let Some(hit) = self.hit.get(place)
            && !hit.load(Relaxed)
        {
            hit.store(true, Relaxed);
        }
    }

    /// A request passed untouched.
    pub(crate) fn pass(&self, rules: &Rules) {
        if self.passed.fetch_add(1, Relaxed) + 1 == PASSED_BEFORE_TELLING {
            self.tell(rules);
        }
    }

    /// The layer is drained.
    pub(crate) fn drain(&self, rules: &Rules) {
        // Where no request came there is nothing to learn.
        let idle = self.passed.load(Relaxed) == 0 && !self.hit.iter().any(|hit| hit.load(Relaxed));
        if !idle && !self.told_at_drain.swap(true, Relaxed) {
            self.tell(rules);
        }
    }

    pub(crate) fn unused<'r>(&self, rules: &'r Rules) -> impl Iterator<Item = &'r Rule> {
        let with_use = rules.iter().zip(&self.hit);
        with_use.filter(|(_, hit)| !hit.load(Relaxed)).map(|(rule, _)| rule)
    }

    fn tell(&self, rules: &Rules) {
        let passed = self.passed.load(Relaxed);
        for rule in self.unused(rules) {
            telemetry::rule_never_hit(rule, passed);
        }
    }
}
