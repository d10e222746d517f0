//! What an operator sees: one span a protected request, and an event for whatever needs a person.
//!
//! Every event here is listed in `docs/operations.md` with what it means and what to do. A label has
//! what a client sent, and is written with its control characters escaped: a line break in an identity
//! must not make a line of its own in a log.

#[cfg(feature = "metrics")]
mod metrics;
#[cfg(not(feature = "metrics"))]
#[path = "telemetry/no_metrics.rs"]
mod metrics;

use std::{fmt, time::Duration};

use metrics::{Count, count};
pub(crate) use metrics::{During, Metrics, RuleMetrics, Timer, begin};
#[cfg(feature = "recent")]
pub(crate) use metrics::{Held, RecentMetrics};

use tracing::{Span, debug, error, field, field::Empty, info, info_span, warn};

use crate::{
    ledger::LedgerError,
    operation::{Subject, Why, Would},
    operations::Found,
    record::{Fence, Grant, RecordKey, State, Unreadable, ValueError},
    refusal::{Refusal, RefusalKind},
    rule::Rule,
    store::{AbandonedRecord, StoreError, Written},
};

/// The span of one protected request.
pub(crate) fn request_span(rule: &str) -> Span {
    info_span!("idempotency", rule, key = Empty, handled = Empty, attempt = Empty, would = Empty)
}

pub(crate) fn record_key(span: &Span, key: &RecordKey) {
    if !span.is_disabled() {
        span.record("key", key.digest());
    }
}

pub(crate) fn record_attempt(span: &Span, rule: &Rule, attempt: u32) {
    span.record("attempt", attempt);
    if attempt > 1 {
        rule.metrics().executed_again.increment(1);
    }
}

/// `how` is `executed`, `replayed`, `passed`, `observed`, or the name of a refusal.
pub(crate) fn record_handled(span: &Span, rule: &Rule, how: &'static str) {
    span.record("handled", how);
    rule.metrics().handled(how);
}

/// A request met an operation that was started and gave no sign of life.
pub(crate) fn abandoned(subject: &Subject, record: &AbandonedRecord) {
    subject.rule.metrics().abandoned.increment(1);
    warn!(
        rule = subject.rule.name(),
        key = subject.record.digest(),
        label = ?String::from_utf8_lossy(&record.label),
        attempt = record.attempt,
        fence = record.mark.fence.get(),
        granted_ago_s = record.granted.as_secs(),
        lapsed_ago_s = record.lapsed.map(|lapsed| lapsed.as_secs()),
        "abandoned: an execution was started and its outcome is unknown; deliveries are refused \
         until it is settled: find out whether it happened, then settle it as done or not done"
    );
}

/// A request was refused. What needs a person besides the client has an event of its own.
pub(crate) fn refused(rule: &Rule, refusal: &Refusal) {
    if refusal.kind() == RefusalKind::ScopeMissing && refusal.status().is_server_error() {
        error!(
            rule = rule.name(),
            detail = refusal.detail(),
            "scope missing: the request was refused with 500, and so will all be that come like it: \
             whose its key is must be known before it reaches the idempotency layer"
        );
        return;
    }
    // The detail may have what a client sent; it is a secret where the label is.
    let detail = (!rule.policy().private_label).then(|| refusal.detail());
    debug!(
        rule = rule.name(),
        reason = refusal.kind().name(),
        detail,
        "refused: the request was refused, and nothing was run for it"
    );
}

/// What would have become of a request that was only observed.
fn observed(span: &Span, rule: &Rule, would: Would) {
    record_handled(span, rule, "observed");
    span.record("would", would.name());
    rule.metrics().observed(would.name());
}

/// The same: it would have got a stored answer.
pub(crate) fn would_have_replayed(span: &Span, rule: &Rule, key: &RecordKey) {
    observed(span, rule, Would::Replay);
    info!(
        rule = rule.name(),
        key = key.digest(),
        "would have been replayed: the policy only observes, so the handler runs again for an operation \
         that is done"
    );
}

/// The same: it would have waited.
pub(crate) fn would_have_waited(span: &Span, rule: &Rule, key: &RecordKey) {
    observed(span, rule, Would::Wait);
    info!(
        rule = rule.name(),
        key = key.digest(),
        "would have waited: the policy only observes, so the handler runs beside another delivery's run \
         of the same operation"
    );
}

