//! Each transition of the contract: its command, the connection it goes over, what is remembered of it.

use std::time::Instant;

use redis::Value;

use super::{
    Failure, RedisStore,
    call::{Ask, Run, call},
    command, guard,
    lane::Lane,
    refused,
    reply::{self, Answer, Reply},
    resp::Command,
    scan,
    script::{self, Script},
};
use crate::{
    record::{Grant, RecordKey},
    store::{
        Alias, Claim, Claimed, Cursor, Issue, Issued, Kept, Page, Release, Resolve, Resolved,
        Store, StoreError, StoreErrorKind, Written,
    },
};

impl RedisStore {
    fn name(&self, key: &RecordKey) -> String {
        command::name(self.guard.prefix(), key)
    }

    /// One transition of one record.
    async fn run(
        &self,
        script: &'static Script,
        name: &str,
        command: Command,
    ) -> Result<Reply, StoreError> {
        let run = Run { script, command: &command };
        self.reach.call(script.name(), name, self.call_within, &run).await
    }

    /// Binds the alias of a claim, in a cluster: its slot is another one than the key's. First the alias,
    /// since one that leads to nothing harms nobody, and a grant that nobody knows of does.
    async fn bind(&self, claim: &Claim, alias: &Alias) -> Result<Option<Claimed>, StoreError> {
        let name = self.name(&alias.key);
        let (first, bind) = command::bind(&name, claim, alias);
        let bound = self.run(first, &name, bind).await?;
        if claim.is_look() { bound.seen_by_look(claim) } else { bound.not_bound() }
    }

    /// `bind`, then `claim`, in one write. Each again with its text if the server does not know it, and
    /// that one alone: a claim that was granted and comes again might come too late, and be answered
    /// as if it never was.
    async fn bind_and_claim(
        &self,
        lane: Lane<'_>,
        claim: &Claim,
        name: &str,
        alias: &Alias,
        claim_command: Command,
    ) -> Result<Claimed, Failure> {
        let (first, bind) = command::bind(&self.name(&alias.key), claim, alias);
        let answers = lane.send_all(&[&bind, &claim_command]).await?;
        let [mut bound, mut claimed] = both(answers)?;
        match (refused::is_no_script(&bound), refused::is_no_script(&claimed)) {
            (false, false) => {}
            (true, true) => {
                let (bind, claim) =
                    (first.spelled_out(&bind), script::CLAIM.spelled_out(&claim_command));
                let answers = lane.send_all(&[&bind, &claim]).await?;
                [bound, claimed] = both(answers)?;
            }
            (true, false) => bound = lane.send(&first.spelled_out(&bind)).await?,
            (false, true) => {
                claimed = lane.send(&script::CLAIM.spelled_out(&claim_command)).await?;
            }
        }
        let bound = lane.read(first, bound)?;
        let not_bound =
            if claim.is_look() { bound.seen_by_look(claim)? } else { bound.not_bound()? };
        if let Some(taken) = not_bound {
            return Ok(taken);
        }
        let reply = lane.read(&script::CLAIM, claimed)?;
        self.claimed(lane, claim, name, &claim_command, reply).await
    }

    /// A claim over one connection.
    async fn claim_on(
        &self,
        lane: Lane<'_>,
        name: &str,
        mut claim: Claim,
        asked: Instant,
    ) -> Result<Claimed, Failure> {
        let gate = self.guard.gate(&lane.link.known.changed, &claim);
        gate.narrow(&mut claim);
        let not_after = if claim.is_look() {
            command::LOOK
        } else {
            // What the connection took to come about is time that the claim has had.
            let left = claim.within.checked_sub(asked.elapsed()).ok_or_else(|| {
                let message = "the time of the claim was over before Redis was reached";
                StoreError::new(StoreErrorKind::Timeout, message)
            })?;
            lane.connection.server_ms() + command::ms(left)
        };
        let trusted = match self.behind_proxy {
            true => lane.link.known.trusted().unwrap_or("*".into()),
            false => String::new(),
        };
        let command = command::claim(name, &claim, not_after, &trusted);
        let claimed = match &claim.alias {
            Some(alias) => {
                let claimed = self.bind_and_claim(lane, &claim, name, alias, command).await?;
                if let (Some(wait), Claimed::Granted(_)) = (self.wait, &claimed) {
                    wait.after(lane, self.call_within).await?;
                }
                claimed
            }
            None => {
                let reply = match self.wait.filter(|_| !claim.is_look()) {
                    Some(wait) => wait.claim(lane, &command, self.call_within).await?,
                    None => lane.run(&script::CLAIM, &command).await?,
                };
                self.claimed(lane, &claim, name, &command, reply).await?
            }
        };
        if let Claimed::Granted(grant) = &claimed {
            self.guard.own.holds(grant);
        }
        Ok(gate.judge(claimed)?)
    }

