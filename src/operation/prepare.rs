//! From a request as it came to one that can be claimed: identity, scope and fingerprint are known,
//! and the body is whole.

use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Version, header::CONTENT_LENGTH, request::Parts};
use http_body::Body;
use tokio::task::yield_now;

use super::{Operation, Shared, capture, subject::Subject};
use crate::{
    body::{BoxError, RequestBody, Whole},
    fingerprint::Print,
    identity::{Identity, Input},
    ledger::RowPrint,
    record::{Fingerprint, Kind, OneTimeToken, RecordKey, Secret},
    refusal::{Refusal, RefusalKind},
    rule::Rule,
    token,
    verify::{AnyVerify, Deciphered, Delivery},
};

/// A request that can be claimed.
pub(super) struct Prepared<B> {
    pub(super) subject: Subject,
    /// The record of the delivery id, where the operation has a business key.
    pub(super) delivery: Option<RecordKey>,
    pub(super) print: Option<Fingerprint>,
    /// The token that the claim uses up, where the policy demands one.
    pub(super) one_time: Option<OneTimeToken>,
    pub(super) request: Request<RequestBody<B>>,
}

/// What becomes of a request before anything is claimed.
#[expect(clippy::large_enum_variant, reason = "it is moved once, which a box would cost more than")]
pub(super) enum Door<B> {
    Claim(Prepared<B>),
    /// To the inner service, as it is.
    Pass(Request<RequestBody<B>>),
}

/// Reads all that a claim needs. What the head can decide is decided before the body is polled, so
/// that a client that waits for `100 Continue` is not asked for a body in vain.
///
/// No `async fn`, which would hold its arguments twice.
pub(super) fn prepare<B>(
    shared: Arc<Shared>,
    rule: Arc<Rule>,
    request: Request<B>,
) -> impl Future<Output = Result<Door<B>, Refusal>>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let (mut head, body) = request.into_parts();
    async move {
        let policy = rule.policy();
        let Some(known) = read_head(&shared, &rule, &head)? else {
            return Ok(pass(head, RequestBody::untouched(body)));
        };
        let whole = capture::request_body(body, policy.body_limit, policy.body_within).await?;
        wait_for_reset(&head, known.declared, &whole).await?;
        let mut plain = None;
        if let Some(hook) = &policy.verify {
            let verified = Box::pin(verify(hook, head, &whole.data)).await;
            head = verified.0;
            plain = verified.1?;
        }
        let named = read_whole(&shared, &rule, known, &head, &whole, plain.as_ref())?;
        let request = Request::from_parts(head, RequestBody::whole(whole));
        Ok(match named {
            Some(named) => Door::Claim(named.with(request)),
            None => Door::Pass(request),
        })
    }
}

/// What became of a request that reaches the inner service whatever comes of it.
#[expect(clippy::large_enum_variant, reason = "it is moved once, which a box would cost more than")]
pub(super) enum ObservedDoor<B> {
    Door(Door<B>),
    /// It would be refused.
    Refused(Refusal, Request<RequestBody<B>>),
    /// Its body broke off: there is no request to pass on.
    Broken(Refusal),
}

/// The same for a request that is only observed.
pub(super) async fn prepare_observed<B>(
    shared: &Shared,
    rule: &Arc<Rule>,
    request: Request<B>,
) -> ObservedDoor<B>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let policy = rule.policy();
    let (head, body) = request.into_parts();
    let known = match read_head(shared, rule, &head) {
        Ok(Some(known)) => known,
        Ok(None) => return ObservedDoor::Door(pass(head, RequestBody::untouched(body))),
        Err(refusal) => {
            let request = Request::from_parts(head, RequestBody::untouched(body));
            return ObservedDoor::Refused(refusal, request);
        }
    };
    let read = capture::observed_body(body, policy.body_limit, policy.body_within).await;
    let whole = match read {
        Ok(whole) => whole,
        Err((refusal, None)) => return ObservedDoor::Broken(refusal),
        Err((refusal, Some(body))) => {
            return ObservedDoor::Refused(refusal, Request::from_parts(head, body));
        }
    };
    if let Err(refusal) = wait_for_reset(&head, known.declared, &whole).await {
        return ObservedDoor::Broken(refusal);
    }
    let (head, plain) = match &policy.verify {
        Some(hook) => verify(hook, head, &whole.data).await,
        None => (head, Ok(None)),
    };
    let named =
        plain.and_then(|plain| read_whole(shared, rule, known, &head, &whole, plain.as_ref()));
    let request = Request::from_parts(head, RequestBody::whole(whole));
    match named {
        Ok(Some(named)) => ObservedDoor::Door(Door::Claim(named.with(request))),
        Ok(None) => ObservedDoor::Door(Door::Pass(request)),
        Err(refusal) => ObservedDoor::Refused(refusal, request),
    }
}

/// What the head says, where a body is to be read.
struct Known {
    /// What names the operation, where the head alone decides that.
    named: Option<Named>,
    scope: Bytes,
    /// Whose one-time token it must be.
    caller: Option<Bytes>,
    /// The length of the body, where it was declared.
    declared: Option<u64>,
}

/// Reads all that the head can decide; `None` if the request is to pass.
fn read_head(shared: &Shared, rule: &Arc<Rule>, head: &Parts) -> Result<Option<Known>, Refusal> {
    let policy = rule.policy();
    if shared.keeper.is_draining() {
        return Err(shutting_down());
    }
    let mut named = None;
    if !policy.identity_is_in_body() {
        let nothing = Bytes::new();
        let found = identity(rule, &input(rule, head, &nothing, &nothing))?;
        // What is to be verified is verified first, even if it only passes, and may be told apart by then.
        if policy.verify.is_none() {
            let Some(found) = found else { return Ok(None) };
            named = Some(found);
        }
    }
    let scope = policy.scope.read(head)?;
    let caller = match &policy.token {
        Some(demand) => demand.caller(head)?,
        None => None,
    };
    let declared = declared_length(head);
    if declared.is_some_and(|length| length > policy.body_limit as u64) {
        return Err(capture::too_large(policy.body_limit));
    }
    Ok(Some(Known { named, scope, caller, declared }))
}

