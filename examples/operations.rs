//! Recovery by hand: what is abandoned or runs for long in a Redis, and settling it.
//!
//! ```sh
//! cargo run --example operations -- list --redis redis://127.0.0.1/
//! cargo run --example operations -- show 4cf06992b4669c3d --redis redis://127.0.0.1/
//! cargo run --example operations -- settle 4cf06992b4669c3d done --answer success \
//!     --reason 'the provider has the charge' --redis redis://127.0.0.1/
//! ```
//!
//! KEY is the `key` of an event, as `list` prints it.

use std::{error::Error, process::ExitCode, time::Duration};

use tower_idempotency::{
    Answer, RedisStore,
    operations::{Found, Operations, Settle, Standing},
    store::Cursor,
};

const USAGE: &str = "usage: operations list | show KEY | settle KEY done|not-done --reason TEXT
  --answer TEXT      settle done: what every later delivery gets, with status 200; empty if left out
  --force            settle although its owner may be alive: not-done may run it twice
  --redis URL        default redis://127.0.0.1/
  --prefix P         the application's, default idempotency
  --lease SECONDS    the application's, default 30
  --max-run SECONDS  the application's, default 300";
/// Records that are looked through at a time.
const PAGE: usize = 500;

#[derive(Default)]
struct Arguments {
    words: Vec<String>,
    redis: Option<String>,
    prefix: Option<String>,
    lease: Option<Duration>,
    max_run: Option<Duration>,
    reason: Option<String>,
    answer: Option<String>,
    force: bool,
}

impl Arguments {
    fn read(mut from: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut read = Self::default();
        while let Some(argument) = from.next() {
            let mut value = || from.next().ok_or(format!("{argument} needs a value"));
            match argument.as_str() {
                "--redis" => read.redis = Some(value()?),
                "--prefix" => read.prefix = Some(value()?),
                "--lease" => read.lease = Some(seconds(&value()?)?),
                "--max-run" => read.max_run = Some(seconds(&value()?)?),
                "--reason" => read.reason = Some(value()?),
                "--answer" => read.answer = Some(value()?),
                "--force" => read.force = true,
                "--help" | "-h" => read.words = vec!["help".to_owned()],
                option if option.starts_with("--") => {
                    return Err(format!("`{option}` is no argument of this example"));
                }
                _ => read.words.push(argument),
            }
        }
        Ok(read)
    }

    /// Where the application's records stand: what has another prefix is not seen.
    fn prefix(&self) -> &str {
        self.prefix.as_deref().filter(|prefix| !prefix.is_empty()).unwrap_or("idempotency")
    }

    async fn operations(&self) -> Result<Operations<RedisStore>, Box<dyn Error>> {
        let url = self.redis.as_deref().unwrap_or("redis://127.0.0.1/");
        let store = RedisStore::connect(url).await?.prefix(self.prefix());
        let mut operations = Operations::new(store);
        if let Some(lease) = self.lease {
            operations = operations.lease(lease);
        }
        if let Some(max_run) = self.max_run {
            operations = operations.max_run(max_run);
        }
        Ok(operations)
    }

    /// The verdict that the arguments say.
    fn verdict(&self, word: &str) -> Result<Settle, String> {
        let reason = self.reason.as_deref().ok_or("settle needs a --reason")?;
        let verdict = match word {
            "done" => Settle::done(Answer::text(self.answer.clone().unwrap_or_default()), reason),
            "not-done" if self.answer.is_some() => {
                return Err("what was not done has no --answer".to_owned());
            }
            "not-done" => Settle::not_done(reason),
            other => return Err(format!("`{other}` is no verdict: say done or not-done")),
        };
        Ok(if self.force { verdict.forced() } else { verdict })
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().map_err(|_| format!("`{text}` is no number of seconds"))?;
    Duration::try_from_secs_f64(seconds).map_err(|_| format!("`{text}` is no number of seconds"))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let ended = match Arguments::read(std::env::args().skip(1)) {
        Ok(arguments) => run(arguments).await,
        Err(wrong) => Err(format!("{wrong}\n{USAGE}").into()),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: Arguments) -> Result<(), Box<dyn Error>> {
    let words: Vec<&str> = arguments.words.iter().map(String::as_str).collect();
    match words[..] {
        ["help"] => {
            println!("{USAGE}");
            Ok(())
        }
        ["list"] => list(&arguments).await,
        ["show", key] => show(&find(&arguments.operations().await?, &arguments, key).await?),
        ["settle", key, word] => {
            let verdict = arguments.verdict(word)?;
            let operations = arguments.operations().await?;
            let operation = find(&operations, &arguments, key).await?;
            operations.settle(&operation, verdict).await?;
            let reason = arguments.reason.as_deref().unwrap_or_default();
            println!("settled {key} ({:?}) as {word}: {reason}", operation.label);
            Ok(())
        }
        _ => Err(USAGE.into()),
    }
}

async fn list(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    let operations = arguments.operations().await?;
    let mut from = Cursor::START;
    let mut count = 0;
    loop {
        let page = operations.list(from, PAGE).await?;
        for operation in &page.operations {
            count += 1;
            println!(
                "{}  {}, attempt {}  {:?}",
                operation.key.digest(),
                described(operation),
                operation.attempt,
                operation.label
            );
        }
        match page.next {
            Some(next) => from = next,
            None => break,
        }
    }
    let prefix = arguments.prefix();
    println!("{count} to settle or to wait for under the prefix `{prefix}`");
    Ok(())
}

fn show(operation: &Found) -> Result<(), Box<dyn Error>> {
    println!("key                {}", operation.key.digest());
    println!("record             {}", operation.key);
    // What a client sent: with its control characters escaped.
    println!("label              {:?}", operation.label);
    println!("attempt            {}", operation.attempt);
    println!("standing           {}", described(operation));
    match operation.last_sign_of_life {
        Some(ago) => println!("last sign of life  {} s ago", ago.as_secs()),
        None => println!("last sign of life  unknown"),
    }
    println!("forgotten in       {} s", operation.expires_in.as_secs());
    Ok(())
}

fn described(operation: &Found) -> String {
    match operation.standing {
        Standing::Running { age, remaining } => {
            format!("running for {} s, its lease for {} s more", age.as_secs(), remaining.as_secs())
        }
        Standing::Lapsed { age, ago } => {
            format!("abandoned: granted {} s ago, lapsed {} s ago", age.as_secs(), ago.as_secs())
        }
        Standing::GivenUp { age } => {
            format!("abandoned: granted {} s ago, given up as unknown", age.as_secs())
        }
        Standing::Ended(state) => format!("{state:?}: nothing to settle"),
        _ => "not known to this example".to_owned(),
    }
}

/// The operation of this key.
async fn find(
    operations: &Operations<RedisStore>,
    arguments: &Arguments,
    key: &str,
) -> Result<Found, Box<dyn Error>> {
    let found = operations.find(key).await?;
    let prefix = arguments.prefix();
    found.ok_or_else(|| format!("there is no record {key} under the prefix `{prefix}`").into())
}
