//! What the bench is asked to do.

use std::time::Duration;

use tower_idempotency_benches::cell::Cell;

pub(crate) const USAGE: &str = "\
Usage: tower-idempotency-benches [--redis URL] [--rounds N] [--seconds S] [--tasks N]
       tower-idempotency-benches --instructions
       tower-idempotency-benches --check

The first form measures CPU time; build it with --release.

  --redis URL      a Redis that nobody else uses; by default one is started. What is written there
                   is gone after two minutes.
  --rounds N       rounds of each cell, 25 by default
  --seconds S      length of a round of one cell, 0.1 by default
  --tasks N        requests on Redis at once, 50 by default
  --instructions   count instructions instead, under valgrind
  --check          the smallest run that shows that everything works; its figures say nothing
  --cell NAME --requests N
                   send so many requests to one cell, such as memory/first/layer, and measure
                   nothing: for a profiler. A cell on Redis needs --redis
  --help           print this";

#[derive(Debug, PartialEq)]
pub(crate) enum Command {
    Measure(Measure),
    Instructions,
    Send { cell: Cell, requests: u64, redis: Option<String>, tasks: usize },
    Help,
}

#[derive(Debug, PartialEq)]
pub(crate) struct Measure {
    pub(crate) redis: Option<String>,
    pub(crate) rounds: usize,
    pub(crate) time: Duration,
    pub(crate) tasks: usize,
    pub(crate) batch: u64,
}

/// Reads the arguments that follow the name of the program.
pub(crate) fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Command, String> {
    let time = Duration::from_millis(100);
    let mut measure = Measure { redis: None, rounds: 25, time, tasks: 50, batch: 1024 };
    let (mut cell, mut requests) = (None, 1_000);
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
    Ok(match cell {
        Some(cell) => {
            let Measure { redis, tasks, .. } = measure;
            Command::Send { cell, requests, redis, tasks }
        }
        None => Command::Measure(measure),
    })
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
        assert!(read("--cell memory/first/none").unwrap_err().contains("is no cell"));
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
