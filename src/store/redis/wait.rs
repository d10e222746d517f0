//! A claim that counts only when replicas have it.

use std::time::Duration;

use redis::Value;

use super::{Failure, command, lane::Lane, refused, reply::Reply, resp::Command, script};
use crate::store::{StoreError, StoreErrorKind};

/// How many replicas must have a claim before it counts, and how long that may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wait {
    pub(super) replicas: u32,
    pub(super) within: Duration,
}

impl Wait {
    /// Never longer than half of a call: what takes a whole one is taken for a dead connection.
    fn command(self, call_within: Duration) -> Command {
        let within = self.within.min(call_within / 2);
        Command::new("WAIT").number(self.replicas).number(command::ms(within))
    }

    /// Claims, and waits, in one trip.
    pub(super) async fn claim(
        self,
        lane: &Lane<'_>,
        claim: &Command,
        call_within: Duration,
    ) -> Result<Reply, Failure> {
        let wait = self.command(call_within);
        let [mut answer, mut had] = lane.send_then(claim, &wait).await?;
        if refused::is_no_script(&answer) {
            let claim = script::CLAIM.spelled_out(claim);
            [answer, had] = lane.send_then(&claim, &wait).await?;
        }
        let reply = lane.read_late(&script::CLAIM, answer)?;
        if reply.letter == b'A' {
            self.judge(had)?;
        }
        Ok(reply)
    }

    /// Waits for what was written before over this connection.
    pub(super) async fn after(self, lane: &Lane<'_>, call_within: Duration) -> Result<(), Failure> {
        let had = lane.send(&self.command(call_within)).await?;
        self.judge(had)
    }

    /// What came short is asked again with the same token, while there is time; then it is called off.
    fn judge(self, had: Value) -> Result<(), Failure> {
        let had = match had {
            Value::Int(had) => u32::try_from(had).unwrap_or_default(),
            Value::ServerError(error) => return Err(Failure::Server(error)),
            _ => 0,
        };
        if had >= self.replicas {
            return Ok(());
        }
        let message = format!(
            "{had} of {} replicas have the claim after {:?}, so that it does not count \
             (RedisStore::wait_for_replicas): look after the replicas",
            self.replicas, self.within
        );
        Err(StoreError::new(StoreErrorKind::Refused, message).into())
    }
}
