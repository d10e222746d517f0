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
    execution::{self, Came, Execution},
    prepare::{Door, Prepared, prepare, shutting_down},
    replay::{refuse, replay},
    then::then,
    way::{Granted, Met, Way},
};
use crate::{
    body::{BoxError, RequestBody, ResponseBody},
    refusal::{Refusal, is_grpc},
    rule::Rule,
    telemetry,
};

/// Runs a request that a rule is for: once, or not at all. `span` is the one that it runs in.
pub(crate) fn run<S, B, R>(
    shared: Arc<Shared>,
    rule: Arc<Rule>,
    inner: S,
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
    let preparing = prepare(shared.clone(), rule.clone(), request);
    then(preparing, move |door| {
        let request = Asked { rule, span, grpc };
        let entered = enter(&shared, &request, door);
        request.run(inner, entered)
    })
}

/// What is known of a request until its answer.
struct Asked {
    rule: Arc<Rule>,
    span: Span,
    grpc: bool,
}

/// A request that was looked at. What is large is in boxes, which go on until the grant.
enum Entered<B, R> {
    Claims(Box<Begun<B>>),
    Passes(Box<Request<RequestBody<B>>>),
    Answered(Box<Response<ResponseBody<R>>>),
}

/// A request whose operation is known, and its way.
type Begun<B> = (Way, Request<RequestBody<B>>);

/// The way of a request whose operation is known, unless the answer is known too.
fn enter<B, R>(
    shared: &Arc<Shared>,
    asked: &Asked,
    door: Result<Door<B>, Refusal>,
) -> Entered<B, R> {
    let prepared = match door {
        Ok(Door::Claim(prepared)) => prepared,
        Ok(Door::Pass(request)) => return Entered::Passes(Box::new(request)),
        Err(refusal) => return Entered::Answered(Box::new(asked.no(refusal))),
    };
    let Prepared { subject, delivery, print, one_time, request } = prepared;
    telemetry::record_key(&asked.span, &subject.record);
    if let Some(response) = shared.recent_answer(&subject, print, replay) {
        asked.handled("replayed");
        return Entered::Answered(Box::new(response));
    }
    let way = Way::new(shared.clone(), subject, delivery, print, one_time);
    Entered::Claims(Box::new((way, request)))
}

impl Asked {
    fn handled(&self, how: &'static str) {
        telemetry::record_handled(&self.span, &self.rule, how);
    }

    fn no<R>(&self, refusal: Refusal) -> Response<ResponseBody<R>> {
        self.handled(refusal.kind().name());
        telemetry::refused(&self.rule, &refusal);
        refuse(self.rule.policy(), refusal, self.grpc)
    }

    #[expect(clippy::manual_async_fn, reason = "an async fn would hold its arguments twice")]
    fn run<S, B, R>(
        self,
        mut inner: S,
        entered: Entered<B, R>,
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
        async move {
            let mut begun = match entered {
                Entered::Claims(begun) => begun,
                Entered::Answered(response) => return Ok(*response),
                Entered::Passes(request) => {
                    self.handled("passed");
                    return Box::pin(pass(inner, *request)).await;
                }
            };
            let granted = loop {
                let way = &mut begun.0;
                // Asked before the claim, so that what cannot be served now claims nothing.
                ready(&mut inner).await?;
                let met = match way.claim().await {
                    Met::Granted(granted) => break granted,
                    met => met,
                };
                let answered = match way.answer(&met) {
                    Some(payload) => Ok(Some(payload)),
                    None => Box::pin(meanwhile(way, &mut inner, met)).await,
                };
                match answered {
                    Ok(None) => {}
                    Ok(Some(payload)) => {
                        let replayed = replay(&way.subject, payload);
                        return Ok(match replayed {
                            Ok(response) => {
                                self.handled("replayed");
                                response
                            }
                            Err(refusal) => self.no(refusal),
                        });
                    }
                    Err(refusal) => return Ok(self.no(refusal)),
                }
            };
            let Some(work) = self.start(*begun, granted, inner) else {
                return Ok(self.no(shutting_down()));
            };
            work.await.unwrap_or_else(|panic| resume_unwind(panic))
        }
    }

    /// Starts what is granted; from here on the work outlives the client. `None` when the layer is told
    /// to end.
    fn start<S, B, R>(
        &self,
        (way, request): Begun<B>,
        granted: Granted,
        inner: S,
    ) -> Option<Detach<Came<R, S::Error>>>
    where
        S: Service<Request<RequestBody<B>>, Response = Response<R>> + Clone + Send + 'static,
        S::Future: Send + 'static,
        S::Error: Send + 'static,
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
        R: Body<Data = Bytes> + Send + 'static,
        R::Error: Into<BoxError>,
    {
        let execution = Execution::start(way, granted)?;
        self.handled("executed");
        telemetry::record_attempt(&self.span, &self.rule, execution.attempt());
        // Where our span is switched off, the current one is the one around it.
        Some(Detach::new(execution::run(execution, inner, request, self.grpc)))
    }
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
    way.shared.keeper.resume();
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
