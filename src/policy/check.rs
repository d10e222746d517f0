//! Which policies cannot work.

use std::{error::Error, fmt, time::Duration};

use super::Policy;
use crate::{fingerprint::Compared, in_words};

/// A policy that cannot work. Its message says what is wrong and how to mend it.
#[derive(Clone, PartialEq, Eq)]
pub struct PolicyError {
    message: String,
}

impl fmt::Debug for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        in_words::debug(f, None, self)
    }
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for PolicyError {}

/// Longer than any retention anybody needs, and far from overflow in any store.
const LONGEST: Duration = Duration::from_secs(10 * 366 * 24 * 60 * 60);
/// Stores count in whole milliseconds.
const SHORTEST: Duration = Duration::from_millis(1);

impl Policy {
    /// Whether this policy can work.
    ///
    /// # Errors
    ///
    /// With the choice that cannot, and its mend: a time of zero or over ten years; a retention not
    /// longer than the lease, or longer than the hold; a hold longer than the ledger keeps its rows; a
    /// longest run shorter than the lease; a
    /// limit of zero; a list of fields to compare that is empty; parts of a body that cannot be
    /// ignored; a one-time token that something else makes needless; of a job's policy a choice about
    /// requests.
    pub fn check(&self) -> Result<(), PolicyError> {
        let times = [
            ("lease", self.lease),
            ("retention", self.retention),
            ("hold", self.hold),
            ("max_run", self.longest_run()),
            ("call_within", self.call_within),
            ("claim_within", self.claim_within),
            ("body_within", self.body_within),
        ];
        for (name, time) in times {
            require(time >= SHORTEST, || format!("{name} is {time:?}; make it 1 ms or longer"))?;
            require(time <= LONGEST, || {
                format!("{name} is {time:?}; make it ten years or shorter")
            })?;
        }
        require(self.wait <= LONGEST, || {
            format!("wait is {:?}; make it ten years or shorter", self.wait)
        })?;
        require(self.lease < self.retention, || {
            format!(
                "the lease ({:?}) must be shorter than the retention ({:?}): \
                 shorten .lease(..) or lengthen .retention(..)",
                self.lease, self.retention
            )
        })?;
        require(self.retention <= self.hold, || {
            format!(
                "the retention ({:?}) must not be longer than the hold ({:?}), or an operation \
                 that crashed would be forgotten before one that ended: lengthen .hold(..) too",
                self.retention, self.hold
            )
        })?;
        if let Some(kept) = self.ledger.as_ref().and_then(|ledger| ledger.hold()) {
            require(self.hold <= kept, || {
                format!(
                    "the hold ({:?}) must not be longer than the ledger keeps its rows ({kept:?}), or \
                     what has lost its row would be run again: lengthen the ledger's hold \
                     (DedupTable::hold) or shorten .hold(..)",
                    self.hold
                )
            })?;
        }
        require(self.lease <= self.longest_run(), || {
            format!(
                "max_run ({:?}) must not be shorter than the lease ({:?})",
                self.longest_run(),
                self.lease
            )
        })?;
        if let Some(message) = self.token.as_ref().and_then(|token| token.wrong(self)) {
            return Err(PolicyError { message: message.to_owned() });
        }
        if let Some(message) = self.compared.wrong() {
            return Err(PolicyError { message });
        }
        if self.job {
            self.check_job()?;
        }
        require(self.body_limit > 0, || {
            "body_limit is 0, so that no body could be read; give the most bytes a request may have"
                .to_owned()
        })
    }
}

impl Policy {
    /// What is about requests would do nothing for a job, and nobody would be told so.
    fn check_job(&self) -> Result<(), PolicyError> {
        let about_requests = [
            ("optional", self.optional),
            ("scope", !self.scope.is_everyone()),
            ("business_key", self.business_key.is_some()),
            ("compare or ignore", !matches!(self.compared, Compared::Nothing)),
            ("token", self.token.is_some()),
            ("verify", self.verify.is_some()),
            ("keep, release or uncertain", !self.statuses.is_empty()),
            ("keep_if", self.keep_if.is_some()),
            ("refuse_with", self.refuse_with.is_some()),
            ("observe", self.observe),
        ];
        about_requests.into_iter().try_for_each(|(choice, made)| {
            require(!made, || {
                format!(
                    "{choice} is about requests, and a job has none; leave it out: Idempotent::scope, \
                     Idempotent::run and how its work ends say the same of a job"
                )
            })
        })
    }

