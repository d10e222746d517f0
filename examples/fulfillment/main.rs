//! The incident this crate exists for, over real HTTP: a payment gateway delivers one notification
//! of an order of 960 yuan five times, and then under five ids. How often does the customer pay?
//!
//! ```sh
//! cargo run --example fulfillment
//! cargo run --example fulfillment -- --redis redis://127.0.0.1:6379
//! cargo run --example fulfillment -- serve --listen 127.0.0.1:8080
//! ```
//!
//! `server.rs` is the shop, with the layer in it; `gateway.rs` delivers to it; this file tells the
//! story, and fails if a figure is not what it must be.

mod arguments;
mod gateway;
mod http;
mod notification;
mod processes;
mod server;
mod table;

use std::{process::ExitCode, time::Duration};

use arguments::{Command, Serve};
use gateway::Manner;
use notification::Notification;
use processes::Servers;
use table::Row;

/// What goes wrong here is only ever shown.
type Error = Box<dyn std::error::Error + Send + Sync>;

const YUAN: u64 = 960;
const STORY_AT_MOST: Duration = Duration::from_secs(20);

#[tokio::main]
async fn main() -> ExitCode {
    let done = match arguments::parse(std::env::args().skip(1)) {
        Ok(Command::Help) => {
            println!("{}", arguments::USAGE);
            Ok(())
        }
        Ok(Command::Serve(serve)) => server::run(serve).await,
        Ok(Command::Story { redis }) => tokio::select! {
            told = story(redis) => told,
            () = tokio::time::sleep(STORY_AT_MOST) => Err("the story took too long".into()),
            () = server::stop_signal() => Err("stopped".into()),
        },
        Err(wrong) => {
            eprintln!("{wrong}\n\n{}", arguments::USAGE);
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fulfillment: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Delivers a notification in each of six ways, and compares what was charged.
async fn story(redis: Option<String>) -> Result<(), Error> {
    let shop = match redis {
        None => "one server process, which keeps records in its memory",
        Some(_) => "two server processes, which share records in Redis",
    };
    println!("A gateway delivers a notification of {YUAN} yuan {} times, to", gateway::DELIVERIES);
    println!("{shop}.\n\n{}", table::head());

    let mut wrong = Vec::new();
    let mut refused = false;
    for protected in [false, true] {
        for manner in [Manner::NewIds, Manner::OneAfterAnother, Manner::AtOnce] {
            let row = scene(redis.as_deref(), protected, manner).await?;
            println!("{row}");
            wrong.extend(row.check(YUAN));
            refused |= row.tally.answers.contains_key("503");
        }
    }
    if refused {
        println!(
            "\n503: the first delivery was still being charged. The gateway delivered again a"
        );
        println!("moment later and was answered `success` from the record.");
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n").into()) }
}

/// Fresh servers, a fresh notification, and what came of it.
async fn scene(redis: Option<&str>, protected: bool, manner: Manner) -> Result<Row, Error> {
    let serve =
        Serve { listen: "127.0.0.1:0".to_owned(), redis: redis.map(str::to_owned), protected };
    let servers = Servers::start(if redis.is_some() { 2 } else { 1 }, &serve).await?;
    let notification = Notification::fresh(YUAN);
    let tally = gateway::notify(servers.addresses(), &notification, manner).await?;

    let mut charges = Vec::new();
    for server in servers.addresses() {
        charges.extend(server::charges(*server).await?);
    }
    charges.retain(|charge| charge.order_id == notification.order_id);
    servers.stop().await?;
    let yuan = charges.iter().map(|charge| charge.amount).sum();
    Ok(Row { protected, manner, tally, charges: charges.len(), yuan })
}
