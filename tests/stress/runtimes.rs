//! Runtimes that end in the middle of anything, as processes do, one after the other.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    runtime::{Builder, Runtime},
    time::{sleep, timeout},
};
use tower_idempotency::MemoryStore;

use crate::{
    chance::{Chance, seeds},
    client::World,
    plan::Plan,
    weather::Weather,
};

fn runtime(chance: &Chance) -> Runtime {
    let mut builder = match chance.below(2) {
        0 => Builder::new_current_thread(),
        _ => Builder::new_multi_thread(),
    };
    builder.worker_threads(2).enable_all().build().expect("a runtime can be made")
}

#[test]
fn runtimes_that_end_in_the_middle_of_anything_run_nothing_twice_and_leave_nothing_busy() {
    for seed in seeds(3) {
        let chance = Chance::new(seed);
        let leases = [100, 400].map(Duration::from_millis);
        // Runs that ended with their runtime have no end that the journal knows.
        let storm = chance.pick(&[1, 200]);
        let plan = Plan { storm, mortal: true, ..Plan::new(&chance, &leases) };
        let storm = Arc::new(AtomicU64::new(plan.storm));
        let store = MemoryStore::new();
        let way = Weather { store: store.clone(), chance: chance.clone(), storm: storm.clone() };
        let world = World::new(seed, plan, vec![way.clone(), way]);
        for _ in 0..12 {
            let runtime = runtime(&chance);
            let requests = world.storm(20, Duration::from_millis(100));
            let life = chance.up_to_ms(250);
            runtime.block_on(async { drop(timeout(life, requests).await) });
            if chance.one_in(2) {
                runtime.shutdown_background();
            }
        }
        storm.store(0, Ordering::SeqCst);
        let last = runtime(&chance);
        last.block_on(async {
            world.storm(3, Duration::from_millis(50)).await;
            sleep(plan.lease * 3 + Duration::from_secs(4)).await;
            world.look_around(&store, Duration::from_secs(10)).await;
        });
        world.assert_nothing_wrong();
        assert!(world.journal.count() > 0, "and a lot happened");
    }
}
