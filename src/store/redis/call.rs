//! One call as a whole: a connection, what is said over it, and what that says about it.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use redis::{Cmd, Value};

use super::{
    connection::Connection,
    link::{Lent, Link},
    origin::explain,
    refused,
    reply::Reply,
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

/// A call under its time limit.
pub(super) async fn call<T>(
    link: &Arc<Link>,
    what: &str,
    within: Duration,
    ask: impl AsyncFnOnce(&Connection) -> Result<T, Failure>,
) -> Result<T, StoreError> {
    let until = tokio::time::Instant::now() + within;
    let Ok(lent) = tokio::time::timeout_at(until, link.get()).await else {
        return Err(unreached(link, within));
    };
    let lent = lent?;
    let unanswered = Unanswered { link, lent: &lent, sent: Instant::now(), within };
    let asked = tokio::time::timeout_at(until, ask(&lent.connection)).await;
    std::mem::forget(unanswered);
    let Ok(asked) = asked else {
        let late = late(link, what, within);
        link.timed_out(&lent.connection, &late);
        return Err(late);
    };
    asked.map_err(|failure| judge(link, &lent.connection, what, failure))
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

/// Runs a script by its hash, and by its text where the server does not know it.
pub(super) async fn run_on(
    link: &Link,
    connection: &Connection,
    script: &'static Script,
    command: &Cmd,
) -> Result<Reply, Failure> {
    let mut answer = connection.send(command).await?;
    if refused::is_no_script(&answer) {
        answer = connection.send(&script.spelled_out(command)).await?;
    }
    read(link, connection, script, answer)
}

/// What a script answered.
pub(super) fn read(
    link: &Link,
    connection: &Connection,
    script: &'static Script,
    answer: Value,
) -> Result<Reply, Failure> {
    if let Value::ServerError(error) = answer {
        return Err(Failure::Server(error));
    }
    let reply = Reply::read(script.name(), answer)?;
    link.answered(connection, reply.now_ms);
    Ok(reply)
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
    sent: Instant,
    within: Duration,
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if self.sent.elapsed() >= LONG.min(self.within / 2) {
            self.link.timed_out(&self.lent.connection, &late(self.link, "a call", self.within));
        }
    }
}
