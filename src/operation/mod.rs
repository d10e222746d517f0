//! One execution, from the claim to the stored answer.
//!
//! `run` is the way of a protected request up to the grant, `execution` from the grant on; `job` is both
//! for work that is no request, `observe` for a request that is only observed. What they call is here:
//! `claimant` asks for the grant and answers for what it asked, `capture` reads bodies, `wait`, with
//! `poller`, and `recovery` are for requests that were not granted, `recent` for those that need no grant,
//! `seal` looks after the row of an answer where there is a ledger, `mismatch` says no to another request
//! under a known identity, `replay` answers from the store, `keeper` does what outlives a request,
//! `detach` keeps a run going when its client leaves, `then` puts one part of it after the other.

mod capture;
mod claimant;
mod detach;
mod execution;
mod handle;
mod job;
mod keeper;
mod mismatch;
mod observe;
mod poller;
mod prepare;
mod recent;
mod recovery;
mod replay;
mod run;
mod seal;
mod settlement;
mod subject;
mod then;
mod wait;
mod way;

use std::sync::Arc;

use poller::Pollers;
use tokio::sync::Semaphore;

pub use handle::{Handled, Operation, Would};
pub(crate) use job::{Came, Ended, Job, run_job};
pub use keeper::Drained;
pub(crate) use keeper::Keeper;
pub(crate) use observe::{Why, observe};
pub(crate) use recovery::storable;
pub(crate) use run::run;
pub(crate) use seal::{find_row, seal_row};
pub(crate) use subject::Subject;

#[cfg(feature = "recent")]
use crate::store::Recent;
use crate::{record::Secret, store::DynStore};

/// What the requests of one layer share.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) store: Arc<dyn DynStore>,
    pub(crate) keeper: Keeper,
    pub(crate) secret: Option<Secret>,
    /// A permit for each request that waits for another's run.
    pub(crate) waiters: Arc<Semaphore>,
    /// What they do together.
    pub(crate) pollers: Arc<Pollers>,
    /// What is known to be stored, where the layer keeps some of it.
    #[cfg(feature = "recent")]
    pub(crate) recent: Option<Arc<Recent>>,
}

impl Shared {
    pub(crate) fn new(store: Arc<dyn DynStore>) -> Self {
        let pollers = Arc::<Pollers>::default();
        Self {
            keeper: Keeper::new(store.clone(), pollers.clone()),
            store,
            secret: None,
            waiters: Arc::new(Semaphore::new(wait::WAITERS_AT_MOST)),
            pollers,
            #[cfg(feature = "recent")]
            recent: None,
        }
    }
}
