//! Looks after what this process has in the store: writes it again where the server may have lost it,
//! and sees that the canary lives.

use std::{sync::Arc, time::Duration};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use tokio::time::timeout;

use super::{
    Failure,
    call::Ask,
    command,
    guard::{Found, Guard},
    lane::Lane,
    refused,
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
/// Commands in one write.
const AT_ONCE: usize = 100;
/// A canary outlives any pause in which no process runs, and still expires.
const CANARY_FOR: Duration = Duration::from_secs(90 * 24 * 60 * 60);
/// What a canary's name ends with. No record's name does: those have 43 characters there.
const CANARY: &str = "canary";

/// Looks after the records, over a connection that has just been made or is quiet. `canaries` says whether
/// it is time to look at those that are known. An error is for the next call to find.
pub(super) async fn attend(lane: Lane<'_>, canaries: bool) {
    let guards = lane.link.known.guards();
    // First what was lost: somebody may be waiting to be granted what is another's.
    write_all(lane, &guards).await;
    for guard in guards.iter().filter(|guard| guard.is_due(canaries)) {
        if let Ok(true) = look(lane, guard).await {
            lane.link.known.write_again();
        }
    }
    write_all(lane, &guards).await;
}

async fn write_all(lane: Lane<'_>, guards: &[Arc<Guard>]) {
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
    lane: Lane<'_>,
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

/// Looks after the canary; whether records were lost.
async fn look(lane: Lane<'_>, guard: &Guard) -> Result<bool, Failure> {
    let known = guard.canary().unwrap_or_default();
    let there = canary(lane, guard, &known, &new_canary(), false).await?;
    let found = guard.found(&there);
    match found {
        Found::Lost => telemetry::records_lost(lane.link.address(), guard.prefix()),
        Found::Accepted => telemetry::loss_accepted(lane.link.address(), guard.prefix()),
        Found::Known | Found::StillLost => {}
    }
    Ok(found == Found::Lost)
}

/// Writes a canary that says that a loss is accepted.
pub(super) struct Accept<'a>(pub(super) &'a Guard);

impl Ask for Accept<'_> {
    type Answer = ();

    async fn ask(&self, lane: Lane<'_>) -> Result<(), Failure> {
        let accepted = format!("+{}", new_canary());
        canary(lane, self.0, "", &accepted, true).await?;
        self.0.accepted(accepted);
        telemetry::loss_accepted(lane.link.address(), self.0.prefix());
        Ok(())
    }
}

fn new_canary() -> String {
    URL_SAFE_NO_PAD.encode(ClaimToken::random().as_bytes()).replace('-', "_")
}

/// The canary that is there now.
async fn canary(
    lane: Lane<'_>,
    guard: &Guard,
    known: &str,
    new: &str,
    write: bool,
) -> Result<String, Failure> {
    let name = format!("{}{CANARY}", guard.prefix());
    let command = script::CANARY.on(&name, 4, 128).arg(known).arg(new);
    let command = command.number(command::ms(CANARY_FOR)).arg(if write { "1" } else { "" });
    Ok(in_time(lane, lane.run(&script::CANARY, &command)).await?.text()?)
}

/// Writes again what this process has there.
async fn write(lane: Lane<'_>, guard: &Guard) -> Result<(), Failure> {
    let (held, done) = guard.own.all();
    let named = |grant: &Grant| {
        let name = command::name(guard.prefix(), &grant.key);
        lane.link.known.owns(&name).then_some(name)
    };
    let held: Vec<_> = held.into_iter().filter_map(|grant| Some((named(&grant)?, grant))).collect();
    for some in held.chunks(AT_ONCE) {
        let renew = |name: &String, grant| command::renew(name, grant);
        let commands = some.iter().map(|(name, grant)| (grant.token, renew(name, grant)));
        let written = all(lane, &script::RENEW, commands).await?;
        for ((_, grant), written) in some.iter().zip(written) {
            told(guard, grant, written, true);
        }
    }
    let done: Vec<_> =
        done.into_iter().filter_map(|(grant, kept)| Some((named(&grant)?, grant, kept))).collect();
    for some in done.chunks(AT_ONCE) {
        let complete = |name: &String, grant, kept| command::complete(name, grant, kept);
        let commands =
            some.iter().map(|(name, grant, kept)| (grant.token, complete(name, grant, kept)));
        let written = all(lane, &script::COMPLETE, commands).await?;
        for ((_, grant, _), written) in some.iter().zip(written) {
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
async fn all(
    lane: Lane<'_>,
    script: &'static Script,
    commands: impl Iterator<Item = (ClaimToken, Command)>,
) -> Result<Vec<Option<Written>>, Failure> {
    let (owners, commands): (Vec<_>, Vec<_>) = commands.unzip();
    let answers = in_time(lane, lane.send_all(&commands)).await?;
    let mut written = Vec::with_capacity(answers.len());
    for ((command, answer), owner) in commands.iter().zip(answers).zip(owners) {
        // The server may be another one, which has never heard of the script.
        let reply = match refused::is_no_script(&answer) {
            true => in_time(lane, lane.run(script, command)).await,
            false => lane.read(script, answer),
        };
        written.push(match reply {
            Ok(reply) => Some(reply.written(owner)?),
            // One record alone may be refused: its slot has just been moved.
            Err(Failure::Server(error)) if !refused::is_read_only(&error) => None,
            Err(failure) => return Err(failure),
        });
    }
    Ok(written)
}
