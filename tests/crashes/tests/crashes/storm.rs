//! Hundreds of orders, while one process after the other is killed or stalls and Redis loses what it
//! has: each is charged once.

use std::{
    fmt::Write,
    time::{Duration, Instant},
};

use tokio::{task::JoinSet, time::sleep};
use tower_idempotency_test_support::Chance;

use crate::{
    databases::Kind,
    redis::{FATES, Fate},
    sender::{Heard, Notification, Route, order},
    site::{Doors, LEASE, POINTS, Site},
    verdict::{Wrong, judge},
};

/// How many requests are to be at the point when a process is killed, if so many come.
const HELD: usize = 8;

/// How a process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Killed,
    /// The same once all that ran in it is in the store, and nothing new is started there.
    DrainedAndKilled,
    /// And the other one, wherever its requests are.
    BothKilled,
    /// It stands still past its lease, and goes on.
    Stalls,
}

/// What is to happen while a batch of orders is under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    /// Which process.
    pub(crate) shop: usize,
    /// Where its requests are.
    pub(crate) point: &'static str,
    pub(crate) end: End,
    pub(crate) fate: Fate,
    /// Redis suffers after the process has died, and not before.
    pub(crate) fate_last: bool,
    /// What a replica lacks begins when requests are at the point, and not before they came.
    pub(crate) lacks_little: bool,
}

/// How many orders, and what happens meanwhile.
pub(crate) struct Plan {
    pub(crate) steps: Vec<Step>,
    /// Orders that a gateway notifies of.
    pub(crate) notified: usize,
    /// Orders whose clients pay by themselves.
    pub(crate) paid: usize,
    /// Redis is flushed at the end, and every order is delivered once more.
    pub(crate) late: bool,
    pub(crate) more: &'static [&'static str],
}

impl Plan {
    /// Every point and every fate, in an order and in pairs that the seed says, and a few at random.
    fn of(chance: &Chance) -> Self {
        let mut points = POINTS.to_vec();
        points.extend((0..2).map(|_| chance.pick(&POINTS)));
        chance.shuffle(&mut points);
        let mut fates: Vec<_> = (0..points.len()).map(|number| FATES[number % 4]).collect();
        chance.shuffle(&mut fates);
        let step = |(number, (point, fate)): (usize, (&'static str, Fate))| Step {
            shop: usize::from(chance.one_in(2)),
            point,
            end: match number % 4 {
                3 => End::Stalls,
                2 => End::BothKilled,
                _ => End::Killed,
            },
            fate,
            fate_last: chance.one_in(2),
            lacks_little: chance.one_in(2),
        };
        let steps = points.into_iter().zip(fates).enumerate().map(step).collect();
        Self { steps, notified: 500, paid: 60, late: true, more: &["--bank", "fickle"] }
    }

    fn orders(&self) -> Vec<(usize, Route)> {
        let notified = (0..self.notified).map(|number| (number, Route::Notify));
        notified.chain((0..self.paid).map(|number| (number, Route::Pay))).collect()
    }
}

/// Says how to see a failure again, however it comes about.
struct Seed(Kind, u64, String);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Self(kind, seed, log) = self;
            eprintln!("{kind:?} failed with CRASHES_SEED={seed}, after\n{log}");
        }
    }
}

/// Carries the plan out; what is wrong then.
pub(crate) async fn storm(kind: Kind, seed: u64, plan: &Plan) -> Wrong {
    let chance = Chance::new(seed);
    let mut log = Seed(kind, seed, String::new());
    let mut orders = plan.orders();
    let names: Vec<_> = orders.iter().map(|&(number, route)| order(number, route)).collect();
    let mut site = Site::open(kind, plan.more, &names).await;
    chance.shuffle(&mut orders);
    let batch = orders.len().div_ceil(plan.steps.len());
    let (mut senders, mut heard) = (JoinSet::new(), Vec::new());
    for (step, batch) in plan.steps.iter().zip(orders.chunks(batch)) {
        let _ = write!(log.2, "{step:?}");
        let started = Instant::now();
        let (number, route) = batch[0];
        let first = Notification::new(number, 0, route);
        // One that has not got over its Redis yet would leave the whole batch to the other.
        let first = first.until_acknowledged(site.doors.only(step.shop), 0).await;
        let done = carry_out(step, &mut site, |doors| {
            for &(number, route) in &batch[1..] {
                for n in 0..1 + chance.below(3) as usize {
                    let notification = Notification::new(number, n, route);
                    let to = chance.below(2) as usize;
                    senders.spawn(notification.until_acknowledged(doors.clone(), to));
                }
            }
        })
        .await;
        heard.push(first);
        let _ = writeln!(log.2, " held, behind: {done:?}, {:?}", started.elapsed());
    }
    heard.extend(senders.join_all().await);
    if plan.late {
        heard.extend(once_more(&site, &orders).await);
    }
    judge(&site.books().await, &heard)
}

