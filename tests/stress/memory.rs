//! Over a memory store at the end of a bad network, in paused time.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::time::sleep;
use tower_idempotency::MemoryStore;

use crate::{
    chance::{Chance, seeds},
    client::World,
    plan::{Plan, Recovery},
    shop::quiet,
    weather::Weather,
};

async fn run(seed: u64, plan: impl FnOnce(Plan, &Chance) -> Plan) -> usize {
    let chance = Chance::new(seed);
    let leases = [20, 300, 3000, 30_000].map(Duration::from_millis);
    let plan = plan(Plan::new(&chance, &leases), &chance);
    let storm = Arc::new(AtomicU64::new(plan.storm));
    let store = MemoryStore::new();
    let way = Weather { store: store.clone(), chance, storm: storm.clone() };
    let world = World::new(seed, plan, vec![way.clone(), way]);
    for weather in [plan.storm, 0, plan.storm] {
        storm.store(weather, Ordering::SeqCst);
        world.storm(60, Duration::from_secs(10)).await;
    }
    storm.store(0, Ordering::SeqCst);
    sleep(quiet(&plan)).await;
    world.look_around(&store, Duration::from_secs(60)).await;
    world.assert_nothing_wrong();
    world.journal.count()
}

/// Runs all seeds, each in a runtime of its own.
fn run_seeds(usual: u64, plan: impl Fn(Plan, &Chance) -> Plan) {
    let mut runs = 0;
    for seed in seeds(usual) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .expect("a runtime can be made");
        runs += runtime.block_on(run(seed, &plan));
    }
    assert!(runs > 0, "and a lot happened");
}

#[test]
fn whatever_store_handlers_and_clients_do_nothing_happens_that_must_not() {
    run_seeds(80, |plan, _| plan);
}

/// Each delivery may run under its id, and come again with its order while nobody knows what became of
/// that.
#[test]
fn deliveries_that_say_their_order_now_and_then_do_nothing_twice_that_somebody_knows_was_done() {
    run_seeds(40, |plan, chance| Plan {
        api: false,
        business: true,
        recovery: Recovery::Resolve,
        storm: chance.pick(&[200, 500, 900]),
        nameless: 8,
        ..plan
    });
}
