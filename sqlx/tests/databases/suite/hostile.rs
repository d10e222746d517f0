//! What nobody should do, and what a database does on a bad day: nothing is charged twice, and nothing
//! that may still be rolled back is taken for done.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, StatusCode};
use sqlx::{Acquire, pool::PoolOptions};
use tokio::{sync::Barrier, time::timeout};
use tower_idempotency::{
    Answer, Ledger, LedgerEntry, MemoryStore, Operation, Policy, Scope, Sealed, sender,
};
use tower_idempotency_sqlx::{DedupTable, Entry};

use super::{DEDUP, Db, Handled, charge, count, new, open, run, run_in};
use crate::{
    house::{House, dies, executed, replayed},
    operation::Delivery,
};

type Pool = sqlx::Pool<Db>;

const DELIVERY: Delivery =
    Delivery { rule: "fulfil", tenant: "shop", order: Some("O-1"), id: "N-1" };
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

fn api() -> Policy {
    DELIVERY.policy_from(Policy::api(Scope::everyone()))
}

/// A pool of one connection to the same database, made so.
async fn narrow(pool: &Pool, set: &'static str) -> Pool {
    PoolOptions::<Db>::new()
        .max_connections(1)
        .acquire_timeout(Duration::from_millis(300))
        .after_connect(move |on, _| {
            Box::pin(async move { sqlx::raw_sql(set).execute(on).await.map(drop) })
        })
        .connect_with((*pool.connect_options()).clone())
        .await
        .unwrap()
}

#[tokio::test]
async fn a_row_that_may_still_be_rolled_back_is_no_row_whatever_isolation_is_the_default() {
    for set in super::super::ASKED.iter().copied() {
        let (pool, _held) = open().await;
        let isolated = narrow(&pool, set).await;
        for commits in [false, true] {
            let order: &'static str = format!("O-{commits}").leak();
            let operation = Delivery::new(order).order(order).operation().await;
            let found = async || {
                let ledger = DEDUP.ledger(&isolated).find(&operation.ledger_entry()).await;
                assert_eq!(
                    ledger.unwrap().map(|row| row.answer),
                    DEDUP.find(&isolated, &operation).await.unwrap()
                );
                DEDUP.find(&isolated, &operation).await.unwrap()
            };
            assert_eq!(found().await, None);
            let mut outer = pool.begin().await.unwrap();
            let mut tx = outer.begin().await.unwrap();
            let row = new(DEDUP.enter(&mut tx, &operation).await.unwrap());
            assert_eq!(found().await, None, "{set}: it has no answer yet, and is not there");
            row.commit(tx, Answer::text("success")).await.unwrap();
            assert_eq!(found().await, None, "{set}: only a savepoint has ended");
            match commits {
                true => outer.commit().await.unwrap(),
                false => outer.rollback().await.unwrap(),
            }
            assert_eq!(found().await, commits.then(|| Answer::text("success")), "{set}");
        }
        if !set.contains("read_only") {
            run(&pool, "UPDATE dedup SET created_at = created_at - 1000000").await;
            assert_eq!(DEDUP.purge(&isolated, Duration::ZERO, 10).await.unwrap(), 1);
            assert_eq!(count(&pool, "dedup").await, 0, "{set}");
        }
    }
}

#[tokio::test]
async fn a_table_that_keeps_its_rows_for_less_than_the_policy_holds_is_no_ledger_of_it() {
    let (pool, _held) = open().await;
    let long = || sender::stripe();
    let error = long().ledger(DEDUP.ledger(&pool)).check().unwrap_err().to_string();
    assert!(error.contains("DedupTable::hold"), "{error}");
    let patient: DedupTable<Db> = DEDUP.hold(31 * DAY);
    assert_eq!(long().ledger(patient.ledger(&pool)).check(), Ok(()));
    assert_eq!(api().ledger(DEDUP.ledger(&pool)).check(), Ok(()));

    // A record is as old as its run's last sign of life, its row as old as the beginning.
    charge(&pool, &DELIVERY.operation().await, Answer::text("success")).await;
    let aged = |seconds: u64| format!("UPDATE dedup SET created_at = created_at - {seconds}");
    run(&pool, &aged(7 * DAY.as_secs() + 600)).await;
    assert_eq!(DEDUP.purge(&pool, Duration::ZERO, 100).await.unwrap(), 0);
    run(&pool, &aged(3600)).await;
    assert_eq!(DEDUP.purge(&pool, Duration::MAX, 100).await.unwrap(), 0);
    assert_eq!(DEDUP.purge(&pool, Duration::ZERO, 100).await.unwrap(), 1);
}

