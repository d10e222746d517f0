//! Shops as processes that share a Redis and a database, and what is in their books.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use http::Request;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{task::block_in_place, time::sleep};
use tower_idempotency_test_support::{Process, Server, Signal};

use crate::{
    databases::{Database, Kind},
    redis::Redis,
};

pub(crate) const LEASE: Duration = Duration::from_secs(1);
/// On a busy machine.
const SOON: Duration = Duration::from_secs(20);
/// What each account has at first.
const BALANCE: i64 = 1_000_000;
const ACCOUNTS: usize = 40;
const TILLS: usize = 8;

/// The points at which a process can be held, in the order in which a request passes them.
pub(crate) const POINTS: [&str; 8] = [
    "claimed",
    "handler",
    "entered",
    "charged",
    "committed",
    "completing",
    "completed",
    "answering",
];

/// The processes, the Redis and the database.
pub(crate) struct Site {
    pub(crate) redis: Redis,
    pub(crate) shops: Vec<Shop>,
    pub(crate) doors: Doors,
    database: Database,
    more: Vec<String>,
}

/// Where the processes listen, for senders: the n-th is the n-th shop's.
#[derive(Clone)]
pub(crate) struct Doors(Arc<Mutex<Vec<SocketAddr>>>);

impl Doors {
    pub(crate) fn get(&self, number: usize) -> SocketAddr {
        let doors = self.0.lock().expect("no holder panics");
        doors[number % doors.len()]
    }

    /// The one of this shop alone.
    pub(crate) fn only(&self, number: usize) -> Self {
        Self(Arc::new(Mutex::new(vec![self.get(number)])))
    }
}

impl Site {
    /// Two processes with these arguments, and accounts for orders of these names.
    pub(crate) async fn open(kind: Kind, more: &[&str], orders: &[String]) -> Self {
        let more: Vec<_> = more.iter().map(|&word| word.to_owned()).collect();
        let (redis, database) = (Redis::start().await, Database::open(kind).await);
        let doors = Doors(Arc::default());
        let mut site = Self { redis, shops: Vec::new(), doors, database, more };
        for _ in 0..2 {
            // One after the other, since the first one creates the tables.
            site.add(&[]);
        }
        let stock = json!({ "accounts": at_first(), "orders": orders });
        site.shops[0].tell("/stock", &stock).await;
        site
    }

    /// One process more, with these arguments too.
    pub(crate) fn add(&mut self, more: &[&str]) {
        let shop = self.start(more);
        self.doors.0.lock().expect("no holder panics").push(shop.address);
        self.shops.push(shop);
    }

    pub(crate) fn database_url(&self) -> &str {
        &self.database.url
    }

    /// Kills this process (SIGKILL).
    pub(crate) fn kill(&mut self, number: usize) {
        block_in_place(|| self.shops[number].process.kill());
    }

    /// Starts a new process in place of one that was killed.
    pub(crate) fn replace(&mut self, number: usize) {
        self.shops[number] = self.start(&[]);
        self.doors.0.lock().expect("no holder panics")[number] = self.shops[number].address;
    }

    fn start(&self, more: &[&str]) -> Shop {
        let redis = self.redis.url();
        let mut arguments = vec!["--redis", &redis, "--database", &self.database.url];
        let lease = LEASE.as_millis().to_string();
        arguments.extend(["--lease-ms", &lease]);
        arguments.extend(self.more.iter().map(String::as_str));
        arguments.extend(more);
        let process = Process::start(env!("CARGO_BIN_EXE_tower-idempotency-crashes"), &arguments);
        let line = block_in_place(|| process.wait_for_line("listening on "));
        let address = line.strip_prefix("listening on ").expect(&line).parse().expect(&line);
        Shop { process, address }
    }

    /// What is in the database, when nobody charges any more.
    pub(crate) async fn books(&self) -> Books {
        let answer = self.shops[0].get("/books").await;
        serde_json::from_str(&answer).unwrap_or_else(|error| panic!("{error}: {answer}"))
    }
}

/// The account of an order of this number.
pub(crate) fn account(number: usize) -> String {
    format!("U-{}", number % ACCOUNTS)
}

/// The merchant's account for an order of this number.
pub(crate) fn till(number: usize) -> String {
    format!("till-{}", number % TILLS)
}

