//! What one run is like: its policy and how often what goes wrong.

use std::{sync::Arc, time::Duration};

use tower_idempotency::{Abandoned, Answer, Policy, Resolution, Scope, json};

use crate::{
    chance::Chance,
    journal::{Journal, Name, Truth},
};

/// What is done with an abandoned operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Recovery {
    Refuse,
    Rerun,
    /// Somebody is asked who knows the truth.
    Resolve,
}

/// The choices of one run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) api: bool,
    pub(crate) business: bool,
    pub(crate) recovery: Recovery,
    pub(crate) wait: Duration,
    pub(crate) lease: Duration,
    /// Of a thousand calls of the store, so many go wrong.
    pub(crate) storm: u64,
    /// Of twenty deliveries, so many do not say their order.
    pub(crate) nameless: u64,
    /// Processes die, which may be between a handler's end and the store's hearing of it.
    pub(crate) mortal: bool,
}

/// The most bytes of an answer that are kept.
pub(crate) const ANSWER_LIMIT: usize = 200;

impl Plan {
    pub(crate) fn new(chance: &Chance, leases: &[Duration]) -> Self {
        let api = chance.one_in(3);
        let wait = chance.pick(&[0, 0, 700, 4000]);
        Self {
            api,
            business: !api && chance.below(3) > 0,
            recovery: chance.pick(&[
                Recovery::Refuse,
                Recovery::Refuse,
                Recovery::Rerun,
                Recovery::Resolve,
            ]),
            wait: Duration::from_millis(wait),
            lease: chance.pick(leases),
            storm: chance.pick(&[0, 50, 200, 500, 900]),
            nameless: 2,
            mortal: false,
        }
    }

    pub(crate) fn policy(&self, journal: &Arc<Journal>) -> Policy {
        let mut policy = if self.api {
            Policy::api(Scope::header("x-tenant"))
        } else {
            Policy::webhook(json("/id")).scope(Scope::header("x-tenant"))
        };
        if self.business {
            policy = policy.business_key(json("/order")).compare([json("/amount")]);
        }
        policy = policy.wait(self.wait).lease(self.lease).answer_limit(ANSWER_LIMIT);
        // A handler takes longer than ten of the shortest leases.
        policy = policy.max_run(Duration::from_secs(60));
        match self.recovery {
            Recovery::Refuse => policy,
            Recovery::Rerun => policy.rerun_abandoned(),
            Recovery::Resolve => {
                let journal = journal.clone();
                policy.resolve_abandoned(move |abandoned: Abandoned| {
                    let journal = journal.clone();
                    async move { resolve(&journal, abandoned) }
                })
            }
        }
    }
}

fn resolve(journal: &Journal, abandoned: Abandoned) -> Resolution {
    let name = Name {
        tenant: abandoned.scope,
        business: abandoned.delivery_id.is_some(),
        key: abandoned.key,
    };
    match journal.truth(&name) {
        Truth::Running => Resolution::Unknown,
        Truth::Done(body) => Resolution::Done(Answer::text(body)),
        Truth::NotDone => {
            journal.call_not_done(&name);
            Resolution::NotDone
        }
    }
}
