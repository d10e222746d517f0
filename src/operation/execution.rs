//! From the grant on: the handler or the job, its answer, and what the store is told of it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use bytes::Bytes;
use http::{
    Request, Response, StatusCode,
    header::{CONTENT_TYPE, TRANSFER_ENCODING},
    response::Parts,
};
use http_body::Body;
use tower_service::Service;

use super::{
    Handled, Operation,
    capture::{Captured, answer_body},
    detach::{CatchPanic, Panic},
    mismatch::refuse_other,
    recovery::storable,
    replay::{REPLAYED, refuse, replay, stored_headers, stored_trailers},
    seal::{Truth, seal},
    settlement::Settlement,
    then::then,
    wait::outcome_unknown,
    way::{Granted, Way},
};
use crate::{
    body::{BoxError, RequestBody, ResponseBody},
    policy::{Ending, Policy},
    record::{Answer, Outcome, Previous, encode},
    refusal::{Refusal, is_grpc},
    store::Reason,
    telemetry::{self, During, Timer},
};

const EVENT_STREAM: &[u8] = b"text/event-stream";

/// A handler's or a job's run under a grant.
pub(super) struct Execution {
    pub(super) operation: Operation,
    pub(super) settlement: Settlement,
    _in_flight: During,
}

/// What everybody gets in place of an execution's own answer.
pub(super) enum InPlace {
    /// Its own is the one that everybody gets, as far as is known.
    Nothing,
    /// Another execution's answer, which is stored.
    Other(Bytes),
    /// The answer in the ledger's row, as it is stored.
    Row(Bytes),
    /// Nobody knows which is the one, and it is better not to give any.
    Unknown,
    /// None: its row is another request's.
    Refused(Refusal),
}

/// What came of a handler.
struct Done<R> {
    head: Parts,
    body: Captured<R>,
}

impl Execution {
    /// Takes the grant over from the claim; `None` when the layer is told to end, and then the claim
    /// is called off.
    pub(super) fn start(way: Way, granted: Granted) -> Option<Self> {
        let Way { shared, subject, mut claimant, .. } = way;
        let operation = Operation::new(subject, granted.grant);
        let watched = shared.keeper.watch(operation.clone(), granted.since)?;
        if operation.previous() == Previous::AbandonedUnknown {
            telemetry::rerun(operation.subject(), operation.grant());
        }
        let in_flight = operation.subject().rule.metrics().in_flight();
        // Not before: whoever takes events or counts may panic, and then nothing has run.
        let claims_until = claimant.started();
        let settlement = Settlement::new(shared, operation.clone(), watched, claims_until);
        Some(Self { operation, settlement, _in_flight: in_flight })
    }

    pub(super) fn attempt(&self) -> u32 {
        self.operation.attempt()
    }

    fn policy(&self) -> &Policy {
        self.operation.subject().rule.policy()
    }

    /// What an answer means of which the handler does not say it in its extensions: the handler's
    /// mark counts over the policy.
    fn ending(&self, answer: &Answer) -> Ending {
        match self.operation.is_uncertain() {
            true => Ending::UNCERTAIN,
            false => self.policy().ending_of(answer),
        }
    }
}

impl Execution {
    /// The answer in the row that the handler left or found, where there is a ledger: then it has
    /// happened, whatever else is said of it.
    pub(super) fn row(&self) -> Option<&Answer> {
        let policy = self.policy();
        self.operation.row().filter(|_| policy.ledger.is_some() && !policy.observe)
    }

    /// Stores an answer, with its row where there is a ledger.
    pub(super) async fn store(&self, answer: &Answer) -> InPlace {
        let policy = self.policy();
        if policy.ledger.is_some() && !policy.observe {
            let sealed = async {
                let truth = seal(&self.operation, answer.clone()).await;
                self.store_truth(truth).await
            };
            return Box::pin(sealed).await;
        }
        // Where it is only observed, a row would change what the next handler does.
        match self.settlement.keep(answer).await {
            // The client gets what its handler said.
            Some(payload) if !policy.observe => InPlace::Other(payload),
            _ => InPlace::Nothing,
        }
    }

    pub(super) async fn store_truth(&self, truth: Truth) -> InPlace {
        let subject = self.operation.subject();
        let policy = subject.rule.policy();
        match truth {
            Truth::Own(answer) => match self.settlement.keep(&answer).await {
                Some(payload) => InPlace::Other(payload),
                None => InPlace::Nothing,
            },
            Truth::Row(row) => {
                let row = storable(row, policy.keep_cookies);
                let payload = encode(&subject.record, &row, &[]);
                let too_large = row.body().is_some_and(|body| body.len() > policy.answer_limit);
                let kept = if too_large { row.without_body() } else { row };
                InPlace::Row(self.settlement.keep(&kept).await.unwrap_or(payload))
            }
            Truth::Other(differs) => {
                self.settlement.release(Reason::DidNotHappen).await;
                InPlace::Refused(refuse_other(subject, &differs))
            }
            Truth::Unknown { why, withheld } => {
                self.settlement.uncertain(&why).await;
                if withheld { InPlace::Unknown } else { InPlace::Nothing }
            }
        }
    }
}

