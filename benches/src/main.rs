//! Measures what the layer costs, beside bare axum, a layer that only changes the body type, and a
//! hand-written minimum, and prints tables.

mod arguments;

use std::{error::Error, process::ExitCode, time::Instant};

use arguments::{Command, Measure};
use tower_idempotency_benches::{
    cell::{Cell, Store, Workload},
    instructions, machine,
    measure::{Bench, Plan, process_cpu, send},
    redis_info::RedisInfo,
    report::Table,
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
        Command::Measure(measure) => runtime.block_on(tables(measure)),
    }
    Ok(())
}

async fn tables(measure: Measure) {
    let Measure { redis, rounds, time, tasks, batch } = measure;
    // Ended with the process that started it, at the end of this function.
    let server = if redis.is_none() { Some(RedisServer::start().await) } else { None };
    let url = redis.or(server.as_ref().map(RedisServer::url)).expect("one of the two");
    let redis = RedisInfo::connect(&url).await;
    println!("{}", machine::describe(&redis.version().await));
    println!(
        "Rounds:   {rounds} of at least {} ms, every variant in every round; figures are medians \
         (least..most), ratios are taken within a round\n",
        time.as_millis()
    );
    let (started, busy, own) = (Instant::now(), machine::busy(), process_cpu());
    let counted = redis.counters().await;
    let plan = Plan { time, batch, tasks };
    // Keys of a table of this run, which no other on the same Redis must have.
    let mut run = std::process::id() << 4;
    for store in [Store::Memory, Store::Redis] {
        for workload in Workload::ALL {
            let mut table = Table::new(Cell::table(store, workload));
            fill(&mut table, rounds, plan, &redis, run).await;
            run += 1;
            println!("{}", table.text(tasks));
        }
    }
    if let (Some(before), Some(now)) = (busy, machine::busy()) {
        let redis_s = redis.counters().await.since(&counted).cpu_us() / 1e6;
        let ours = (process_cpu() - own).as_secs_f64() + redis_s;
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
}
