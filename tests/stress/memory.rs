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
    plan::Plan,
    shop::quiet,
    weather::Weather,
};

async fn run(seed: u64) -> usize {
    let chance = Chance::new(seed);
    let leases = [20, 300, 3000, 30_000].map(Duration::from_millis);
    let plan = Plan::new(&chance, &leases);
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

#[test]
fn whatever_store_handlers_and_clients_do_nothing_happens_that_must_not() {
    let mut runs = 0;
    for seed in seeds(80) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .expect("a runtime can be made");
        runs += runtime.block_on(run(seed));
    }
    assert!(runs > 0, "and a lot happened");
}
