//! One case of the suite: what is asked of the store, and a panic that says what it answered.

use std::{fmt, future::Future, panic::Location, time::Duration};

use bytes::Bytes;

use super::World;
use crate::{
    ClaimToken, Fingerprint, Grant, OneTimeToken, RecordKey, State, Store, StoreError,
    store::{
        AbandonedRecord, Alias, Claim, Claimed, Completed, InProgress, Issue, Issued, Kept, Reason,
        Release, Resolve, Resolved, Takeover, Verdict, Written,
    },
};

/// A lease that does not lapse while a group runs.
pub(super) const LEASE: Duration = Duration::from_secs(60);
pub(super) const HOLD: Duration = Duration::from_secs(120);
pub(super) const RETENTION: Duration = Duration::from_secs(90);
/// How much slower a test may be than it looks, where it compares times.
pub(super) const SLACK: Duration = Duration::from_secs(30);

/// A fresh key in a store, and the name of what is shown there.
pub(super) struct Case<'a, S> {
    pub(super) store: &'a S,
    pub(super) name: &'static str,
    pub(super) key: RecordKey,
}

impl<'a, S: Store> Case<'a, S> {
    pub(super) fn new(store: &'a S, name: &'static str) -> Self {
        Self { store, name, key: RecordKey::from_bytes(rand::random()) }
    }

    /// A claim of this case's key that is in time, with a lease that does not lapse.
    pub(super) fn ask(&self, token: ClaimToken) -> Claim {
        Claim::new(self.key, token, None, LEASE, HOLD, LEASE)
    }

    pub(super) fn with_print(&self, token: ClaimToken, print: Fingerprint) -> Claim {
        Claim { print: Some(print), ..self.ask(token) }
    }

    pub(super) fn with_one_time(&self, token: ClaimToken, one_time: OneTimeToken) -> Claim {
        Claim { one_time: Some(one_time), ..self.ask(token) }
    }

    pub(super) fn with_alias(&self, token: ClaimToken, alias: RecordKey) -> Claim {
        Claim { alias: Some(Alias::new(alias, HOLD)), ..self.ask(token) }
    }

    pub(super) fn taking(&self, token: ClaimToken, takeover: Takeover) -> Claim {
        Claim { takeover, ..self.ask(token) }
    }

    pub(super) fn look(&self) -> Claim {
        Claim { within: Duration::ZERO, ..self.ask(ClaimToken::random()) }
    }

    #[track_caller]
    pub(super) fn granted(&self, claim: Claim) -> impl Future<Output = Grant> {
        self.claim(claim, "Granted", |claimed| match claimed {
            Claimed::Granted(grant) => Some(grant),
            _ => None,
        })
    }

    /// Claims under a new token with a lease that does not lapse.
    #[track_caller]
    pub(super) fn grant(&self) -> impl Future<Output = Grant> {
        self.granted(self.ask(ClaimToken::random()))
    }

    /// Claims under a new token and lets the lease lapse. The grant's further leases do not.
    pub(super) async fn lapsed<W: World>(&self, world: &W, claim: Claim) -> Grant {
        let mut grant = self.granted(Claim { lease: world.tick(), ..claim }).await;
        world.pass(world.tick() * 2).await;
        grant.lease = LEASE;
        grant
    }

    #[track_caller]
    pub(super) fn completed(&self, claim: Claim) -> impl Future<Output = Completed> {
        self.claim(claim, "Completed", |claimed| match claimed {
            Claimed::Completed(completed) => Some(completed),
            _ => None,
        })
    }

    #[track_caller]
    pub(super) fn in_progress(&self, claim: Claim) -> impl Future<Output = InProgress> {
        self.claim(claim, "InProgress", |claimed| match claimed {
            Claimed::InProgress(held) => Some(held),
            _ => None,
        })
    }

