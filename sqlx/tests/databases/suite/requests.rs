//! Whose answer a row is: that of the same request, whatever the layer's store has lost, and of no other.

use std::sync::{Arc, Mutex};

use http::Request;
use sqlx::pool::PoolOptions;
use tower_idempotency::{
    Answer, Idempotent, Issuance, Ledger, LedgerEntry, LedgerRow, MemoryStore, Mismatch, Operation,
    Policy, RedisStore, Rule, Scope, Store, TokenRequest, Tokens,
    execute::{Done, RunError},
    header, json,
};
use tower_idempotency_sqlx::{DedupTable, Entry};
use tower_idempotency_test_support::{Log, RedisServer};

use super::{DEDUP, Db, Handled, charge, count, new, open, run};
use crate::house::{House, Told, executed, replayed};

type Pool = sqlx::Pool<Db>;
/// The fields that a mismatch named.
type Heard = Arc<Mutex<Vec<Option<Vec<String>>>>>;

fn policy(pool: &Pool) -> Policy {
    Policy::api(Scope::everyone())
        .business_key(json("/order"))
        .compare([json("/amount"), json("/to")])
        .claim_within(std::time::Duration::from_secs(10))
        .ledger(DEDUP.ledger(pool))
}

/// A handler that charges once and answers a mismatch in its own words, which nobody hears.
fn house(store: impl Store, policy: Policy, pool: &Pool) -> House {
    let pool = pool.clone();
    House::new(store, policy, move |operation: Operation| {
        let pool = pool.clone();
        async move {
            match charge(&pool, &operation, Answer::text("charged")).await {
                Handled::Charged(answer) | Handled::Done(answer) => Ok(answer),
                Handled::Mismatch => Ok(Answer::text("the handler's own words")),
            }
        }
    })
}

