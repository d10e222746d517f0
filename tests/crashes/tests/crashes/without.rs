//! The same storms over shops that leave out what makes it exactly once: the harness sees them charge
//! twice.

use crate::{
    databases::Kind,
    redis::Fate,
    storm::{End, Plan, Step, storm},
    verdict::Wrong,
};

const SEED: u64 = 7;

/// Two processes die at this point, and Redis keeps everything. `late`: it is lost at the end.
async fn killed_at(
    kind: Kind,
    point: &'static str,
    end: End,
    late: bool,
    more: &'static [&'static str],
) -> Wrong {
    let step =
        |shop| Step { shop, point, end, fate: Fate::Kept, fate_last: false, lacks_little: false };
    let plan = Plan { steps: vec![step(0), step(1)], notified: 40, paid: 0, late, more };
    storm(kind, SEED, &plan).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_table_a_process_that_dies_after_its_commit_charges_twice() {
    let more = &["--without", "table"];
    let dies = killed_at(Kind::Postgres, "committed", End::Killed, false, more).await;
    assert!(!dies.charged_twice.is_empty(), "{dies:#?}");
    assert!(!dies.contradicted.is_empty(), "{dies:#?}");
    // The layer alone holds where the completion was stored: of every run, so that none is between its
    // commit and that when the process dies, and none lapses on a busy machine.
    let more = &["--without", "table", "--lease-ms", "10000"];
    let dies = killed_at(Kind::Sqlite, "answering", End::DrainedAndKilled, false, more).await;
    assert_eq!((dies.charged_twice.len(), dies.contradicted.len()), (0, 0), "{dies:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_table_what_redis_has_lost_is_charged_twice() {
    let lost =
        killed_at(Kind::Sqlite, "answering", End::Killed, true, &["--without", "table"]).await;
    assert_eq!(lost.charged_twice.len(), 40, "{lost:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_is_not_in_the_effects_commit_does_not_keep_it_from_being_charged_twice() {
    let more = &["--without", "one-commit"];
    for kind in [Kind::Mariadb, Kind::Sqlite] {
        let dies = killed_at(kind, "committed", End::Killed, true, more).await;
        assert!(!dies.charged_twice.is_empty(), "{kind:?}: {dies:#?}");
    }
    // The same storm over a shop with everything.
    let whole = killed_at(Kind::Sqlite, "committed", End::Killed, true, &[]).await;
    assert!(whole.is_nothing(), "{whole:#?}");
}
