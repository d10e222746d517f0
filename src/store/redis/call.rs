//! One call as a whole: a connection, what is said over it, and what that says about it.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, timeout_at};

#[cfg(feature = "redis-cluster")]
use super::origin::Place;
use super::{
    connection::Connection,
    lane::Lane,
    link::{Lent, Link},
    origin::explain,
    refused,
    reply::Reply,
    resp::Command,
    script::Script,
    session::Broken,
};
use crate::store::{StoreError, StoreErrorKind};

/// A caller that went away has waited for long if it waited for this, or for half of what a call may
/// take: a limit of its own that is a little shorter than ours.
const LONG: Duration = Duration::from_millis(200);

/// Why a call came to nothing, before it is known what that means for the connection.
pub(super) enum Failure {
    Store(StoreError),
    Server(redis::ServerError),
    Broken(Broken),
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<Broken> for Failure {
    fn from(broken: Broken) -> Self {
        Self::Broken(broken)
    }
}

/// What came of a call that came to nothing.
pub(super) struct Wrong {
    pub(super) error: StoreError,
    /// The node has done nothing, and says who would.
    #[cfg(feature = "redis-cluster")]
    pub(super) redirect: Option<Redirect>,
}

/// Where a node of a cluster sends what is not its own.
#[cfg(feature = "redis-cluster")]
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Redirect {
    /// The slot is that node's.
    Moved(Place),
    /// The slot is being moved to that node, and this key is there already, or nowhere.
    Ask(Place),
}

#[cfg(feature = "redis-cluster")]
impl Redirect {
    /// Of `MOVED 3999 host:port` and `ASK 3999 host:port`.
    fn of(failure: &Failure) -> Option<Self> {
        let Failure::Server(error) = failure else { return None };
        let mut words = error.details()?.split(' ');
        let (host, port) = words.nth(1)?.rsplit_once(':')?;
        let place = Place::Tcp(host.to_owned(), port.parse().ok()?);
        match error.code() {
            "MOVED" => Some(Self::Moved(place)),
            "ASK" => Some(Self::Ask(place)),
            _ => None,
        }
    }
}

impl From<StoreError> for Wrong {
    fn from(error: StoreError) -> Self {
        Self {
            error,
            #[cfg(feature = "redis-cluster")]
            redirect: None,
        }
    }
}

/// What is said in a call. In a cluster it may be said to one node after another.
pub(super) trait Ask: Sync {
    /// What is made of the answers.
    type Answer: Send;

    /// Whether it holds up whatever comes behind it, and needs a connection for itself.
    fn blocks(&self) -> bool {
        false
    }

    /// Says it over this connection.
    fn ask(&self, lane: &Lane<'_>) -> impl Future<Output = Result<Self::Answer, Failure>> + Send;
}

/// A script, run for one record.
pub(super) struct Run<C> {
    pub(super) script: &'static Script,
    pub(super) command: C,
}

impl<C: Fn() -> Command + Sync> Ask for Run<C> {
    type Answer = Reply;

    async fn ask(&self, lane: &Lane<'_>) -> Result<Reply, Failure> {
        lane.run(self.script, &self.command).await
    }
}

/// A call, which has a time limit.
#[derive(Clone, Copy)]
pub(super) struct Call<'a> {
    /// What it is called where it comes to nothing.
    what: &'a str,
    /// When it was asked for.
    pub(super) since: Instant,
    within: Duration,
    /// It is sent where its slot is being moved to.
    asking: bool,
}

impl<'a> Call<'a> {
    /// A call that is asked for now.
    pub(super) fn new(what: &'a str, within: Duration) -> Self {
        Self { what, since: Instant::now(), within, asking: false }
    }

    /// The same to another node, from now on for so long.
    #[cfg(feature = "redis-cluster")]
    pub(super) fn again(&self, within: Duration, asking: bool) -> Self {
        Self { within, asking, ..Self::new(self.what, within) }
    }

    /// When its time is over.
    pub(super) fn until(&self) -> Instant {
        self.since + self.within
    }

    /// Makes it.
    pub(super) async fn make<A: Ask>(&self, link: &Arc<Link>, ask: &A) -> Result<A::Answer, Wrong> {
        match &link.ready().filter(|_| !ask.blocks()) {
            Some(lent) => self.over(&self.lane(link, lent, self.since), ask).await,
            // In a box of its own: it is rare, and every call would be as large.
            None => Box::pin(self.once_connected(link, ask)).await,
        }
    }