#[tokio::test]
async fn identities_that_are_no_text_are_told_apart_byte_by_byte() {
    let (pool, _held) = open().await;
    let ledger = DEDUP.ledger(&pool);
    let parts: Vec<Bytes> = [
        &b"\xff"[..],
        b"\xff\x00",
        b"\x00",
        b"\x00\x00",
        b"\x80",
        b"a\x00",
        b"a",
        b"A",
        b"a ",
        b"a\t",
        b"\xc3\xa4",
        b"a\xcc\x88",
        b"'; DROP TABLE dedup; --",
        b"\\",
        b"%",
        b"?",
        b"$1",
        b"\\x61",
        b"",
    ]
    .into_iter()
    .map(Bytes::from_static)
    .chain([Bytes::from(vec![0xff; 255]), Bytes::from([vec![0xff; 254], vec![0xfe]].concat())])
    .collect();
    let mut entries = Vec::new();
    for part in &parts {
        // As the identity, as the scope, as a business key beside a delivery id of its own.
        entries.push(LedgerEntry::new("fulfil", "s", part.clone(), None));
        entries.push(LedgerEntry::new("fulfil", [&b"scope"[..], part].concat(), "k", None));
        let delivery = Bytes::from([&b"of "[..], &part[..part.len().min(200)]].concat());
        let delivery = if part.len() == 255 {
            Bytes::from([&b"255"[..], &part[252..]].concat())
        } else {
            delivery
        };
        entries.push(LedgerEntry::new("fulfil", "s", part.clone(), Some(delivery)));
    }
    for (number, entry) in entries.iter().enumerate() {
        let sealed = ledger.seal(entry, &Answer::text(number.to_string()).into()).await.unwrap();
        assert_eq!(sealed, Sealed::Written, "{entry:?}");
    }
    for (number, entry) in entries.iter().enumerate() {
        let found = ledger.find(entry).await.unwrap();
        assert_eq!(found, Some(Answer::text(number.to_string()).into()), "{entry:?}");
    }
    let long = LedgerEntry::new("fulfil", "s", vec![b'x'; 256], None);
    assert!(ledger.find(&long).await.unwrap_err().to_string().contains("256 bytes"));
}

#[tokio::test]
async fn an_answer_comes_back_whole_however_large_or_nothing_has_happened() {
    let (pool, _held) = open().await;
    let mut response = http::Response::new(Bytes::new());
    for number in 0..2_000 {
        let name = HeaderName::try_from(format!("x-{number}")).unwrap();
        let value = HeaderValue::try_from("v".repeat(100)).unwrap();
        response.headers_mut().append(name, value);
    }
    let headers = response.headers().clone();
    for megabytes in [0, 1, 5, 40] {
        let id: &'static str = format!("N-{megabytes}").leak();
        let operation = Delivery::new(id).operation().await;
        let mut large = http::Response::new(Bytes::from(vec![0xff; megabytes << 20]));
        *large.headers_mut() = headers.clone();
        let answer = Answer::from_http(large).with_trailers(headers.clone());
        let before = count(&pool, "charges").await;
        let mut tx = pool.begin().await.unwrap();
        let row = new(DEDUP.enter(&mut tx, &operation).await.unwrap());
        run_in(&mut tx, "INSERT INTO charges VALUES ('U-7')").await;
        match row.commit(tx, answer.clone()).await {
            Ok(_) => assert_eq!(DEDUP.find(&pool, &operation).await.unwrap(), Some(answer)),
            Err(error) => {
                assert!(megabytes > 5, "{error:?}");
                assert_eq!(DEDUP.find(&pool, &operation).await.unwrap(), None);
                assert_eq!(count(&pool, "charges").await, before);
            }
        }
    }
}