    /// What a claim was answered, and by whom; a long answer is fetched, and the claim is made again where
    /// it is not there any more.
    async fn claimed(
        &self,
        lane: Lane<'_>,
        claim: &Claim,
        name: &str,
        command: &Command,
        mut reply: Reply,
    ) -> Result<Claimed, Failure> {
        for _ in 0..FETCHES_AT_MOST {
            let (identity, answer) = reply.told(claim, lane.connection.server_ms())?;
            if self.behind_proxy
                && !identity.is_empty()
                && let Ok(identity) = std::str::from_utf8(&identity)
            {
                lane.link.known.met(identity);
            }
            let times = match answer {
                Answer::Claimed(claimed) => return Ok(claimed),
                Answer::Untrusted => return Err(guard::changed(claim.lease / 3).into()),
                Answer::Fetch(times) => times,
            };
            let record = lane.send(&command::whole(name)).await?;
            if let Value::ServerError(error) = record {
                return Err(Failure::Server(error));
            }
            if let Some(completed) = Reply::fetched(record, &times, lane.connection.server_ms()) {
                return Ok(Claimed::Completed(completed));
            }
            reply = lane.run(&script::CLAIM, command).await?;
        }
        Err(reply::garbled("claim").into())
    }
}

/// A record that was completed changes no more, so that it can be missed only at its expiry.
const FETCHES_AT_MOST: usize = 3;

fn both(answers: Vec<Value>) -> Result<[Value; 2], StoreError> {
    answers.try_into().map_err(|_| reply::garbled("bind and claim"))
}

impl Store for RedisStore {
    async fn claim(&self, mut claim: Claim) -> Result<Claimed, StoreError> {
        let asked = Instant::now();
        if self.reach.is_cluster()
            && let Some(alias) = claim.alias.take()
            && let Some(taken) = self.bind(&claim, &alias).await?
        {
            return Ok(taken);
        }
        let name = self.name(&claim.key);
        let within = self.call_within.saturating_sub(asked.elapsed());
        let claiming = Claiming { store: self, name: &name, claim, asked };
        self.reach.call("claim", &name, within, &claiming).await
    }

    async fn renew(&self, grant: &Grant) -> Result<Written, StoreError> {
        let name = self.name(&grant.key);
        let written = self.run(&script::RENEW, &name, command::renew(&name, grant)).await?;
        let written = written.written(grant.token)?;
        if written.is_stored() {
            self.guard.own.holds(grant);
        } else {
            self.guard.own.ended(&grant.token);
        }
        Ok(written)
    }

    async fn complete(&self, grant: &Grant, kept: Kept) -> Result<Written, StoreError> {
        let name = self.name(&grant.key);
        let command = command::complete(&name, grant, &kept);
        let written = self.run(&script::COMPLETE, &name, command).await?.written(grant.token)?;
        if written.is_stored() {
            self.guard.own.completed(grant, kept);
        }
        Ok(written)
    }

    async fn release(&self, release: Release) -> Result<Written, StoreError> {
        let name = self.name(&release.key());
        let command = command::release(&name, &release);
        let written = self.run(&script::RELEASE, &name, command).await?.written(release.token())?;
        self.guard.own.ended(&release.token());
        Ok(written)
    }

    async fn resolve(&self, resolve: Resolve) -> Result<Resolved, StoreError> {
        let name = self.name(&resolve.key);
        self.run(&script::RESOLVE, &name, command::resolve(&name, &resolve)).await?.resolved()
    }

    async fn issue(&self, issue: Issue) -> Result<Issued, StoreError> {
        let name = self.name(&issue.key);
        self.run(&script::ISSUE, &name, command::issue(&name, &issue)).await?.issued(issue.token)
    }

    async fn scan(&self, from: Cursor, at_most: usize) -> Result<Page, StoreError> {
        let links = self.reach.links().await?;
        let (nth, from) = scan::node(&from, self.reach.is_cluster())?;
        let Some(link) = links.get(nth) else { return Ok(Page::new(Vec::new(), None)) };
        let page = scan::page(self.guard.prefix(), &from, at_most)?;
        let scanning = Scanning { store: self, page };
        let scanned = call(link, "scan", self.call_within, false, &scanning).await;
        let mut page = scanned.map_err(|wrong| wrong.error)?;
        if self.reach.is_cluster() {
            page.next = scan::next_node(nth, page.next, links.len());
        }
        Ok(page)
    }
}

/// A claim, from when it was asked for.
struct Claiming<'a> {
    store: &'a RedisStore,
    /// Of the record.
    name: &'a str,
    claim: Claim,
    asked: Instant,
}

impl Ask for Claiming<'_> {
    type Answer = Claimed;

    fn blocks(&self) -> bool {
        self.store.wait.is_some() && !self.claim.is_look()
    }

    async fn ask(&self, lane: Lane<'_>) -> Result<Claimed, Failure> {
        self.store.claim_on(lane, self.name, self.claim.clone(), self.asked).await
    }
}

/// A page of a listing.
struct Scanning<'a> {
    store: &'a RedisStore,
    page: [Command; 2],
}

impl Ask for Scanning<'_> {
    type Answer = Page;

    async fn ask(&self, lane: Lane<'_>) -> Result<Page, Failure> {
        let answers = without_error(lane.send_all(&self.page).await?)?;
        let (now_ms, keys, next) = scan::keys(self.store.guard.prefix(), answers)?;
        lane.link.answered(lane.connection, now_ms);
        if keys.is_empty() {
            return Ok(Page::new(Vec::new(), next));
        }
        // Errors of single keys are those of foreign types: left out like other foreign data.
        let heads = lane.send_all(&scan::heads(&keys)).await?;
        Ok(Page::new(scan::records(now_ms, &keys, &heads), next))
    }
}

fn without_error(answers: Vec<Value>) -> Result<Vec<Value>, Failure> {
    for answer in &answers {
        if let Value::ServerError(error) = answer {
            return Err(Failure::Server(error.clone()));
        }
    }
    Ok(answers)
}
