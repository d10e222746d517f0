//! Sends requests to one app and takes the time.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use axum::{Router, body::Body};
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use nix::time::{ClockId, clock_gettime};
use tokio::task::JoinSet;
use tower::ServiceExt;

use crate::{
    cell::{Cell, REPLAYED, Store, Workload},
    redis_info::RedisInfo,
};

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// At least this much wall time for each sample.
    pub time: Duration,
    /// Requests built ahead and then sent.
    pub batch: u64,
    /// Requests on Redis at once. In memory there is one at a time, since none ever waits.
    pub tasks: usize,
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
    app: Router,
    plan: Plan,
    redis: Option<RedisInfo>,
    run: u32,
    sent: u64,
    /// Operations in the app's memory.
    stored: u64,
}

/// In memory a new app is made after so many operations: neither the map's depth nor its growth
/// should depend on how fast a variant is.
const STORED_AT_MOST: u64 = 8 * 1024;

impl Bench {
    /// Builds the app and sends it enough to warm up; replays get their operations executed.
    pub async fn new(cell: Cell, plan: Plan, redis: Option<&RedisInfo>, run: u32) -> Self {
        let redis = redis.filter(|_| cell.store == Store::Redis).cloned();
        let app = cell.app(redis.as_ref().map(RedisInfo::url)).await;
        let mut bench = Self { cell, app, plan, redis, run, sent: 0, stored: 0 };
        let first = Cell { workload: Workload::First, ..cell };
        let executed = first.requests(run, 0, REPLAYED);
        bench.sent += REPLAYED;
        bench.stored += REPLAYED;
        expect(&first, drive(&bench.app, executed, 1).await, REPLAYED);
        bench.batch().await;
        bench
    }

    /// Takes a sample.
    pub async fn sample(&mut self) -> Sample {
        let before = self.counted().await;
        let (mut cpu, mut wall, mut requests) = (Duration::ZERO, Duration::ZERO, 0);
        while requests == 0 || wall < self.plan.time {
            let (batch_cpu, batch_wall) = self.batch().await;
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

    /// Sends one batch; CPU and wall time, without what building the requests took.
    async fn batch(&mut self) -> (Duration, Duration) {
        let count = self.plan.batch;
        if self.cell.store == Store::Memory
            && self.cell.workload == Workload::First
            && self.stored + count > STORED_AT_MOST
        {
            self.app = self.cell.app(None).await;
            self.stored = 0;
        }
        let requests = self.cell.requests(self.run, self.sent, count);
        self.sent += count;
        self.stored += count;
        let tasks = if self.redis.is_some() { self.plan.tasks } else { 1 };
        let (cpu, wall) = (process_cpu(), Instant::now());
        let told = drive(&self.app, requests, tasks).await;
        let took = (process_cpu() - cpu, wall.elapsed());
        expect(&self.cell, told, count);
        took
    }
}

/// What the answers were.
#[derive(Clone, Copy, Debug, Default)]
struct Told {
    good: u64,
    replays: u64,
    bytes: usize,
}

/// A figure of requests that failed would be worth nothing.
fn expect(cell: &Cell, told: Told, requests: u64) {
    assert_eq!(told.good, requests, "{cell}: not every request was answered as it should be");
    let replays = if cell.replays() { requests } else { 0 };
    assert_eq!(told.replays, replays, "{cell}: replays");
    assert!(told.bytes as u64 >= requests, "{cell}: answers without a body");
}

async fn drive(app: &Router, requests: Vec<Request<Body>>, tasks: usize) -> Told {
    if tasks <= 1 {
        let mut told = Told::default();
        for request in requests {
            one(app, request, &mut told).await;
        }
        return told;
    }
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
    let mut all = Told::default();
    while let Some(told) = running.join_next().await {
        let told = told.expect("no request panics");
        all.good += told.good;
        all.replays += told.replays;
        all.bytes += told.bytes;
    }
    all
}

async fn one(app: &Router, request: Request<Body>, told: &mut Told) {
    let response = match app.clone().oneshot(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    };
    told.good += u64::from(matches!(response.status(), StatusCode::CREATED | StatusCode::OK));
    told.replays += u64::from(response.headers().contains_key("idempotent-replayed"));
    let body = response.into_body().collect().await.expect("bodies in memory do not break off");
    told.bytes += body.to_bytes().len();
}

/// Sends so many requests to one app and measures nothing, for whoever measures from outside.
pub async fn send(cell: Cell, requests: u64, redis: Option<&RedisInfo>, tasks: usize) {
    let plan = Plan { time: Duration::ZERO, batch: 1, tasks };
    let run = std::process::id() << 4;
    let mut bench = Bench::new(cell, plan, redis, run).await;
    // Built ahead, so that the cost of building is alike whatever is sent.
    let requests = cell.requests(run, bench.sent, requests);
    bench.sent += requests.len() as u64;
    let count = requests.len() as u64;
    let tasks = if cell.store == Store::Redis { tasks } else { 1 };
    expect(&cell, drive(&bench.app, requests, tasks).await, count);
}

/// The CPU time of this process so far, all of its threads and the kernel's work for it included.
pub fn process_cpu() -> Duration {
    clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).expect("every Unix has this clock").into()
}