/// The same: it would have been refused.
pub(crate) fn would_have_refused(
    span: &Span,
    rule: &Rule,
    key: Option<&RecordKey>,
    kind: RefusalKind,
    why: &Why,
) {
    observed(span, rule, Would::Refuse(kind));
    // The detail may have what a client sent; it is a secret where the label is.
    let detail = why.detail.as_ref().filter(|_| !rule.policy().private_label);
    warn!(
        rule = rule.name(),
        key = key.map(RecordKey::digest),
        reason = kind.name(),
        detail,
        fields = why.fields.as_ref().map(field::debug),
        "would have been refused: the policy only observes, so the handler runs without protection: what \
         is refused once it is enforced, its clients or its policy must mend before"
    );
}

/// A request has its place among those that wait for another's run of its operation.
pub(crate) fn waiting(key: &RecordKey) {
    debug!(
        key = key.digest(),
        "waiting: the request waits for another delivery's run of the same operation"
    );
}

/// A layer was made with no rule.
pub(crate) fn no_rule() {
    warn!(
        "no rule: a layer was made without one, so that it protects nothing: name the routes in its \
         rules, or leave the layer out"
    );
}

/// No request has met a rule.
pub(crate) fn rule_never_hit(rule: &Rule, passed: u64) {
    warn!(
        rule = rule.name(),
        path = rule.pattern(),
        passed,
        "rule never hit: requests came, and none of them was this rule's, so that it may protect \
         nothing: hold its path and methods against the requests' with Rules::find"
    );
}

/// An identity came again with something else.
pub(crate) fn mismatch(subject: &Subject, fields: Option<&[String]>) {
    warn!(
        rule = subject.rule.name(),
        key = subject.record.digest(),
        fields = fields.map(field::debug),
        "mismatch: an identity came again with something else and was refused with 422: a client \
         that reuses its keys, or somebody who changes what was sent"
    );
}

/// An abandoned operation runs again, as its policy wants it.
pub(crate) fn rerun(subject: &Subject, grant: &Grant) {
    subject.rule.metrics().rerun.increment(1);
    warn!(
        rule = subject.rule.name(),
        key = grant.key.digest(),
        label = ?String::from_utf8_lossy(&grant.label),
        attempt = grant.attempt,
        fence = grant.fence.get(),
        "rerun: an execution was started and its outcome is unknown, and Policy::rerun_abandoned \
         lets it run again; it may have happened before: look why its process died or stalled"
    );
}

/// The end of an execution is not known.
pub(crate) fn outcome_uncertain(subject: &Subject, grant: &Grant, why: &str) {
    subject.rule.metrics().uncertain.increment(1);
    warn!(
        rule = subject.rule.name(),
        key = grant.key.digest(),
        label = ?String::from_utf8_lossy(&grant.label),
        attempt = grant.attempt,
        why,
        "outcome uncertain: the execution ended in a way that does not tell whether it happened; \
         its key is abandoned: find out whether it happened, then settle it"
    );
}

/// A handler succeeded and left no row, although there is a ledger.
pub(crate) fn row_missing(subject: &Subject) {
    warn!(
        rule = subject.rule.name(),
        key = subject.record.digest(),
        "row missing: a handler succeeded without entering the policy's ledger, so that its effect and \
         its row are not one transaction and a crash between them runs it again: enter first in the \
         handler; said once a rule"
    );
}

/// The ledger could not say what became of an abandoned operation.
pub(crate) fn ledger_unavailable(subject: &Subject, error: &LedgerError) {
    warn!(
        rule = subject.rule.name(),
        key = subject.record.digest(),
        %error,
        "ledger unavailable: it cannot say what became of an abandoned operation, whose deliveries are \
         refused until it can: mend the database"
    );
}

/// Somebody has settled an operation.
pub(crate) fn settled(operation: &Found, verdict: &str, reason: &str, force: bool) {
    let (key, attempt) = (operation.key.digest(), operation.attempt);
    let label = &operation.label;
    if force {
        warn!(
            key,
            ?label,
            attempt,
            verdict,
            ?reason,
            "settled by force: somebody gave an operation a verdict although its owner may be alive: \
             look for an event that it was fenced off"
        );
    } else {
        info!(
            key,
            ?label,
            attempt,
            verdict,
            ?reason,
            "settled by hand: somebody gave it a verdict"
        );
    }
}

