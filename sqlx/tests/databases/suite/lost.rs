//! With a real Redis that forgets, and leases that are lost: one effect and one answer.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use http::StatusCode;
use tokio::{
    task::JoinHandle,
    time::{sleep, timeout},
};
use tower_idempotency::{
    Answer, Operation, Policy, RedisStore, Resolution, Scope,
    store::StoreErrorKind,
    test_util::{Fault, Faults, FaultyStore, Transition},
};
use tower_idempotency_test_support::RedisServer;

use super::{DEDUP, Db, Handled, charge, count, new, open, run_in};
use crate::{
    house::{Door, House, Told, executed, replayed},
    operation::Delivery,
};

type Pool = sqlx::Pool<Db>;

const LEASE: Duration = Duration::from_secs(1);
/// On a busy machine.
const SOON: Duration = Duration::from_secs(60);
/// So that somebody has come to a lock. One that is slower makes a test weaker, and never fails it.
const TO_THE_LOCK: Duration = Duration::from_millis(300);
const DELIVERY: Delivery =
    Delivery { rule: "fulfil", tenant: "shop", order: Some("O-1"), id: "N-1" };
/// The same notification under another id.
const AGAIN: Delivery = Delivery { id: "N-2", ..DELIVERY };

fn api() -> Policy {
    let api = Policy::api(Scope::everyone()).lease(LEASE);
    DELIVERY.policy_from(api).claim_within(Duration::from_secs(10))
}

async fn charged(pool: &Pool, operation: &Operation) -> Answer {
    match charge(pool, operation, Answer::text("charged")).await {
        Handled::Charged(answer) | Handled::Done(answer) => answer,
        Handled::Mismatch => panic!("it is one order"),
    }
}

fn no_funds() -> Answer {
    Answer::text("no funds").with_status(StatusCode::PAYMENT_REQUIRED)
}

/// A handler whose first run stalls at a door past its lease, and whose second is somebody else's.
struct Stalled {
    house: House,
    faults: Faults,
    door: Door,
    _redis: RedisServer,
}

impl Stalled {
    async fn new<H, F>(policy: Policy, handler: H) -> Self
    where
        H: Fn(Operation, Door) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Answer> + Send + 'static,
    {
        let redis = RedisServer::start().await;
        let store = FaultyStore::new(RedisStore::connect(&redis.url()).await.unwrap());
        let (faults, door) = (store.faults(), Door::new());
        let inside = door.clone();
        let house = House::new(store, policy, move |operation| {
            let answer = handler(operation, inside.clone());
            async move { Ok(answer.await) }
        });
        Self { house, faults, door, _redis: redis }
    }

    fn deliver(&self, delivery: Delivery) -> JoinHandle<Told> {
        let house = self.house.clone();
        tokio::spawn(async move { house.send(delivery).await })
    }

    /// The first delivery, when its run is at the door and its lease is over.
    async fn first(&self) -> JoinHandle<Told> {
        self.faults.always(Transition::Renew, Fault::Fail(StoreErrorKind::Unreachable));
        let first = self.deliver(DELIVERY);
        timeout(SOON, self.door.came()).await.expect("it comes to the door");
        sleep(LEASE + LEASE / 2).await;
        first
    }
}

async fn end(told: JoinHandle<Told>) -> Told {
    timeout(SOON, told).await.expect("it does not hang").unwrap()
}