/// A delivery `id` of the order `O-1`; when it was sent is no part of what must match.
fn delivery(id: &str, amount: u32) -> Request<String> {
    let body = format!(r#"{{"order": "O-1", "amount": {amount}, "to": "M-1", "sent": "{id}"}}"#);
    Request::post("/").header("Idempotency-Key", id).body(body).unwrap()
}

#[track_caller]
fn is_mismatch(told: &Told) {
    let (status, text, replayed) = told;
    assert_eq!((*status, *replayed), (422, false), "{told:?}");
    assert!(text.contains("this identity was used for another request"), "{told:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_redis_lost_everything_another_body_is_refused_as_it_was_before() {
    let (log, _guard) = Log::listen();
    let (pool, _held) = open().await;
    let redis = RedisServer::start().await;
    let heard = Heard::default();
    let policy = policy(&pool).on_mismatch({
        let heard = heard.clone();
        move |mismatch: &Mismatch| heard.lock().unwrap().push(mismatch.fields.clone())
    });
    let store = RedisStore::connect(&redis.url()).await.unwrap();
    let house = house(store, policy, &pool);
    assert_eq!(house.call(delivery("N-1", 960)).await, executed(200, "charged"));
    let before = house.call(delivery("N-1", 1)).await;
    is_mismatch(&before);

    redis.command(&["FLUSHALL"]).await;
    // Twice, and under another id: what is refused leaves nothing behind that would be answered later.
    for id in ["N-1", "N-1", "N-2"] {
        assert_eq!(house.call(delivery(id, 1)).await, before, "the same words");
    }
    assert_eq!(house.call(delivery("N-3", 960)).await.1, "charged", "its own request");
    for id in ["N-1", "N-2", "N-3"] {
        assert_eq!(house.call(delivery(id, 960)).await, replayed(200, "charged"));
    }
    is_mismatch(&house.call(delivery("N-1", 1)).await);
    let amount = Some(vec!["JSON field /amount".to_owned()]);
    assert_eq!(*heard.lock().unwrap(), vec![amount; 5], "which is named each time");
    assert_eq!(log.of("row missing"), [""; 0]);
    assert_eq!((count(&pool, "charges").await, count(&pool, "dedup").await), (1, 1));
}

/// The hole: a row without a fingerprint is every request's, as one from before there was the column.
#[tokio::test]
async fn a_row_without_a_fingerprint_answers_whatever_comes_under_its_identity() {
    let (pool, _held) = open().await;
    let lost = || house(MemoryStore::new(), policy(&pool), &pool);
    lost().call(delivery("N-1", 960)).await;
    is_mismatch(&lost().call(delivery("N-1", 1)).await);
    run(&pool, "UPDATE dedup SET fingerprint = NULL").await;
    assert_eq!(lost().call(delivery("N-1", 1)).await, executed(200, "charged"));
}

#[tokio::test]
async fn a_policy_that_compares_nothing_writes_no_fingerprint_and_asks_for_none() {
    let (pool, _held) = open().await;
    let careless = || {
        let policy = Policy::api(Scope::everyone()).business_key(json("/order"));
        house(MemoryStore::new(), policy.ledger(DEDUP.ledger(&pool)), &pool)
    };
    let prints = "SELECT COUNT(fingerprint) FROM dedup";
    careless().call(delivery("N-1", 960)).await;
    let written: i64 = sqlx::query_scalar(prints).fetch_one(&pool).await.unwrap();
    assert_eq!(written, 0);
    let careful = house(MemoryStore::new(), policy(&pool), &pool);
    assert_eq!(careful.call(delivery("N-1", 1)).await, executed(200, "charged"));

    run(&pool, "DELETE FROM dedup").await;
    let careful = || house(MemoryStore::new(), policy(&pool), &pool);
    careful().call(delivery("N-1", 960)).await;
    let written: i64 = sqlx::query_scalar(prints).fetch_one(&pool).await.unwrap();
    assert_eq!(written, 1);
    assert_eq!(careless().call(delivery("N-1", 1)).await, executed(200, "charged"));
    is_mismatch(&careful().call(delivery("N-1", 1)).await);
}

/// Without a business key the whole request is compared, as the policy of an API does it.
#[tokio::test]
async fn a_whole_request_is_compared_too_and_a_row_that_the_layer_sealed() {
    let (pool, _held) = open().await;
    let whole = || Policy::api(Scope::everyone()).ledger(DEDUP.ledger(&pool));
    let lost = || house(MemoryStore::new(), whole(), &pool);
    assert_eq!(lost().call(delivery("k", 960)).await, executed(200, "charged"));
    assert_eq!(lost().call(delivery("k", 960)).await, executed(200, "charged"));
    is_mismatch(&lost().call(delivery("k", 1)).await);

    let sealing = || {
        House::new(MemoryStore::new(), whole(), |_| async {
            Ok(Answer::text("no such order").with_status(http::StatusCode::NOT_FOUND))
        })
    };
    assert_eq!(sealing().call(delivery("s", 960)).await, executed(404, "no such order"));
    is_mismatch(&sealing().call(delivery("s", 1)).await);
    is_mismatch(&lost().call(delivery("s", 1)).await);
    assert_eq!(lost().call(delivery("s", 960)).await, executed(404, "no such order"));
    assert_eq!((count(&pool, "charges").await, count(&pool, "dedup").await), (1, 2));
}

/// Its process died between its grant and the table, whose row is another request's.
#[tokio::test]
async fn an_abandoned_run_is_not_settled_by_another_requests_row() {
    let (pool, _held) = open().await;
    house(MemoryStore::new(), policy(&pool), &pool).call(delivery("N-1", 960)).await;
    let store = MemoryStore::new();
    let dying = House::new(store.clone(), policy(&pool), |_| async {
        Err::<Answer, _>(std::io::Error::other("the process dies here"))
    });
    assert!(dying.try_call(delivery("N-1", 1)).await.is_err());
    let house = house(store, policy(&pool), &pool);
    is_mismatch(&house.call(delivery("N-1", 960)).await);
    is_mismatch(&house.call(delivery("N-1", 1)).await);
    // From then on nothing of it stands in the way of the request whose row it is.
    assert_eq!(house.call(delivery("N-1", 960)).await, executed(200, "charged"));
    assert_eq!(count(&pool, "charges").await, 1);
}

/// Pays the order with a token that this caller has asked for.
async fn pay(store: &RedisStore, house: &House, user: &str, amount: u32) -> Told {
    let asked = TokenRequest::new("fulfil").business_key("O-1").bound_to(user.to_owned());
    let issued = Tokens::new(store.clone()).issue(asked).await.unwrap();
    let Issuance::Token { token, .. } = issued else { panic!("{issued:?}") };
    let body = format!(r#"{{"order": "O-1", "amount": {amount}}}"#);
    let request = Request::post("/").header("X-Once", token.to_text()).header("X-User", user);
    house.call(request.body(body).unwrap()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_redis_lost_everything_a_new_token_answers_its_caller_and_nobody_else() {
    let (pool, _held) = open().await;
    let redis = RedisServer::start().await;
    let policy = || {
        Policy::api(Scope::everyone())
            .token(header("X-Once"), "POST /orders/{id}/token")
            .token_bound_to(Scope::header("X-User"))
            .business_key(json("/order"))
            .compare([json("/amount")])
            .ledger(DEDUP.ledger(&pool))
    };
    let lost = async || {
        redis.command(&["FLUSHALL"]).await;
        // A new process, which does not know of the loss.
        let store = RedisStore::connect(&redis.url()).await.unwrap();
        (store.clone(), house(store, policy(), &pool))
    };
    let (store, house) = lost().await;
    assert_eq!(pay(&store, &house, "anna", 960).await, executed(200, "charged"));
    for (user, amount, status) in
        [("eve", 960, 403), ("eve", 1, 403), ("anna", 1, 422), ("anna", 960, 200)]
    {
        let (store, house) = lost().await;
        let (told, text, _) = pay(&store, &house, user, amount).await;
        assert_eq!(told, status, "{user} {amount}: {text}");
        assert_eq!(text == "charged", status == 200, "{text}");
    }
    assert_eq!((count(&pool, "charges").await, count(&pool, "dedup").await), (1, 1));
}

#[tokio::test]
async fn a_job_with_another_message_is_a_mismatch_though_the_store_knows_nothing_of_the_first() {
    let (pool, _held) = open().await;
    let run = async |message: &str| {
        let pool = pool.clone();
        let work = async move |operation: Operation| {
            let receipt = Answer::of_value("receipt").unwrap();
            match charge(&pool, &operation, receipt).await {
                Handled::Charged(answer) | Handled::Done(answer) => {
                    Ok(answer.value::<String>().unwrap())
                }
                Handled::Mismatch => Err("its words".to_owned()),
            }
        };
        let jobs = Idempotent::new(MemoryStore::new(), Rule::new("charge", Policy::job()));
        jobs.run("O-1", Some(message.as_bytes()), work).await
    };
    assert_eq!(run("960").await.unwrap(), Done::Executed("receipt".to_owned()));
    assert!(matches!(run("1").await, Err(RunError::Mismatch)));
    // Though its policy knows nothing of the table, what was stored of it says the row.
    assert_eq!(run("960").await.unwrap(), Done::Executed("receipt".to_owned()));
    assert_eq!(count(&pool, "charges").await, 1);
}

#[tokio::test]
async fn a_job_and_a_request_of_rules_with_one_name_have_rows_of_their_own() {
    let (pool, _held) = open().await;
    let policy = Policy::api(Scope::everyone()).no_fingerprint().ledger(DEDUP.ledger(&pool));
    let house = house(MemoryStore::new(), policy, &pool);
    assert_eq!(house.call(delivery("k", 960)).await, executed(200, "charged"));
    let charging = pool.clone();
    let work = async move |operation: Operation| {
        assert_eq!(operation.ledger_entry(), LedgerEntry::new("fulfil", "", "k", None).of_job());
        match charge(&charging, &operation, Answer::of_value("receipt").unwrap()).await {
            Handled::Charged(answer) => Ok(answer.value::<String>().unwrap()),
            other => Err(format!("{other:?}")),
        }
    };
    let jobs = Idempotent::new(MemoryStore::new(), Rule::new("fulfil", Policy::job()));
    assert_eq!(jobs.run("k", None, work).await.unwrap().into_value(), "receipt");
    assert_eq!((count(&pool, "charges").await, count(&pool, "dedup").await), (2, 2));

    let (ledger, entry) = (DEDUP.ledger(&pool), LedgerEntry::new("fulfil", "", "k", None));
    let body = async |entry| ledger.find(&entry).await.unwrap().unwrap().answer.body().cloned();
    assert_eq!(body(entry.clone()).await.unwrap(), "charged");
    assert_eq!(body(entry.of_job()).await.unwrap(), "\"receipt\"");
    // Nor does a rule for requests that is called as the rows of jobs stand.
    let like_a_job = LedgerEntry::new("job:fulfil", "", "k", None);
    assert_eq!(ledger.find(&like_a_job).await.unwrap(), None);
    ledger.seal(&like_a_job, &Answer::text("a request").into()).await.unwrap();
    assert_eq!(body(like_a_job).await.unwrap(), "a request");
    assert_eq!(count(&pool, "dedup").await, 3);
    // A rule under an old name keeps what it is.
    let renamed = DEDUP.under("fulfil").ledger(&pool);
    let job = LedgerEntry::new("renamed", "", "k", None).of_job();
    assert_eq!(renamed.find(&job).await.unwrap().unwrap().answer.body().unwrap(), "\"receipt\"");
}

/// The operation of this request, as its handler gets it, from a store that has forgotten everything.
async fn operation(request: Request<String>, policy: Policy) -> Operation {
    let seen = Arc::new(Mutex::new(None));
    let keep = seen.clone();
    let house = House::new(MemoryStore::new(), policy, move |operation: Operation| {
        *keep.lock().unwrap() = Some(operation);
        async { Ok(Answer::text("seen")) }
    });
    assert_eq!(house.call(request).await.0, 200);
    seen.lock().unwrap().take().unwrap()
}

/// What was done is not answered with another request's answer, though nobody knows its own.
#[tokio::test]
async fn a_row_without_an_answer_is_given_none_by_another_request() {
    let (pool, _held) = open().await;
    let compared =
        || Policy::api(Scope::everyone()).business_key(json("/order")).compare([json("/amount")]);
    let first = operation(delivery("N-1", 960), compared()).await;
    let other = operation(delivery("N-1", 1), compared()).await;
    let mut tx = pool.begin().await.unwrap();
    let _row = new(DEDUP.enter(&mut tx, &first).await.unwrap());
    tx.commit().await.unwrap();

    let mut tx = pool.begin().await.unwrap();
    assert!(matches!(DEDUP.enter(&mut tx, &other).await.unwrap(), Entry::Mismatch));
    drop(tx);
    let error = DEDUP.find(&pool, &other).await.unwrap_err();
    assert!(error.to_string().contains("is another request's"), "{error}");
    assert!(DEDUP.find(&pool, &first).await.unwrap_err().is_unanswered());

    let ledger = DEDUP.ledger(&pool);
    let row = |of: &Operation, text| LedgerRow::new(Answer::text(text), of.ledger_print());
    let error = ledger.seal(&other.ledger_entry(), &row(&other, "no")).await.unwrap_err();
    assert!(error.to_string().contains("is another request's"), "{error}");
    ledger.seal(&first.ledger_entry(), &row(&first, "success")).await.unwrap();
    assert_eq!(DEDUP.find(&pool, &first).await.unwrap(), Some(Answer::text("success")));
    assert_eq!(
        ledger.find(&other.ledger_entry()).await.unwrap(),
        Some(row(&first, "success")),
        "the print is given back as it was written"
    );
}

#[tokio::test]
async fn a_fingerprint_that_nobody_can_read_lets_nothing_through() {
    let (pool, _held) = open().await;
    let lost = || house(MemoryStore::new(), policy(&pool), &pool);
    lost().call(delivery("N-1", 960)).await;
    // A newer version's, in this database's own spelling of bytes.
    let newer = if <Db as sqlx::Database>::NAME == "PostgreSQL" { r"'\x02'" } else { "x'02'" };
    run(&pool, &format!("UPDATE dedup SET fingerprint = {newer}")).await;
    let first = operation(delivery("N-1", 960), policy(&pool).compare([json("/none")]));
    let error = DEDUP.ledger(&pool).find(&first.await.ledger_entry()).await.unwrap_err();
    assert!(error.to_string().contains("its fingerprint is none of this version's"), "{error}");

    let database = pool.clone();
    let store = MemoryStore::new();
    let house = House::new(store, policy(&pool), move |operation: Operation| {
        let pool = database.clone();
        async move {
            let mut tx = pool.begin().await.unwrap();
            let error = DEDUP.enter(&mut tx, &operation).await.unwrap_err();
            assert!(error.to_string().contains("its fingerprint"), "{error}");
            Ok(Answer::new(http::StatusCode::INTERNAL_SERVER_ERROR))
        }
    });
    assert_eq!(house.call(delivery("N-1", 960)).await.0, 500);
    assert_eq!(house.call(delivery("N-1", 960)).await.0, 409, "nobody knows what was answered");
    assert_eq!(count(&pool, "charges").await, 1);
}

/// The statement in the comments of the schema that begins so, for the table `older`.
fn in_the_schema(beginning: &str) -> String {
    let schema = match <Db as sqlx::Database>::NAME {
        "PostgreSQL" => include_str!("../../../schema/postgres.sql"),
        "MySQL" => include_str!("../../../schema/mysql.sql"),
        _ => include_str!("../../../schema/sqlite.sql"),
    };
    let statement = schema.lines().find_map(|line| {
        line.strip_prefix("-- ").filter(|statement| statement.starts_with(beginning))
    });
    statement.expect("it is in the schema").replace("dedup", "older")
}

/// As the schema was before there was the column.
#[tokio::test]
async fn a_table_without_the_column_is_refused_with_the_statement_that_adds_it() {
    const OLD: DedupTable<Db> = DedupTable::new("older");
    let (wide, _held) = open().await;
    // One connection: SQLite adds no column by one that has not heard yet that another has dropped it.
    let options = (*wide.connect_options()).clone();
    let pool = PoolOptions::new().max_connections(1).connect_with(options).await.unwrap();
    OLD.migrate(&pool).await.unwrap();
    OLD.migrate(&pool).await.expect("it is as it should be");
    run(&pool, "ALTER TABLE older DROP COLUMN fingerprint").await;
    let error = OLD.migrate(&pool).await.unwrap_err().to_string();
    let (says, statement) = error.split_once("add it: ").expect("it says what to do");
    assert!(says.contains("older was made before"), "{says}");
    assert!(in_the_schema("ALTER TABLE").contains(statement), "{statement}");

    let bytes = |text| match <Db as sqlx::Database>::NAME {
        "SQLite" => format!("CAST('{text}' AS BLOB)"),
        _ => format!("'{text}'"),
    };
    let (rule, nothing, id, body) = (bytes("fulfil"), bytes(""), bytes("N-0"), bytes("old"));
    let row = "INSERT INTO older (rule, scope, delivery_id, status, headers, body)";
    run(&pool, &format!("{row} VALUES ({rule}, {nothing}, {id}, 200, {nothing}, {body})")).await;
    run(&pool, statement).await;
    OLD.migrate(&pool).await.unwrap();
    // What stood in it is every request's still, and what comes is not.
    let operation =
        async |id, amount| operation(delivery(id, amount), Policy::api(Scope::everyone())).await;
    for amount in [1, 2] {
        let old = OLD.find(&pool, &operation("N-0", amount).await).await.unwrap().unwrap();
        assert_eq!(old.body().unwrap(), "old");
    }
    let mut tx = pool.begin().await.unwrap();
    let Entry::New(row) = OLD.enter(&mut tx, &operation("N-1", 1).await).await.unwrap() else {
        panic!("it is new")
    };
    row.commit(tx, Answer::text("new")).await.unwrap();
    let mut tx = pool.begin().await.unwrap();
    let met = OLD.enter(&mut tx, &operation("N-1", 2).await).await.unwrap();
    assert!(matches!(met, Entry::Mismatch), "{met:?}");
}

#[tokio::test]
async fn rows_of_jobs_from_before_are_found_again_once_they_are_renamed() {
    const OLD: DedupTable<Db> = DedupTable::new("older");
    let (pool, _held) = open().await;
    OLD.migrate(&pool).await.unwrap();
    let ledger = OLD.ledger(&pool);
    let job = |rule: &str| LedgerEntry::new(rule, "", "k", None).of_job();
    for rule in ["charge", "other"] {
        // So they stood: like those of a request.
        let before = LedgerEntry::new(rule, "", "k", None);
        ledger.seal(&before, &Answer::text(rule).into()).await.unwrap();
    }
    assert_eq!(ledger.find(&job("charge")).await.unwrap(), None);
    run(&pool, &in_the_schema("UPDATE")).await;
    assert_eq!(ledger.find(&job("charge")).await.unwrap(), Some(Answer::text("charge").into()));
    assert_eq!(ledger.find(&job("other")).await.unwrap(), None);
}
