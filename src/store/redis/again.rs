//! Looks after what this process has in the store: writes it again where the server may have lost it,
//! and sees that the canary lives.

use std::time::Duration;

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use redis::{Pipeline, Value};
use tokio::time::timeout;

use super::{
    call::{Failure, read, run_on},
    command,
    connection::Connection,
    guard::{Found, Guard},
    link::Link,
    reply::Reply,
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

/// Looks after the records of one prefix, over a connection that has just been made or is quiet.
/// An error is for the next call to find.
pub(super) async fn attend(link: &Link, connection: &Connection, guard: &Guard) {
    if guard.is_to_be_written() && write(link, connection, guard).await.is_err() {
        return;
    }
    if let Ok(true) = look(link, connection, guard).await {
        let _ = write(link, connection, guard).await;
    }
}

/// An answer that is waited for a second long.
async fn in_time<T>(
    link: &Link,
    connection: &Connection,
    answer: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    match timeout(WITHIN, answer).await {
        Ok(answer) => answer,
        Err(_) => {
            let message = format!("no answer from Redis at {} within {WITHIN:?}", link.address());
            let error = StoreError::new(StoreErrorKind::Timeout, message);
            link.timed_out(connection, &error);
            Err(error.into())
        }
    }
}

/// Looks after the canary; whether records were lost.
async fn look(link: &Link, connection: &Connection, guard: &Guard) -> Result<bool, Failure> {
    let known = guard.canary().unwrap_or_default();
    let there = canary(link, connection, guard, &known, &new_canary(), false).await?;
    let found = guard.found(&there);
    match found {
        Found::Lost => telemetry::records_lost(link.address(), guard.prefix()),
        Found::Accepted => telemetry::loss_accepted(link.address(), guard.prefix()),
        Found::Known | Found::StillLost => {}
    }
    Ok(found == Found::Lost)
}

/// Writes a canary that says that a loss is accepted.
pub(super) async fn accept(
    link: &Link,
    connection: &Connection,
    guard: &Guard,
) -> Result<(), Failure> {
    let accepted = format!("+{}", new_canary());
    canary(link, connection, guard, "", &accepted, true).await?;
    guard.accepted(accepted);
    telemetry::loss_accepted(link.address(), guard.prefix());
    Ok(())
}

fn new_canary() -> String {
    URL_SAFE_NO_PAD.encode(ClaimToken::random().as_bytes()).replace('-', "_")
}

/// The canary that is there now.
async fn canary(
    link: &Link,
    connection: &Connection,
    guard: &Guard,
    known: &str,
    new: &str,
    write: bool,
) -> Result<String, Failure> {
    let name = format!("{}{CANARY}", guard.prefix());
    let mut command = script::CANARY.on(&name, 4, 128);
    command.arg(known).arg(new).arg(command::ms(CANARY_FOR)).arg(if write { "1" } else { "" });
    let reply = run_on(link, connection, &script::CANARY, &command);
    Ok(in_time(link, connection, reply).await?.text()?)
}

/// Writes again what this process has.
async fn write(link: &Link, connection: &Connection, guard: &Guard) -> Result<(), Failure> {
    let (held, done) = guard.own.all();
    let name = |grant: &Grant| command::name(guard.prefix(), &grant.key);
    for some in held.chunks(AT_ONCE) {
        let commands = some.iter().map(|grant| (grant.token, command::renew(&name(grant), grant)));
        let written = all(link, connection, &script::RENEW, commands).await?;
        for (grant, written) in some.iter().zip(written) {
            told(guard, grant, written?, true);
        }
    }
    for some in done.chunks(AT_ONCE) {
        let complete = |grant: &Grant, kept| command::complete(&name(grant), grant, kept);
        let commands = some.iter().map(|(grant, kept)| (grant.token, complete(grant, kept)));
        let written = all(link, connection, &script::COMPLETE, commands).await?;
        for ((grant, _), written) in some.iter().zip(written) {
            told(guard, grant, written?, false);
        }
    }
    guard.was_written();
    Ok(())
}

/// What is said about one that was written again. What is another's now is for its owner to find out.
fn told(guard: &Guard, grant: &Grant, written: Written, held: bool) {
    if written == Written::Restored {
        telemetry::data_lost(grant, "writing again what the server may have lost");
    }
    if held && !written.is_stored() {
        guard.own.ended(&grant.token);
    }
}

/// Runs one script on many records in one write.
async fn all(
    link: &Link,
    connection: &Connection,
    script: &'static Script,
    commands: impl Iterator<Item = (ClaimToken, redis::Cmd)>,
) -> Result<Vec<Result<Written, StoreError>>, Failure> {
    let mut pipeline = Pipeline::new();
    let mut owners = Vec::new();
    for (owner, command) in commands {
        owners.push(owner);
        pipeline.add_command(command);
    }
    let answers = in_time(link, connection, connection.send_all(&pipeline)).await?;
    let mut written = Vec::with_capacity(answers.len());
    for ((command, answer), owner) in pipeline.cmd_iter().zip(answers).zip(owners) {
        written.push(one(link, connection, script, command, answer).await?.written(owner));
    }
    Ok(written)
}

async fn one(
    link: &Link,
    connection: &Connection,
    script: &'static Script,
    command: &redis::Cmd,
    answer: Value,
) -> Result<Reply, Failure> {
    // The server may be another one, which has never heard of the script.
    if super::refused::is_no_script(&answer) {
        return in_time(link, connection, run_on(link, connection, script, command)).await;
    }
    read(link, connection, script, answer)
}
