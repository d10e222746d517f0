//! Each transition of the contract: its command, the connection it goes over, what is remembered of it.

use std::{sync::Arc, time::Duration};

use redis::Value;
use tokio::time::Instant;

#[cfg(feature = "redis-cluster")]
use super::listing;
use super::{
    Failure, RedisStore,
    call::{Ask, Run, call},
    command, guard,
    lane::Lane,
    link::Link,
    reach::Reach,
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
        Store, StoreError, StoreErrorKind, Verdict, Written,
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
        self.reach.call(script.name(), name, Instant::now(), self.call_within, &run).await
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

    /// A page of what one server has.
    pub(super) async fn page(
        &self,
        link: &Arc<Link>,
        from: &Cursor,
        at_most: usize,
    ) -> Result<Page, StoreError> {
        let page = scan::page(self.guard.prefix(), from, at_most)?;
        let scanning = Scanning { store: self, page };
        let scanned = call(link, "scan", Instant::now(), self.call_within, false, &scanning).await;
        scanned.map_err(|wrong| wrong.error)
    }

    /// A claim over one connection.
    async fn claim_on(
        &self,
        lane: Lane<'_>,
        name: &str,
        claim: &Claim,
        asked: Instant,
    ) -> Result<Claimed, Failure> {
        let not_after = if claim.is_look() {
            command::LOOK
        } else {
            // What the connection took to come about is time that the claim has had.
            let passed = lane.since.saturating_duration_since(asked);
            let left = claim.within.checked_sub(passed).ok_or_else(|| {
                let message = "the time of the claim was over before Redis was reached";
                StoreError::new(StoreErrorKind::Timeout, message)
            })?;
            lane.server_ms() + command::ms(left)
        };
        let trusted = match self.behind_proxy {
            true => lane.link.known.trusted().unwrap_or("*".into()),
            false => String::new(),
        };
        let command = command::claim(name, claim, not_after, &trusted);
        let claimed = match &claim.alias {
            Some(alias) => {
                let both = self.bind_and_claim(lane, claim, name, alias, command);
                // In a box of its own, like all that few claims need: each would be as large.
                let claimed = Box::pin(both).await?;
                if let (Some(wait), Claimed::Granted(_)) = (self.wait, &claimed) {
                    Box::pin(wait.after(lane, self.call_within)).await?;
                }
                claimed
            }
            None => {
                let reply = match self.wait.filter(|_| !claim.is_look()) {
                    Some(wait) => Box::pin(wait.claim(lane, &command, self.call_within)).await?,
                    None => lane.run(&script::CLAIM, &command).await?,
                };
                self.claimed(lane, claim, name, &command, reply).await?
            }
        };
        if let Claimed::Granted(grant) = &claimed {
            self.guard.own.holds(grant);
        }
        Ok(claimed)
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
            let (identity, answer) = reply.told(claim, lane.server_ms())?;
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
            if let Some(completed) = Reply::fetched(record, &times, lane.server_ms()) {
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
    fn answers_within(&self) -> Option<Duration> {
        // In a cluster a claim may be two calls.
        (!self.reach.is_cluster()).then_some(self.call_within)
    }

    async fn claim(&self, mut claim: Claim) -> Result<Claimed, StoreError> {
        let asked = Instant::now();
        if self.reach.is_cluster()
            && let Some(alias) = claim.alias.take()
            && let Some(taken) = Box::pin(self.bind(&claim, &alias)).await?
        {
            return Ok(taken);
        }
        let name = self.name(&claim.key);
        let claiming = Claiming { store: self, name: &name, claim, asked };
        self.reach.call("claim", &name, asked, self.call_within, &claiming).await
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
        let command = command::resolve(&name, &resolve);
        let resolving = Resolving { store: self, resolve: &resolve, command: &command };
        let within = self.call_within;
        let asked = Instant::now();
        self.reach.call(script::RESOLVE.name(), &name, asked, within, &resolving).await?.resolved()
    }

    async fn issue(&self, issue: Issue) -> Result<Issued, StoreError> {
        let name = self.name(&issue.key);
        self.run(&script::ISSUE, &name, command::issue(&name, &issue)).await?.issued(issue.token)
    }

    async fn scan(&self, from: Cursor, at_most: usize) -> Result<Page, StoreError> {
        match &self.reach {
            Reach::One(link) => self.page(link, &from, at_most).await,
            #[cfg(feature = "redis-cluster")]
            Reach::Cluster(cluster) => listing::page(self, cluster, &from, at_most).await,
        }
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
        let Self { store, name, claim, asked } = self;
        let gate = store.guard.gate(lane.link.known.changed(), claim);
        let claimed = match gate.narrowed(claim) {
            None => store.claim_on(lane, name, claim, *asked).await?,
            Some(narrowed) => Box::pin(store.claim_on(lane, name, &narrowed, *asked)).await?,
        };
        Ok(gate.judge(claimed).map_err(|error| lane.link.known.explained(error))?)
    }
}

/// A verdict.
struct Resolving<'a> {
    store: &'a RedisStore,
    resolve: &'a Resolve,
    command: &'a Command,
}

impl Ask for Resolving<'_> {
    type Answer = Reply;

    async fn ask(&self, lane: Lane<'_>) -> Result<Reply, Failure> {
        let resolve = self.resolve;
        // What was done stays done, whoever runs it still; what was not would run again.
        let runs_again = matches!(resolve.verdict, Verdict::NotDone { .. }) && !resolve.force;
        let changed = lane.link.known.changed();
        if runs_again && let Some(left) = self.store.guard.holds_back(changed, resolve.lease) {
            return Err(guard::changed(left).into());
        }
        lane.run(&script::RESOLVE, self.command).await
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
        #[cfg(feature = "redis-cluster")]
        let heads = scan::arriving(lane, &keys, heads).await?;
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
