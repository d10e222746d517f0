//! Looks after what this process has in the store: writes it again where the server may have lost it,
//! and sees that the canary lives.

use std::{sync::Arc, time::Duration};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use tokio::time::{Instant, timeout};

#[cfg(feature = "redis-cluster")]
use super::call::{Call, Run};
use super::{
    Failure,
    call::Ask,
    command::{self, Name},
    connection::Connection,
    guard::{Found, Guard},
    info::Info,
    lane::Lane,
    link::Link,
    origin::explain,
    refused,
    reply::Reply,
    resp::Command,
    script::{self, Script},
};
use crate::{
    record::{ClaimToken, Grant},
    store::{StoreError, StoreErrorKind, Written},
    telemetry,
};

/// How long one write may take.
const WITHIN: Duration = Duration::from_secs(1);
/// How long all that comes before a connection is used may take.
const FIRST_WITHIN: Duration = Duration::from_millis(500);
/// Commands in one write.
const AT_ONCE: usize = 100;
/// A canary outlives any pause in which no process runs, and still expires.
const CANARY_FOR: Duration = Duration::from_secs(90 * 24 * 60 * 60);
/// What follows the prefix in a canary's name. In no record's name does it: those have 43 characters there.
const CANARY: &str = "canary";

/// A connection has just been made, and nobody else has it yet.
pub(super) async fn first(link: &Link, connection: &Connection) {
    link.known.greeted(connection.info());
    // A node of a cluster may have come after another one that it knows nothing of. Nothing is granted
    // before its canary was looked at; looked at here it keeps nobody waiting.
    if link.known.is_in_cluster() && !link.is_side() {
        let _ = timeout(
            FIRST_WITHIN,
            attend(&Lane::new(link, connection, Instant::now(), false), true),
        )
        .await;
    }
}

/// Looks after the records, over a connection that has just been made or is quiet. `canaries` says whether
/// it is time to look at those that are known. An error is for the next call to find.
pub(super) async fn attend(lane: &Lane<'_>, canaries: bool) {
    let known = &lane.link.known;
    let guards = known.guards();
    // First what was lost: somebody may be waiting to be granted what is another's.
    write_all(lane, &guards).await;
    let due = canaries || !known.has_taken_a_write();
    let mut all_seen = true;
    for guard in &guards {
        let Some(name) = known.canary(guard).filter(|name| guard.is_due(name, due)) else {
            continue;
        };
        match look(lane, guard, &name).await {
            Ok(true) => known.lost(),
            Ok(false) => {}
            Err(failure) => {
                all_seen = false;
                known.takes_none(&explain(lane.link.address(), "its canary", failure));
            }
        }
    }
    if all_seen {
        known.was_seen();
    }
    write_all(lane, &guards).await;
    #[cfg(feature = "redis-cluster")]
    if canaries && let Some(cluster) = known.cluster() {
        cluster.keep_all();
    }
}

/// Asks the server what it and its successor may be known by.
pub(super) async fn ask_for_history(lane: &Lane<'_>) {
    if let Ok(told) = in_time(lane, lane.send(&Info::command())).await
        && let Some(info) = Info::read(told)
    {
        lane.link.known.goes_by(&info);
    }
}

async fn write_all(lane: &Lane<'_>, guards: &[Arc<Guard>]) {
    if !lane.link.known.is_to_be_written() {
        return;
    }
    for guard in guards {
        if write(lane, guard).await.is_err() {
            // Begun again at the next look.
            return;
        }
    }
    lane.link.known.was_written();
}

/// An answer that is waited for a second long.
async fn in_time<T>(
    lane: &Lane<'_>,
    answer: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    match timeout(WITHIN, answer).await {
        Ok(answer) => answer,
        Err(_) => {
            let address = lane.link.address();
            let message = format!("no answer from Redis at {address} within {WITHIN:?}");
            let error = StoreError::new(StoreErrorKind::Timeout, message);
            lane.link.timed_out(lane.connection, &error);
            Err(error.into())
        }
    }
}

/// Looks after the canary of this name; whether records were lost.
async fn look(lane: &Lane<'_>, guard: &Guard, name: &str) -> Result<bool, Failure> {
    let known = &lane.link.known;
    let (look, changes) = (Look { guard, name }, known.changes());
    let there = match in_time(lane, look.ask(lane)).await {
        // Its slot has been moved, or is being moved.
        #[cfg(feature = "redis-cluster")]
        Err(Failure::Server(error)) if refused::is_elsewhere(&error) => {
            let Some(cluster) = known.cluster() else { return Ok(false) };
            if !is_loading(lane).await? {
                known.takes_writes(changes);
            }
            cluster.call(&Call::new("canary", WITHIN), name.as_bytes(), &look).await?
        }
        // Somebody else has a key of that name: nothing can be told by it, and claims go on.
        Err(Failure::Server(error)) if refused::is_wrong_type(&error) => {
            known.takes_writes(changes);
            return Ok(false);
        }
        there => {
            let there = there?;
            known.takes_writes(changes);
            there
        }
    };
    let found = guard.found(name, &there);
    match found {
        Found::Lost => telemetry::records_lost(lane.link.address(), guard.prefix()),
        Found::Accepted => telemetry::loss_accepted(lane.link.address(), guard.prefix()),
        Found::Known | Found::StillLost => {}
    }
    Ok(found == Found::Lost)
}

/// A node says that it is another's slot before it says that it is loading its data.
#[cfg(feature = "redis-cluster")]
async fn is_loading(lane: &Lane<'_>) -> Result<bool, Failure> {
    let told = in_time(lane, lane.send(&Info::command())).await?;
    Ok(Info::read(told).is_some_and(|info| info.get("loading") == Some("1")))
}

