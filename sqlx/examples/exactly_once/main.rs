//! The incident's three schemes and their combination, side by side, against all that goes wrong: a
//! payment gateway that delivers a notification again and again, a Redis that forgets, a process that is
//! killed. Which of them charges an order exactly once, and tells the gateway so?
//!
//! ```sh
//! cargo run -p tower-idempotency-sqlx --example exactly_once --features sqlite
//! cargo run -p tower-idempotency-sqlx --example exactly_once --features sqlite,postgres -- \
//!     --database postgres://user@localhost/empty
//! ```
//!
//! It needs the program `redis-server`, which it starts by itself. `shop/handlers.rs` has the schemes, a
//! handler each, and `shop/mod.rs` the policies around them; `scenes.rs` is what goes wrong, and
//! `table.rs` what must come of it. Whoever has sent a notification is checked in the example `signed`.

mod arguments;
mod gateway;
#[cfg(feature = "mysql")]
mod mysql;
mod notification;
#[cfg(feature = "postgres")]
mod postgres;
mod provider;
mod scenes;
mod scheme;
mod servers;
mod sqlite;
mod table;

use std::{process::ExitCode, time::Duration};

use arguments::{Command, Serve};
use provider::Provider;
use scenes::SCENES;
use scheme::Scheme;
use servers::Servers;
use table::Row;
use tower_idempotency_test_support::{Directory, RedisServer};

/// What goes wrong here is only ever shown.
type Error = Box<dyn std::error::Error + Send + Sync>;

const STORY_AT_MOST: Duration = Duration::from_secs(120);

#[tokio::main]
async fn main() -> ExitCode {
    let done = match arguments::parse(std::env::args().skip(1)) {
        Ok(Command::Help) => {
            println!("{}", arguments::USAGE);
            Ok(())
        }
        Ok(Command::Serve(serve)) => run(serve).await,
        Ok(Command::Story { database }) => tokio::select! {
            told = story(database) => told,
            () = tokio::time::sleep(STORY_AT_MOST) => Err("the story took too long".into()),
            Ok(()) = tokio::signal::ctrl_c() => Err("stopped".into()),
        },
        Err(wrong) => {
            eprintln!("{wrong}\n\n{}", arguments::USAGE);
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("exactly_once: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The shop on the database that the URL is for.
async fn run(serve: Serve) -> Result<(), Error> {
    match serve.database.split(':').next() {
        Some("sqlite") => sqlite::shop::run(serve).await,
        #[cfg(feature = "postgres")]
        Some("postgres" | "postgresql") => postgres::shop::run(serve).await,
        #[cfg(feature = "mysql")]
        Some("mysql" | "mariadb") => mysql::shop::run(serve).await,
        _ => Err(format!("{} needs another feature of this example", serve.database).into()),
    }
}

/// Plays every scene, and compares what was charged.
async fn story(database: Option<String>) -> Result<(), Error> {
    let directory = Directory::new();
    let database = database.unwrap_or_else(|| {
        format!("sqlite://{}?mode=rwc", directory.path().join("shop.db").display())
    });
    let redis = RedisServer::start().await;
    let provider = Provider::start().await?;
    let servers = Servers::new(database, redis, provider);

    println!("Each order costs {} yuan. How often it was charged, and a star where", scenes::YUAN);
    println!("the gateway did not hear `success` in the end:\n\n{}", table::head());
    let mut rows = Vec::new();
    for scene in SCENES {
        let row = Row { scene, cells: scenes::play(&servers, scene).await? };
        println!("{row}");
        rows.push(row);
    }
    println!("{}\n", table::sums(&rows));
    for scheme in Scheme::ALL {
        println!("{:<13} {}", scheme.name(), scheme.verdict());
    }
    let wrong: Vec<_> = rows.iter().filter_map(Row::check).collect();
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n").into()) }
}