/// Charges two accounts in this order, and waits in between for whoever does it in the other one.
async fn transfer(
    pool: &Pool,
    operation: &Operation,
    accounts: [&str; 2],
    both: Option<&Barrier>,
) -> Result<Answer, Box<dyn std::error::Error + Send + Sync>> {
    let mut tx = pool.begin().await?;
    let row = match DEDUP.enter(&mut tx, operation).await? {
        Entry::New(row) => row,
        Entry::Done(answer) => return Ok(answer),
        Entry::Mismatch => return Err("it is one order".into()),
    };
    for account in accounts {
        let sql = format!("UPDATE accounts SET balance = balance + 1 WHERE name = '{account}'");
        sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&mut *tx).await?;
        if let Some(both) = both {
            // Where there is one writer at a time the other never comes.
            let _ = timeout(Duration::from_millis(300), both.wait()).await;
        }
    }
    Ok(row.commit(tx, Answer::text("success")).await?)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_tries_again_after_a_deadlock_charges_once() {
    let (pool, _held) = open().await;
    run(&pool, "CREATE TABLE accounts (name VARCHAR(9) PRIMARY KEY, balance INTEGER NOT NULL)")
        .await;
    run(&pool, "INSERT INTO accounts VALUES ('a', 0), ('b', 0)").await;
    let (database, both) = (pool.clone(), Arc::new(Barrier::new(2)));
    let house =
        House::new(MemoryStore::new(), api().ledger(DEDUP.ledger(&pool)), move |operation| {
            let (pool, both) = (database.clone(), both.clone());
            async move {
                let accounts = if operation.key() == "O-1" { ["a", "b"] } else { ["b", "a"] };
                for attempt in 0..50 {
                    let first = (attempt == 0).then_some(&*both);
                    if let Ok(answer) = transfer(&pool, &operation, accounts, first).await {
                        return Ok(answer);
                    }
                }
                panic!("given up 50 times")
            }
        });
    let other = Delivery { order: Some("O-2"), id: "N-2", ..DELIVERY };
    let told = tokio::join!(house.send(DELIVERY), house.send(other));
    assert_eq!(told, (executed(200, "success"), executed(200, "success")));
    let balances: i64 = {
        let sum = "SELECT CAST(SUM(balance) AS SIGNED) FROM accounts";
        let sum = if <Db as sqlx::Database>::NAME == "MySQL" {
            sum
        } else {
            "SELECT SUM(balance) FROM accounts"
        };
        sqlx::query_scalar(sum).fetch_one(&pool).await.unwrap()
    };
    assert_eq!((balances, count(&pool, "dedup").await), (4, 2));
    assert_eq!(house.send(DELIVERY).await, replayed(200, "success"));
}

#[tokio::test]
async fn a_panic_between_the_commit_and_the_answer_is_answered_from_the_row() {
    let (pool, _held) = open().await;
    let database = pool.clone();
    let house =
        House::new(MemoryStore::new(), api().ledger(DEDUP.ledger(&pool)), move |operation| {
            let pool = database.clone();
            async move {
                charge(&pool, &operation, Answer::text("charged")).await;
                panic!("after the commit")
            }
        });
    let first = house.clone();
    let died = tokio::spawn(async move { first.send(DELIVERY).await }).await;
    assert!(died.unwrap_err().is_panic());
    assert_eq!(house.send(DELIVERY).await, replayed(200, "charged"));
    assert_eq!(count(&pool, "charges").await, 1);
}

#[tokio::test]
async fn a_row_that_was_committed_is_told_though_the_handler_answers_what_is_released() {
    let (pool, _held) = open().await;
    let database = pool.clone();
    let house =
        House::new(MemoryStore::new(), api().ledger(DEDUP.ledger(&pool)), move |operation| {
            let pool = database.clone();
            async move {
                charge(&pool, &operation, Answer::text("charged")).await;
                Ok(Answer::new(StatusCode::SERVICE_UNAVAILABLE))
            }
        });
    for _ in 0..2 {
        assert_eq!(house.send(DELIVERY).await, replayed(200, "charged"));
    }
    assert_eq!(count(&pool, "charges").await, 1);
}

#[tokio::test]
async fn an_operation_that_is_entered_twice_at_once_is_told_so_and_nothing_happens() {
    let (pool, _held) = open().await;
    let database = pool.clone();
    let house =
        House::new(MemoryStore::new(), api().ledger(DEDUP.ledger(&pool)), move |operation| {
            let pool = database.clone();
            async move {
                let mut tx = pool.begin().await.unwrap();
                let row = new(DEDUP.enter(&mut tx, &operation).await.unwrap());
                run_in(&mut tx, "INSERT INTO charges VALUES ('U-7')").await;
                if operation.attempt() > 1 {
                    return Ok(row.commit(tx, Answer::text("charged")).await.unwrap());
                }
                let error = DEDUP.enter(&mut tx, &operation).await.unwrap_err();
                assert!(error.to_string().contains("entered twice"), "{error}");
                Ok(Answer::new(StatusCode::INTERNAL_SERVER_ERROR))
            }
        });
    assert_eq!(house.send(DELIVERY).await, executed(500, ""));
    assert_eq!(house.send(DELIVERY).await, executed(200, "charged"));
    assert_eq!((count(&pool, "charges").await, count(&pool, "dedup").await), (1, 1));
}