    #[track_caller]
    pub(super) fn abandoned(&self, claim: Claim) -> impl Future<Output = AbandonedRecord> {
        self.claim(claim, "Abandoned", |claimed| match claimed {
            Claimed::Abandoned(record) => Some(record),
            _ => None,
        })
    }

    #[track_caller]
    pub(super) fn mismatch(&self, claim: Claim) -> impl Future<Output = ()> {
        self.claim(claim, "Mismatch", |claimed| matches!(claimed, Claimed::Mismatch).then_some(()))
    }

    #[track_caller]
    pub(super) fn dead(&self, claim: Claim) -> impl Future<Output = ()> {
        self.claim(claim, "Dead", |claimed| matches!(claimed, Claimed::Dead).then_some(()))
    }

    #[track_caller]
    pub(super) fn free(&self, claim: Claim) -> impl Future<Output = ()> {
        self.claim(claim, "Free", |claimed| matches!(claimed, Claimed::Free).then_some(()))
    }

    #[track_caller]
    pub(super) fn token_unknown(&self, claim: Claim) -> impl Future<Output = ()> {
        self.claim(claim, "TokenUnknown", |claimed| {
            matches!(claimed, Claimed::TokenUnknown).then_some(())
        })
    }

    #[track_caller]
    pub(super) fn alias_of(&self, claim: Claim, target: RecordKey) -> impl Future<Output = ()> {
        self.claim(claim, "AliasOf its operation", move |claimed| match claimed {
            Claimed::AliasOf(key) if key == target => Some(()),
            _ => None,
        })
    }

    #[track_caller]
    pub(super) fn taken(&self, claim: Claim, state: State) -> impl Future<Output = ()> {
        self.claim(claim, "DeliveryTaken with the name's own state", move |claimed| match claimed {
            Claimed::DeliveryTaken(found) if found == state => Some(()),
            _ => None,
        })
    }

    #[track_caller]
    fn claim<T>(
        &self,
        claim: Claim,
        wanted: &'static str,
        pick: impl FnOnce(Claimed) -> Option<T>,
    ) -> impl Future<Output = T> {
        let at = Location::caller();
        async move {
            let claimed = self.answered(at, "claim", self.store.claim(claim).await);
            let shown = format!("{claimed:?}");
            pick(claimed).unwrap_or_else(|| self.panic(at, "claim", wanted, &shown))
        }
    }

    #[track_caller]
    pub(super) fn renew(&self, grant: &Grant, wanted: Written) -> impl Future<Output = ()> {
        let at = Location::caller();
        async move {
            let answer = self.answered(at, "renew", self.store.renew(grant).await);
            self.equal(at, "renew", wanted, answer);
        }
    }

    #[track_caller]
    pub(super) fn complete(
        &self,
        grant: &Grant,
        body: &'static str,
        wanted: Written,
    ) -> impl Future<Output = ()> {
        let at = Location::caller();
        async move {
            let answer = self.store.complete(grant, kept(body)).await;
            self.equal(at, "complete", wanted, self.answered(at, "complete", answer));
        }
    }

    #[track_caller]
    pub(super) fn release(
        &self,
        grant: &Grant,
        reason: Reason,
        wanted: Written,
    ) -> impl Future<Output = ()> {
        let at = Location::caller();
        async move {
            let answer = self.store.release(Release::of(grant, reason)).await;
            self.equal(
                at,
                "release",
                (reason, wanted),
                (reason, self.answered(at, "release", answer)),
            );
        }
    }

    #[track_caller]
    pub(super) fn call_off(&self, token: ClaimToken, wanted: Written) -> impl Future<Output = ()> {
        let at = Location::caller();
        async move {
            let answer = self.store.release(Release::called_off(self.key, token, HOLD)).await;
            self.equal(at, "call off", wanted, self.answered(at, "call off", answer));
        }
    }

