//! Measures what the layer costs, beside bare axum, a layer that only changes the body type, and a
//! hand-written minimum, and prints tables.

mod arguments;

use std::{
    error::Error,
    process::{self, ExitCode},
    time::Instant,
};

use arguments::{Command, Measure};
use tower_idempotency_benches::{
    affinity::Cores,
    cell::Store,
    instructions, machine,
    measure::{Bench, Plan, children_cpu, process_cpu, send},
    redis_info::RedisInfo,
    report::Table,
    served,
};
use tower_idempotency_test_support::RedisServer;

fn main() -> ExitCode {
    let command = match arguments::parse(std::env::args().skip(1)) {
        Ok(command) => command,
        Err(wrong) => {
            eprintln!("{wrong}\n\n{}", arguments::USAGE);
            return ExitCode::from(2);
        }
    };
    match run(command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<(), Box<dyn Error>> {
    // One thread, so that the CPU time of the process is that of the requests.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match command {
        Command::Help => println!("{}", arguments::USAGE),
        Command::Instructions => println!("{}", instructions::table()?),
        Command::Send { cell, requests, redis, tasks } => {
            if cell.store == Store::Redis && redis.is_none() {
                return Err("a cell on Redis needs --redis URL".into());
            }
            runtime.block_on(async {
                let redis = match &redis {
                    Some(url) => Some(RedisInfo::connect(url).await),
                    None => None,
                };
                send(cell, requests, redis.as_ref(), tasks).await;
            });
        }
        Command::Load { server, connections } => {
            runtime.block_on(served::make_load(server, connections))?;
        }
        Command::Measure(measure) => {
            let cores = if measure.pin { Some(Cores::take()?) } else { None };
            // Ended with the process that started it, at the end of this function.
            let start = || runtime.block_on(RedisServer::start());
            let server = match (&measure.redis, cores) {
                (Some(_), _) => None,
                (None, None) => Some(start()),
                (None, Some(cores)) => Some(cores.beside(start)),
            };
            let url = measure.redis.clone().or(server.as_ref().map(RedisServer::url));
            let url = url.expect("one of the two");
            runtime.block_on(tables(measure, &url, cores));
        }
    }
    Ok(())
}

async fn tables(measure: Measure, url: &str, cores: Option<Cores>) {
    let Measure { rounds, time, tasks, batch, tables, .. } = measure;
    let redis = RedisInfo::connect(url).await;
    println!("{}", machine::describe(&redis.version().await));
    println!(
        "Rounds:   {rounds} of at least {} ms, every variant in every round; {}\n",
        time.as_millis(),
        if cores.is_some() { "cores are kept apart" } else { "nothing is pinned" }
    );
    let own_cpu = || process_cpu() + children_cpu();
    let (started, busy, own) = (Instant::now(), machine::busy(), own_cpu());
    let counted = redis.counters().await;
    let plan = Plan { time, batch, tasks, cores };
    // Keys of a table of this run, which no other on the same Redis must have.
    for (run, cells) in (process::id() << 4..).zip(tables) {
        let mut table = Table::new(cells);
        fill(&mut table, rounds, plan, &redis, run).await;
        println!("{}", table.text(tasks));
    }
    if let (Some(before), Some(now)) = (busy, machine::busy()) {
        let redis_s = redis.counters().await.since(&counted).cpu_us() / 1e6;
        let ours = (own_cpu() - own).as_secs_f64() + redis_s;
        let foreign = ((now - before).as_secs_f64() - ours).max(0.0);
        println!(
            "Others on this machine used {:.2} cores meanwhile.",
            foreign / started.elapsed().as_secs_f64()
        );
    }
}

/// Round by round, so that whatever disturbs a round disturbs every variant of it; each round begins
/// with another variant.
async fn fill(table: &mut Table, rounds: usize, plan: Plan, redis: &RedisInfo, run: u32) {
    let mut benches = Vec::new();
    for cell in table.cells() {
        benches.push(Bench::new(*cell, plan, Some(redis), run).await);
    }
    for round in 0..rounds {
        for step in 0..benches.len() {
            let place = (round + step) % benches.len();
            table.add(place, benches[place].sample().await);
        }
    }
    for bench in benches {
        bench.end().await;
    }
}