    async fn once_connected<A: Ask>(&self, link: &Arc<Link>, ask: &A) -> Result<A::Answer, Wrong> {
        let lent = self.lent(link).await?;
        if !ask.blocks() {
            return self.over(&self.lane(link, &lent, Instant::now()), ask).await;
        }
        // Over the shared connection the records are looked after: where there is none, nothing would be
        // granted that a server may have lost.
        drop(lent);
        let Ok(alone) = timeout_at(self.until(), link.side().alone(link)).await else {
            return Err(self.late(link).into());
        };
        let lent = self.lent(&alone.link).await?;
        self.over(&self.lane(&alone.link, &lent, Instant::now()), ask).await
    }

    async fn lent<'l>(&self, link: &'l Arc<Link>) -> Result<Lent<'l>, StoreError> {
        let lent = timeout_at(self.until(), link.get()).await;
        lent.unwrap_or_else(|_| Err(unreached(link, self.within)))
    }

    /// A connection, lent to it at this time.
    fn lane<'l>(&self, link: &'l Link, lent: &'l Lent<'_>, since: Instant) -> Lane<'l> {
        Lane::new(link, &lent.connection, since, self.asking)
    }

    /// Over this connection.
    async fn over<A: Ask>(&self, lane: &Lane<'_>, ask: &A) -> Result<A::Answer, Wrong> {
        let unanswered = Unanswered { call: self, lane };
        let asked = timeout_at(self.until(), ask.ask(lane)).await;
        let (call, Lane { link, connection, .. }) = (unanswered.call, unanswered.lane);
        std::mem::forget(unanswered);
        let Ok(asked) = asked else {
            let late = call.late(link);
            link.timed_out(connection, &late);
            return Err(late.into());
        };
        asked.map_err(|failure| {
            #[cfg(feature = "redis-cluster")]
            let redirect = Redirect::of(&failure);
            Wrong {
                error: judge(link, connection, call.what, failure),
                #[cfg(feature = "redis-cluster")]
                redirect,
            }
        })
    }

    fn late(&self, link: &Link) -> StoreError {
        let (address, Self { what, within, .. }) = (link.address(), self);
        StoreError::new(
            StoreErrorKind::Timeout,
            format!("no answer from Redis at {address} to {what} within {within:?}"),
        )
    }
}

/// What a failure means for the connection.
fn judge(link: &Link, connection: &Connection, what: &str, failure: Failure) -> StoreError {
    let read_only = matches!(&failure, Failure::Server(error) if refused::is_read_only(error));
    let answered = matches!(failure, Failure::Server(_));
    let error = explain(link.address(), what, failure);
    if read_only {
        link.read_only(connection, &error);
    } else if answered {
        link.was_refused(connection);
    } else if !error.is_refused() && !error.is_suspended() {
        // It broke; or its replies do not fit what was asked: they may be out of step, and would stay so.
        link.broken(connection, &error);
    }
    error
}

pub(super) fn unreached(link: &Link, within: Duration) -> StoreError {
    let (address, doubt) = (link.address(), link.origin.doubt());
    StoreError::new(
        StoreErrorKind::Unreachable,
        format!("no connection to Redis at {address} within {within:?}: {doubt}"),
    )
}

/// A call on its way. Dropped, its caller has gone: after a long wait that is a time-out like any
/// other, or a limit of the caller's that is as short as ours would keep a dead connection for good.
struct Unanswered<'a> {
    call: &'a Call<'a>,
    lane: &'a Lane<'a>,
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        let Self { call, lane } = self;
        if lane.since.elapsed() >= LONG.min(call.within / 2) {
            lane.link.timed_out(lane.connection, &call.late(lane.link));
        }
    }
}

#[cfg(all(test, feature = "redis-cluster"))]
mod tests {
    use super::*;

    fn said(code: &str, detail: &str) -> Option<Redirect> {
        let error = redis::make_extension_error(code.to_owned(), Some(detail.to_owned()));
        let (_, error) = error.into_server_errors().unwrap()[0].clone();
        Redirect::of(&Failure::Server(error))
    }

    #[test]
    fn a_redirection_names_a_node_and_anything_else_is_none() {
        let place = |host: &str| Place::Tcp(host.into(), 6381);
        assert_eq!(said("MOVED", "3999 127.0.0.1:6381"), Some(Redirect::Moved(place("127.0.0.1"))));
        assert_eq!(said("ASK", "3999 fe80::1:6381"), Some(Redirect::Ask(place("fe80::1"))));
        assert_eq!(said("MOVED", "3999 :6381"), Some(Redirect::Moved(place(""))));
        for (code, detail) in
            [("MOVED", "3999"), ("MOVED", "3999 host"), ("MOVED", "3999 host:x"), ("ERR", "1 h:2")]
        {
            assert_eq!(said(code, detail), None, "{code} {detail}");
        }
    }
}
