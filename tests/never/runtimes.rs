//! Runtimes that are there and do not run: those of programs that block on each call.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use tokio::{
    runtime::{Builder, Handle, Id, Runtime},
    sync::Notify,
    time::timeout,
};
use tower_idempotency::{
    ClaimToken, Grant, MemoryStore, RecordKey, RedisStore, Store, StoreError,
    store::{
        Claim, Claimed, Cursor, Issue, Issued, Kept, Page, Release, Resolve, Resolved,
        StoreErrorKind, Written,
    },
    test_util::{Fault, FaultyStore, Transition},
};
use tower_idempotency_test_support::{Proxy, RedisServer};

use crate::shop::{Shop, api, keyed, records, text};

const SECOND: Duration = Duration::from_secs(1);

fn current_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime can be made")
}

#[test]
fn a_connection_that_a_stopped_runtime_was_making_is_made_by_another() {
    let servers = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (_server, proxy) = servers.block_on(async {
        let server = RedisServer::start().await;
        let proxy = Proxy::to(server.address()).await;
        proxy.hold_replies();
        (server, proxy)
    });
    let store = RedisStore::lazy(&proxy.redis_url()).expect("a URL");
    let key = RecordKey::from_bytes([1; 32]);
    let claim = || Claim::new(key, ClaimToken::random(), None, SECOND, 60 * SECOND, SECOND);
    let stopped = current_thread();
    let asked = stopped.block_on(async { timeout(SECOND / 20, store.claim(claim())).await });
    assert!(asked.is_err(), "it was left while it connected");
    proxy.heal();
    // The first runtime lives, and does nothing any more.
    let other = current_thread();
    let started = Instant::now();
    let answer = other.block_on(async {
        loop {
            match store.claim(claim()).await {
                Ok(claimed) => return Some(claimed),
                Err(_) if started.elapsed() < 8 * SECOND => {
                    tokio::time::sleep(SECOND / 20).await;
                }
                Err(_) => return None,
            }
        }
    });
    assert!(matches!(answer, Some(Claimed::Granted(_))), "{answer:?}");
    drop(stopped);
}

/// A store whose renewals hang on one runtime.
#[derive(Clone)]
struct HangsOn {
    store: MemoryStore,
    runtime: Id,
    hanging: Arc<Notify>,
    hangs: Arc<AtomicBool>,
}

impl Store for HangsOn {
    async fn claim(&self, claim: Claim) -> Result<Claimed, StoreError> {
        self.store.claim(claim).await
    }
    async fn renew(&self, grant: &Grant) -> Result<Written, StoreError> {
        if Handle::current().id() == self.runtime {
            self.hangs.store(true, Ordering::SeqCst);
            self.hanging.notify_one();
            return std::future::pending().await;
        }
        self.store.renew(grant).await
    }
    async fn complete(&self, grant: &Grant, kept: Kept) -> Result<Written, StoreError> {
        self.store.complete(grant, kept).await
    }
    async fn release(&self, release: Release) -> Result<Written, StoreError> {
        self.store.release(release).await
    }
    async fn resolve(&self, resolve: Resolve) -> Result<Resolved, StoreError> {
        self.store.resolve(resolve).await
    }
    async fn issue(&self, issue: Issue) -> Result<Issued, StoreError> {
        self.store.issue(issue).await
    }
    async fn scan(&self, from: Cursor, at_most: usize) -> Result<Page, StoreError> {
        self.store.scan(from, at_most).await
    }
}

#[test]
fn a_renewal_that_a_stopped_runtime_took_along_costs_nobody_lease_or_answer() {
    let stopping = current_thread();
    let store = HangsOn {
        store: MemoryStore::new(),
        runtime: stopping.handle().id(),
        hanging: Arc::default(),
        hangs: Arc::default(),
    };
    let release = Arc::new(Notify::new());
    let hold = release.clone();
    let policy = api().lease(SECOND);
    let shop = Shop::new(store.clone(), policy, move |request| {
        let held = request.headers()["idempotency-key"] == "held";
        let hold = hold.clone();
        async move {
            if held {
                hold.notified().await;
            }
            text(200, "paid")
        }
    });
    // From now on the first runtime does what is due as well as the other.
    stopping.block_on(async { shop.send(keyed("first")).await.assert_text("paid") });
    let held = thread::spawn({
        let shop = shop.clone();
        move || {
            current_thread()
                .block_on(async { timeout(10 * SECOND, shop.send(keyed("held"))).await })
        }
    });
    stopping.block_on(async {
        timeout(8 * SECOND, store.hanging.notified())
            .await
            .expect("one of two takes a renewal soon");
    });
    assert!(store.hangs.load(Ordering::SeqCst));
    // It stops here, with the renewal. The other goes on with the next one.
    thread::sleep(SECOND * 5 / 2);
    let records = current_thread().block_on(records(&store.store));
    assert!(records.iter().any(|record| record.leased.is_some()), "{records:?}");
    release.notify_one();
    let answer = held.join().expect("no panic").expect("an answer, though the renewal never ends");
    answer.assert_text("paid");
    drop(stopping);
}

#[test]
fn what_a_runtime_left_to_be_stored_is_stored_as_soon_as_somebody_asks_on_another() {
    let store = FaultyStore::new(MemoryStore::new());
    let faults = store.faults();
    let policy = api().lease(Duration::from_millis(200));
    let shop = Shop::new(store, policy, |_| async { text(200, "paid") });
    faults.down(StoreErrorKind::Unreachable);
    faults.always(Transition::Claim, Fault::None);
    let ended = current_thread();
    ended.block_on(async { shop.send(keyed("k")).await.assert_text("paid") });
    drop(ended);
    faults.heal();
    // Nothing is granted any more: whoever asks is told that nobody knows, though this process does.
    let started = Instant::now();
    let answer = current_thread().block_on(async {
        loop {
            tokio::time::sleep(SECOND / 20).await;
            let answer = shop.send(keyed("k")).await;
            if answer.is_replay() || started.elapsed() > 5 * SECOND {
                return answer;
            }
        }
    });
    answer.assert_text("paid");
    assert_eq!(shop.runs.count(), 1);
}
