//! The table as the ledger of a policy: what it says of rows, and what it makes of them.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use sqlx::pool::PoolOptions;
use tower_idempotency::{
    Answer, Ledger, LedgerEntry, LedgerRow, MemoryStore, Operation, Policy, Scope, Sealed,
    operations::{Found, Operations, Settle, SettleErrorKind},
    store::Cursor,
};
use tower_idempotency_test_support::Log;

use super::{DEDUP, Db, Handled, charge, count, new, open, run_in};
use crate::{
    house::{Counted, House, dies, executed, replayed},
    operation::Delivery,
};

type Pool = sqlx::Pool<Db>;

/// A delivery `N-1` of the order `O-1`.
const DELIVERY: Delivery =
    Delivery { rule: "fulfil", tenant: "shop", order: Some("O-1"), id: "N-1" };

fn entry() -> LedgerEntry {
    LedgerEntry::new("fulfil", "shop", "O-1", Some(Bytes::from_static(b"N-1")))
}

/// What a handler does that ends its transaction by itself.
async fn plain_commit(pool: &Pool, operation: &Operation) {
    let mut tx = pool.begin().await.unwrap();
    let _row = new(DEDUP.enter(&mut tx, operation).await.unwrap());
    run_in(&mut tx, "INSERT INTO charges VALUES ('U-7')").await;
    tx.commit().await.unwrap();
}

/// An API's policy, which keeps nearly everything.
fn api() -> Policy {
    DELIVERY.policy_from(Policy::api(Scope::everyone()))
}

async fn only(operations: &Operations<MemoryStore>) -> Found {
    let mut page = operations.list(Cursor::START, 100).await.unwrap();
    assert_eq!(page.operations.len(), 1, "{page:?}");
    page.operations.remove(0)
}

#[tokio::test]
async fn a_handler_that_enters_needs_no_seal_and_is_not_warned_of() {
    let (log, _guard) = Log::listen();
    let (pool, _held) = open().await;
    let ledger = Counted::new(DEDUP.ledger(&pool));
    let charging = |store: MemoryStore| {
        let pool = pool.clone();
        House::new(store, DELIVERY.policy().ledger(ledger.clone()), move |operation| {
            let pool = pool.clone();
            async move {
                match charge(&pool, &operation, Answer::text("success")).await {
                    Handled::Charged(answer) | Handled::Done(answer) => Ok(answer),
                    Handled::Mismatch => Ok(Answer::new(StatusCode::CONFLICT)),
                }
            }
        })
    };
    assert_eq!(charging(MemoryStore::new()).send(DELIVERY).await, executed(200, "success"));
    let emptied = charging(MemoryStore::new());
    assert_eq!(emptied.send(DELIVERY).await, executed(200, "success"), "granted, and found");
    assert_eq!(emptied.send(DELIVERY).await, replayed(200, "success"));
    assert_eq!(ledger.asked(), (0, 0));
    assert_eq!(log.of("row missing"), [""; 0]);
    assert_eq!((count(&pool, "charges").await, count(&pool, "dedup").await), (1, 1));

    // One that does not enter: its row is written for it, and somebody hears of it.
    let careless = House::new(MemoryStore::new(), api().ledger(ledger.clone()), |_| async {
        Ok(Answer::text("success"))
    });
    let other = Delivery { order: Some("O-2"), id: "N-2", ..DELIVERY };
    assert_eq!(careless.send(other).await, executed(200, "success"));
    assert_eq!((ledger.asked(), log.of("row missing").len()), ((0, 1), 1));
    assert_eq!(count(&pool, "dedup").await, 2);
}

#[tokio::test]
async fn a_row_without_an_answer_gets_the_one_the_handler_gave() {
    let (log, _guard) = Log::listen();
    let (pool, _held) = open().await;
    let database = pool.clone();
    let house = House::new(
        MemoryStore::new(),
        DELIVERY.policy().ledger(DEDUP.ledger(&pool)),
        move |operation| {
            let pool = database.clone();
            async move {
                plain_commit(&pool, &operation).await;
                Ok(Answer::text("success"))
            }
        },
    );
    assert_eq!(house.send(DELIVERY).await, executed(200, "success"));
    assert_eq!(log.of("row missing"), [""; 0], "it has entered");
    let found = DEDUP.ledger(&pool).find(&entry()).await.unwrap().unwrap();
    assert_eq!(found.answer.body().unwrap(), "success");
    let handled = charge(&pool, &DELIVERY.operation().await, Answer::text("no")).await;
    assert!(matches!(handled, Handled::Done(_)), "{handled:?}");
    assert_eq!(count(&pool, "charges").await, 1);
}

