//! Each transition of the contract: its command, the connection it goes over, what is remembered of it.

use std::{sync::Arc, time::Duration};

use redis::Value;

#[cfg(feature = "redis-cluster")]
use super::listing;
use super::{
    Failure, RedisStore,
    call::{Ask, Call, Run},
    claim::Claiming,
    command::{self, Name},
    guard,
    lane::Lane,
    link::Link,
    reach::Reach,
    reply::Reply,
    resp::Command,
    scan,
    script::{self, Script},
};
use crate::{
    record::{Grant, RecordKey},
    store::{
        Claim, Claimed, Cursor, Issue, Issued, Kept, Page, Release, Resolve, Resolved, Store,
        StoreError, Verdict, Written,
    },
};

impl RedisStore {
    pub(super) fn name<'a>(&'a self, key: &'a RecordKey) -> Name<'a> {
        self.guard.name(key)
    }

    /// One transition of one record.
    #[expect(clippy::manual_async_fn, reason = "an async fn would hold its arguments twice")]
    fn run(
        &self,
        script: &'static Script,
        name: Name<'_>,
        command: impl Fn() -> Command + Send + Sync,
    ) -> impl Future<Output = Result<Reply, StoreError>> + Send {
        async move {
            let call = Call::new(script.name(), self.call_within);
            self.reach.call(&call, name, &Run { script, command }).await
        }
    }

    /// In a cluster the alias of a claim has another slot than its key. First the alias is bound, since
    /// one that leads to nothing harms nobody, and a grant that nobody knows of does.
    async fn bind_then_claim(&self, mut claim: Claim) -> Result<Claimed, StoreError> {
        let call = Call::new("claim", self.call_within);
        if let Some(alias) = claim.alias.take() {
            let name = self.name(&alias.key);
            let (first, bind) = command::bind(name, &claim, &alias);
            let bound = self.run(first, name, || bind.clone()).await?;
            let not_bound =
                if claim.is_look() { bound.seen_by_look(&claim)? } else { bound.not_bound()? };
            if let Some(taken) = not_bound {
                return Ok(taken);
            }
        }
        let claiming = Claiming { store: self, claim: &claim, asked: call.since };
        self.reach.call(&call, self.name(&claim.key), &claiming).await
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
        let call = Call::new("scan", self.call_within);
        call.make(link, &scanning).await.map_err(|wrong| wrong.error)
    }
}

impl Store for RedisStore {
    fn answers_within(&self) -> Option<Duration> {
        // In a cluster a claim may be two calls.
        (!self.reach.is_cluster()).then_some(self.call_within)
    }

    #[expect(clippy::manual_async_fn, reason = "an async fn would hold its argument twice")]
    fn claim(&self, claim: Claim) -> impl Future<Output = Result<Claimed, StoreError>> + Send {
        async move {
            if self.reach.is_cluster() && claim.alias.is_some() {
                return Box::pin(self.bind_then_claim(claim)).await;
            }
            let call = Call::new("claim", self.call_within);
            let claiming = Claiming { store: self, claim: &claim, asked: call.since };
            self.reach.call(&call, self.name(&claim.key), &claiming).await
        }
    }

    async fn renew(&self, grant: &Grant) -> Result<Written, StoreError> {
        let name = self.name(&grant.key);
        let written = self.run(&script::RENEW, name, || command::renew(name, grant)).await?;
        let written = written.written(grant.token)?;
        if written.is_stored() {
            self.guard.own.holds(grant);
        } else {
            self.guard.own.ended(&grant.token);
        }
        Ok(written)
    }

    #[expect(clippy::manual_async_fn, reason = "an async fn would hold its arguments twice")]
    fn complete(
        &self,
        grant: &Grant,
        kept: Kept,
    ) -> impl Future<Output = Result<Written, StoreError>> + Send {
        async move {
            let name = self.name(&grant.key);
            let command = || command::complete(name, grant, &kept);
            let written = self.run(&script::COMPLETE, name, command).await?.written(grant.token)?;
            if written.is_stored() {
                self.guard.own.completed(grant, kept);
            }
            Ok(written)
        }
    }

