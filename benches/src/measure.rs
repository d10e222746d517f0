//! Sends requests to one app and takes the time.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use axum::{Router, body::Body};
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use nix::{
    sys::resource::{UsageWho, getrusage},
    sys::time::{TimeVal, TimeValLike},
    time::{ClockId, clock_gettime},
};
use tokio::task::JoinSet;
use tower::ServiceExt;

use crate::{
    affinity::Cores,
    cell::{Cell, REPLAYED, Store, Way, Workload},
    order::{Order, Told},
    redis_info::RedisInfo,
    served::Served,
};

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// At least this much wall time for each sample.
    pub time: Duration,
    /// Requests built ahead and then sent.
    pub batch: u64,
    /// Requests on Redis at once, and connections where the app is served. In memory there is one at a time, since none ever waits.
    pub tasks: usize,
    /// Where processes are kept apart.
    pub cores: Option<Cores>,
}

/// What one round of one cell took.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// CPU time of this process for each request.
    pub cpu_us: f64,
    /// Wall time for each request, those that run at once counted together.
    pub wall_us: f64,
    /// What Redis says of it.
    pub redis: Option<RedisCost>,
}

/// What Redis says of a request.
#[derive(Clone, Copy, Debug)]
pub struct RedisCost {
    /// Its CPU time.
    pub cpu_us: f64,
    /// Commands, those inside scripts left out.
    pub commands: f64,
    /// Reads from sockets: fewer than commands where several arrive together.
    pub reads: f64,
}

/// A cell that has been warmed up.
#[derive(Debug)]
pub struct Bench {
    cell: Cell,
    app: App,
    plan: Plan,
    redis: Option<RedisInfo>,
    run: u32,
    sent: u64,
    /// Operations in the app's memory.
    stored: u64,
}

#[derive(Debug)]
enum App {
    Called(Router),
    Served(Box<Served>),
}

/// In memory a new app is made after so many operations: neither the map's depth nor its growth
/// should depend on how fast a variant is.
const STORED_AT_MOST: u64 = 8 * 1024;

impl Bench {
    /// Builds the app and sends it enough to warm up; replays get their operations executed.
    pub async fn new(cell: Cell, plan: Plan, redis: Option<&RedisInfo>, run: u32) -> Self {
        let redis = redis.filter(|_| cell.store == Store::Redis).cloned();
        let app = cell.app(redis.as_ref().map(RedisInfo::url)).await;
        let app = match cell.way {
            Way::Called => App::Called(app),
            Way::Served => {
                let served = Served::start(app, plan.tasks, plan.cores).await;
                App::Served(Box::new(served))
            }
        };
        let mut bench = Self { cell, app, plan, redis, run, sent: 0, stored: 0 };
        let first = Cell { workload: Workload::First, ..cell };
        bench.send(first, REPLAYED).await;
        bench.send(cell, plan.batch).await;
        bench
    }

    /// Ends what was started for it.
    pub async fn end(self) {
        if let App::Served(served) = self.app {
            served.end().await;
        }
    }

    /// Takes a sample.
    pub async fn sample(&mut self) -> Sample {
        let before = self.counted().await;
        let (mut cpu, mut wall, mut requests) = (Duration::ZERO, Duration::ZERO, 0);
        while requests == 0 || wall < self.plan.time {
            let (batch_cpu, batch_wall) = self.send(self.cell, self.plan.batch).await;
            cpu += batch_cpu;
            wall += batch_wall;
            requests += self.plan.batch;
        }
        let each = |time: Duration| time.as_secs_f64() * 1e6 / requests as f64;
        let redis = match (before, self.counted().await) {
            (Some(before), Some(after)) => {
                Some(after.since(&before).each(requests, self.cell.variant))
            }
            _ => None,
        };
        Sample { cpu_us: each(cpu), wall_us: each(wall), redis }
    }

    async fn counted(&self) -> Option<crate::redis_info::Counters> {
        match &self.redis {
            Some(redis) => Some(redis.counters().await),
            None => None,
        }
    }

    /// Sends so many requests of this cell; CPU and wall time, without what building them took.
    async fn send(&mut self, cell: Cell, count: u64) -> (Duration, Duration) {
        let Cell { store, workload, .. } = cell;
        if store == Store::Memory
            && workload == Workload::First
            && self.stored + count > STORED_AT_MOST
        {
            self.app = App::Called(cell.app(None).await);
            self.stored = 0;
        }
        let order = Order { workload, run: self.run, from: self.sent, count };
        self.sent += count;
        self.stored += count;
        let (cpu, told) = match &mut self.app {
            App::Called(app) => {
                let requests = cell.requests(self.run, order.from, count);
                let tasks = if store == Store::Redis { self.plan.tasks } else { 1 };
                let cpu = process_cpu();
                (cpu, drive(app, requests, tasks).await)
            }
            // The other process builds them.
            App::Served(served) => (process_cpu(), served.send(order).await),
        };
        let cpu = process_cpu() - cpu;
        expect(&cell, told, count);
        (cpu, told.wall)
    }
}

/// A figure of requests that failed would be worth nothing.
fn expect(cell: &Cell, told: Told, requests: u64) {
    assert_eq!(told.good, requests, "{cell}: not every request was answered as it should be");
    let replays = if cell.replays() { requests } else { 0 };
    assert_eq!(told.replays, replays, "{cell}: replays");
    assert!(told.bytes >= requests, "{cell}: answers without a body");
}

async fn drive(app: &Router, requests: Vec<Request<Body>>, tasks: usize) -> Told {
    let started = Instant::now();
    let mut all = Told::default();
    if tasks <= 1 {
        for request in requests {
            one(app, request, &mut all).await;
        }
    } else {
        let queue = Arc::new(Mutex::new(requests.into_iter()));
        let mut running = JoinSet::new();
        for _ in 0..tasks {
            let (app, queue) = (app.clone(), queue.clone());
            running.spawn(async move {
                let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
                let mut told = Told::default();
                while let Some(request) = next() {
                    one(&app, request, &mut told).await;
                }
                told
            });
        }
        while let Some(told) = running.join_next().await {
            all.join(told.expect("no request panics"));
        }
    }
    all.wall = started.elapsed();
    all
}

async fn one(app: &Router, request: Request<Body>, told: &mut Told) {
    let response = match app.clone().oneshot(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    };
    let good = matches!(response.status(), StatusCode::CREATED | StatusCode::OK);
    let replay = response.headers().contains_key("idempotent-replayed");
    let body = response.into_body().collect().await.expect("bodies in memory do not break off");
    told.add(good, replay, body.to_bytes().len());
}

/// Sends so many requests to one app and measures nothing, for whoever measures from outside.
pub async fn send(cell: Cell, requests: u64, redis: Option<&RedisInfo>, tasks: usize) {
    let plan = Plan { time: Duration::ZERO, batch: 1, tasks, cores: None };
    let run = std::process::id() << 4;
    let mut bench = Bench::new(cell, plan, redis, run).await;
    bench.send(cell, requests).await;
    bench.end().await;
}

/// The CPU time of this process so far, all of its threads and the kernel's work for it included.
pub fn process_cpu() -> Duration {
    clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).expect("every Unix has this clock").into()
}

/// The CPU time of the processes that this one has started and that have ended.
pub fn children_cpu() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).expect("every Unix counts it");
    let micros = |time: TimeVal| time.num_microseconds().try_into().unwrap_or(0);
    Duration::from_micros(micros(usage.user_time()) + micros(usage.system_time()))
}