/// Asks the policy's hook. The head is given back, with what the body says deciphered, if it says that.
async fn verify(
    hook: &AnyVerify,
    head: Parts,
    data: &Bytes,
) -> (Parts, Result<Option<Bytes>, Refusal>) {
    let delivery = Delivery::new(head, data.clone());
    let verified = hook.verify(delivery.clone()).await;
    let mut head = delivery.into_head();
    let plain = verified.map(|verified| verified.plain);
    if let Ok(Some(plain)) = &plain {
        head.extensions.insert(Deciphered(plain.clone()));
    }
    (head, plain)
}

/// A request whose operation is known.
struct ToClaim {
    subject: Subject,
    delivery: Option<RecordKey>,
    print: Option<Fingerprint>,
    one_time: Option<OneTimeToken>,
}

impl ToClaim {
    fn with<B>(self, request: Request<RequestBody<B>>) -> Prepared<B> {
        let Self { subject, delivery, print, one_time } = self;
        Prepared { subject, delivery, print, one_time, request }
    }
}

/// Reads which operation it is; `None` if the request is to pass.
fn read_whole(
    shared: &Shared,
    rule: &Arc<Rule>,
    known: Known,
    head: &Parts,
    whole: &Whole,
    plain: Option<&Bytes>,
) -> Result<Option<ToClaim>, Refusal> {
    let policy = rule.policy();
    let Known { named, scope, caller, .. } = known;
    let read = input(rule, head, plain.unwrap_or(&whole.data), &whole.data);
    let named = match named {
        Some(named) => Some(named),
        None => identity(rule, &read)?,
    };
    let Some(Named { identity: delivery, one_time }) = named else { return Ok(None) };
    let business = match &policy.business_key {
        Some(source) => source.read(&read)?,
        None => None,
    };
    let secret = shared.secret.as_ref();
    let Print { whole, fields } = policy.compared.print(secret, &read)?;
    let whole_print = match &one_time {
        Some(token) => Some(token::of_claim(secret, token, caller.as_deref(), whole)),
        None => whole,
    };
    let names = Names { secret, rule, scope: &scope };
    let caller = caller.map(|caller| token::of_caller(secret, &caller));
    let print = RowPrint { secret: names.secret_id(), caller, whole, fields };
    let (subject, delivery) = match business {
        None => (names.subject(delivery, Kind::Delivery, None, print), None),
        // A token is no other name of what it was issued for in the store, where the fingerprint holds it.
        // For rows it is: they tell by the delivery's id that the key beside it is a business key.
        Some(business) if one_time.is_some() => {
            let subject = names.subject(business, Kind::Business, Some(delivery), print);
            (subject, None)
        }
        Some(business) => {
            let record = names.record(&delivery, Kind::Delivery);
            let subject = names.subject(business, Kind::Business, Some(delivery), print);
            (subject, Some(record))
        }
    };
    let outer = head.extensions.get::<Operation>();
    if outer.is_some_and(|outer| outer.is_grant_of(&subject.named)) {
        // The same layer further out has granted this request already.
        return Ok(None);
    }
    Ok(Some(ToClaim { subject, delivery, print: whole_print, one_time }))
}

/// Makes the names of records.
pub(super) struct Names<'a> {
    pub(super) secret: Option<&'a Secret>,
    pub(super) rule: &'a Arc<Rule>,
    pub(super) scope: &'a Bytes,
}

impl Names<'_> {
    fn record(&self, identity: &Identity, kind: Kind) -> RecordKey {
        let scope = [self.rule.name().as_bytes(), self.scope];
        RecordKey::derive(self.secret, &scope, kind, identity.as_bytes())
    }

    /// Which secret the fingerprints are made with.
    pub(super) fn secret_id(&self) -> [u8; 8] {
        self.secret.map(Secret::id).unwrap_or_default()
    }

    pub(super) fn subject(
        &self,
        identity: Identity,
        kind: Kind,
        delivery: Option<Identity>,
        print: RowPrint,
    ) -> Subject {
        let record = self.record(&identity, kind);
        Subject {
            rule: self.rule.clone(),
            scope: self.scope.clone(),
            named: record,
            record,
            identity,
            kind,
            delivery,
            print,
        }
    }
}

fn input<'a>(rule: &'a Rule, head: &'a Parts, body: &'a Bytes, sent: &'a Bytes) -> Input<'a> {
    let input = Input::new(head, body).deciphered_from(sent);
    match rule.pattern() {
        Some(pattern) => input.matched_by(pattern),
        None => input,
    }
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

/// What names the operation of a request.
struct Named {
    identity: Identity,
    one_time: Option<OneTimeToken>,
}

/// The identity; `None` if there is none and the policy lets such requests pass.
fn identity(rule: &Rule, from: &Input<'_>) -> Result<Option<Named>, Refusal> {
    let policy = rule.policy();
    if let Some(demand) = &policy.token {
        let token = demand.read(from)?;
        // Never the token itself: the identity stands in labels, in rows and in what handlers are told.
        let identity = Identity::new(token.name());
        return Ok(Some(Named { identity, one_time: Some(token) }));
    }
    match policy.identity.read(from)? {
        Some(identity) => Ok(Some(Named { identity, one_time: None })),
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
