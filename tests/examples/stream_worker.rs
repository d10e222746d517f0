//! The consumers of a Redis Stream: killed at the worst moments, and each order charged once.

use std::{collections::BTreeMap, time::Duration};

use redis::{
    AsyncCommands,
    aio::MultiplexedConnection,
    streams::{StreamInfoGroupsReply, StreamRangeReply},
};
use tokio::time::{Instant, sleep};
use tower_idempotency_test_support::{Process, RedisServer, Signal};

use super::{binary, run, text};

/// Until all is acknowledged, on a machine that is busy.
const WITHIN: Duration = Duration::from_secs(60);

struct Stream {
    server: RedisServer,
    redis: MultiplexedConnection,
}

impl Stream {
    async fn start() -> Self {
        let server = RedisServer::start().await;
        let redis = server.connection().await;
        Self { server, redis }
    }

    async fn add(&mut self, order: &str, amount: &str) {
        let fields = [("order", order), ("amount", amount)];
        let _: String = self.redis.xadd("orders", "*", &fields).await.unwrap();
    }

    fn worker(&self, name: &str, more: &[&str]) -> Process {
        let url = self.server.url();
        let all = ["work", name, "--redis", &url, "--idle", "300", "--lease", "3000"];
        let worker = Process::start(binary("stream_worker"), &[&all[..], more].concat());
        worker.wait_for_line("is waiting for orders");
        worker
    }

    /// How often each order was charged.
    async fn charges(&mut self) -> BTreeMap<String, usize> {
        let charges: Vec<String> = self.redis.lrange("charges", 0, -1).await.unwrap();
        let mut by_order = BTreeMap::new();
        for order in charges {
            *by_order.entry(order).or_default() += 1;
        }
        by_order
    }

    /// Waits until all that was added has been delivered and acknowledged.
    async fn all_acknowledged(&mut self) {
        let newest: StreamRangeReply =
            self.redis.xrevrange_count("orders", "+", "-", 1).await.unwrap();
        let newest = &newest.ids[0].id;
        let until = Instant::now() + WITHIN;
        loop {
            let groups: StreamInfoGroupsReply = self.redis.xinfo_groups("orders").await.unwrap();
            let group = &groups.groups[0];
            if group.pending == 0 && group.last_delivered_id == *newest {
                return;
            }
            assert!(Instant::now() < until, "{} are left", group.pending);
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// Waits until something is charged.
    async fn charges_more_than(&mut self, before: usize) {
        let until = Instant::now() + WITHIN;
        while self.charges().await.len() <= before {
            assert!(Instant::now() < until, "nothing is charged");
            sleep(Duration::from_millis(5)).await;
        }
    }
}

/// Two consumers are killed with `kill -9`, one before its charge and one after it; a third takes over.
async fn killed_at_the_worst_moments(more: &[&str]) -> BTreeMap<String, usize> {
    let mut stream = Stream::start().await;
    for (order, when) in [("O-1", "before"), ("O-2", "after")] {
        stream.add(order, "960").await;
        let mut doomed = stream.worker(when, &[&["--stall", when], more].concat());
        doomed.wait_for_line(&format!("stalled {when} charging {order}"));
        doomed.kill();
    }
    // The producer sends one again.
    stream.add("O-2", "960").await;
    let _worker = stream.worker("third", more);
    stream.all_acknowledged().await;
    stream.charges().await
}

fn each_once<const N: usize>(orders: [&str; N]) -> BTreeMap<String, usize> {
    orders.map(|order| (order.to_owned(), 1)).into()
}

#[tokio::test]
async fn consumers_of_a_stream_that_are_killed_leave_each_order_charged_once() {
    assert_eq!(killed_at_the_worst_moments(&[]).await, each_once(["O-1", "O-2"]));
}

#[tokio::test]
async fn without_it_the_same_deaths_charge_an_order_three_times() {
    let charges = killed_at_the_worst_moments(&["--unprotected"]).await;
    // For the death after the charge, for its successor, and for the producer's second message.
    assert_eq!(charges, BTreeMap::from([("O-1".to_owned(), 1), ("O-2".to_owned(), 3)]));
}

#[tokio::test]
async fn a_message_that_another_takes_over_while_it_is_charged_is_charged_once() {
    let mut stream = Stream::start().await;
    stream.add("O-1", "960").await;
    let slow = stream.worker("slow", &["--pause", "1000"]);
    slow.wait_for_line("charging O-1");
    // It takes two seconds, and is taken over after 300 ms.
    let other = stream.worker("other", &[]);
    let said = other.wait_for_line("later: O-1");
    assert!(said.contains("it is being run elsewhere"), "{said}");
    stream.all_acknowledged().await;
    assert_eq!(stream.charges().await, each_once(["O-1"]));
}

#[tokio::test]
async fn of_three_consumers_that_are_killed_all_the_time_each_order_is_charged_once() {
    let mut stream = Stream::start().await;
    let start =
        |stream: &Stream, n: usize| stream.worker(&format!("worker-{n}"), &["--pause", "25"]);
    let mut workers: Vec<_> = (0..3).map(|n| start(&stream, n)).collect();
    let mut orders = BTreeMap::new();
    for round in 0..9 {
        let before = stream.charges().await.len();
        for n in 0..6 {
            let order = format!("O-{round}-{n}");
            for _ in 0..2 {
                stream.add(&order, "960").await;
            }
            orders.insert(order, 1);
        }
        stream.charges_more_than(before).await;
        // Somewhere in the 50 ms that a charge takes, now earlier and now later.
        sleep(Duration::from_millis(round as u64 * 7 % 50)).await;
        workers[round % 3].kill();
        workers[round % 3] = start(&stream, 3 + round);
    }
    stream.all_acknowledged().await;
    assert_eq!(stream.charges().await, orders);
}

#[tokio::test]
async fn what_no_consumer_can_charge_is_put_aside_and_a_consumer_stops_on_ctrl_c() {
    let mut stream = Stream::start().await;
    stream.add("O-1", "960").await;
    stream.add("O-1", "1").await;
    let _: String = stream.redis.xadd("orders", "*", &[("order", "O-2")]).await.unwrap();
    for order in [String::new(), "x".repeat(256)] {
        stream.add(&order, "960").await;
    }
    let url = stream.server.url();
    let added = run("stream_worker", &["add", "O-3", "960", "--redis", &url]).await;
    assert!(text(&added.stdout).starts_with("added "), "{added:?}");
    let mut worker = stream.worker("one", &[]);
    assert_eq!(worker.wait_for_line("O-1"), "charging O-1");
    assert_eq!(worker.wait_for_line("put aside"), "put aside: O-1 had another amount before");
    stream.all_acknowledged().await;
    assert_eq!(stream.charges().await, each_once(["O-1", "O-3"]));
    let aside: usize = stream.redis.xlen("orders:aside").await.unwrap();
    assert_eq!(aside, 4);
    worker.signal(Signal::SIGINT);
    assert_eq!(worker.wait_for_line("stopped"), "stopped; 0 running, 0 unsent");
    assert!(worker.wait());

    let wrong = run("stream_worker", &["wrok", "one"]).await;
    assert!(!wrong.status.success());
    assert!(text(&wrong.stderr).contains("usage: stream_worker add ORDER AMOUNT"), "{wrong:?}");
}
