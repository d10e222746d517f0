//! From a request as it came to one that can be claimed: identity, scope and fingerprint are known,
//! and the body is whole.

use bytes::Bytes;
use http::{Request, Version, header::CONTENT_LENGTH, request::Parts};
use http_body::Body;
use tokio::task::yield_now;

use super::{Operation, Shared, capture, handle::Subject};
use crate::{
    body::{BoxError, RequestBody, Whole},
    fingerprint::whole_request,
    identity::{Identity, Input},
    record::{Fingerprint, Kind, RecordKey},
    refusal::{Refusal, RefusalKind},
    rule::Rule,
};
use std::sync::Arc;

/// A request that can be claimed.
pub(super) struct Prepared<B> {
    pub(super) subject: Subject,
    pub(super) print: Option<Fingerprint>,
    pub(super) request: Request<RequestBody<B>>,
}

/// What becomes of a request before anything is claimed.
pub(super) enum Door<B> {
    Claim(Prepared<B>),
    /// To the inner service, as it is.
    Pass(Request<RequestBody<B>>),
}

/// Reads all that a claim needs. What the head can decide is decided before the body is polled, so
/// that a client that waits for `100 Continue` is not asked for a body in vain.
pub(super) async fn prepare<B>(
    shared: &Shared,
    rule: &Arc<Rule>,
    request: Request<B>,
) -> Result<Door<B>, Refusal>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let policy = rule.policy();
    if shared.keeper.is_draining() {
        return Err(shutting_down());
    }
    let (head, body) = request.into_parts();
    let in_head = match policy.identity.reads_body() {
        true => None,
        false => match identity(rule, &head, &Bytes::new())? {
            Some(identity) => Some(identity),
            None => return Ok(pass(head, RequestBody::untouched(body))),
        },
    };
    let scope = policy.scope.read(&head)?;
    let declared = declared_length(&head);
    if declared.is_some_and(|length| length > policy.body_limit as u64) {
        return Err(capture::too_large(policy.body_limit));
    }

    let whole = capture::request_body(body, policy.body_limit, policy.body_within).await?;
    wait_for_reset(&head, declared, &whole).await?;

    let identity = match in_head {
        Some(identity) => identity,
        None => match identity(rule, &head, &whole.data)? {
            Some(identity) => identity,
            None => return Ok(pass(head, RequestBody::whole(whole))),
        },
    };
    let record = RecordKey::derive(
        shared.secret.as_ref(),
        &[rule.name().as_bytes(), &scope],
        Kind::Delivery,
        identity.as_bytes(),
    );
    if head.extensions.get::<Operation>().is_some_and(|outer| outer.subject().record == record) {
        // The same layer further out has granted this request already.
        return Ok(pass(head, RequestBody::whole(whole)));
    }
    let print =
        policy.fingerprint.then(|| whole_request(shared.secret.as_ref(), &head, &whole.data));
    Ok(Door::Claim(Prepared {
        subject: Subject { rule: rule.clone(), scope, identity, record },
        print,
        request: Request::from_parts(head, RequestBody::whole(whole)),
    }))
}

pub(super) fn shutting_down() -> Refusal {
    Refusal::new(
        RefusalKind::ShuttingDown,
        "this server is about to stop and starts nothing new; nothing was run, send it again",
    )
    .with_retry_after(std::time::Duration::from_secs(1))
}

fn pass<B>(head: Parts, body: RequestBody<B>) -> Door<B> {
    Door::Pass(Request::from_parts(head, body))
}

/// The identity; `None` if there is none and the policy lets such requests pass.
fn identity(rule: &Rule, head: &Parts, body: &Bytes) -> Result<Option<Identity>, Refusal> {
    let policy = rule.policy();
    match policy.identity.read(&Input::new(head, body))? {
        Some(identity) => Ok(Some(identity)),
        None if policy.optional => Ok(None),
        None => Err(Refusal::new(
            RefusalKind::IdentityMissing,
            format!(
                "{} is missing; it must name the operation, the same on every retry",
                policy.identity.describe()
            ),
        )),
    }
}

fn declared_length(head: &Parts) -> Option<u64> {
    head.headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// Over HTTP/2 a reset can look like the end of a body: hyper ends it cleanly on
/// `RST_STREAM(NO_ERROR)` and drops the request when it is polled next. So a body that came short is
/// refused where its length was declared, and else the request is given the chance to be dropped.
async fn wait_for_reset(head: &Parts, declared: Option<u64>, whole: &Whole) -> Result<(), Refusal> {
    if head.version != Version::HTTP_2 {
        return Ok(());
    }
    match declared {
        Some(length) if (whole.data.len() as u64) < length => Err(capture::cut_short()),
        Some(_) => Ok(()),
        None => {
            yield_now().await;
            Ok(())
        }
    }
}
