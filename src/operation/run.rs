//! The way of a protected request, up to the grant.

use std::{future::poll_fn, mem, panic::resume_unwind, sync::Arc};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tower_service::Service;
use tracing::{Instrument, Span};

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
pub(crate) async fn run<S, B, R>(
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
    let no = |refusal: Refusal| {
        telemetry::record_handled(&span, &rule, refusal.kind().name());
        telemetry::refused(&rule, &refusal);
        Ok(refuse(rule.policy(), refusal, grpc))
    };
    let Prepared { subject, delivery, print, one_time, request } =
        match prepare(&shared, &rule, request).await {
            Ok(Door::Claim(prepared)) => prepared,
            Ok(Door::Pass(request)) => {
                telemetry::record_handled(&span, &rule, "passed");
                ready(&mut inner).await?;
                return Ok(inner.call(request).await?.map(ResponseBody::untouched));
            }
            Err(refusal) => return no(refusal),
        };
    telemetry::record_key(&span, &subject.record);
    if let Some(response) = shared.recent_answer(&subject, print, replay) {
        telemetry::record_handled(&span, &rule, "replayed");
        return Ok(response);
    }
    let mut way = Way::new(shared, subject, delivery, print, one_time);
    let granted = loop {
        // Asked before the claim, so that what cannot be served now claims nothing.
        ready(&mut inner).await?;
        let met = match way.claim().await {
            Met::Granted(granted) => break granted,
            met => met,
        };
        if met.takes_time() {
            // What is awaited may be for this very process to tell.
            way.shared().keeper.resume();
            // The reservation is given back: nothing is run, or not before somebody else's run has
            // ended.
            let unready = inner.clone();
            drop(mem::replace(&mut inner, unready));
        }
        match way.after(met).await {
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
    let work = execution::run(execution, inner, request).in_current_span();
    // From here on the work outlives the client.
    Detach::new(work).await.unwrap_or_else(|panic| resume_unwind(panic))
}

pub(super) async fn ready<S, T>(service: &mut S) -> Result<(), S::Error>
where
    S: Service<T>,
{
    poll_fn(|cx| service.poll_ready(cx)).await
}
