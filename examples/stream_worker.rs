//! A consumer of a Redis Stream, one of a group, that charges each order once.
//!
//! ```sh
//! cargo run --example stream_worker -- add O-1 960
//! cargo run --example stream_worker -- work one --stall after
//! ```
//!
//! This one hangs after its charge and before anybody knows of it. Kill it (`kill -9`) and start another:
//!
//! ```sh
//! cargo run --example stream_worker -- work two
//! ```
//!
//! It takes the message over, and waits until the lease of the dead one is over. Then it asks the bank,
//! which knows the charge, and acknowledges the message without another. With `--unprotected` both charge.

use std::{error::Error, future::pending, process::ExitCode, time::Duration};

use redis::{
    AsyncCommands, LposOptions, RedisError, RedisResult,
    aio::MultiplexedConnection,
    streams::{
        StreamAutoClaimOptions, StreamAutoClaimReply, StreamId, StreamReadOptions, StreamReadReply,
    },
};
use tokio::time::sleep;
use tower_idempotency::{
    Abandoned, Answer, Idempotent, Policy, RedisStore, RefusalKind, Resolution, Rule,
    execute::{Done, RunError},
};

const USAGE: &str = "usage: stream_worker add ORDER AMOUNT | work NAME
  --redis URL     default redis://127.0.0.1/
  --idle MS       take over messages that another has had for so long, default 2000
  --lease MS      how long a consumer that gives no sign of life holds an order, default 5000
  --pause MS      before and after each charge, default 0
  --stall WHEN    hang `before` or `after` the first charge
  --unprotected   charge for each message that comes";

const STREAM: &str = "orders";
const GROUP: &str = "charging";
/// Messages that no consumer can do anything about.
const ASIDE: &str = "orders:aside";

struct Arguments {
    words: Vec<String>,
    redis: String,
    idle: Duration,
    lease: Duration,
    pause: Duration,
    stall: Option<String>,
    unprotected: bool,
}

impl Arguments {
    fn read(mut from: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut read = Self {
            words: Vec::new(),
            redis: "redis://127.0.0.1/".to_owned(),
            idle: Duration::from_secs(2),
            lease: Duration::from_secs(5),
            pause: Duration::ZERO,
            stall: None,
            unprotected: false,
        };
        while let Some(argument) = from.next() {
            let mut value = || from.next().ok_or(format!("{argument} needs a value"));
            match argument.as_str() {
                "--redis" => read.redis = value()?,
                "--idle" => read.idle = milliseconds(&value()?)?,
                "--lease" => read.lease = milliseconds(&value()?)?,
                "--pause" => read.pause = milliseconds(&value()?)?,
                "--stall" => read.stall = Some(value()?),
                "--unprotected" => read.unprotected = true,
                option if option.starts_with("--") => {
                    return Err(format!("`{option}` is no argument of this example"));
                }
                _ => read.words.push(argument),
            }
        }
        Ok(read)
    }
}

fn milliseconds(text: &str) -> Result<Duration, String> {
    let number = text.parse().map_err(|_| format!("`{text}` is no number of milliseconds"))?;
    Ok(Duration::from_millis(number))
}

/// What has the effect: a list of charges, which takes whatever it is told.
#[derive(Clone)]
struct Bank {
    redis: MultiplexedConnection,
    pause: Duration,
    stall: Option<String>,
}

impl Bank {
    async fn charge(&self, order: &str) -> RedisResult<String> {
        println!("charging {order}");
        self.stall("before", order).await;
        let _: () = self.redis.clone().rpush("charges", order).await?;
        self.stall("after", order).await;
        Ok(format!("receipt of {order}"))
    }

    async fn stall(&self, when: &str, order: &str) {
        sleep(self.pause).await;
        if self.stall.as_deref() == Some(when) {
            println!("stalled {when} charging {order}");
            pending::<()>().await;
        }
    }

    async fn find(&self, order: &str) -> RedisResult<Option<String>> {
        let found: Option<u64> =
            self.redis.clone().lpos("charges", order, LposOptions::default()).await?;
        Ok(found.map(|_| format!("receipt of {order}")))
    }
}

/// Whoever died may have charged or not: the bank knows. A charge that is on its way must have arrived
/// when a lease is over, or it would say no too early.
fn policy(bank: Bank, lease: Duration) -> Policy {
    Policy::job().lease(lease).resolve_abandoned(move |abandoned: Abandoned| {
        let bank = bank.clone();
        async move {
            match bank.find(&abandoned.key).await {
                Ok(Some(receipt)) => match Answer::of_value(&receipt) {
                    Ok(answer) => Resolution::Done(answer),
                    Err(_) => Resolution::Unknown,
                },
                Ok(None) => Resolution::NotDone,
                Err(_) => Resolution::Unknown,
            }
        }
    })
}

struct Worker {
    name: String,
    redis: MultiplexedConnection,
    bank: Bank,
    jobs: Idempotent,
    idle: Duration,
    unprotected: bool,
}

/// What becomes of a message.
enum Next {
    Acknowledge,
    /// It stays where it is, to be taken over when it was idle for long enough.
    Later,
    Aside,
}