#[tokio::test]
async fn a_row_without_an_answer_whose_process_died_never_runs_again_and_is_settled_by_hand() {
    let (pool, _held) = open().await;
    let (store, database) = (MemoryStore::new(), pool.clone());
    let policy = || api().ledger(DEDUP.ledger(&pool));
    let house = House::new(store.clone(), policy(), move |operation| {
        let pool = database.clone();
        async move {
            plain_commit(&pool, &operation).await;
            dies()
        }
    });
    assert!(house.try_send(DELIVERY).await.is_err());
    assert_eq!(house.send(DELIVERY).await.0, 409, "not run: it would panic at the second row");

    // The store is emptied, and the handler meets the row itself: its own failure is not the answer.
    let (emptied, database) = (MemoryStore::new(), pool.clone());
    let house = House::new(emptied.clone(), policy(), move |operation| {
        let pool = database.clone();
        async move {
            let mut tx = pool.begin().await.unwrap();
            let error = DEDUP.enter(&mut tx, &operation).await.unwrap_err();
            assert!(error.is_unanswered(), "{error}");
            Ok(Answer::new(StatusCode::INTERNAL_SERVER_ERROR))
        }
    });
    assert_eq!(house.send(DELIVERY).await.0, 500);
    assert_eq!(house.send(DELIVERY).await.0, 409);

    let operations = Operations::new(emptied);
    let found = only(&operations).await;
    let ledger = || DEDUP.ledger(&pool);
    let not_done = Settle::not_done("a guess").in_ledger(ledger(), entry());
    let refused = operations.settle(&found, not_done).await.unwrap_err();
    assert_eq!(refused.kind(), SettleErrorKind::Ledger, "{refused}");
    let done = Settle::done(Answer::text("success"), "the charge is there");
    operations.settle(&found, done.in_ledger(ledger(), entry())).await.unwrap();
    assert_eq!(house.send(DELIVERY).await, replayed(200, "success"));
    assert_eq!(ledger().find(&entry()).await.unwrap(), Some(Answer::text("success").into()));
    assert_eq!(count(&pool, "charges").await, 1);
}

