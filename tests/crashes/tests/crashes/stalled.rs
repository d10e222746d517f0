//! A handler that stalls past its lease while another takes over: one effect, one answer, and its own
//! client hears that answer too.

use std::time::Duration;

use tokio::{
    task::JoinHandle,
    time::{sleep, timeout},
};

use crate::{
    databases::Kind,
    sender::{End, Heard, Notification, Route, order},
    site::Site,
    verdict::judge,
};

/// On a busy machine, with a stall that takes a few seconds.
pub(crate) const PATIENT: Duration = Duration::from_secs(40);
/// Between two looks, whether somebody waits that must wait.
const A_WHILE: Duration = Duration::from_millis(500);

/// How a run stands still.
#[derive(Clone, Copy, Debug)]
enum How {
    /// Its process does (SIGSTOP).
    Process,
    /// The handler alone, for longer than it may run.
    Handler,
}

/// A run of the order 0 that stands still in the shop 0, and its client's answer to come.
pub(crate) struct Stalled {
    pub(crate) site: Site,
    first: JoinHandle<Option<End>>,
}

impl Stalled {
    /// At this point, whose process is stopped.
    pub(crate) async fn stopped(kind: Kind, route: Route, point: &str, more: &[&str]) -> Self {
        let mut stalled = Self::held(kind, route, point, more).await;
        stalled.site.shops[0].stop();
        stalled
    }

    async fn held(kind: Kind, route: Route, point: &str, more: &[&str]) -> Self {
        let site = Site::open(kind, more, &[order(0, route)]).await;
        site.shops[0].arm(point).await;
        let doors = site.doors.clone();
        let first = tokio::spawn(async move {
            Notification::new(0, 0, route).deliver_and_wait(&doors, 0, PATIENT).await
        });
        assert_eq!(site.shops[0].held(1).await, 1);
        Self { site, first }
    }

    /// Delivers the same order under another id to this shop until it is acknowledged.
    pub(crate) fn deliver_to(&self, shop: usize, route: Route) -> JoinHandle<Heard> {
        let again = Notification::new(0, 1, route);
        tokio::spawn(again.until_acknowledged(self.site.doors.only(shop), 0))
    }

    /// Lets the first run go on, and gives what its client hears then.
    pub(crate) async fn go_on(&mut self) -> End {
        self.site.shops[0].go_on();
        self.site.shops[0].disarm().await;
        let answer = timeout(PATIENT, &mut self.first).await.expect("it does not hang").unwrap();
        answer.expect("its process answers, since it is alive")
    }

    /// What every shop says from now on.
    pub(crate) async fn later(&self, route: Route) -> Vec<Heard> {
        let mut heard = Vec::new();
        for shop in 0..self.site.shops.len() {
            let late = Notification::new(0, 2 + shop, route);
            heard.push(late.until_acknowledged(self.site.doors.only(shop), 0).await);
        }
        heard
    }
}

/// What the client of the first notification heard.
pub(crate) fn heard_first(route: Route, end: End) -> Heard {
    let Notification { order, id, .. } = Notification::new(0, 0, route);
    Heard { order, id, end }
}

async fn one_effect_and_one_answer(kind: Kind, point: &'static str, how: How) {
    let route = Route::Notify;
    let mut stalled = match how {
        How::Process => Stalled::stopped(kind, route, point, &[]).await,
        // It is not renewed any more when it has run for a lease.
        How::Handler => Stalled::held(kind, route, point, &["--max-run-ms", "1000"]).await,
    };
    let mut second = stalled.deliver_to(1, route);
    stalled.site.shops[1].ran().await;
    let before = match point {
        "handler" => {
            Some(timeout(PATIENT, &mut second).await.expect("nobody is in its way").unwrap())
        }
        _ => {
            sleep(A_WHILE).await;
            assert!(!second.is_finished(), "{kind:?}: it waits for what may be committed still");
            None
        }
    };
    let first = stalled.go_on().await;
    let second = match before {
        Some(second) => second,
        None => timeout(PATIENT, second).await.expect("it does not hang").unwrap(),
    };
    let mut heard = vec![heard_first(route, first), second];
    heard.extend(stalled.later(route).await);
    let books = stalled.site.books().await;
    let wrong = judge(&books, &heard);
    assert!(wrong.is_nothing(), "{kind:?}, {point}, {how:?}: {wrong:#?} {heard:#?}");
    assert_eq!(books.charges.len(), 1);
}

async fn every_stall(kind: Kind) {
    tokio::join!(
        one_effect_and_one_answer(kind, "handler", How::Process),
        one_effect_and_one_answer(kind, "handler", How::Handler),
        one_effect_and_one_answer(kind, "charged", How::Process),
        one_effect_and_one_answer(kind, "charged", How::Handler),
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_stalls_past_its_lease_and_the_one_that_takes_over_agree_on_postgres() {
    every_stall(Kind::Postgres).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_stalls_past_its_lease_and_the_one_that_takes_over_agree_on_mariadb() {
    every_stall(Kind::Mariadb).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_stalls_past_its_lease_and_the_one_that_takes_over_agree_on_sqlite() {
    every_stall(Kind::Sqlite).await;
}