/// An execution is not the owner of its record any more.
pub(crate) fn fenced_off(grant: &Grant, found: Written, doing: &'static str) {
    count(Count::FencedOff);
    let state = match found {
        Written::Lost(state) => Some(state),
        _ => None,
    };
    error!(
        key = grant.key.digest(),
        label = ?String::from_utf8_lossy(&grant.label),
        attempt = grant.attempt,
        fence = grant.fence.get(),
        doing,
        state = state.map(field::debug),
        "fenced off: another execution or a verdict has this operation now, so it may have been \
         executed twice: compare both effects, and lengthen the lease if processes stall"
    );
}

/// The answer could not be stored yet.
pub(crate) fn not_stored(grant: &Grant, error: &StoreError) {
    count(Count::NotStored);
    warn!(
        key = grant.key.digest(),
        attempt = grant.attempt,
        %error,
        "answer not stored yet: the operation was executed and its client has the answer; storing \
         it is tried again until it succeeds, and its key stays claimed meanwhile: mend the store"
    );
}

/// The answer will not be stored.
pub(crate) fn never_stored(grant: &Grant, why: &'static str) {
    count(Count::NeverStored);
    error!(
        key = grant.key.digest(),
        label = ?String::from_utf8_lossy(&grant.label),
        attempt = grant.attempt,
        why,
        "answer never stored: the operation was executed, but its record does not say so; its key \
         will be found abandoned: settle it as done"
    );
}

/// An answer was stored after all.
pub(crate) fn stored_late(grant: &Grant) {
    debug!(key = grant.key.digest(), attempt = grant.attempt, "answer stored late");
}

/// A release came after somebody else had the operation.
pub(crate) fn released_late(grant: &Grant, state: State) {
    debug!(key = grant.key.digest(), attempt = grant.attempt, ?state, "released late");
}

/// Only that it was executed could be stored.
pub(crate) fn body_not_stored(grant: &Grant, error: &dyn fmt::Display) {
    warn!(
        key = grant.key.digest(),
        %error,
        "body not stored: there is no room for the answer, so it is only remembered that the \
         operation was executed; later deliveries do not get the answer: give the store more room"
    );
}

/// The value of a job could not be written.
pub(crate) fn value_not_stored(subject: &Subject, error: &ValueError) {
    warn!(
        rule = subject.rule.name(),
        key = subject.record.digest(),
        %error,
        "value not stored: what a job came to is nothing that can be stored, so it is only remembered \
         that it was executed; whoever comes later is told that it is done, and not with what: give \
         it another type"
    );
}

/// The store had lost a record that its owner wrote again.
pub(crate) fn data_lost(grant: &Grant, doing: &'static str) {
    if grant.fence == Fence::NONE {
        // It was run unprotected: there was nothing to be lost.
        return;
    }
    count(Count::DataLost);
    error!(
        key = grant.key.digest(),
        doing,
        "data lost: the store had forgotten a record that was acknowledged; it was written again, \
         but others may be gone and may run twice: look for a failover, an eviction, a flush or a \
         restart without persistence"
    );
}

/// A handler runs longer than its policy allows.
pub(crate) fn max_run_passed(grant: &Grant, max_run: Duration) {
    error!(
        key = grant.key.digest(),
        label = ?String::from_utf8_lossy(&grant.label),
        attempt = grant.attempt,
        max_run_s = max_run.as_secs(),
        "longest run passed: the handler is still running, but its lease is renewed no more and \
         its key will be abandoned: find out why it hangs, or raise Policy::max_run"
    );
}

/// Renewing a lease failed.
pub(crate) fn not_renewed(grant: &Grant, error: &StoreError) {
    debug!(key = grant.key.digest(), attempt = grant.attempt, %error, "lease not renewed");
}

/// A lease ran out before it could be renewed.
pub(crate) fn lease_lapsed(grant: &Grant) {
    warn!(
        key = grant.key.digest(),
        attempt = grant.attempt,
        "lease lapsed: the store could not be asked to renew it for a whole lease while the handler \
         runs; deliveries find its key abandoned until it is renewed or stored: mend the store"
    );
}

/// A request runs without a grant, as its policy wants it.
pub(crate) fn run_unprotected(subject: &Subject, error: &str) {
    subject.rule.metrics().unprotected.increment(1);
    warn!(
        rule = subject.rule.name(),
        key = subject.record.digest(),
        error,
        "run unprotected: the store cannot be asked, and Policy::run_unprotected lets the request \
         run without a grant; it may run twice: mend the store"
    );
}

/// The store could not be asked.
pub(crate) fn store_unavailable(subject: &Subject, error: &str) {
    warn!(
        rule = subject.rule.name(),
        key = subject.record.digest(),
        error,
        "store unavailable: the request was refused with 503 and nothing was run: mend the store"
    );
}

