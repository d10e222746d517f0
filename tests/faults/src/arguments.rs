//! The arguments of the server.

use std::{env, time::Duration};

/// `--listen 127.0.0.1:0 --redis URL --prefix NAME --journal FILE --lease-ms 30000 [--rerun] [--orders]
/// [--tokens] [--abrupt]`
pub(crate) struct Arguments {
    pub(crate) listen: String,
    pub(crate) redis: String,
    pub(crate) prefix: String,
    pub(crate) journal: String,
    pub(crate) lease: Duration,
    /// Whether abandoned operations are run again.
    pub(crate) rerun: bool,
    /// Whether a run is of an `order`, whatever the `id` of its delivery.
    pub(crate) orders: bool,
    /// Whether a run needs a one-time token for its `id`, which `POST /token` gives.
    pub(crate) tokens: bool,
    /// Told to end, it leaves its connections alone and waits for the layer only.
    pub(crate) abrupt: bool,
}

impl Arguments {
    pub(crate) fn read() -> Result<Self, String> {
        let mut read = Self {
            listen: "127.0.0.1:0".to_owned(),
            redis: String::new(),
            prefix: "faults".to_owned(),
            journal: String::new(),
            lease: Duration::from_secs(30),
            rerun: false,
            orders: false,
            tokens: false,
            abrupt: false,
        };
        let mut words = env::args().skip(1);
        while let Some(word) = words.next() {
            match word.as_str() {
                "--rerun" => {
                    read.rerun = true;
                    continue;
                }
                "--orders" => {
                    read.orders = true;
                    continue;
                }
                "--tokens" => {
                    read.tokens = true;
                    continue;
                }
                "--abrupt" => {
                    read.abrupt = true;
                    continue;
                }
                _ => {}
            }
            let value = words.next().ok_or_else(|| format!("{word} needs a value"))?;
            match word.as_str() {
                "--listen" => read.listen = value,
                "--redis" => read.redis = value,
                "--prefix" => read.prefix = value,
                "--journal" => read.journal = value,
                "--lease-ms" => {
                    let ms = value.parse().map_err(|_| format!("{value} is no number of ms"))?;
                    read.lease = Duration::from_millis(ms);
                }
                _ => return Err(format!("{word} is no argument of this server")),
            }
        }
        Ok(read)
    }
}
