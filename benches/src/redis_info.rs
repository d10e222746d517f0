//! What a Redis says about itself.

use std::{collections::BTreeMap, fmt};

use redis::aio::MultiplexedConnection;

use crate::{cell::Variant, measure::RedisCost};

/// A Redis that can be asked.
#[derive(Clone)]
pub struct RedisInfo {
    url: String,
    connection: MultiplexedConnection,
}

/// What it has counted so far.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    cpu_us: f64,
    reads: f64,
    /// Calls of each command, in lower case; those of scripts too.
    calls: BTreeMap<String, u64>,
}

impl RedisInfo {
    /// Connects.
    ///
    /// # Panics
    ///
    /// When there is no Redis at this URL.
    pub async fn connect(url: &str) -> Self {
        let client = redis::Client::open(url).expect("the bench was given a URL of Redis");
        let connection = client.get_multiplexed_async_connection().await;
        Self { url: url.to_owned(), connection: connection.expect("there is a Redis") }
    }

    /// Where it is.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// `Redis 7.0.15`, or the name and version of what is there instead.
    pub async fn version(&self) -> String {
        let text = self.info("server").await;
        match field(&text, "valkey_version") {
            Some(version) => format!("Valkey {version}"),
            None => format!("Redis {}", field(&text, "redis_version").unwrap_or("unknown")),
        }
    }

    /// What it has counted so far.
    pub async fn counters(&self) -> Counters {
        let mut counters = Counters::default();
        let cpu = self.info("cpu").await;
        for name in ["used_cpu_user", "used_cpu_sys"] {
            let seconds: f64 = field(&cpu, name).and_then(|s| s.parse().ok()).unwrap_or_default();
            counters.cpu_us += seconds * 1e6;
        }
        let stats = self.info("stats").await;
        let reads = field(&stats, "total_reads_processed").and_then(|reads| reads.parse().ok());
        counters.reads = reads.unwrap_or_default();
        for line in self.info("commandstats").await.lines() {
            let Some((name, rest)) = line.strip_prefix("cmdstat_").and_then(|l| l.split_once(':'))
            else {
                continue;
            };
            let calls = rest.strip_prefix("calls=").and_then(|rest| rest.split(',').next());
            let calls = calls.and_then(|calls| calls.parse().ok()).unwrap_or(0);
            counters.calls.insert(name.to_owned(), calls);
        }
        counters
    }

    async fn info(&self, section: &str) -> String {
        let mut connection = self.connection.clone();
        redis::cmd("INFO")
            .arg(section)
            .query_async(&mut connection)
            .await
            .expect("the bench's Redis answers")
    }
}

impl Counters {
    /// What was counted since `before`, without what counting itself has sent.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let since = |name: &String, calls: &u64| {
            let calls = calls - before.calls.get(name).copied().unwrap_or(0);
            (calls > 0 && name != "info").then(|| (name.clone(), calls))
        };
        Self {
            cpu_us: self.cpu_us - before.cpu_us,
            reads: self.reads - before.reads,
            calls: self.calls.iter().filter_map(|(name, calls)| since(name, calls)).collect(),
        }
    }

    /// Calls of each command, those inside scripts included.
    pub fn calls(&self) -> &BTreeMap<String, u64> {
        &self.calls
    }

    /// Its CPU time, in microseconds.
    pub fn cpu_us(&self) -> f64 {
        self.cpu_us
    }

    /// For each of so many requests of this variant.
    pub fn each(&self, requests: u64, variant: Variant) -> RedisCost {
        let each = |count: f64| count / requests as f64;
        RedisCost {
            cpu_us: each(self.cpu_us),
            commands: each(self.sent(variant) as f64),
            reads: each(self.reads),
        }
    }

    /// Commands that clients have sent, without those that scripts have called.
    pub fn sent(&self, variant: Variant) -> u64 {
        let calls = |name: &str| self.calls.get(name).copied().unwrap_or(0);
        let scripts = calls("evalsha") + calls("eval");
        match variant {
            // A claim is one `SET`, and the script of a save calls one.
            Variant::Minimum => calls("set"),
            // The layer sends scripts alone.
            _ => scripts,
        }
    }
}

fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
}

impl fmt::Debug for RedisInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisInfo").field("url", &self.url).finish_non_exhaustive()
    }
}
