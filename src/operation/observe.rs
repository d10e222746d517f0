//! The way of a request that is only observed: it reaches the inner service whatever is known of its
//! identity, and what would have become of it is told.

use std::{panic::resume_unwind, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tokio::time::{Instant, timeout_at};
use tower_service::Service;
use tracing::Span;

use super::{
    Handled, Operation, Shared, Would,
    detach::Detach,
    execution::{self, Execution},
    prepare::{Door, ObservedDoor, Prepared, prepare_observed},
    replay::refuse,
    run::ready,
    way::{Granted, Way},
};
use crate::{
    body::{BoxError, RequestBody, ResponseBody},
    record::Previous,
    refusal::{RefusalKind, is_grpc},
    rule::Rule,
    telemetry,
};

/// A claim ends by itself when its time is over. That end is waited for, since it says why.
const ENDS_BY_ITSELF: Duration = Duration::from_millis(5);

/// Runs a request that a rule is for, once or again, and tells what would have become of it. `span` is
/// the one that it runs in.
pub(crate) async fn observe<S, B, R>(
    shared: Arc<Shared>,
    rule: Arc<Rule>,
    mut inner: S,
    request: Request<B>,
    span: Span,
) -> Result<Response<ResponseBody<R>>, S::Error>
where
    S: Service<Request<RequestBody<B>>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
    R: Body<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    let grpc = is_grpc(request.headers());
    let prepared = match prepare_observed(&shared, &rule, request).await {
        ObservedDoor::Door(Door::Claim(prepared)) => prepared,
        ObservedDoor::Door(Door::Pass(request)) => {
            telemetry::record_handled(&span, &rule, "passed");
            ready(&mut inner).await?;
            return Ok(inner.call(request).await?.map(ResponseBody::untouched));
        }
        ObservedDoor::Refused(refusal, request) => {
            let would = Would::Refuse(refusal.kind());
            telemetry::would_have_refused(&span, &rule, None, refusal.kind(), &Why::of(&refusal));
            ready(&mut inner).await?;
            return unprotected(inner, request, would).await;
        }
        ObservedDoor::Broken(refusal) => {
            telemetry::record_handled(&span, &rule, refusal.kind().name());
            telemetry::refused(&rule, &refusal);
            return Ok(refuse(rule.policy(), refusal, grpc));
        }
    };
    let Prepared { subject, delivery, print, one_time, mut request } = prepared;
    telemetry::record_key(&span, &subject.record);
    // Asked before the claim, so that what cannot be served now claims nothing.
    ready(&mut inner).await?;
    let way = Way::new(shared, subject, delivery, print, one_time);
    let operation = Operation::new(way.subject.clone(), way.no_grant(Previous::Nothing));
    let would = match claim(way, &span).await {
        Ok(execution) => {
            telemetry::record_handled(&span, &rule, "executed");
            telemetry::record_attempt(&span, &rule, execution.attempt());
            let work = Detach::new(execution::run(execution, inner, request, grpc));
            // From here on the work outlives the client.
            return work.await.unwrap_or_else(|panic| resume_unwind(panic));
        }
        Err(would) => would,
    };
    // It is no grant, and a layer further in must not take it for one.
    operation.end();
    request.extensions_mut().insert(operation);
    unprotected(inner, request, would).await
}

/// Asks once for the right to execute, for no longer than one call of the store may take.
///
/// What was claimed and not granted is called off before the handler starts.
async fn claim(mut way: Way, span: &Span) -> Result<Execution, Would> {
    let within = way.subject.rule.policy().call_within;
    let until = Instant::now() + within + ENDS_BY_ITSELF;
    let seen = timeout_at(until, way.observe()).await;
    let (would, why) = match seen {
        Ok(Ok(granted)) => return start(way, granted, span),
        Ok(Err(seen)) => seen,
        Err(_) => (Would::Refuse(RefusalKind::StoreUnavailable), Why::detail("it is too slow")),
    };
    tell(span, &way, would, &why);
    Err(would)
}

fn start(way: Way, granted: Granted, span: &Span) -> Result<Execution, Would> {
    let subject = way.subject.clone();
    Execution::start(way, granted).ok_or_else(|| {
        let kind = RefusalKind::ShuttingDown;
        telemetry::would_have_refused(
            span,
            &subject.rule,
            Some(&subject.record),
            kind,
            &Why::default(),
        );
        Would::Refuse(kind)
    })
}

fn tell(span: &Span, way: &Way, would: Would, why: &Why) {
    let (rule, key) = (&way.subject.rule, &way.subject.record);
    match would {
        Would::Replay => telemetry::would_have_replayed(span, rule, key),
        Would::Wait => telemetry::would_have_waited(span, rule, key),
        Would::Refuse(kind) => telemetry::would_have_refused(span, rule, Some(key), kind, why),
    }
}

/// Runs the handler as if there were no layer.
async fn unprotected<S, B, R>(
    mut inner: S,
    request: Request<RequestBody<B>>,
    would: Would,
) -> Result<Response<ResponseBody<R>>, S::Error>
where
    S: Service<Request<RequestBody<B>>, Response = Response<R>>,
{
    let mut response = inner.call(request).await?.map(ResponseBody::untouched);
    response.extensions_mut().insert(Handled::Observed { would });
    Ok(response)
}

/// Why a request would be refused, for an operator.
#[derive(Debug, Default)]
pub(crate) struct Why {
    /// What would be said of it.
    pub(crate) detail: Option<String>,
    /// Which of the compared fields differ, where that is known.
    pub(crate) fields: Option<Vec<String>>,
}

impl Why {
    pub(super) fn of(refusal: &crate::refusal::Refusal) -> Self {
        Self::detail(refusal.detail())
    }

    pub(super) fn detail(detail: &str) -> Self {
        Self { detail: Some(detail.to_owned()), fields: None }
    }
}
