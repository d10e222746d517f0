//! What one call has of a connection: commands and scripts over it, each allowed to a slot that is being
//! moved if the call was sent there.

use std::borrow::Borrow;

use redis::Value;
use tokio::time::Instant;

use super::{
    Failure,
    connection::{Connection, Sent},
    link::Link,
    refused,
    reply::Reply,
    resp::Command,
    script::Script,
};

/// Says that the sender knows that a slot is being moved.
fn asking() -> Command {
    Command::new("ASKING")
}

/// A connection, lent to one call.
#[derive(Clone, Copy)]
pub(super) struct Lane<'a> {
    pub(super) link: &'a Link,
    pub(super) connection: &'a Connection,
    /// When it was lent.
    pub(super) since: Instant,
    /// The slot is being moved to this node: each command must say that it knows.
    asking: bool,
}

impl<'a> Lane<'a> {
    pub(super) fn new(
        link: &'a Link,
        connection: &'a Connection,
        since: Instant,
        asking: bool,
    ) -> Self {
        Self { link, connection, since, asking }
    }

    /// The server's time in ms when it was lent, or a little less.
    pub(super) fn server_ms(&self) -> u64 {
        self.connection.server_ms(self.since)
    }

    /// Sends one command, of which nothing is kept.
    pub(super) fn send(&self, command: &Command) -> Sent<'a> {
        let connection = self.connection;
        if !self.asking {
            return connection.send(command);
        }
        let commands = [asking(), command.clone()];
        Sent::Boxed(Box::pin(async move { connection.send_all(&commands).await }))
    }

    /// Sends one command and what is to be asked after it, in one write.
    pub(super) async fn send_then(
        &self,
        command: &Command,
        then: &Command,
    ) -> Result<[Value; 2], Failure> {
        let asking = asking();
        let commands = [&asking, command, then];
        let commands = if self.asking { &commands[..] } else { &commands[1..] };
        let mut answers = self.connection.send_all(commands).await?;
        let then = answers.pop().unwrap_or_default();
        Ok([answers.pop().unwrap_or_default(), then])
    }

    /// Sends several commands in one write and reads all answers.
    pub(super) fn send_all<C: Borrow<Command> + Sync>(
        &self,
        commands: &[C],
    ) -> impl Future<Output = Result<Vec<Value>, Failure>> {
        self.connection.send_all(commands)
    }

    /// Runs a script by its hash, and by its text where the server does not know it. The command is made
    /// anew then: while an answer is waited for, nothing of it is kept.
    #[expect(clippy::manual_async_fn, reason = "an async fn would hold its arguments twice")]
    pub(super) fn run(
        &self,
        script: &'static Script,
        command: impl Fn() -> Command,
    ) -> impl Future<Output = Result<Reply, Failure>> {
        async move {
            let sent = self.send(&command());
            let mut answer = sent.await?;
            if refused::is_no_script(&answer) {
                let sent = self.send(&script.spelled_out(&command()));
                answer = sent.await?;
            }
            self.read(script, answer)
        }
    }

    /// What a script answered that something was waited for after: the time it tells is long ago, and would
    /// make the server's clock seem to be behind.
    pub(super) fn read_late(
        &self,
        script: &'static Script,
        answer: Value,
    ) -> Result<Reply, Failure> {
        if let Value::ServerError(error) = answer {
            return Err(Failure::Server(error));
        }
        let reply = Reply::read(script.name(), answer)?;
        self.link.answered(self.connection, 0);
        Ok(reply)
    }

    /// What a script answered.
    pub(super) fn read(&self, script: &'static Script, answer: Value) -> Result<Reply, Failure> {
        if let Value::ServerError(error) = answer {
            return Err(Failure::Server(error));
        }
        let reply = Reply::read(script.name(), answer)?;
        self.link.answered(self.connection, reply.now_ms);
        Ok(reply)
    }
}