#[tokio::test]
async fn a_row_of_a_savepoint_that_is_gone_is_not_committed() {
    let (pool, _held) = open().await;
    let operation = DELIVERY.operation().await;
    let mut outer = pool.begin().await.unwrap();
    let mut tx = outer.begin().await.unwrap();
    let row = new(DEDUP.enter(&mut tx, &operation).await.unwrap());
    tx.rollback().await.unwrap();
    run_in(&mut outer, "INSERT INTO charges VALUES ('U-7')").await;
    let error = row.commit(outer, Answer::text("success")).await.unwrap_err();
    assert!(error.to_string().contains("not open in this transaction"), "{error}");
    assert_eq!((count(&pool, "charges").await, count(&pool, "dedup").await), (0, 0));
    let again = charge(&pool, &operation, Answer::text("success")).await;
    assert_eq!(again, Handled::Charged(Answer::text("success")));
}

#[tokio::test]
async fn a_row_that_is_gone_is_not_committed_as_the_next_ones() {
    let (pool, _held) = open().await;
    let operation = DELIVERY.operation().await;
    let mut outer = pool.begin().await.unwrap();
    let mut tx = outer.begin().await.unwrap();
    let gone = new(DEDUP.enter(&mut tx, &operation).await.unwrap());
    tx.rollback().await.unwrap();
    // It may have the id that the other one had.
    let other = Delivery { order: Some("O-2"), id: "N-2", ..DELIVERY }.operation().await;
    let _row = new(DEDUP.enter(&mut outer, &other).await.unwrap());
    let error = gone.commit(outer, Answer::text("success")).await.unwrap_err();
    assert!(error.to_string().contains("not open in this transaction"), "{error}");
    assert_eq!(count(&pool, "dedup").await, 0);
}

/// What a client is told while no connection can be had, for a seal and for what is abandoned.
async fn without_a_connection(pool: &Pool, ledger: impl Ledger) {
    let store = MemoryStore::new();
    let no_funds = |_| async { Ok(Answer::new(StatusCode::PAYMENT_REQUIRED)) };
    let house = House::new(store.clone(), api().ledger(ledger), no_funds);
    assert_eq!(house.send(DELIVERY).await.0, 409, "whether it has a row is not known");
    assert_eq!(house.send(DELIVERY).await.0, 409, "and whether it was done");

    let policy = || api().ledger(DEDUP.ledger(pool));
    let never = House::new(store.clone(), policy(), |_| async { dies() });
    assert!(never.try_send(DELIVERY).await.is_err(), "it has no row, and runs");
    let house = House::new(store, policy(), no_funds);
    assert_eq!(house.send(DELIVERY).await, executed(402, ""));
    assert_eq!(house.send(DELIVERY).await, replayed(402, ""));
    assert_eq!(count(pool, "dedup").await, 1);
}

#[tokio::test]
async fn while_every_connection_is_taken_an_outcome_is_unknown_and_nothing_runs() {
    let (pool, _held) = open().await;
    let taken = narrow(&pool, "SELECT 1").await;
    let holder = taken.acquire().await.unwrap();
    without_a_connection(&pool, DEDUP.ledger(&taken)).await;
    drop(holder);
}

#[tokio::test]
async fn while_the_database_is_away_an_outcome_is_unknown_and_nothing_runs() {
    let (pool, _held) = open().await;
    let away = narrow(&pool, "SELECT 1").await;
    away.close().await;
    without_a_connection(&pool, DEDUP.ledger(&away)).await;
}

/// The handler's table is not the ledger's: two truths, and still no second charge.
#[tokio::test]
async fn a_handler_that_enters_another_table_than_the_ledgers_charges_once() {
    const OTHER: DedupTable<Db> = DedupTable::new("other_table");
    let (pool, _held) = open().await;
    OTHER.migrate(&pool).await.unwrap();
    let (store, database) = (MemoryStore::new(), pool.clone());
    let house = |dying: bool, store: MemoryStore| {
        let pool = database.clone();
        House::new(store, api().ledger(OTHER.ledger(&database)), move |operation| {
            let pool = pool.clone();
            async move {
                let handled = charge(&pool, &operation, Answer::text("charged")).await;
                if dying {
                    dies()
                } else {
                    let (Handled::Charged(answer) | Handled::Done(answer)) = handled else {
                        panic!()
                    };
                    Ok(answer)
                }
            }
        })
    };
    assert!(house(true, store.clone()).try_send(DELIVERY).await.is_err());
    assert_eq!(house(false, store).send(DELIVERY).await, executed(200, "charged"));
    assert_eq!(house(false, MemoryStore::new()).send(DELIVERY).await, executed(200, "charged"));
    assert_eq!(count(&pool, "charges").await, 1);
}
