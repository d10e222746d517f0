//! The way of a job: the claim, the lease, the settlement and the recovery of a request, without one.

use std::{future::Future, panic::resume_unwind, sync::Arc};

use bytes::Bytes;
use tracing::Span;

use super::{
    Operation, Shared,
    detach::{CatchPanic, Detach, Panic},
    execution::{Execution, InPlace},
    prepare::{Names, shutting_down},
    replay::stored,
    seal::Truth,
    wait::outcome_unknown,
    way::{Met, Way},
};
use crate::{
    fingerprint,
    identity::Identity,
    ledger::RowPrint,
    record::{Answer, Fingerprint, Kind, ValueError},
    refusal::Refusal,
    rule::Rule,
    store::Reason,
    telemetry::{self, Timer},
};

/// What is to be run once.
pub(crate) struct Job {
    rule: Arc<Rule>,
    scope: Bytes,
    key: Identity,
    print: Option<Fingerprint>,
}

/// How the work of a job ended, and what its caller gets.
pub(crate) enum Ended<V> {
    /// This is its answer.
    Keep(Result<Answer, ValueError>, V),
    /// It did not happen.
    Release(V),
    /// Nobody knows whether it happened.
    Uncertain(V),
}

/// What came of a job.
pub(crate) enum Came<V> {
    /// It was run, and ended so.
    Ran(V),
    /// It was run before, or its answer is another one: this.
    Stored(Answer),
    Refused(Refusal),
}

impl Job {
    pub(crate) fn new(
        shared: &Shared,
        rule: Arc<Rule>,
        scope: Bytes,
        key: Identity,
        compared: Option<&[u8]>,
    ) -> Self {
        let print = compared.map(|compared| fingerprint::of_job(shared.secret.as_ref(), compared));
        Self { rule, scope, key, print }
    }

    /// Its way to a grant, if it may go.
    fn way(self, shared: Arc<Shared>, span: &Span) -> Result<Way, Refusal> {
        let key = self.key.check(|| "the key of a job".to_owned())?;
        let names = Names { secret: shared.secret.as_ref(), rule: &self.rule, scope: &self.scope };
        let print = RowPrint {
            secret: names.secret_id(),
            caller: None,
            whole: self.print,
            fields: Vec::new(),
        };
        let subject = names.subject(key, Kind::Job, None, print);
        telemetry::record_key(span, &subject.record);
        Ok(Way::new(shared, subject, None, self.print, None))
    }
}

/// Runs a job: once, or not at all. `span` is the one that it runs in.
pub(crate) async fn run_job<V, W, F>(shared: Arc<Shared>, job: Job, work: W, span: Span) -> Came<V>
where
    V: Send + 'static,
    W: FnOnce(Operation) -> F + Send + 'static,
    F: Future<Output = Ended<V>> + Send + 'static,
{
    let rule = job.rule.clone();
    let came = match claim(shared, job, &span).await {
        Ok(Claim::Granted(execution)) => {
            telemetry::record_handled(&span, &rule, "executed");
            telemetry::record_attempt(&span, &rule, execution.attempt());
            // From here on the work outlives its caller.
            let work = Detach::new(execute(*execution, work));
            work.await.unwrap_or_else(|panic| resume_unwind(panic))
        }
        Ok(Claim::Stored(answer)) => {
            telemetry::record_handled(&span, &rule, "replayed");
            Came::Stored(answer)
        }
        Err(refusal) => Came::Refused(refusal),
    };
    if let Came::Refused(refusal) = &came {
        telemetry::record_handled(&span, &rule, refusal.kind().name());
        telemetry::refused(&rule, refusal);
    }
    came
}

enum Claim {
    /// On the heap, since the other is small.
    Granted(Box<Execution>),
    Stored(Answer),
}

/// Asks until there is a grant, an answer or a refusal.
///
/// # Cancel safety
///
/// What was claimed is called off when it is dropped.
async fn claim(shared: Arc<Shared>, job: Job, span: &Span) -> Result<Claim, Refusal> {
    let mut way = job.way(shared, span)?;
    if let Some(answer) = way.recent_answer(stored) {
        return Ok(Claim::Stored(answer));
    }
    loop {
        let met = match way.claim().await {
            Met::Granted(granted) => {
                let execution = Execution::start(way, granted).ok_or_else(shutting_down)?;
                return Ok(Claim::Granted(Box::new(execution)));
            }
            met => met,
        };
        if met.takes_time() {
            // What is awaited may be for this very process to tell.
            way.shared.keeper.resume();
        }
        if let Some(payload) = way.after(met).await? {
            return stored(&way.subject, payload).map(Claim::Stored);
        }
    }
}

/// Runs the work, and tells the store before its caller sees what came of it.
async fn execute<V, W, F>(execution: Execution, work: W) -> Result<Came<V>, Panic>
where
    W: FnOnce(Operation) -> F,
    F: Future<Output = Ended<V>>,
{
    let operation = execution.operation.clone();
    let settlement = &execution.settlement;
    let timer = Timer::start();
    let ended = CatchPanic::new(async move { work(operation).await }).await;
    execution.operation.subject().rule.metrics().ran(timer);
    if let Some(refusal) = execution.told_apart().await {
        return ended.map(|_| Came::Refused(refusal));
    }
    match ended {
        Ok(Ended::Keep(_, value))
            if execution.operation.is_uncertain() && execution.row().is_none() =>
        {
            settlement.uncertain("the work said that nobody knows").await;
            Ok(Came::Ran(value))
        }
        Ok(Ended::Keep(answer, value)) => Ok(execution.keep_value(answer, value).await),
        Ok(Ended::Release(value)) => match execution.row().cloned() {
            // It has happened, whatever the work says of it.
            Some(row) => {
                let stored = execution.store_truth(Truth::Row(row)).await;
                Ok(execution.came(stored, value))
            }
            None => {
                settlement.release(Reason::DidNotHappen).await;
                Ok(Came::Ran(value))
            }
        },
        Ok(Ended::Uncertain(value)) => {
            settlement.uncertain("the work ended in an error").await;
            Ok(Came::Ran(value))
        }
        Err(panic) => {
            settlement.uncertain("the work panicked").await;
            Err(panic)
        }
    }
}

impl Execution {
    async fn keep_value<V>(&self, answer: Result<Answer, ValueError>, value: V) -> Came<V> {
        let subject = self.operation.subject();
        let limit = subject.rule.policy().answer_limit;
        let answer = match answer {
            Ok(answer) if answer.body().is_some_and(|body| body.len() > limit) => {
                answer.without_body()
            }
            Ok(answer) => answer,
            Err(error) => {
                telemetry::value_not_stored(subject, &error);
                Answer::json("").without_body()
            }
        };
        let stored = self.store(&answer).await;
        self.came(stored, value)
    }

    fn came<V>(&self, instead: InPlace, value: V) -> Came<V> {
        let subject = self.operation.subject();
        match instead {
            InPlace::Nothing => Came::Ran(value),
            InPlace::Other(payload) => {
                stored(subject, payload).map_or(Came::Ran(value), Came::Stored)
            }
            InPlace::Row(payload) => {
                stored(subject, payload).map_or_else(Came::Refused, Came::Stored)
            }
            InPlace::Unknown => Came::Refused(outcome_unknown(subject.rule.policy().profile)),
            InPlace::Refused(refusal) => Came::Refused(refusal),
        }
    }
}
