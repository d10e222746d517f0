//! The way of a protected request, up to the grant.

use std::{future::poll_fn, mem, panic::resume_unwind, sync::Arc};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tower_service::Service;
use tracing::Span;

use super::{
    Shared,
    detach::Detach,
    execution::{self, Execution},
    prepare::{Door, Prepared, prepare, shutting_down},
    replay::{refuse, replay},
    way::{Met, Way},
};
use crate::{
    body::{BoxError, RequestBody, ResponseBody},
    refusal::{Refusal, is_grpc},
    rule::Rule,
    telemetry,
};

/// Runs a request that a rule is for: once, or not at all. `span` is the one that it runs in.
///
/// No `async fn`, which would hold its arguments twice: what every request needs stands in one small
/// future, and what few need in boxes.
pub(crate) fn run<S, B, R>(
    shared: Arc<Shared>,
    rule: Arc<Rule>,
    mut inner: S,
    request: Request<B>,
    span: Span,
) -> impl Future<Output = Result<Response<ResponseBody<R>>, S::Error>>
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
    async move {
        let no = |refusal: Refusal| {
            telemetry::record_handled(&span, &rule, refusal.kind().name());
            telemetry::refused(&rule, &refusal);
            Ok(refuse(rule.policy(), refusal, grpc))
        };
        let (mut way, request) = match prepare(&shared, &rule, request).await {
            Ok(Door::Claim(prepared)) => match begin(&shared, &span, prepared) {
                Ok(begun) => begun,
                Err(response) => return Ok(response),
            },
            Ok(Door::Pass(request)) => {
                telemetry::record_handled(&span, &rule, "passed");
                return Box::pin(pass(inner, request)).await;
            }
            Err(refusal) => return no(refusal),
        };
        let granted = loop {
            // Asked before the claim, so that what cannot be served now claims nothing.
            ready(&mut inner).await?;
            let met = match way.claim().await {
                Met::Granted(granted) => break granted,
                met => met,
            };
            let answered = match way.answer(&met) {
                Some(payload) => Ok(Some(payload)),
                None => Box::pin(meanwhile(&mut way, &mut inner, met)).await,
            };
            match answered {
                Ok(None) => {}
                Ok(Some(payload)) => match replay(way.subject(), payload) {
                    Ok(response) => {
                        telemetry::record_handled(&span, &rule, "replayed");
                        return Ok(response);
                    }
                    Err(refusal) => return no(refusal),
                },
                Err(refusal) => return no(refusal),
            }
        };
        let Some(execution) = Execution::start(way, granted) else {
            return no(shutting_down());
        };
        telemetry::record_handled(&span, &rule, "executed");
        telemetry::record_attempt(&span, &rule, execution.attempt());
        // Where our span is switched off, this is the one around it.
        let work = Detach::new(execution::run(execution, inner, request));
        // From here on the work outlives the client.
        work.await.unwrap_or_else(|panic| resume_unwind(panic))
    }
}

/// A request whose operation is known, and its way.
type Begun<B> = (Way, Request<RequestBody<B>>);

/// The way of a request whose operation is known, or the answer that this process knows still.
fn begin<B, R>(
    shared: &Arc<Shared>,
    span: &Span,
    prepared: Prepared<B>,
) -> Result<Begun<B>, Response<ResponseBody<R>>> {
    let Prepared { subject, delivery, print, one_time, request } = prepared;
    telemetry::record_key(span, &subject.record);
    if let Some(response) = shared.recent_answer(&subject, print, replay) {
        telemetry::record_handled(span, &subject.rule, "replayed");
        return Err(response);
    }
    Ok((Way::new(shared.clone(), subject, delivery, print, one_time), request))
}

/// A request that needs no grant.
async fn pass<S, B, R>(
    mut inner: S,
    request: Request<RequestBody<B>>,
) -> Result<Response<ResponseBody<R>>, S::Error>
where
    S: Service<Request<RequestBody<B>>, Response = Response<R>>,
{
    ready(&mut inner).await?;
    Ok(inner.call(request).await?.map(ResponseBody::untouched))
}

/// What follows where there is neither a grant nor an answer yet.
async fn meanwhile<S: Clone>(
    way: &mut Way,
    inner: &mut S,
    met: Met,
) -> Result<Option<Bytes>, Refusal> {
    // What is awaited may be for this very process to tell.
    way.shared().keeper.resume();
    // The reservation is given back: nothing is run, or not before somebody else's run has ended.
    let unready = inner.clone();
    drop(mem::replace(inner, unready));
    way.after(met).await
}

pub(super) async fn ready<S, T>(service: &mut S) -> Result<(), S::Error>
where
    S: Service<T>,
{
    poll_fn(|cx| service.poll_ready(cx)).await
}