/// What the accounts have at first.
fn at_first() -> BTreeMap<String, i64> {
    let accounts = (0..ACCOUNTS).map(|number| (account(number), BALANCE));
    accounts.chain((0..TILLS).map(|number| (till(number), 0))).collect()
}

/// One process.
pub(crate) struct Shop {
    process: Process,
    address: SocketAddr,
}

#[derive(Deserialize)]
pub(crate) struct Report {
    pub(crate) held: usize,
    pub(crate) runs: usize,
}

impl Shop {
    pub(crate) fn stop(&mut self) {
        self.process.signal(Signal::SIGSTOP);
    }

    pub(crate) fn go_on(&mut self) {
        self.process.signal(Signal::SIGCONT);
    }

    /// Holds every request that comes to this point.
    pub(crate) async fn arm(&self, point: &str) {
        self.tell("/arm", &json!(point)).await;
    }

    pub(crate) async fn disarm(&self) {
        self.tell("/disarm", &json!({})).await;
    }

    /// Starts nothing new here, and waits until all that ran is in the store: what comes to a point
    /// behind that has it behind itself.
    pub(crate) async fn drain(&self) {
        self.tell("/drain", &json!({})).await;
    }

    pub(crate) async fn report(&self) -> Report {
        serde_json::from_str(&self.get("/report").await).expect("a report")
    }

    /// Waits until a handler was started here.
    pub(crate) async fn ran(&self) {
        let started = Instant::now();
        while self.report().await.runs == 0 {
            assert!(started.elapsed() < SOON, "no handler was started within {SOON:?}");
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until as many requests are held, or fewer and no more have come for a while; how many.
    pub(crate) async fn held(&self, enough: usize) -> usize {
        let (started, mut first) = (Instant::now(), None);
        loop {
            let held = self.report().await.held;
            if held > 0 {
                let first = *first.get_or_insert_with(Instant::now);
                if held >= enough || first.elapsed() > Duration::from_millis(400) {
                    return held;
                }
            }
            assert!(started.elapsed() < SOON, "nobody came to the point within {SOON:?}");
            sleep(Duration::from_millis(20)).await;
        }
    }

    async fn tell(&self, path: &str, what: &Value) {
        let request = Request::post(path).header("content-type", "application/json");
        let request = request.body(what.to_string()).expect("these are all valid");
        let answer = Server::exchange(self.address, request).await;
        assert!(answer.status().is_success(), "{path}: {answer:?}");
    }

    async fn get(&self, path: &str) -> String {
        let request = Request::get(path).body(String::new()).expect("these are all valid");
        let answer = Server::exchange(self.address, request).await;
        String::from_utf8(answer.into_body().to_vec()).expect("the shop answers text")
    }
}

/// All that is in the database.
#[derive(Debug, Deserialize)]
pub(crate) struct Books {
    accounts: BTreeMap<String, i64>,
    pub(crate) orders: BTreeMap<String, i64>,
    pub(crate) charges: Vec<Charge>,
    pub(crate) rows: usize,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Charge {
    pub(crate) id: String,
    pub(crate) order: String,
    account: String,
    amount: i64,
}

impl Books {
    /// The charges of an order.
    pub(crate) fn of(&self, order: &str) -> Vec<&Charge> {
        self.charges.iter().filter(|charge| charge.order == order).collect()
    }

    /// What is wrong with the money: it neither comes into being nor goes, and every account says the
    /// same as the charges.
    pub(crate) fn wrong_balances(&self) -> Vec<String> {
        let (mut expected, mut moved) = (at_first(), 0);
        for charge in &self.charges {
            *expected.entry(charge.account.clone()).or_default() -= charge.amount;
            moved += charge.amount;
        }
        let is_till = |name: &&String| name.starts_with("till-");
        let balance = |name: &String| self.accounts.get(name).copied().unwrap_or_default();
        let mut wrong: Vec<_> = expected
            .iter()
            .filter(|&(name, expected)| !is_till(&name) && balance(name) != *expected)
            .map(|(name, expected)| format!("{name} has {}, and not {expected}", balance(name)))
            .collect();
        let in_tills: i64 = self.accounts.keys().filter(is_till).map(balance).sum();
        if in_tills != moved {
            wrong.push(format!("the merchant has {in_tills}, and {moved} was charged"));
        }
        wrong
    }
}