/// The store failed again and again.
#[cfg(feature = "redis")]
pub(crate) fn store_suspended(address: &str, error: &dyn fmt::Display) {
    metrics::store_suspended(true);
    warn!(
        address,
        %error,
        "store suspended: it has failed again and again for more than two seconds, so requests are \
         refused at once from now on and one attempt at a time is made: mend the store"
    );
}

/// Another server answers than before.
#[cfg(feature = "redis")]
pub(crate) fn server_changed(address: &str) {
    warn!(
        address,
        "server changed: another Redis answers, or the same after a restart, and may not have all that \
         was acknowledged; what this process has there is written again, and grants wait until other \
         processes have done so: look for a failover or a restart"
    );
}

/// The canary of a prefix is gone.
#[cfg(feature = "redis")]
pub(crate) fn records_lost(address: &str, prefix: &str) {
    count(Count::RecordsLost);
    error!(
        address,
        prefix,
        "records lost: the key by which it is noticed is gone or another one, so that records are too, \
         and what they were of may run again: look for a flush, an eviction or a restart without \
         persistence, and reconcile what ran"
    );
}

/// Somebody has accepted that records were lost.
#[cfg(feature = "redis")]
pub(crate) fn loss_accepted(address: &str, prefix: &str) {
    warn!(address, prefix, "loss accepted: somebody lets operations run though records were lost");
}

/// A server that was connected to is not as it should be.
#[cfg(feature = "redis")]
pub(crate) fn preflight(address: &str, report: &dyn fmt::Display, passed: bool) {
    if passed {
        warn!(
            address,
            %report,
            "preflight warns: the server that was connected to may lose records, or was in trouble and \
             is well again: read the report"
        );
    } else {
        error!(
            address,
            %report,
            "preflight failed: the server that was connected to will lose records, or takes none: read \
             the report and mend the server"
        );
    }
}

/// Nobody asks any more whether the store answers again.
#[cfg(feature = "redis")]
pub(crate) fn store_forgotten() {
    metrics::store_suspended(false);
}

/// The store answers again.
#[cfg(feature = "redis")]
pub(crate) fn store_back(address: &str, away: Duration) {
    metrics::store_suspended(false);
    info!(address, away_ms = away.as_millis() as u64, "store back: it answers again");
}

/// A one-time token was given out, a new one or the one that was outstanding, or withheld.
pub(crate) fn token_issued(rule: &str, key: &RecordKey, new: bool, given: bool) {
    let key = key.digest();
    if given {
        debug!(rule, key, new, "token issued: a one-time token was given out");
    } else {
        debug!(
            rule,
            key,
            "token withheld: somebody asked for a one-time token that is outstanding and bound to \
             somebody else, or to something else"
        );
    }
}

/// No one-time token could be issued.
pub(crate) fn token_not_issued(rule: &str, key: &RecordKey, error: &StoreError) {
    warn!(
        rule,
        key = key.digest(),
        %error,
        "token not issued: the store cannot be asked for a one-time token: mend the store"
    );
}

/// What is stored cannot be read.
pub(crate) fn record_unreadable(key: &RecordKey, why: &str) {
    error!(
        key = key.digest(),
        why,
        "record unreadable: what is stored for a key is no record of this version, or another \
         key's; it is left as it is and requests for it are refused: look what writes to this store"
    );
}

impl Unreadable {
    pub(crate) fn report(self, key: &RecordKey) {
        record_unreadable(key, &self.to_string());
    }
}

/// There is no room for more late releases.
pub(crate) fn late_release_dropped(total: u64) {
    warn!(
        total,
        "late release dropped: more than 100,000 claims wait to be called off, so the oldest was \
         forgotten; its key may be found abandoned though nothing ran: mend the store"
    );
}

/// A late release or completion was given up.
pub(crate) fn late_given_up(key: &RecordKey, what: &'static str) {
    error!(
        key = key.digest(),
        what,
        "late write given up: it could not be brought to the store for as long as the record is \
         held: its key may be found abandoned: settle it"
    );
}

/// An outgoing request is about to be sent again.
#[cfg(feature = "client")]
pub(crate) fn sent_again(sent: u32, status: Option<http::StatusCode>, pause: Duration) {
    debug!(
        sent,
        status = status.map(|status| status.as_u16()),
        pause_ms = u64::try_from(pause.as_millis()).unwrap_or(u64::MAX),
        "sent again: a request with a key ended in an error, or with a status that says to come again"
    );
}
