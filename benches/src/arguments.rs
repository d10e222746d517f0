//! What the bench is asked to do.

use std::{net::SocketAddr, time::Duration};

use tower_idempotency_benches::cell::Cell;

pub(crate) const USAGE: &str = "\
Usage: tower-idempotency-benches [--redis URL] [--rounds N] [--seconds S] [--tasks N] [--only NAME] [--pin]
       tower-idempotency-benches --instructions
       tower-idempotency-benches --check

The first form measures CPU time; build it with --release. The app is called in this process, over both
stores; then, on Redis, it is served over loopback, and a second process of this program, which it starts
and ends by itself, sends the requests, so that the CPU time is the server's.

  --redis URL      a Redis that nobody else uses; by default one is started. What is written there
                   is gone after two minutes.
  --rounds N       rounds of each cell, 25 by default
  --seconds S      length of a round of one cell, 0.1 by default
  --tasks N        requests on Redis at once, and connections where the app is served, 50 by default
  --only NAME      only the cells whose names begin so: memory, redis, served, served/redis/replay
  --pin            this process on the last core that it may use, the load and a Redis that is started
                   on the others; where nobody else is at work. By default nothing is pinned
  --instructions   count instructions instead, under valgrind
  --check          the smallest run that shows that everything works; its figures say nothing
  --cell NAME --requests N
                   send so many requests to one cell, such as memory/first/layer, and measure
                   nothing: for a profiler. A cell on Redis needs --redis
  --load ADDRESS   be the second process, and take orders on stdin
  --help           print this";

#[derive(Debug, PartialEq)]
pub(crate) enum Command {
    Measure(Measure),
    Instructions,
    Send { cell: Cell, requests: u64, redis: Option<String>, tasks: usize },
    Load { server: SocketAddr, connections: usize },
    Help,
}

#[derive(Debug, PartialEq)]
pub(crate) struct Measure {
    pub(crate) redis: Option<String>,
    pub(crate) rounds: usize,
    pub(crate) time: Duration,
    pub(crate) tasks: usize,
    pub(crate) batch: u64,
    pub(crate) tables: Vec<Vec<Cell>>,
    pub(crate) pin: bool,
}

/// Reads the arguments that follow the name of the program.
pub(crate) fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Command, String> {
    let time = Duration::from_millis(100);
    let tables = Cell::tables();
    let mut measure =
        Measure { redis: None, rounds: 25, time, tasks: 50, batch: 1024, tables, pin: false };
    let (mut cell, mut server, mut requests) = (None, None, 1_000);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
        match argument.as_str() {
            "--help" | "-h" => return Ok(Command::Help),
            "--instructions" => return Ok(Command::Instructions),
            "--redis" => measure.redis = Some(value()?),
            "--rounds" => measure.rounds = number(&argument, &value()?)?,
            "--tasks" => measure.tasks = number(&argument, &value()?)?,
            "--requests" => requests = number(&argument, &value()?)?,
            "--cell" => cell = Some(value()?.parse()?),
            "--only" => measure.tables = only(&value()?)?,
            "--pin" => measure.pin = true,
            "--load" => {
                let text = value()?;
                let address = text.parse().map_err(|_| format!("--load {text}: no address"))?;
                server = Some(address);
            }
            "--seconds" => {
                let text = value()?;
                let time = text.parse().ok().and_then(|s| Duration::try_from_secs_f64(s).ok());
                measure.time = time.ok_or(format!("--seconds {text}: this is no time"))?;
            }
            "--check" => {
                measure.rounds = 2;
                measure.time = Duration::ZERO;
                measure.batch = 64;
            }
            _ => return Err(format!("`{argument}` is no argument of this bench")),
        }
    }
    Ok(match (server, cell) {
        (Some(server), _) => Command::Load { server, connections: measure.tasks },
        (None, Some(cell)) => {
            let Measure { redis, tasks, .. } = measure;
            Command::Send { cell, requests, redis, tasks }
        }
        (None, None) => Command::Measure(measure),
    })
}

/// The tables of cells whose names begin so.
fn only(name: &str) -> Result<Vec<Vec<Cell>>, String> {
    let mut tables = Cell::tables();
    // A table without the bare app or the minimum would have nothing to compare with.
    tables.retain(|cells| cells.iter().all(|cell| cell.to_string().starts_with(name)));
    match tables.is_empty() {
        true => Err(format!("--only {name}: there is no such table; one is served/redis/replay")),
        false => Ok(tables),
    }
}

/// At least one of whatever it counts.
fn number<T: TryFrom<u64>>(argument: &str, text: &str) -> Result<T, String> {
    let number = text.parse::<u64>().ok().filter(|number| *number > 0);
    let number = number.and_then(|number| T::try_from(number).ok());
    number.ok_or(format!("{argument} {text}: give a whole number, at least 1"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(words: &str) -> Result<Command, String> {
        parse(words.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn every_cell_can_be_named() {
        let sent = read("--cell memory/first/layer --requests 7").unwrap();
        let Command::Send { cell, requests: 7, .. } = sent else { panic!("{sent:?}") };
        assert_eq!(cell.to_string(), "memory/first/layer");
        assert!(matches!(read("--cell served/redis/first/layer-mux"), Ok(Command::Send { .. })));
        for none in ["memory/first/none", "memory/first/layer-mux", "served/memory/first/layer"] {
            assert!(read(&format!("--cell {none}")).unwrap_err().contains("is no cell"), "{none}");
        }
    }

    #[test]
    fn tables_can_be_chosen_but_not_torn() {
        let chosen = |words: &str| {
            let Command::Measure(measure) = read(words).unwrap() else { panic!("{words}") };
            measure.tables.len()
        };
        for (words, tables) in
            [("", 9), ("--only memory", 3), ("--only served", 3), ("--only redis/replay", 1)]
        {
            assert_eq!(chosen(words), tables, "{words}");
        }
        for none in ["served/memory", "redis/first/layer", "replay"] {
            assert!(read(&format!("--only {none}")).unwrap_err().contains("no such table"));
        }
    }

    #[test]
    fn the_second_process_is_told_where_the_first_is() {
        let load = Command::Load { server: ([127, 0, 0, 1], 80).into(), connections: 3 };
        assert_eq!(read("--load 127.0.0.1:80 --tasks 3"), Ok(load));
        assert!(read("--load localhost").is_err());
    }

    #[test]
    fn what_is_no_number_is_refused() {
        for words in ["--rounds 0", "--rounds -1", "--seconds x", "--seconds -1", "--rounds"] {
            assert!(read(words).is_err(), "{words}");
        }
        let Command::Measure(measure) = read("--rounds 3 --seconds 0.5").unwrap() else { panic!() };
        assert_eq!((measure.rounds, measure.time), (3, Duration::from_millis(500)));
    }
}
