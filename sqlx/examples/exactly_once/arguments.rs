//! What the example is asked to do.

use std::net::SocketAddr;

pub(crate) const USAGE: &str = "\
Usage: exactly_once [--database URL]

Starts a shop, a payment gateway and a payment provider, lets go wrong what can, and prints what was
charged under each scheme.

  --database URL     an empty database: postgres://.. (feature `postgres`), mysql://.. (`mysql`) or
                     sqlite://..; the default is SQLite in a temporary file
  --help             print this";

pub(crate) enum Command {
    Story { database: Option<String> },
    Serve(Serve),
    Help,
}

/// The shop as a process of its own, which the story starts and kills.
#[derive(Clone)]
pub(crate) struct Serve {
    pub(crate) database: String,
    pub(crate) redis: String,
    pub(crate) provider: SocketAddr,
    pub(crate) pause: Option<Point>,
}

/// Where a handler waits to be killed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Point {
    BeforeCommit,
    AfterCommit,
}

impl Point {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::BeforeCommit => "before-commit",
            Self::AfterCommit => "after-commit",
        }
    }
}

impl Serve {
    /// What [`parse`] reads as this.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let mut arguments = vec!["serve".to_owned(), self.database.clone(), self.redis.clone()];
        arguments.push(self.provider.to_string());
        arguments.extend(self.pause.map(|point| point.name().to_owned()));
        arguments
    }
}

/// Reads the arguments that follow the name of the program.
pub(crate) fn parse(arguments: impl Iterator<Item = String>) -> Result<Command, String> {
    let arguments: Vec<String> = arguments.collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        [] => Ok(Command::Story { database: None }),
        ["--help" | "-h"] => Ok(Command::Help),
        ["--database", url] => Ok(Command::Story { database: Some(url.to_owned()) }),
        ["serve", database, redis, provider, ref pause @ ..] => {
            let points = [Point::BeforeCommit, Point::AfterCommit];
            Ok(Command::Serve(Serve {
                database: database.to_owned(),
                redis: redis.to_owned(),
                provider: provider.parse().map_err(|_| format!("`{provider}` is no address"))?,
                pause: points.into_iter().find(|point| pause.contains(&point.name())),
            }))
        }
        _ => Err(format!("`{}` is nothing that this example does", words.join(" "))),
    }
}
