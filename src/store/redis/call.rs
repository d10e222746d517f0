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
    fn ask(&self, lane: Lane<'_>) -> impl Future<Output = Result<Self::Answer, Failure>> + Send;
}

/// A script, run for one record.
pub(super) struct Run<'a> {
    pub(super) script: &'static Script,
    pub(super) command: &'a Command,
}

impl Ask for Run<'_> {
    type Answer = Reply;

    async fn ask(&self, lane: Lane<'_>) -> Result<Reply, Failure> {
        lane.run(self.script, self.command).await
    }
}

/// A call under its time limit, which counts from `since`: a moment ago. `asking` is for a slot that is being moved to this node.
pub(super) async fn call<A: Ask>(
    link: &Arc<Link>,
    what: &str,
    since: Instant,
    within: Duration,
    asking: bool,
    ask: &A,
) -> Result<A::Answer, Wrong> {
    let call = Call { what, within, until: since + within, asking };
    match link.ready() {
        Some(lent) if !ask.blocks() => call.over(link, &lent, since, ask).await,
        // In a box of its own: it is rare, and every call would be as large.
        _ => Box::pin(call.once_connected(link, ask)).await,
    }
}

#[derive(Clone, Copy)]
struct Call<'a> {
    what: &'a str,
    within: Duration,
    until: Instant,
    asking: bool,
}

impl Call<'_> {
    async fn once_connected<A: Ask>(self, link: &Arc<Link>, ask: &A) -> Result<A::Answer, Wrong> {
        let Self { what, within, until, .. } = self;
        let alone = match ask.blocks() {
            true => match timeout_at(until, link.side().alone(link)).await {
                Ok(alone) => Some(alone),
                Err(_) => return Err(late(link, what, within).into()),
            },
            false => None,
        };
        let link = alone.as_ref().map_or(link, |alone| &alone.link);
        match timeout_at(until, link.get()).await {
            Ok(lent) => self.over(link, &lent?, Instant::now(), ask).await,
            Err(_) => Err(unreached(link, within).into()),
        }
    }

    async fn over<A: Ask>(
        self,
        link: &Link,
        lent: &Lent<'_>,
        since: Instant,
        ask: &A,
    ) -> Result<A::Answer, Wrong> {
        let Self { what, within, until, asking } = self;
        let unanswered = Unanswered { link, lent, since, within };
        let lane = Lane::new(link, &lent.connection, since, asking);
        let asked = timeout_at(until, ask.ask(lane)).await;
        std::mem::forget(unanswered);
        let Ok(asked) = asked else {
            let late = late(link, what, within);
            link.timed_out(&lent.connection, &late);
            return Err(late.into());
        };
        asked.map_err(|failure| {
            #[cfg(feature = "redis-cluster")]
            let redirect = Redirect::of(&failure);
            Wrong {
                error: judge(link, &lent.connection, what, failure),
                #[cfg(feature = "redis-cluster")]
                redirect,
            }
        })
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
    let address = link.address();
    StoreError::new(
        StoreErrorKind::Unreachable,
        format!("no connection to Redis at {address} within {within:?}: is it there?"),
    )
}

fn late(link: &Link, what: &str, within: Duration) -> StoreError {
    let address = link.address();
    StoreError::new(
        StoreErrorKind::Timeout,
        format!("no answer from Redis at {address} to {what} within {within:?}"),
    )
}

/// A call on its way. Dropped, its caller has gone: after a long wait that is a time-out like any
/// other, or a limit of the caller's that is as short as ours would keep a dead connection for good.
struct Unanswered<'a> {
    link: &'a Link,
    lent: &'a Lent<'a>,
    since: Instant,
    within: Duration,
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if self.since.elapsed() >= LONG.min(self.within / 2) {
            self.link.timed_out(&self.lent.connection, &late(self.link, "a call", self.within));
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
