//! The arguments of the server.

use std::{env, time::Duration};

/// `--redis URL --database URL [--lease-ms 1000] [--max-run-ms 10000] [--bank pays|refuses|fickle]
/// [--without table|ledger|one-commit]`
#[derive(Clone, Debug)]
pub(crate) struct Arguments {
    pub(crate) redis: String,
    pub(crate) database: String,
    pub(crate) lease: Duration,
    pub(crate) max_run: Duration,
    pub(crate) bank: Bank,
    pub(crate) without: Option<Without>,
}

/// What the bank says on the route where it is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bank {
    Pays,
    Refuses,
    /// It refuses now and then, and not the same order every time.
    Fickle,
}

/// What is left out, so that it is seen to be needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Without {
    /// The handler keeps no table, and what is abandoned is run again.
    Table,
    /// The handler has its table, but the layer does not know it: what is abandoned counts as not done.
    Ledger,
    /// The row is committed after the effect and not with it.
    OneCommit,
}

impl Arguments {
    pub(crate) fn read() -> Result<Self, String> {
        let mut read = Self {
            redis: String::new(),
            database: String::new(),
            lease: Duration::from_secs(1),
            max_run: Duration::from_secs(10),
            bank: Bank::Pays,
            without: None,
        };
        let mut words = env::args().skip(1);
        while let Some(word) = words.next() {
            let value = words.next().ok_or_else(|| format!("{word} needs a value"))?;
            match word.as_str() {
                "--redis" => read.redis = value,
                "--database" => read.database = value,
                "--lease-ms" => read.lease = milliseconds(&value)?,
                "--max-run-ms" => read.max_run = milliseconds(&value)?,
                "--bank" => read.bank = bank(&value)?,
                "--without" => read.without = Some(without(&value)?),
                _ => return Err(format!("{word} is no argument of this server")),
            }
        }
        Ok(read)
    }
}

fn milliseconds(value: &str) -> Result<Duration, String> {
    let ms = value.parse().map_err(|_| format!("{value} is no number of ms"))?;
    Ok(Duration::from_millis(ms))
}

fn bank(value: &str) -> Result<Bank, String> {
    match value {
        "pays" => Ok(Bank::Pays),
        "refuses" => Ok(Bank::Refuses),
        "fickle" => Ok(Bank::Fickle),
        _ => Err(format!("no bank is {value}")),
    }
}

fn without(value: &str) -> Result<Without, String> {
    match value {
        "table" => Ok(Without::Table),
        "ledger" => Ok(Without::Ledger),
        "one-commit" => Ok(Without::OneCommit),
        _ => Err(format!("this server cannot do without {value}")),
    }
}
