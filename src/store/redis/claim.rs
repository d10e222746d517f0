//! A claim over one connection: what is sent, and what is made of the answer.
//!
//! What most claims need stands in one small future; what few need is in boxes, since each would make
//! every claim as large.

use bytes::Bytes;
use redis::Value;
use tokio::time::Instant;

use super::{
    Failure, RedisStore,
    call::Ask,
    command::{self, Name},
    guard::{self, Gate},
    lane::Lane,
    refused,
    reply::{self, Answer, Reply},
    resp::Command,
    script,
};
use crate::store::{Alias, Claim, Claimed, StoreError, StoreErrorKind};

/// A record that was completed changes no more, so that it can be missed only at its expiry.
const FETCHES_AT_MOST: usize = 3;

/// A claim, from when it was asked for.
#[derive(Clone, Copy)]
pub(super) struct Claiming<'a> {
    pub(super) store: &'a RedisStore,
    pub(super) claim: &'a Claim,
    pub(super) asked: Instant,
}

impl Ask for Claiming<'_> {
    type Answer = Claimed;

    fn blocks(&self) -> bool {
        self.store.wait.is_some() && !self.claim.is_look()
    }

    async fn ask(&self, lane: &Lane<'_>) -> Result<Claimed, Failure> {
        let gate = self.store.guard.gate(lane.link.known.changed(), self.claim);
        if gate == Gate::Open {
            self.send(lane).await
        } else {
            Box::pin(self.through(gate, lane)).await
        }
    }
}