/// Asks for the canary that is there now, and writes one where none is known.
struct Look<'a> {
    guard: &'a Guard,
    name: &'a str,
}

impl Ask for Look<'_> {
    type Answer = String;

    async fn ask(&self, lane: &Lane<'_>) -> Result<String, Failure> {
        let known = self.guard.canary(self.name).unwrap_or_default();
        canary(lane, self.name, &known, &new_canary(), false).await
    }
}

/// Writes a canary that says that a loss is accepted.
pub(super) struct Accept<'a> {
    pub(super) guard: &'a Guard,
    pub(super) name: &'a str,
}

impl Ask for Accept<'_> {
    type Answer = ();

    async fn ask(&self, lane: &Lane<'_>) -> Result<(), Failure> {
        let accepted = format!("+{}", new_canary());
        canary(lane, self.name, "", &accepted, true).await?;
        self.guard.accepted(self.name, &accepted);
        telemetry::loss_accepted(lane.link.address(), self.guard.prefix());
        Ok(())
    }
}

/// The name of a canary. One server has the first; in a cluster each node has one that is in a slot of
/// its own.
pub(super) fn canary_name(prefix: &str, nth: u32) -> String {
    match nth {
        0 => format!("{prefix}{CANARY}"),
        nth => format!("{prefix}{CANARY}.{nth}"),
    }
}

fn new_canary() -> String {
    URL_SAFE_NO_PAD.encode(ClaimToken::random().as_bytes()).replace('-', "_")
}

/// The canary that is there now.
async fn canary(
    lane: &Lane<'_>,
    name: &str,
    known: &str,
    new: &str,
    write: bool,
) -> Result<String, Failure> {
    let command = || {
        let command = script::CANARY.begin(5, 128).arg(name).arg(known).arg(new);
        command.number(command::ms(CANARY_FOR)).arg(if write { "1" } else { "" })
    };
    lane.run(&script::CANARY, command).await?.text().map_err(Failure::from)
}

/// Writes again what this process has there.
async fn write(lane: &Lane<'_>, guard: &Guard) -> Result<(), Failure> {
    let (held, done) = guard.own.all();
    let owns = |grant: &Grant| lane.link.known.owns(&Vec::from(guard.name(&grant.key)));
    let held: Vec<_> = held.into_iter().filter(owns).collect();
    for some in held.chunks(AT_ONCE) {
        let commands = some.iter().map(|grant| {
            let name = guard.name(&grant.key);
            (grant.token, name, command::renew(name, grant))
        });
        let written = all(lane, &script::RENEW, commands).await?;
        for (grant, written) in some.iter().zip(written) {
            told(guard, grant, written, true);
        }
    }
    let done: Vec<_> = done.into_iter().filter(|(grant, _)| owns(grant)).collect();
    for some in done.chunks(AT_ONCE) {
        let commands = some.iter().map(|(grant, kept)| {
            let name = guard.name(&grant.key);
            (grant.token, name, command::complete(name, grant, kept))
        });
        let written = all(lane, &script::COMPLETE, commands).await?;
        for ((grant, _), written) in some.iter().zip(written) {
            told(guard, grant, written, false);
        }
    }
    Ok(())
}

/// What is said about one that was written again. What is another's now is for its owner to find out.
fn told(guard: &Guard, grant: &Grant, written: Option<Written>, held: bool) {
    match written {
        Some(Written::Restored) => {
            telemetry::data_lost(grant, "writing again what the server may have lost");
        }
        Some(written) if held && !written.is_stored() => guard.own.ended(&grant.token),
        _ => {}
    }
}

/// Runs one script on many records in one write; nothing for those that the server refused.
async fn all<'a>(
    lane: &Lane<'_>,
    script: &'static Script,
    commands: impl Iterator<Item = (ClaimToken, Name<'a>, Command)>,
) -> Result<Vec<Option<Written>>, Failure> {
    let (whose, commands): (Vec<_>, Vec<_>) =
        commands.map(|(owner, name, command)| ((owner, name), command)).unzip();
    let answers = in_time(lane, lane.send_all(&commands)).await?;
    let mut written = Vec::with_capacity(answers.len());
    for ((command, answer), (owner, name)) in commands.iter().zip(answers).zip(whose) {
        // The server may be another one, which has never heard of the script.
        let reply = match refused::is_no_script(&answer) {
            true => in_time(lane, lane.run(script, || command.clone())).await,
            false => lane.read(script, answer),
        };
        written.push(match reply {
            Ok(reply) => Some(reply.written(owner)?),
            // One record alone may be refused: its slot has been moved, or is being moved.
            Err(Failure::Server(error)) if !refused::is_read_only(&error) => {
                match elsewhere(lane, script, name, command, &error).await {
                    Some(reply) => Some(reply.written(owner)?),
                    None => None,
                }
            }
            Err(failure) => return Err(failure),
        });
    }
    Ok(written)
}

/// Runs the script where the record's slot is now, if that was the reason why it was refused.
async fn elsewhere(
    lane: &Lane<'_>,
    script: &'static Script,
    name: Name<'_>,
    command: &Command,
    error: &redis::ServerError,
) -> Option<Reply> {
    #[cfg(feature = "redis-cluster")]
    if refused::is_elsewhere(error) {
        let run = Run { script, command: || command.clone() };
        let call = Call::new(script.name(), WITHIN);
        return lane.link.known.cluster()?.call(&call, &Vec::from(name), &run).await.ok();
    }
    // Only in a cluster there is another place.
    let _ = (lane, script, name, command, error);
    None
}