/// What every sender hears that comes late: under an id of before and under a new one, after Redis
/// has lost everything once more.
async fn once_more(site: &Site, orders: &[(usize, Route)]) -> Vec<Heard> {
    site.redis.flush().await;
    let mut heard = Vec::new();
    for some in orders.chunks(40) {
        let mut senders = JoinSet::new();
        for (number, route) in some {
            for n in [0, 9] {
                let notification = Notification::new(*number, n, *route);
                senders.spawn(notification.until_acknowledged(site.doors.clone(), *number));
            }
        }
        heard.extend(senders.join_all().await);
    }
    heard
}

/// One step: requests come to a point, their process dies or stalls there, and Redis suffers. How many
/// were held, and how many bytes of writes a replica lacked.
async fn carry_out(step: &Step, site: &mut Site, send: impl FnOnce(&Doors)) -> (usize, u64) {
    site.redis.expect(step.fate).await;
    site.shops[step.shop].arm(step.point).await;
    if !step.lacks_little {
        site.redis.stop_replication();
    }
    send(&site.doors);
    let held = site.shops[step.shop].held(HELD).await;
    if step.end == End::DrainedAndKilled {
        site.shops[step.shop].drain().await;
    }
    site.redis.fall_behind().await;
    let mut behind = 0;
    if !step.fate_last {
        behind = site.redis.suffer(step.fate).await;
    }
    let dead = match step.end {
        End::Killed | End::DrainedAndKilled => vec![step.shop],
        End::BothKilled => vec![step.shop, 1 - step.shop],
        End::Stalls => Vec::new(),
    };
    dead.iter().for_each(|&shop| site.kill(shop));
    if step.end == End::Stalls {
        site.shops[step.shop].stop();
    }
    if step.fate_last {
        behind = site.redis.suffer(step.fate).await;
    }
    dead.into_iter().for_each(|shop| site.replace(shop));
    if step.end == End::Stalls {
        sleep(LEASE * 3 / 2).await;
        site.shops[step.shop].go_on();
        site.shops[step.shop].disarm().await;
    }
    (held, behind)
}

/// The seeds to run: the one of `CRASHES_SEED`, or one, or as many as begin within `CRASHES_MINUTES`.
async fn run_seeds(kind: Kind) {
    let number = |name| {
        let value = std::env::var(name).ok()?;
        Some(value.parse().unwrap_or_else(|_| panic!("{name} is a number, and not {value}")))
    };
    let until = Instant::now() + Duration::from_secs(60 * number("CRASHES_MINUTES").unwrap_or(0));
    let mut seed = number("CRASHES_SEED").unwrap_or(1);
    loop {
        let plan = Plan::of(&Chance::new(seed));
        let wrong = storm(kind, seed, &plan).await;
        assert!(wrong.is_nothing(), "CRASHES_SEED={seed}, {kind:?}: {wrong:#?}");
        seed += 1;
        if Instant::now() >= until {
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_order_is_charged_exactly_once_on_postgres_whatever_dies_and_whatever_redis_loses() {
    run_seeds(Kind::Postgres).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_order_is_charged_exactly_once_on_mariadb_whatever_dies_and_whatever_redis_loses() {
    run_seeds(Kind::Mariadb).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_order_is_charged_exactly_once_on_sqlite_whatever_dies_and_whatever_redis_loses() {
    run_seeds(Kind::Sqlite).await;
}