impl Claiming<'_> {
    /// As far as the store may grant just now.
    async fn through(&self, gate: Gate, lane: &Lane<'_>) -> Result<Claimed, Failure> {
        let narrowed = gate.narrowed(self.claim);
        let claiming = Claiming { claim: narrowed.as_ref().unwrap_or(self.claim), ..*self };
        let claimed = claiming.send(lane).await?;
        Ok(gate.judge(claimed).map_err(|error| lane.link.known.explained(error))?)
    }

    async fn send(&self, lane: &Lane<'_>) -> Result<Claimed, Failure> {
        let (not_after, trusted) = (self.not_after(lane)?, self.trusted(lane));
        let command = move || command::claim(self.name(), self.claim, not_after, &trusted);
        let times = {
            let answer = match self.claim.alias.is_none() && !self.blocks() {
                true => self.told(lane, lane.run(&script::CLAIM, &command).await?)?,
                false => Box::pin(self.with_alias_and_replicas(lane, command())).await?,
            };
            match answer {
                Answer::Claimed(claimed) => {
                    self.holds(&claimed);
                    return Ok(claimed);
                }
                Answer::Untrusted => return Err(guard::changed(self.claim.lease / 3).into()),
                Answer::Fetch(times) => times,
            }
        };
        let claimed = Box::pin(self.fetch(lane, command(), times)).await?;
        self.holds(&claimed);
        Ok(claimed)
    }

    fn name(&self) -> Name<'_> {
        self.store.name(&self.claim.key)
    }

    fn holds(&self, claimed: &Claimed) {
        if let Claimed::Granted(grant) = claimed {
            self.store.guard.own.holds(grant);
        }
    }

    /// The deadline, by the server's clock.
    fn not_after(&self, lane: &Lane<'_>) -> Result<u64, StoreError> {
        if self.claim.is_look() {
            return Ok(command::LOOK);
        }
        // What the connection took to come about is time that the claim has had.
        let passed = lane.since.saturating_duration_since(self.asked);
        let left = self.claim.within.checked_sub(passed).ok_or_else(|| {
            let message = "the time of the claim was over before Redis was reached";
            StoreError::new(StoreErrorKind::Timeout, message)
        })?;
        Ok(lane.server_ms() + command::ms(left))
    }

    /// Which server may grant it.
    fn trusted(&self, lane: &Lane<'_>) -> String {
        match self.store.behind_proxy {
            true => lane.link.known.trusted().unwrap_or("*".into()),
            false => String::new(),
        }
    }

    /// What a claim was answered, and by whom.
    fn told(&self, lane: &Lane<'_>, reply: Reply) -> Result<Answer, StoreError> {
        let (identity, answer) = reply.told(self.claim, lane.server_ms())?;
        if self.store.behind_proxy
            && !identity.is_empty()
            && let Ok(identity) = std::str::from_utf8(&identity)
        {
            lane.link.known.met(identity);
        }
        Ok(answer)
    }

    async fn with_alias_and_replicas(
        &self,
        lane: &Lane<'_>,
        command: Command,
    ) -> Result<Answer, Failure> {
        let wait = self.store.wait.filter(|_| !self.claim.is_look());
        let within = self.store.call_within;
        let Some(alias) = &self.claim.alias else {
            let reply = match wait {
                Some(wait) => wait.claim(lane, &command, within).await?,
                None => lane.run(&script::CLAIM, || command.clone()).await?,
            };
            return Ok(self.told(lane, reply)?);
        };
        let answer = self.bind_and_claim(lane, alias, &command).await?;
        if let (Some(wait), Answer::Claimed(Claimed::Granted(_))) = (wait, &answer) {
            wait.after(lane, within).await?;
        }
        Ok(answer)
    }

    /// `bind`, then `claim`, in one write. Each again with its text if the server does not know it, and
    /// that one alone: a claim that was granted and comes again might come too late, and be answered
    /// as if it never was.
    async fn bind_and_claim(
        &self,
        lane: &Lane<'_>,
        alias: &Alias,
        command: &Command,
    ) -> Result<Answer, Failure> {
        let claim = self.claim;
        let (first, bind) = command::bind(self.store.name(&alias.key), claim, alias);
        let [mut bound, mut claimed] = both(lane.send_all(&[&bind, command]).await?)?;
        match (refused::is_no_script(&bound), refused::is_no_script(&claimed)) {
            (false, false) => {}
            (true, true) => {
                let (bind, claim) = (first.spelled_out(&bind), script::CLAIM.spelled_out(command));
                [bound, claimed] = both(lane.send_all(&[&bind, &claim]).await?)?;
            }
            (true, false) => bound = lane.send(&first.spelled_out(&bind)).await?,
            (false, true) => claimed = lane.send(&script::CLAIM.spelled_out(command)).await?,
        }
        let bound = lane.read(first, bound)?;
        let not_bound =
            if claim.is_look() { bound.seen_by_look(claim)? } else { bound.not_bound()? };
        match not_bound {
            Some(taken) => Ok(Answer::Claimed(taken)),
            None => Ok(self.told(lane, lane.read(&script::CLAIM, claimed)?)?),
        }
    }

    /// Fetches an answer that is too long to come through a script; where it is not there any more, the
    /// claim is made again.
    async fn fetch(
        &self,
        lane: &Lane<'_>,
        command: Command,
        mut times: Bytes,
    ) -> Result<Claimed, Failure> {
        for _ in 0..FETCHES_AT_MOST {
            let record = lane.send(&command::whole(self.name())).await?;
            if let Value::ServerError(error) = record {
                return Err(Failure::Server(error));
            }
            if let Some(completed) = Reply::fetched(record, &times, lane.server_ms()) {
                return Ok(Claimed::Completed(completed));
            }
            match self.told(lane, lane.run(&script::CLAIM, || command.clone()).await?)? {
                Answer::Claimed(claimed) => return Ok(claimed),
                Answer::Untrusted => return Err(guard::changed(self.claim.lease / 3).into()),
                Answer::Fetch(others) => times = others,
            }
        }
        Err(reply::garbled("claim").into())
    }
}

fn both(answers: Vec<Value>) -> Result<[Value; 2], StoreError> {
    answers.try_into().map_err(|_| reply::garbled("bind and claim"))
}
