//! The store contract as a suite: [`run_all`] drives any store through every rule of
//! [`Store`].
//!
//! Each group below shows one rule, or one fault that was found by trying to break the protocol
//! (`f1` and so on). A group uses fresh random keys, so groups may run at once and against a store
//! that others use. A group panics with its case, its line and what was answered.
//!
//! # Example: the suite over a store
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! use tower_idempotency::{MemoryStore, test_util::contract};
//!
//! let store = MemoryStore::new();
//! contract::same_token_same_grant(&store, &store).await;
//! # }
//! ```

mod alias;
mod calling_off;
mod case;
mod expiry;
mod fingerprint;
mod ownership;
mod restore;
mod scan;
mod settle;
mod token;
mod unknown;
mod walk;

use std::{future::Future, time::Duration};

pub use alias::{
    alias_leads_to_its_operation, f17_a_taken_delivery_is_told_with_its_state,
    released_delivery_is_bound_over,
};
pub use calling_off::{a_look_is_never_granted, f2_called_off_is_as_good_as_absent};
pub use expiry::{every_record_expires, unfinished_outlives_its_lease};
pub use fingerprint::{
    f14_bound_fingerprint_survives, f15_another_principal_takes_nothing_over, fingerprint_first,
};
pub use ownership::{
    completed_is_final, f11_the_same_token_gets_a_fresh_lease, f13_attempts_stop_at_999_999,
    fences_grow, one_owner, same_token_same_grant,
};
pub use restore::{
    f5_an_older_state_is_written_over, f7_a_living_owner_comes_back,
    the_executed_answer_outweighs_a_lapsed_stranger, what_was_lost_is_written_again,
};
pub use scan::{scan_finds_every_record, scan_may_be_abandoned, scan_tells_what_an_operator_needs};
pub use settle::{
    f8_a_sign_of_life_voids_a_verdict, f20_a_forced_verdict_does_not_hide_what_happened,
    resolve_settles_what_is_abandoned,
};
pub use token::{
    a_bound_token_is_held_to_what_it_is_bound_to, a_token_has_one_use_and_a_key_one_token,
    a_used_token_survives_its_claims, an_unused_token_does_not_outweigh_a_run,
    f6_a_one_time_token_is_checked_after_a_release, one_time_token_is_used_once,
    the_outstanding_token_is_issued_again,
};
pub use unknown::{
    a_crash_leaves_abandoned, a_renewal_tells_of_an_unknown_run_before,
    f1_unknown_is_never_laundered, f10_failed_is_not_released, f12_given_up_is_never_revived,
    unknown_told_again_counts_every_grant,
};
pub use walk::{Walk, random_walk};

use crate::{RecordKey, Store};

/// What surrounds the store under test: its time, and the losses it has no say in.
///
/// Each method acts on the store's records from outside, as an operator or a failover would.
/// [`MemoryStore`](crate::MemoryStore) is its own world.
pub trait World: Sync {
    /// A record as it is stored.
    type Snapshot: Send;

    /// The shortest lease the suite uses, and how finely it counts on time. A store behind a network
    /// wants more than the trips of one case take; the suite waits for it some dozens of times.
    fn tick(&self) -> Duration;

    /// Lets this much time pass by the store's clock.
    fn pass(&self, time: Duration) -> impl Future<Output = ()> + Send;

    /// Loses a record.
    fn forget(&self, key: &RecordKey) -> impl Future<Output = ()> + Send;

    /// Reads a record as it is stored; `None` if there is none.
    fn snapshot(&self, key: &RecordKey) -> impl Future<Output = Option<Self::Snapshot>> + Send;

    /// Puts a record in place of what is there, as a failover to an older state would, to be kept for
    /// a minute at least.
    fn put_back(&self, key: &RecordKey, record: Self::Snapshot) -> impl Future<Output = ()> + Send;

    /// How long a record is kept still; `None` if there is none. A record that never expires is
    /// [`Duration::MAX`].
    fn expires_in(&self, key: &RecordKey) -> impl Future<Output = Option<Duration>> + Send;
}

/// Runs every group, and a short random walk.
///
/// # Panics
///
/// When the store breaks a rule, with the case and what was answered.
pub async fn run_all<S: Store, W: World>(store: &S, world: &W) {
    one_owner(store, world).await;
    same_token_same_grant(store, world).await;
    completed_is_final(store, world).await;
    fences_grow(store, world).await;
    f11_the_same_token_gets_a_fresh_lease(store, world).await;
    f13_attempts_stop_at_999_999(store, world).await;
    a_crash_leaves_abandoned(store, world).await;
    f1_unknown_is_never_laundered(store, world).await;
    f10_failed_is_not_released(store, world).await;
    f12_given_up_is_never_revived(store, world).await;
    unknown_told_again_counts_every_grant(store, world).await;
    a_renewal_tells_of_an_unknown_run_before(store, world).await;
    fingerprint_first(store, world).await;
    f14_bound_fingerprint_survives(store, world).await;
    f15_another_principal_takes_nothing_over(store, world).await;
    what_was_lost_is_written_again(store, world).await;
    f5_an_older_state_is_written_over(store, world).await;
    f7_a_living_owner_comes_back(store, world).await;
    the_executed_answer_outweighs_a_lapsed_stranger(store, world).await;
    f2_called_off_is_as_good_as_absent(store, world).await;
    a_look_is_never_granted(store, world).await;
    resolve_settles_what_is_abandoned(store, world).await;
    f8_a_sign_of_life_voids_a_verdict(store, world).await;
    f20_a_forced_verdict_does_not_hide_what_happened(store, world).await;
    one_time_token_is_used_once(store, world).await;
    f6_a_one_time_token_is_checked_after_a_release(store, world).await;
    the_outstanding_token_is_issued_again(store, world).await;
    a_bound_token_is_held_to_what_it_is_bound_to(store, world).await;
    a_token_has_one_use_and_a_key_one_token(store, world).await;
    an_unused_token_does_not_outweigh_a_run(store, world).await;
    a_used_token_survives_its_claims(store, world).await;
    alias_leads_to_its_operation(store, world).await;
    f17_a_taken_delivery_is_told_with_its_state(store, world).await;
    released_delivery_is_bound_over(store, world).await;
    every_record_expires(store, world).await;
    unfinished_outlives_its_lease(store, world).await;
    scan_finds_every_record(store, world).await;
    scan_may_be_abandoned(store, world).await;
    scan_tells_what_an_operator_needs(store, world).await;
    random_walk(store, world, Walk::default()).await;
}