impl Execution {
    /// What the client is told whose handler has met another request's row: whatever the handler says,
    /// it did not happen, and what was granted is given back.
    pub(super) async fn told_apart(&self) -> Option<Refusal> {
        let differs = self.operation.other()?;
        let subject = self.operation.subject();
        if subject.rule.policy().observe {
            return None;
        }
        self.settlement.release(Reason::DidNotHappen).await;
        Some(refuse_other(subject, differs))
    }
}

impl Drop for Execution {
    /// Also when the runtime ends in the middle of it.
    fn drop(&mut self) {
        self.operation.end();
    }
}

/// What came of a handler: its answer, its error or its panic.
type Ended<R, E> = Result<Result<Done<R>, E>, Panic>;

/// What becomes of an execution: the answer that is sent, the handler's error or its panic.
pub(super) type Came<R, E> = Result<Result<Response<ResponseBody<R>>, E>, Panic>;

/// Runs the handler, and tells the store before anybody sees the answer. The handler is called at once.
pub(super) fn run<S, B, R>(
    execution: Execution,
    mut inner: S,
    mut request: Request<RequestBody<B>>,
    grpc: bool,
) -> impl Future<Output = Came<R, S::Error>>
where
    S: Service<Request<RequestBody<B>>, Response = Response<R>>,
    R: Body<Data = Bytes>,
    R::Error: Into<BoxError>,
{
    request.extensions_mut().insert(execution.operation.clone());
    let timer = Timer::start();
    let called = CatchPanic::calling(|| inner.call(request));
    // Here and not at the end, where its panic would leave behind what is returned, undropped.
    drop(inner);
    let captured = then(called, move |called| capture(execution, called));
    then(captured, move |(execution, ended)| {
        execution.operation.subject().rule.metrics().ran(timer);
        conclude(execution, ended, grpc)
    })
}

/// Reads the answer whole, if it has an end.
#[expect(clippy::manual_async_fn, reason = "an async fn would hold its arguments twice")]
fn capture<R, E>(
    execution: Execution,
    called: Result<Result<Response<R>, E>, Panic>,
) -> impl Future<Output = (Execution, Ended<R, E>)>
where
    R: Body<Data = Bytes>,
    R::Error: Into<BoxError>,
{
    async move {
        let (head, body) = match called {
            Ok(Ok(response)) => response.into_parts(),
            Ok(Err(error)) => return (execution, Ok(Err(error))),
            Err(panic) => return (execution, Err(panic)),
        };
        let body = if has_an_end(&head) {
            let limit = execution.policy().answer_limit;
            CatchPanic::new(answer_body(body, limit)).await
        } else {
            Ok(Captured::Unfinished { chunks: Default::default(), rest: Box::pin(body) })
        };
        (execution, body.map(|body| Ok(Done { head, body })))
    }
}

/// Tells the store what came of it, and gives what the client gets; a panic of the policy's own code is
/// told like one of the handler.
fn conclude<R, E>(
    execution: Execution,
    ended: Ended<R, E>,
    grpc: bool,
) -> impl Future<Output = Came<R, E>> {
    let judged = match ended {
        Ok(Ok(done)) => Ok(execution.judge(done)),
        Ok(Err(error)) => Err(Ok(error)),
        Err(panic) => Err(Err(panic)),
    };
    async move {
        if execution.operation.other().is_some()
            && let Some(refusal) = Box::pin(execution.told_apart()).await
        {
            let rule = &execution.operation.subject().rule;
            telemetry::refused(rule, &refusal);
            return match judged {
                Err(Err(panic)) => Err(panic),
                _ => Ok(Ok(refuse(rule.policy(), refusal, grpc))),
            };
        }
        let uncertain = |why| Box::pin(execution.settlement.uncertain(why));
        // Told by reference: what is moved out first is held twice.
        let stored = match &judged {
            Ok(Judged { answer, ending: Ok(Ending::Keep), .. }) => execution.store(answer).await,
            Ok(Judged { broken, ending: Ok(Ending::Release(reason)), .. }) => {
                Box::pin(execution.give_back(*reason, *broken)).await;
                InPlace::Nothing
            }
            unknown => {
                uncertain(match unknown {
                    Ok(_) => "Policy::keep_if panicked",
                    Err(Ok(_)) => "the handler ended in an error",
                    Err(Err(_)) => "the handler panicked",
                })
                .await;
                InPlace::Nothing
            }
        };
        match judged {
            Ok(Judged { ending: Err(panic), .. }) if !execution.policy().observe => Err(panic),
            Ok(Judged { response, .. }) => Ok(Ok(execution.instead(stored, response))),
            Err(Ok(error)) => Ok(Err(error)),
            Err(Err(panic)) => Err(panic),
        }
    }
}