/// The first run stalls before its transaction, the second is refused by its bank.
async fn stalled_before_its_transaction(pool: &Pool, policy: Policy) -> [Told; 3] {
    let database = pool.clone();
    let stalled = Stalled::new(policy, move |operation, door| {
        let pool = database.clone();
        async move {
            if operation.attempt() > 1 {
                return no_funds();
            }
            door.pass().await;
            charged(&pool, &operation).await
        }
    })
    .await;
    let first = stalled.first().await;
    let second = end(stalled.deliver(AGAIN)).await;
    stalled.door.let_one_in();
    [second, end(first).await, stalled.house.send(DELIVERY).await]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f9_a_kept_answer_without_a_row_never_contradicts_the_row() {
    let refused = || replayed(402, "no funds");
    let (pool, _held) = open().await;
    let policy = api().ledger(DEDUP.ledger(&pool));
    let told = stalled_before_its_transaction(&pool, policy).await;
    // The first one is told what the row says, which is another's answer: a replay.
    assert_eq!(told, [executed(402, "no funds"), refused(), refused()]);
    assert_eq!((count(&pool, "charges").await, count(&pool, "dedup").await), (0, 1));

    // The finding: with nobody to seal a row it is charged, and every answer says that it was not.
    let (pool, _held) = open().await;
    let policy = api().resolve_abandoned(|_| async { Resolution::NotDone });
    let told = stalled_before_its_transaction(&pool, policy).await;
    assert_eq!(told, [executed(402, "no funds"), refused(), refused()]);
    assert_eq!((count(&pool, "charges").await, count(&pool, "dedup").await), (1, 1));
}

/// The first run stalls in its transaction, after the charge. What the second does is the test's.
async fn stalled_in_its_transaction<H, F>(pool: &Pool, second: H) -> [Told; 3]
where
    H: Fn(Pool, Operation) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Answer> + Send + 'static,
{
    let database = pool.clone();
    let policy = api().ledger(DEDUP.ledger(pool));
    let stalled = Stalled::new(policy, move |operation, door| {
        let (pool, second) = (database.clone(), second.clone());
        async move {
            if operation.attempt() > 1 {
                return second(pool, operation).await;
            }
            let mut tx = pool.begin().await.unwrap();
            let row = new(DEDUP.enter(&mut tx, &operation).await.unwrap());
            run_in(&mut tx, "INSERT INTO charges VALUES ('U-7')").await;
            door.pass().await;
            row.commit(tx, Answer::text("charged first")).await.unwrap()
        }
    })
    .await;
    let first = stalled.first().await;
    let second = stalled.deliver(AGAIN);
    sleep(TO_THE_LOCK).await;
    assert!(!second.is_finished(), "it waits for the transaction that may commit still");
    stalled.door.let_one_in();
    [end(first).await, end(second).await, stalled.house.send(DELIVERY).await]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn not_done_is_no_second_run_while_a_transaction_may_commit_still() {
    let (pool, _held) = open().await;
    let told = stalled_in_its_transaction(&pool, |pool, operation| async move {
        charged(&pool, &operation).await
    })
    .await;
    assert!(told.iter().all(|(status, text, _)| (*status, &**text) == (200, "charged first")));
    assert_eq!((count(&pool, "charges").await, count(&pool, "dedup").await), (1, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_seal_waits_for_a_transaction_that_may_commit_still_and_its_row_wins() {
    let (pool, _held) = open().await;
    let told = stalled_in_its_transaction(&pool, |_, _| async { no_funds() }).await;
    assert!(told.iter().all(|(status, text, _)| (*status, &**text) == (200, "charged first")));
    assert_eq!((count(&pool, "charges").await, count(&pool, "dedup").await), (1, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_redis_lost_everything_the_row_answers_and_the_record_is_written_again() {
    let (pool, _held) = open().await;
    let redis = RedisServer::start().await;
    let store = RedisStore::connect(&redis.url()).await.unwrap();
    let (database, runs) = (pool.clone(), Arc::new(AtomicUsize::new(0)));
    let counted = runs.clone();
    let house = House::new(store, api().ledger(DEDUP.ledger(&pool)), move |operation| {
        let pool = database.clone();
        counted.fetch_add(1, Ordering::SeqCst);
        async move { Ok(charged(&pool, &operation).await) }
    });
    assert_eq!(house.send(DELIVERY).await, executed(200, "charged"));
    assert_eq!(house.send(AGAIN).await, replayed(200, "charged"));

    redis.command(&["FLUSHALL"]).await;
    assert_eq!(house.send(AGAIN).await, executed(200, "charged"), "granted, and its row found");
    for delivery in [DELIVERY, AGAIN] {
        assert_eq!(house.send(delivery).await, replayed(200, "charged"), "{delivery:?}");
    }
    assert_eq!(runs.load(Ordering::SeqCst), 2);
    assert_eq!((count(&pool, "charges").await, count(&pool, "dedup").await), (1, 1));

    // Another order is charged for itself.
    let other = Delivery { order: Some("O-2"), id: "N-3", ..DELIVERY };
    assert_eq!(house.send(other).await, executed(200, "charged"));
    assert_eq!(count(&pool, "charges").await, 2);
}