#[tokio::test]
async fn f20_a_verdict_by_hand_has_its_row_like_every_kept_answer() {
    let (pool, _held) = open().await;
    let store = MemoryStore::new();
    let policy = api().uncertain([StatusCode::BAD_GATEWAY]).ledger(DEDUP.ledger(&pool));
    let house =
        House::new(store.clone(), policy, |_| async { Ok(Answer::new(StatusCode::BAD_GATEWAY)) });
    assert_eq!(house.send(DELIVERY).await.0, 502);
    let operations = Operations::new(store);
    let found = only(&operations).await;
    let done = || Settle::done(Answer::text("by hand"), "the provider has the charge");
    let wrong = LedgerEntry::new("fulfil", "shop", "O-2", entry().delivery_id);
    let refused = operations.settle(&found, done().in_ledger(DEDUP.ledger(&pool), wrong)).await;
    assert_eq!(refused.unwrap_err().kind(), SettleErrorKind::OtherEntry);
    assert_eq!(count(&pool, "dedup").await, 0);
    operations.settle(&found, done().in_ledger(DEDUP.ledger(&pool), entry())).await.unwrap();

    let handled = charge(&pool, &DELIVERY.operation().await, Answer::text("no")).await;
    assert_eq!(handled, Handled::Done(Answer::text("by hand")), "whatever the store forgets");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_many_seals_at_once_one_is_written_and_all_agree() {
    let (pool, _held) = open().await;
    seals_at_once(&pool).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn seals_at_once_agree_whatever_isolation_is_the_default() {
    for set in super::super::DEFAULTS.iter().copied() {
        let (pool, _held) = open().await;
        let isolated = PoolOptions::<Db>::new()
            .max_connections(20)
            .after_connect(move |on, _| {
                Box::pin(async move { sqlx::raw_sql(set).execute(on).await.map(drop) })
            })
            .connect_with((*pool.connect_options()).clone());
        seals_at_once(&isolated.await.unwrap()).await;
    }
}

async fn seals_at_once(pool: &Pool) {
    for unanswered in [false, true] {
        let id = if unanswered { "N-1" } else { "N-2" };
        let delivery = Delivery { order: None, id, ..DELIVERY };
        if unanswered {
            plain_commit(pool, &delivery.operation().await).await;
        }
        let entry = LedgerEntry::new("fulfil", "shop", id, None);
        let seals: Vec<_> = (0..20)
            .map(|number| {
                let (ledger, entry) = (DEDUP.ledger(pool), entry.clone());
                let answer = LedgerRow::from(Answer::text(number.to_string()));
                tokio::spawn(async move {
                    match ledger.seal(&entry, &answer).await.unwrap() {
                        Sealed::Written => (true, answer),
                        Sealed::Existing(answer) => (false, answer),
                        other => panic!("{other:?}"),
                    }
                })
            })
            .collect();
        let mut written = 0;
        for seal in seals {
            let (first, answer) = seal.await.unwrap();
            written += usize::from(first);
            assert_eq!(DEDUP.ledger(pool).find(&entry).await.unwrap(), Some(answer));
        }
        assert_eq!(written, 1, "unanswered: {unanswered}");
    }
    assert_eq!(count(pool, "dedup").await, 2);
}

#[tokio::test]
async fn a_delivery_id_of_another_business_key_is_an_error_and_neither_found_nor_sealed() {
    let (pool, _held) = open().await;
    charge(&pool, &DELIVERY.operation().await, Answer::text("success")).await;
    let ledger = DEDUP.ledger(&pool);
    let foreign = LedgerEntry::new("fulfil", "shop", "O-2", entry().delivery_id);
    for error in [
        ledger.find(&foreign).await.unwrap_err(),
        ledger.seal(&foreign, &Answer::text("no").into()).await.unwrap_err(),
    ] {
        assert!(error.to_string().contains("is for another business key"), "{error}");
    }
    assert_eq!(count(&pool, "dedup").await, 1);
    assert!(ledger.find(&entry()).await.unwrap().is_some());
    let unknown = LedgerEntry::new("fulfil", "shop", "O-2", Some(Bytes::from("N-2")));
    assert_eq!(ledger.find(&unknown).await.unwrap(), None);
}

/// The rollback of a transaction that was dropped may still be on its way when the layer seals.
#[tokio::test]
async fn a_handler_that_gives_its_transaction_up_leaves_nothing_but_its_answer() {
    let (pool, _held) = open().await;
    let database = pool.clone();
    let policy = api().ledger(DEDUP.ledger(&pool));
    let house = House::new(MemoryStore::new(), policy, move |operation| {
        let pool = database.clone();
        async move {
            let mut tx = pool.begin().await.unwrap();
            let _row = new(DEDUP.enter(&mut tx, &operation).await.unwrap());
            run_in(&mut tx, "INSERT INTO charges VALUES ('U-7')").await;
            Ok(Answer::new(StatusCode::PAYMENT_REQUIRED))
        }
    });
    for number in 0..5 {
        let id: &'static str = format!("N-{number}").leak();
        let delivery = Delivery { order: Some(id), id, ..DELIVERY };
        assert_eq!(house.send(delivery).await, executed(402, ""));
        let found = DEDUP.find(&pool, &delivery.operation().await).await.unwrap();
        assert_eq!(found, Some(Answer::new(StatusCode::PAYMENT_REQUIRED)));
    }
    assert_eq!((count(&pool, "charges").await, count(&pool, "dedup").await), (0, 5));
}

#[tokio::test]
async fn a_rule_under_a_new_name_keeps_its_rows_in_the_ledger_too() {
    let (pool, _held) = open().await;
    charge(&pool, &DELIVERY.operation().await, Answer::text("success")).await;
    let renamed = LedgerEntry::new("fulfil-v2", "shop", "O-1", entry().delivery_id);
    assert_eq!(DEDUP.ledger(&pool).find(&renamed).await.unwrap(), None);
    let ledger = DEDUP.under("fulfil").ledger(&pool);
    assert_eq!(ledger.find(&renamed).await.unwrap(), Some(Answer::text("success").into()));
    let sealed = ledger.seal(&renamed, &Answer::text("no").into()).await.unwrap();
    assert_eq!(sealed, Sealed::Existing(Answer::text("success").into()));
}

/// The layer's store has forgotten whose the delivery id is, and the table has not.
#[tokio::test]
async fn what_the_table_calls_a_mismatch_is_refused_and_never_kept() {
    for status in [409, 200, 504] {
        let (log, _guard) = Log::listen();
        let (pool, _held) = open().await;
        charge(&pool, &DELIVERY.operation().await, Answer::text("success")).await;
        let database = pool.clone();
        let policy = api().ledger(DEDUP.ledger(&pool));
        let house = House::new(MemoryStore::new(), policy, move |operation| {
            let pool = database.clone();
            async move {
                match charge(&pool, &operation, Answer::text("success")).await {
                    Handled::Charged(answer) | Handled::Done(answer) => Ok(answer),
                    Handled::Mismatch => {
                        Ok(Answer::text("foreign").with_status(status.try_into().unwrap()))
                    }
                }
            }
        });
        let foreign = Delivery { order: Some("O-2"), ..DELIVERY };
        for _ in 0..2 {
            let (is, text, replayed) = house.send(foreign).await;
            assert_eq!((is, replayed), (422, false), "whatever the handler answers");
            assert!(text.contains("was used for another operation"), "{text}");
        }
        assert_eq!((log.of("row missing"), log.of("mismatch").len()), (Vec::new(), 2));
        // The order is charged when it comes under its own id.
        let own = Delivery { id: "N-2", ..foreign };
        assert_eq!(house.send(own).await, executed(200, "success"));
        assert_eq!((count(&pool, "charges").await, count(&pool, "dedup").await), (2, 2));
    }
}

/// Every byte that a value may have, at its edges too.
fn whole() -> Answer {
    let legal = (0..=255).filter(|byte| HeaderValue::from_bytes(&[*byte]).is_ok());
    let legal: Vec<u8> = legal.collect();
    assert!(legal.len() > 200);
    let mut headers = HeaderMap::new();
    let name = HeaderName::from_static("x-a");
    for value in [&legal[..], b"", b" ", b"\t x: y ", b"\xff\x80", b"a\tb "] {
        headers.append(&name, HeaderValue::from_bytes(value).unwrap());
    }
    let mut response = http::Response::new(Bytes::from_iter(0..=255));
    *response.status_mut() = StatusCode::from_u16(799).unwrap();
    *response.headers_mut() = headers.clone();
    Answer::from_http(response).with_trailers(headers)
}

#[tokio::test]
async fn a_row_keeps_every_value_of_headers_and_trailers_byte_by_byte() {
    let (pool, _held) = open().await;
    let ledger = DEDUP.ledger(&pool);
    let empty = Answer::new(StatusCode::NO_CONTENT).with_trailers(HeaderMap::new());
    for (number, answer) in [whole(), empty, whole().without_body()].into_iter().enumerate() {
        let handled: &'static str = format!("handled-{number}").leak();
        let operation = Delivery::new(handled).operation().await;
        charge(&pool, &operation, answer.clone()).await;
        let sealed = LedgerEntry::new("fulfil", "shop", format!("sealed-{number}"), None);
        let row = LedgerRow::from(answer.clone());
        assert_eq!(ledger.seal(&sealed, &row).await.unwrap(), Sealed::Written);
        let existing = ledger.seal(&sealed, &Answer::text("other").into()).await.unwrap();
        assert_eq!(existing, Sealed::Existing(row.clone()));
        for entry in [operation.ledger_entry(), sealed] {
            assert_eq!(ledger.find(&entry).await.unwrap(), Some(row.clone()));
        }
    }
}

/// A savepoint that is released has committed nothing: its answer is not said before the end.
#[tokio::test]
async fn a_row_in_a_savepoint_that_is_rolled_back_is_not_taken_for_one() {
    use sqlx::Acquire;

    let (pool, _held) = open().await;
    for rolled_back in [true, false] {
        let (database, ledger) = (pool.clone(), Counted::new(DEDUP.ledger(&pool)));
        let id = if rolled_back { "N-1" } else { "N-2" };
        let delivery = Delivery { order: None, id, ..DELIVERY };
        let policy = delivery.policy_from(Policy::api(Scope::everyone())).ledger(ledger.clone());
        let house = House::new(MemoryStore::new(), policy, move |operation| {
            let pool = database.clone();
            async move {
                let mut outer = pool.begin().await.unwrap();
                let mut tx = outer.begin().await.unwrap();
                let row = new(DEDUP.enter(&mut tx, &operation).await.unwrap());
                run_in(&mut tx, "INSERT INTO charges VALUES ('U-7')").await;
                let answer = row.commit(tx, Answer::text("charged")).await.unwrap();
                if rolled_back {
                    outer.rollback().await.unwrap();
                    return Ok(Answer::new(StatusCode::NOT_FOUND));
                }
                outer.commit().await.unwrap();
                Ok(answer)
            }
        });
        let told = if rolled_back { executed(404, "") } else { executed(200, "charged") };
        assert_eq!(house.send(delivery).await, told);
        assert_eq!(ledger.asked(), (0, 1), "the layer looks for itself");
        let row = DEDUP.ledger(&pool).find(&LedgerEntry::new("fulfil", "shop", id, None)).await;
        assert_eq!(row.unwrap().unwrap().answer.status().as_u16(), told.0);
    }
    assert_eq!(count(&pool, "charges").await, 1);
}