/// Whether an answer can be captured: an event stream goes on for as long as its reader stays, and
/// after a switch of protocols there is no body.
fn has_an_end(head: &Parts) -> bool {
    let event_stream = head
        .headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.as_bytes().get(..EVENT_STREAM.len()))
        .is_some_and(|start| start.eq_ignore_ascii_case(EVENT_STREAM));
    !event_stream && head.status != StatusCode::SWITCHING_PROTOCOLS
}

/// What the handler's answer means.
struct Judged<R> {
    response: Response<ResponseBody<R>>,
    answer: Answer,
    broken: bool,
    /// Or the panic of the policy's own code.
    ending: Result<Ending, Panic>,
}

impl Execution {
    fn judge<R>(&self, done: Done<R>) -> Judged<R> {
        let Done { mut head, body } = done;
        head.headers.remove(REPLAYED);
        head.extensions.insert(Handled::Executed { attempt: self.operation.attempt() });
        if matches!(body, Captured::Whole(_)) {
            // It has a length now, and servers refuse to send both.
            head.headers.remove(TRANSFER_ENCODING);
        }
        let (answer, broken, body) = self.answer(&head, body);
        let explicit = head.extensions.get::<Outcome>().copied();
        let ending = match explicit {
            // Released, its key would be free for another body, and the next run be told that nothing
            // had happened.
            _ if self.row().is_some() => Ok(Ending::Keep),
            // Only observed: the client is told what its handler said, and nobody else is.
            _ if self.operation.other().is_some() => Ok(Outcome::Release.into()),
            Some(outcome) => Ok(outcome.into()),
            None if broken => Ok(Ending::UNCERTAIN),
            None => catch_unwind(AssertUnwindSafe(|| self.ending(&answer))),
        };
        Judged { response: Response::from_parts(head, body), answer, broken, ending }
    }

    /// Tells the store of an answer that is not kept.
    async fn give_back(&self, reason: Reason, broken: bool) {
        match reason {
            Reason::Unknown if broken => self.settlement.uncertain("the answer broke off").await,
            Reason::Unknown => {
                self.settlement.uncertain("its answer says that nobody knows").await;
            }
            reason => self.settlement.release(reason).await,
        }
    }

    /// What the client gets: its handler's answer, unless something else is the answer that everybody
    /// gets, or nobody knows which is.
    fn instead<R>(
        &self,
        stored: InPlace,
        response: Response<ResponseBody<R>>,
    ) -> Response<ResponseBody<R>> {
        let subject = self.operation.subject();
        let policy = subject.rule.policy();
        let no = |refusal| refuse(policy, refusal, is_grpc(response.headers()));
        match stored {
            InPlace::Nothing => response,
            InPlace::Other(payload) => replay(subject, payload).unwrap_or(response),
            InPlace::Row(payload) => replay(subject, payload).unwrap_or_else(no),
            InPlace::Unknown => no(outcome_unknown(policy.profile)),
            InPlace::Refused(refusal) => {
                telemetry::refused(&subject.rule, &refusal);
                no(refusal)
            }
        }
    }

    /// What is stored of an answer, whether it broke off, and the body that is sent.
    fn answer<R>(&self, head: &Parts, body: Captured<R>) -> (Answer, bool, ResponseBody<R>) {
        let mut broken = false;
        let (data, trailers, body) = match body {
            Captured::Whole(mut whole) => {
                if let Some(trailers) = &mut whole.trailers {
                    trailers.remove(REPLAYED);
                }
                (Some(whole.data.clone()), whole.trailers.clone(), ResponseBody::whole(whole))
            }
            Captured::Unfinished { chunks, rest } => {
                (None, None, ResponseBody::unfinished(chunks, rest))
            }
            Captured::Broken { chunks, error } => {
                broken = true;
                (None, None, ResponseBody::broken(chunks, error))
            }
        };
        let cookies = self.policy().keep_cookies;
        let headers = stored_headers(&head.headers, cookies);
        let trailers = trailers.and_then(|trailers| stored_trailers(&trailers, cookies));
        (Answer::from_parts(head.status, headers, data, trailers), broken, body)
    }
}