    /// Whether all it reads can be read where the rule has this path pattern.
    pub(crate) fn fits_pattern(&self, pattern: Option<&str>) -> Result<(), String> {
        match &self.token {
            Some(token) => token.fits_pattern(pattern)?,
            None => self.identity.fits_pattern(pattern)?,
        }
        if let Some(business_key) = &self.business_key {
            business_key.fits_pattern(pattern)?;
        }
        self.compared.fits_pattern(pattern)
    }
}

fn require(holds: bool, otherwise: impl FnOnce() -> String) -> Result<(), PolicyError> {
    if holds { Ok(()) } else { Err(PolicyError { message: otherwise() }) }
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;
    use crate::{Scope, policy::OnAbandoned};

    fn error(policy: &Policy) -> String {
        policy.check().unwrap_err().to_string()
    }

    #[test]
    fn the_defaults_can_work() {
        assert_eq!(Policy::api(Scope::everyone()).check(), Ok(()));
        assert_eq!(Policy::webhook(crate::json("/id")).check(), Ok(()));
    }

    /// Whoever changes a default changes what is promised: it stands in the documentation of each
    /// setter and in the table of `Policy`.
    #[test]
    fn the_defaults_are_those_that_are_documented() {
        let (secs, day) = (Duration::from_secs, Duration::from_secs(24 * 60 * 60));
        let api = Policy::api(Scope::everyone());
        let webhook = Policy::webhook(crate::json("/id"));
        for (policy, retention) in [(&api, day), (&webhook, 7 * day)] {
            let times = (policy.lease, policy.retention, policy.hold, policy.longest_run());
            assert_eq!(times, (secs(30), retention, 7 * day, secs(300)));
            let calls = (policy.call_within, policy.claim_within, policy.wait);
            assert_eq!(calls, (Duration::from_millis(500), Duration::from_millis(1500), secs(0)));
            let sizes = (policy.body_limit, policy.body_within, policy.answer_limit);
            assert_eq!(sizes, (1024 * 1024, secs(30), 1024 * 1024));
            assert!(matches!(policy.on_abandoned, OnAbandoned::Refuse));
            assert!(!(policy.optional || policy.run_unprotected || policy.observe));
            assert!(!(policy.keep_cookies || policy.private_label));
        }
        assert_eq!(api.methods(), [Method::POST, Method::PATCH]);
        assert_eq!(webhook.methods(), [Method::POST]);
        assert_eq!(api.lease(secs(6)).longest_run(), secs(60), "ten leases, whatever they are");
    }

    #[test]
    fn what_cannot_work_is_named_with_its_mend() {
        let api = || Policy::api(Scope::everyone());
        let secs = Duration::from_secs;
        assert!(error(&api().lease(Duration::ZERO)).contains("lease is 0ns; make it 1 ms"));
        assert!(error(&api().lease(Duration::from_nanos(10))).contains("make it 1 ms"));
        assert!(error(&api().retention(Duration::MAX)).contains("ten years"));
        assert!(error(&api().retention(secs(30))).contains("shorter than the retention"));
        assert!(error(&api().retention(secs(30 * 86400))).contains("lengthen .hold(..)"));
        assert!(error(&api().max_run(secs(1))).contains("max_run (1s)"));
        assert!(error(&api().body_limit(0)).contains("body_limit"));
        assert!(error(&api().wait(Duration::MAX)).contains("wait"));
        let nothing = api().compare(Vec::<crate::Json>::new());
        assert!(error(&nothing).contains("compare(..) names nothing"));
        assert_eq!(nothing.compare([crate::json("/amount")]).check(), Ok(()));
    }
}
