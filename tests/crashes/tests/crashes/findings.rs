//! The findings F9 and F20 of the protocol's model, with real processes: what would contradict a row,
//! and what an operator may say of a run that only stalls.

use std::time::{Duration, Instant};

use bytes::Bytes;
use sqlx::{Sqlite, SqlitePool};
use tokio::time::sleep;
use tower_idempotency::{
    LedgerEntry, RedisStore,
    operations::{Found, Operations, Settle, SettleErrorKind, Standing},
    store::Cursor,
};
use tower_idempotency_sqlx::DedupTable;

use crate::{
    databases::Kind,
    sender::{End, Heard, Route},
    site::LEASE,
    stalled::{PATIENT, Stalled, heard_first},
    verdict::{Wrong, judge},
};

/// One process stalls before its transaction; in another the bank refuses. What is wrong then, what
/// was heard, and how many charges there are.
async fn refused_while_another_stalls(kind: Kind, more: &[&str]) -> (Wrong, Vec<Heard>, usize) {
    let route = Route::Pay;
    let mut stalled = Stalled::stopped(kind, route, "handler", more).await;
    stalled.site.add(&["--bank", "refuses"]);
    let second = stalled.deliver_to(2, route).await.unwrap();
    let first = stalled.go_on().await;
    let mut heard = vec![second, heard_first(route, first)];
    heard.extend(stalled.later(route).await);
    let books = stalled.site.books().await;
    (judge(&books, &heard), heard, books.charges.len())
}

fn is_refusal(heard: &Heard) -> bool {
    matches!(heard.end, End::Acknowledged { status: 402, .. })
}

async fn f9(kind: Kind) {
    let (wrong, heard, charges) = refused_while_another_stalls(kind, &[]).await;
    assert!(wrong.is_nothing(), "{wrong:#?}");
    assert!(heard.iter().all(is_refusal), "{heard:#?}");
    assert_eq!((heard.len(), charges), (5, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f9_a_refusal_that_was_kept_is_never_contradicted_by_a_row_on_any_database() {
    tokio::join!(f9(Kind::Postgres), f9(Kind::Mariadb), f9(Kind::Sqlite));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f9_without_a_ledger_it_is_charged_and_everybody_hears_that_it_was_not() {
    let more = &["--without", "ledger"];
    let (wrong, heard, charges) = refused_while_another_stalls(Kind::Sqlite, more).await;
    assert!(heard.iter().all(is_refusal), "{heard:#?}");
    assert_eq!((wrong.contradicted.len(), charges), (1, 1), "{wrong:#?}");
}

/// What an operator has at hand.
struct Operator(Operations<RedisStore>);

impl Operator {
    fn of(stalled: &Stalled) -> Self {
        let store = RedisStore::lazy(&stalled.site.redis.url()).expect("it is a URL");
        let store = store.prefix("crashes").call_within(Duration::from_secs(5));
        Self(Operations::new(store).lease(LEASE).max_run(LEASE * 10))
    }

    /// The one operation, when its lease is over.
    async fn abandoned(&self) -> Found {
        let started = Instant::now();
        loop {
            let page = self.0.list(Cursor::START, 100).await.unwrap();
            if let [found] = &page.operations[..] {
                assert!(matches!(found.standing, Standing::Lapsed { .. }), "{found:?}");
                return found.clone();
            }
            assert!(started.elapsed() < PATIENT, "its lease does not end");
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// Says that it was not done, which is refused, and forces it then.
    async fn force_not_done(&self, found: &Found) {
        let refused = self.0.settle(found, Settle::not_done("it looks dead")).await.unwrap_err();
        assert_eq!(refused.kind(), SettleErrorKind::MayBeRunning, "{refused}");
        let forced = Settle::not_done("its process was killed, I think").forced();
        self.0.settle(found, forced).await.unwrap();
    }
}

/// An operator calls a run not done by force that only stalls. What is wrong then, and how many
/// charges there are.
async fn forced_while_it_stalls(kind: Kind, point: &str, more: &[&str]) -> (Wrong, usize) {
    let route = Route::Notify;
    let mut stalled = Stalled::stopped(kind, route, point, more).await;
    let operator = Operator::of(&stalled);
    let found = operator.abandoned().await;
    operator.force_not_done(&found).await;
    let second = stalled.deliver_to(1, route);
    stalled.site.shops[1].ran().await;
    let first = stalled.go_on().await;
    let mut heard = vec![second.await.unwrap(), heard_first(route, first)];
    heard.extend(stalled.later(route).await);
    let books = stalled.site.books().await;
    (judge(&books, &heard), books.charges.len())
}

async fn f20(kind: Kind) {
    for point in ["handler", "charged"] {
        let (wrong, charges) = forced_while_it_stalls(kind, point, &[]).await;
        assert!(wrong.is_nothing() && charges == 1, "{kind:?}, {point}: {wrong:#?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f20_a_living_run_is_not_called_not_done_and_by_force_the_table_keeps_it_one_charge() {
    tokio::join!(f20(Kind::Postgres), f20(Kind::Mariadb), f20(Kind::Sqlite));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f20_without_a_table_what_was_forced_is_charged_twice() {
    let more = &["--without", "table"];
    let (wrong, charges) = forced_while_it_stalls(Kind::Sqlite, "handler", more).await;
    assert_eq!((wrong.charged_twice.len(), charges), (1, 2), "{wrong:#?}");
}

/// Killed after its commit: there is a row, so it is never called not done, and it is done for
/// whoever comes next.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f20_what_has_a_row_is_done_for_the_operator_and_for_the_next_delivery() {
    let route = Route::Notify;
    let mut stalled = Stalled::stopped(Kind::Sqlite, route, "committed", &[]).await;
    let operator = Operator::of(&stalled);
    let found = operator.abandoned().await;
    stalled.site.kill(0);
    stalled.site.replace(0);

    let pool = SqlitePool::connect(stalled.site.database_url()).await.unwrap();
    let ledger = DedupTable::<Sqlite>::new("dedup").ledger(&pool);
    // The business key is of two parts, which stand in the row as the layer joins them.
    let key: Vec<u8> =
        sqlx::query_scalar("SELECT business_key FROM dedup").fetch_one(&pool).await.unwrap();
    let entry = LedgerEntry::new("notify", "", key, Some(Bytes::from_static(b"N-O-Notify-0-0")));
    let not_done = Settle::not_done("a guess").forced().in_ledger(ledger, entry);
    let refused = operator.0.settle(&found, not_done).await.unwrap_err();
    assert_eq!(refused.kind(), SettleErrorKind::HasRow, "{refused}");
    let heard = stalled.later(route).await;
    let books = stalled.site.books().await;
    let wrong = judge(&books, &heard);
    assert!(wrong.is_nothing() && books.charges.len() == 1, "{wrong:#?} {heard:#?}");
}