    #[track_caller]
    pub(super) fn resolve(&self, resolve: Resolve, wanted: Resolved) -> impl Future<Output = ()> {
        let at = Location::caller();
        async move {
            let answer = self.store.resolve(resolve).await;
            self.equal(at, "resolve", wanted, self.answered(at, "resolve", answer));
        }
    }

    /// Issues a token for a minute; what is answered is to be this token with this fingerprint.
    #[track_caller]
    pub(super) fn issue(
        &self,
        token: OneTimeToken,
        print: Option<Fingerprint>,
        wanted: (OneTimeToken, Option<Fingerprint>),
    ) -> impl Future<Output = ()> {
        let at = Location::caller();
        async move {
            let answer = self.store.issue(Issue::new(self.key, token, print, LEASE)).await;
            match self.answered(at, "issue", answer) {
                Issued::Token { token, remaining, print }
                    if (token, print) == wanted
                        && remaining <= LEASE
                        && remaining > LEASE - SLACK => {}
                other => self.panic(at, "issue", "the other token, or its other print", &other),
            }
        }
    }

    #[track_caller]
    pub(super) fn issue_taken(&self, state: State) -> impl Future<Output = ()> {
        let at = Location::caller();
        async move {
            let token = OneTimeToken::random();
            let answer = self.store.issue(Issue::new(self.key, token, None, LEASE)).await;
            self.equal(at, "issue", Issued::Taken(state), self.answered(at, "issue", answer));
        }
    }

    /// The record is kept for about this long.
    #[track_caller]
    pub(super) fn expires<W: World>(&self, world: &W, about: Duration) -> impl Future<Output = ()> {
        let at = Location::caller();
        async move {
            let left = world.expires_in(&self.key).await;
            if !left.is_some_and(|left| left <= about && left > about.saturating_sub(SLACK)) {
                self.panic(at, "time to live", format_args!("about {about:?}"), &left)
            }
        }
    }

    #[expect(clippy::needless_pass_by_value, reason = "cases are read more easily so")]
    #[track_caller]
    pub(super) fn equal<T: fmt::Debug + PartialEq>(
        &self,
        at: &Location<'_>,
        asked: &str,
        wanted: T,
        answer: T,
    ) {
        if wanted != answer {
            self.panic(at, asked, format_args!("{wanted:?}"), &answer)
        }
    }

    /// Panics unless the two are equal; `asked` says what they are.
    #[track_caller]
    pub(super) fn same<T: fmt::Debug + PartialEq>(&self, asked: &str, wanted: T, answer: T) {
        self.equal(Location::caller(), asked, wanted, answer);
    }

    /// Panics unless it holds; `asked` says what it is about.
    #[track_caller]
    pub(super) fn holds(&self, asked: &str, holds: bool, answer: &dyn fmt::Debug) {
        if !holds {
            self.panic(Location::caller(), asked, "something else", answer)
        }
    }

    fn answered<T>(&self, at: &Location<'_>, asked: &str, answer: Result<T, StoreError>) -> T {
        answer.unwrap_or_else(|error| self.panic(at, asked, "an answer", &error))
    }

    fn panic(
        &self,
        at: &Location<'_>,
        asked: &str,
        wanted: impl fmt::Display,
        answer: &dyn fmt::Debug,
    ) -> ! {
        panic!("{} ({at}): {asked}: wanted {wanted}, answered {answer:?}", self.name)
    }
}

pub(super) fn kept(body: &'static str) -> Kept {
    Kept::new(Bytes::from_static(body.as_bytes()), RETENTION)
}

pub(super) fn done(body: &'static str) -> Verdict {
    Verdict::Done(kept(body))
}

pub(super) fn not_done() -> Verdict {
    Verdict::NotDone { hold: HOLD }
}

pub(super) fn print(number: u8) -> Fingerprint {
    Fingerprint::from_bytes([number; 32])
}

/// A token nobody has used.
pub(super) fn token() -> ClaimToken {
    ClaimToken::random()
}
