//! One figure's worth: which way through which app, over which store.

use std::{fmt, str::FromStr, time::Duration};

use axum::{Router, body::Body};
use http::Request;
use tower_idempotency::{IdempotencyLayer, MemoryStore, Policy, RedisStore, Rule, Scope, header};

use crate::{
    app,
    body_type::BodyType,
    minimum::{Memory, Minimum, RETENTION_MS, Redis},
    mux::Mux,
    order::Order,
};

/// What is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// GETs, which no rule is for.
    PassThrough,
    /// Deliveries, each of an operation of its own.
    First,
    /// Deliveries of operations that were executed before.
    Replay,
}

/// What stands around the app.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// Nothing.
    Bare,
    /// A layer that only changes the types of the bodies.
    BodyType,
    /// The hand-written minimum.
    Minimum,
    /// The layer with `Policy::webhook`: no fingerprint, like the minimum.
    Layer,
    /// The layer with `Policy::api`: method, path, query and body are hashed too.
    LayerApi,
    /// The same as `Layer`, over the multiplexing of the crate `redis` in place of the store's own session.
    LayerMux,
    /// The same as `Layer`, with answers of the last minute in the process's own memory.
    Recent,
}

/// Where records are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    /// In the process.
    Memory,
    /// In Redis.
    Redis,
}

/// How requests come to the app.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// It is called in this process.
    Called,
    /// Another process sends them through sockets.
    Served,
}

/// One figure's worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// How requests come to the app.
    pub way: Way,
    /// Where records are kept.
    pub store: Store,
    /// What is sent.
    pub workload: Workload,
    /// What stands around the app.
    pub variant: Variant,
}

/// How many operations replays go round.
pub const REPLAYED: u64 = 64;

/// Room for the answers of `REPLAYED` operations many times over.
const RECENT_BYTES: usize = 1024 * 1024;

impl Workload {
    /// In the order of the report.
    pub const ALL: [Self; 3] = [Self::PassThrough, Self::First, Self::Replay];
}

impl Variant {
    /// All that there are where records are kept in this store, in the order of the report.
    pub fn all(store: Store) -> Vec<Self> {
        let mut all = vec![Self::Bare, Self::BodyType, Self::Minimum, Self::Layer, Self::LayerApi];
        if store == Store::Redis {
            all.push(Self::LayerMux);
        }
        all.push(Self::Recent);
        all
    }
}

impl Cell {
    /// The cells of each table of a report: those that are compared, and so run round by round.
    pub fn tables() -> Vec<Vec<Self>> {
        let ways = [
            (Way::Called, Store::Memory),
            (Way::Called, Store::Redis),
            (Way::Served, Store::Redis),
        ];
        let tables =
            ways.map(|(way, store)| Workload::ALL.map(|sent| Self::table(way, store, sent)));
        tables.into_iter().flatten().collect()
    }

    /// The cells of one table.
    pub fn table(way: Way, store: Store, workload: Workload) -> Vec<Self> {
        let cell = |variant| Self { way, store, workload, variant };
        Variant::all(store).into_iter().map(cell).collect()
    }

    /// The app, with an empty store where it is in memory.
    pub async fn app(self, redis: Option<&str>) -> Router {
        let route = app::route();
        let url = || redis.expect("cells on Redis are run with a URL");
        app::router(match (self.variant, self.store) {
            (Variant::Bare, _) => route,
            (Variant::BodyType, _) => route.layer(BodyType),
            (Variant::Minimum, Store::Memory) => route.layer(Minimum::new(Memory::default())),
            (Variant::Minimum, Store::Redis) => {
                route.layer(Minimum::new(Redis::connect(url()).await))
            }
            (_, Store::Memory) => route.layer(self.layer(MemoryStore::new())),
            (Variant::LayerMux, Store::Redis) => {
                let store = RedisStore::over(Mux::connect(url()).await);
                route.layer(self.layer(store.prefix("bench")))
            }
            (_, Store::Redis) => {
                let store = RedisStore::connect(url()).await.expect("there is a Redis");
                route.layer(self.layer(store.prefix("bench")))
            }
        })
    }

    fn layer(self, store: impl tower_idempotency::Store) -> IdempotencyLayer {
        let layer = IdempotencyLayer::new(store, self.rule());
        match self.variant {
            Variant::Recent => layer.recent(RECENT_BYTES),
            _ => layer,
        }
    }

    /// The rule of the layer.
    pub fn rule(self) -> Rule {
        let policy = match self.variant {
            Variant::LayerApi => Policy::api(Scope::everyone()),
            _ => Policy::webhook(header("Idempotency-Key")),
        };
        // Names apart, since the cells share a Redis.
        let name = format!("{:?}", self.variant);
        Rule::new(name, policy.retention(Duration::from_millis(RETENTION_MS)))
    }

    /// So many requests, from this number on.
    pub fn requests(self, run: u32, from: u64, count: u64) -> Vec<Request<Body>> {
        let order = Order { workload: self.workload, run, from, count };
        let request = |key: Option<String>| match key {
            Some(key) => app::delivery(&key),
            None => app::pass_through(),
        };
        order.keys().map(request).collect()
    }

    /// Whether the answers are replays.
    pub fn replays(self) -> bool {
        self.workload == Workload::Replay
            && !matches!(self.variant, Variant::Bare | Variant::BodyType)
    }
}

impl fmt::Display for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Memory => "memory",
            Self::Redis => "redis",
        })
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PassThrough => "pass-through",
            Self::First => "first",
            Self::Replay => "replay",
        })
    }
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bare => "bare",
            Self::BodyType => "body-type",
            Self::Minimum => "minimum",
            Self::Layer => "layer",
            Self::LayerApi => "layer-api",
            Self::LayerMux => "layer-mux",
            Self::Recent => "recent",
        })
    }
}

impl fmt::Display for Cell {
    /// `memory/first/layer` or `served/redis/first/layer`, as [`FromStr`] reads it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let way = if self.way == Way::Served { "served/" } else { "" };
        write!(f, "{way}{}/{}/{}", self.store, self.workload, self.variant)
    }
}

impl FromStr for Cell {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let mut cells = Self::tables().into_iter().flatten();
        cells
            .find(|cell| cell.to_string() == name)
            .ok_or_else(|| format!("`{name}` is no cell; one is memory/first/layer"))
    }
}