    async fn release(&self, release: Release) -> Result<Written, StoreError> {
        let key = release.key();
        let name = self.name(&key);
        let command = || command::release(name, &release);
        let written = self.run(&script::RELEASE, name, command).await?.written(release.token())?;
        self.guard.own.ended(&release.token());
        Ok(written)
    }

    async fn resolve(&self, resolve: Resolve) -> Result<Resolved, StoreError> {
        let name = self.name(&resolve.key);
        let resolving = Resolving { store: self, resolve: &resolve, name };
        let call = Call::new(script::RESOLVE.name(), self.call_within);
        self.reach.call(&call, name, &resolving).await?.resolved()
    }

    async fn issue(&self, issue: Issue) -> Result<Issued, StoreError> {
        let name = self.name(&issue.key);
        let command = || command::issue(name, &issue);
        self.run(&script::ISSUE, name, command).await?.issued(issue.token)
    }

    async fn scan(&self, from: Cursor, at_most: usize) -> Result<Page, StoreError> {
        match &self.reach {
            Reach::One(link) => self.page(link, &from, at_most).await,
            #[cfg(feature = "redis-cluster")]
            Reach::Cluster(cluster) => listing::page(self, cluster, &from, at_most).await,
        }
    }
}

/// A verdict.
struct Resolving<'a> {
    store: &'a RedisStore,
    resolve: &'a Resolve,
    name: Name<'a>,
}

impl Ask for Resolving<'_> {
    type Answer = Reply;

    async fn ask(&self, lane: &Lane<'_>) -> Result<Reply, Failure> {
        let resolve = self.resolve;
        // What was done stays done, whoever runs it still; what was not would run again.
        let runs_again = matches!(resolve.verdict, Verdict::NotDone { .. }) && !resolve.force;
        let changed = lane.link.known.changed();
        if runs_again && let Some(left) = self.store.guard.holds_back(changed, resolve.lease) {
            return Err(guard::changed(left).into());
        }
        lane.run(&script::RESOLVE, || command::resolve(self.name, resolve)).await
    }
}

/// A page of a listing.
struct Scanning<'a> {
    store: &'a RedisStore,
    page: [Command; 2],
}

impl Ask for Scanning<'_> {
    type Answer = Page;

    async fn ask(&self, lane: &Lane<'_>) -> Result<Page, Failure> {
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

#[cfg(test)]
mod tests {
    use std::{future::Future, sync::Arc, time::Duration};

    use bytes::Bytes;

    use super::RedisStore;
    use crate::{
        record::{ClaimToken, Fence, Previous, RecordKey},
        store::{Claim, DynStore, Kept},
    };

    /// glibc's allocator looks through all that is free for a larger one, once for each request.
    const QUICKLY_ALLOCATED: usize = 1000;

    fn room<T>(call: &dyn Future<Output = T>) -> usize {
        size_of_val(call)
    }

    #[test]
    fn the_calls_of_a_request_are_small_enough_to_be_allocated_quickly() {
        let store: Arc<dyn DynStore> = Arc::new(RedisStore::lazy("redis://127.0.0.1:1").unwrap());
        let (key, second) = (RecordKey::from_bytes([1; 32]), Duration::from_secs(1));
        let claim = Claim::new(key, ClaimToken::random(), None, second, second, second);
        let grant = claim.granted(Fence::new(1), 1, Previous::Nothing);
        let complete = store.clone().complete(grant, Kept::new(Bytes::new(), second));
        let rooms = [room(&*store.claim(Box::new(claim))), room(&*complete)];
        assert!(rooms.iter().all(|room| *room <= QUICKLY_ALLOCATED), "{rooms:?}");
    }
}