impl Worker {
    async fn new(arguments: Arguments, name: String) -> Result<Self, Box<dyn Error>> {
        let Arguments { redis: url, idle, lease, pause, stall, unprotected, .. } = arguments;
        let mut redis = connect(&url).await?;
        let created: RedisResult<()> = redis.xgroup_create_mkstream(STREAM, GROUP, "0").await;
        match created {
            Err(error) if error.code() != Some("BUSYGROUP") => return Err(error.into()),
            _ => {}
        }
        let bank = Bank { redis: redis.clone(), pause, stall };
        let store = RedisStore::connect(&url).await?.prefix("shop");
        let jobs = Idempotent::new(store, Rule::new("charge", policy(bank.clone(), lease)));
        Ok(Self { name, redis, bank, jobs, idle, unprotected })
    }

    async fn work(&mut self) -> RedisResult<()> {
        println!("{} is waiting for orders", self.name);
        loop {
            let Some(message) = self.next().await? else { continue };
            match self.handle(&message).await? {
                Next::Later => {}
                Next::Acknowledge => self.redis.xack(STREAM, GROUP, &[&message.id]).await?,
                Next::Aside => {
                    let fields: Vec<(String, String)> = ["order", "amount"]
                        .map(|field| (field.to_owned(), message.get(field).unwrap_or_default()))
                        .into();
                    let mut both = redis::pipe();
                    both.atomic().xadd(ASIDE, "*", &fields).xack(STREAM, GROUP, &[&message.id]);
                    let _: () = both.query_async(&mut self.redis).await?;
                }
            }
        }
    }

    /// A message that its consumer has had for too long, or else a new one.
    async fn next(&mut self) -> RedisResult<Option<StreamId>> {
        let one = StreamAutoClaimOptions::default().count(1);
        let idle = self.idle.as_millis() as usize;
        let left: StreamAutoClaimReply =
            self.redis.xautoclaim_options(STREAM, GROUP, &self.name, idle, "0-0", one).await?;
        if let Some(message) = left.claimed.into_iter().next() {
            return Ok(Some(message));
        }
        let one = StreamReadOptions::default().group(GROUP, &self.name).count(1).block(100);
        let new: Option<StreamReadReply> =
            self.redis.xread_options(&[STREAM], &[">"], &one).await?;
        let mut new = new.into_iter().flat_map(|new| new.keys).flat_map(|stream| stream.ids);
        Ok(new.next())
    }

    async fn handle(&self, message: &StreamId) -> RedisResult<Next> {
        let order: Option<String> = message.get("order");
        let amount: Option<String> = message.get("amount");
        let (Some(order), Some(amount)) = (order, amount) else { return Ok(Next::Aside) };
        if self.unprotected {
            println!("charged, {}", self.bank.charge(&order).await?);
            return Ok(Next::Acknowledge);
        }
        let (bank, charged) = (self.bank.clone(), order.clone());
        // An error of the bank leaves open whether it has charged: the next one asks it.
        let charge = async move |_| bank.charge(&charged).await;
        Ok(match self.jobs.run(&order, Some(amount.as_bytes()), charge).await {
            Ok(Done::Executed(receipt)) => {
                println!("charged, {receipt}");
                Next::Acknowledge
            }
            Ok(Done::Replayed(receipt)) => {
                println!("was charged before, {receipt}");
                Next::Acknowledge
            }
            Err(RunError::DoneWithoutValue(_)) => Next::Acknowledge,
            Err(RunError::Mismatch) => {
                println!("put aside: {order} had another amount before");
                Next::Aside
            }
            // The order is no key: neither is it when the message comes again.
            Err(RunError::Refused(refusal)) if refusal.kind() == RefusalKind::IdentityMalformed => {
                println!("put aside {}: {}", message.id, refusal.detail());
                Next::Aside
            }
            Err(error) => {
                println!("later: {order}: {error}");
                Next::Later
            }
        })
    }
}

async fn connect(url: &str) -> Result<MultiplexedConnection, RedisError> {
    redis::Client::open(url)?.get_multiplexed_async_connection().await
}

async fn run(arguments: Arguments) -> Result<(), Box<dyn Error>> {
    let words: Vec<_> = arguments.words.iter().map(String::as_str).collect();
    match words[..] {
        ["add", order, amount] => {
            let fields = [("order", order), ("amount", amount)];
            let id: String = connect(&arguments.redis).await?.xadd(STREAM, "*", &fields).await?;
            println!("added {id}");
        }
        ["work", name] => {
            let name = name.to_owned();
            let mut worker = Worker::new(arguments, name).await?;
            tokio::select! {
                failed = worker.work() => failed?,
                stopped = tokio::signal::ctrl_c() => stopped?,
            }
            // A charge that was interrupted just now goes on in a task of its own.
            let drained = worker.jobs.drain(Duration::from_secs(10)).await;
            println!("stopped; {} running, {} unsent", drained.running, drained.unsent);
        }
        _ => return Err(USAGE.into()),
    }
    Ok(())
}

#[tokio::main]
async fn main() -> ExitCode {
    let done = match Arguments::read(std::env::args().skip(1)) {
        Ok(arguments) => run(arguments).await,
        Err(wrong) => Err(format!("{wrong}\n{USAGE}").into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
