//! The choices of a policy, a setter each.

use std::{sync::Arc, time::Duration};

use http::StatusCode;

use super::{OnAbandoned, Policy, Scope};
use crate::{
    fingerprint::Compared,
    identity::{AnySource, Source},
    ledger::{Ledger, Resolver},
    record::{Answer, Outcome},
    refusal::Refusal,
    verify::{AnyVerify, Verify},
};

impl Policy {
    /// Where the identity stands, in place of what the policy was made with.
    ///
    /// Danger: what is stored under the old identity is not found under the new one.
    #[must_use]
    pub fn identity(mut self, identity: impl Source) -> Self {
        self.identity = AnySource::new(identity);
        self.header = None;
        // It is read from a request.
        self.job = false;
        self
    }

    /// Demands the identity as a structured-field string, in quotes. By default a key without
    /// quotes is taken too, and is the same key as with them.
    ///
    /// # Panics
    ///
    /// When the identity is not `Idempotency-Key`: write `header("..").strict()` instead.
    #[must_use]
    #[track_caller]
    pub fn strict(mut self) -> Self {
        if self.try_strict() {
            return self;
        }
        panic!(
            "Policy::strict is about the header Idempotency-Key, but the identity is {}; for \
             another header write .identity(header(\"..\").strict())",
            self.identity.describe()
        );
    }

    /// The same without a panic: whether the identity is `Idempotency-Key`.
    pub(crate) fn try_strict(&mut self) -> bool {
        let Some(header) = self.header.take() else { return false };
        let header = header.strict();
        self.identity = AnySource::new(header.clone());
        self.header = Some(header);
        true
    }

    /// Lets a request without identity pass, unprotected. By default it is refused with 400.
    ///
    /// One whose identity is malformed is refused all the same.
    #[must_use]
    pub fn optional(mut self) -> Self {
        self.optional = true;
        self
    }

    /// Within what an identity is unique, besides the rule's name. Default: what [`Policy::api`] was
    /// given, and everyone for a webhook.
    #[must_use]
    pub fn scope(mut self, scope: Scope) -> Self {
        self.scope = scope;
        self
    }

    /// What the delivery is about, whatever its id: the order and what happened to it, which stay
    /// when the sender makes a new id for the same event. By default there is none.
    ///
    /// A new delivery id for a known business key is answered from the first operation, and is another
    /// name of it from then on. The same delivery id with another business key is refused as a
    /// mismatch. A delivery without the field is answered from the operation its id belongs to, or
    /// is an operation of its own.
    ///
    /// The key must name the event, not only the order: `(json("/orderId"), json("/status"))`. With
    /// it the whole request is no longer compared, since another delivery of the same event differs:
    /// name what must not differ with [`Policy::compare`].
    ///
    /// Danger: switched on later, it knows nothing of operations that were completed under delivery
    /// ids alone. Their own redeliveries are still answered; a new delivery id for the same event
    /// runs once more. Switch it on before the first notification, or reconcile.
    #[must_use]
    pub fn business_key(mut self, business_key: impl Source) -> Self {
        self.business_key = Some(AnySource::new(business_key));
        if matches!(self.compared, Compared::WholeRequest) {
            self.compared = Compared::Nothing;
        }
        self
    }

    /// Decides whether a delivery may go on, before anything is claimed: see [`Verify`].
    #[must_use]
    pub fn verify(mut self, verify: impl Verify) -> Self {
        self.verify = Some(AnyVerify::new(verify));
        self
    }

    /// Lets a delivery wait this long for another that is in progress, and then answers it from
    /// that one. By default, and after that time, it is refused.
    ///
    /// The time counts from when it met the other. A waiter looks into the store after 25 ms, and less
    /// often the longer it lasts, each half second at most; one whose client leaves is gone.
    ///
    /// At most 1,024 requests of a layer wait at once; further ones are refused.
    #[must_use]
    pub fn wait(mut self, at_most: Duration) -> Self {
        self.wait = at_most;
        self
    }

    /// How long one call of the store may take. Default 500 ms.
    ///
    /// A store may have a limit of its own, as `RedisStore::call_within` is; the shorter counts.
    #[must_use]
    pub fn call_within(mut self, within: Duration) -> Self {
        self.call_within = within;
        self
    }

    /// How long a claim may take with all its resends, before the request is refused with 503.
    /// Default 1.5 s.
    #[must_use]
    pub fn claim_within(mut self, within: Duration) -> Self {
        self.claim_within = within;
        self
    }

    /// How long a grant holds without renewal. Default 30 s.
    ///
    /// It is renewed at a third of that while the handler runs. When a process dies, its operations
    /// are abandoned after this time at the latest. It must be shorter than the retention.
    ///
    /// Danger: a process that stalls for longer, or loses the store for longer, is taken for dead. A
    /// handler is started only while at least half the lease is left, so that one not much longer than
    /// a store's call lets nothing run.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// How long an answer is kept, from the moment it is stored. Default 24 h for an API, 7 d for
    /// notifications.
    ///
    /// After that the identity is new: a delivery runs. Keep it at least twice as long as the sender
    /// or client goes on trying. It must not be longer than the hold.
    #[must_use]
    pub fn retention(mut self, retention: Duration) -> Self {
        self.retention = retention;
        self
    }

    /// How long it is remembered that an operation was started and did not end. Default 7 d; at
    /// least the retention.
    ///
    /// After that the identity is new: a delivery runs, though the first run may have happened.
    #[must_use]
    pub fn hold(mut self, hold: Duration) -> Self {
        self.hold = hold;
        self
    }

    /// How long a handler may run before its lease is renewed no more. Default ten leases.
    ///
    /// It is not stopped; but its operation is abandoned a lease later. It must not be shorter than
    /// the lease.
    #[must_use]
    pub fn max_run(mut self, max_run: Duration) -> Self {
        self.max_run = Some(max_run);
        self
    }

    /// The most bytes a request's body may have; a larger one is refused with 413. Default 1 MiB.
    ///
    /// The body is held in memory whole, so this is memory a request may take. axum's
    /// `DefaultBodyLimit` is unknown to the layer: where one is raised, raise the other.
    #[must_use]
    pub fn body_limit(mut self, bytes: usize) -> Self {
        self.body_limit = bytes;
        self
    }

    /// How long a request's body may take to come whole; a slower one is refused with 408. Default
    /// 30 s.
    #[must_use]
    pub fn body_within(mut self, within: Duration) -> Self {
        self.body_within = within;
        self
    }

    /// The most bytes of an answer's body that are stored. Default 1 MiB.
    ///
    /// A larger answer is sent in full and remembered as done; a later delivery learns that, but
    /// not the answer. So is one that has not ended after 5 s. Zero stores no bodies at all.
    #[must_use]
    pub fn answer_limit(mut self, bytes: usize) -> Self {
        self.answer_limit = bytes;
        self
    }

    /// Keeps answers with these statuses: final, stored and replayed. Of `keep`, `release` and
    /// `uncertain` the last word about a status counts.
    ///
    /// The statuses are HTTP's, also of gRPC, whose answers are all 200.
    #[must_use]
    pub fn keep(mut self, statuses: impl IntoIterator<Item = StatusCode>) -> Self {
        self.statuses.set(statuses, Outcome::Keep);
        self
    }

    /// Takes answers with these statuses for "it did not happen": the key may run again.
    ///
    /// Danger: a handler that answers so after it had an effect has it twice.
    #[must_use]
    pub fn release(mut self, statuses: impl IntoIterator<Item = StatusCode>) -> Self {
        self.statuses.set(statuses, Outcome::Release);
        self
    }

    /// Takes answers with these statuses for "nobody knows": the key is abandoned at once.
    #[must_use]
    pub fn uncertain(mut self, statuses: impl IntoIterator<Item = StatusCode>) -> Self {
        self.statuses.set(statuses, Outcome::Uncertain);
        self
    }

    /// Keeps an answer only if this says so, for senders that read the body: an answer that would
    /// be kept by its status, and of which this says no, is released as failed.
    ///
    /// It is asked with the headers that would be stored. It is not asked about an answer whose body is
    /// too large to be kept or has no end in time: that one is kept. If it panics, the outcome is
    /// uncertain.
    ///
    /// # Example: a sender that comes again until it reads `success`
    ///
    /// ```
    /// use tower_idempotency::{Policy, json};
    ///
    /// let policy = Policy::webhook(json("/notify_id"))
    ///     .keep_if(|answer| answer.body().is_some_and(|body| body == "success"));
    /// assert!(policy.check().is_ok());
    /// ```
    #[must_use]
    pub fn keep_if(mut self, keep: impl Fn(&Answer) -> bool + Send + Sync + 'static) -> Self {
        self.keep_if = Some(Arc::new(keep));
        self
    }

    /// Runs an abandoned operation again, blindly. By default it is refused.
    ///
    /// Danger: the first run may have happened, and may still be running where its process only
    /// stalled or lost the store for longer than a lease. Only for handlers that are idempotent
    /// themselves; they see `Previous::AbandonedUnknown`. What was abandoned under a delivery's id alone runs
    /// again under the business key that the delivery has now, which gives it another
    /// [`Operation::downstream_key`](crate::Operation::downstream_key).
    #[must_use]
    pub fn rerun_abandoned(mut self) -> Self {
        self.on_abandoned = OnAbandoned::Rerun;
        self
    }

    /// Asks this what became of an abandoned operation. By default it is refused.
    ///
    /// Danger: a wrong [`Resolution::NotDone`](crate::Resolution::NotDone) runs it twice.
    #[must_use]
    pub fn resolve_abandoned(mut self, resolver: impl Resolver) -> Self {
        self.on_abandoned = OnAbandoned::Resolve(Arc::new(resolver));
        self
    }

    /// Keeps a durable truth beside the store: see [`Ledger`]. By default there is none.
    ///
    /// An abandoned operation is settled by its row: done, or not done and run again. Of this,
    /// [`Policy::rerun_abandoned`] and [`Policy::resolve_abandoned`] the last word says what is done
    /// about abandoned operations; the rows are looked after whatever it is.
    ///
    /// A row answers the same request alone, by what the policy compares ([`Policy::compare`]) and by the
    /// caller of a one-time token ([`Policy::token_bound_to`]), whatever the store has lost: another one is
    /// refused as if the store's record had said so. What was written under another secret of the layer, by
    /// hand or without anything to compare is not told apart.
    ///
    /// An answer whose row cannot be written is uncertain, and is withheld from its client, unless it
    /// is a success of a handler that did not enter: that one is sent.
    ///
    /// Danger: that no row means "not done" is true only of handlers whose effects all stand in one
    /// transaction with the row. What is done elsewhere, a charge at a payment provider, needs
    /// [`Operation::downstream_key`](crate::Operation::downstream_key) as well.
    #[must_use]
    pub fn ledger(mut self, ledger: impl Ledger) -> Self {
        self.ledger = Some(Arc::new(ledger));
        self.on_abandoned = OnAbandoned::Ledger;
        self
    }

    /// Runs requests without a grant while the store cannot be asked. By default they are refused
    /// with 503.
    ///
    /// Danger: while the store is away nothing is deduplicated. The answer is still offered to the
    /// store. Only where running twice is better than not running.
    #[must_use]
    pub fn run_unprotected(mut self) -> Self {
        self.run_unprotected = true;
        self
    }

    /// Only looks: claims and completes as usual, and tells what it would have done, but never refuses,
    /// waits or replays. By default it does what it says.
    ///
    /// Every request reaches the handler, a duplicate too, and one without an identity, with too large a
    /// body, while the store is away or while the layer is drained. The first delivery of an operation is
    /// recorded as it would be; any other leaves its record as it is. What would have become of it is an
    /// event (*would have been replayed*, *would have waited*, *would have been refused*), the extension
    /// [`Handled::Observed`](crate::Handled::Observed) of the response, and a metric. So a policy can be
    /// switched on in front of something that must not break, and be looked at first.
    ///
    /// * A store that is slow costs a request one call ([`Policy::call_within`], 500 ms), and the same
    ///   again for the answer of a first delivery.
    /// * A handler that asks for [`Operation`](crate::Operation) has one wherever the identity is known;
    ///   without a grant its fence is 0. Where it is not, axum's extractor answers 500 in the handler's
    ///   place: ask for `Option<Operation>` for so long.
    /// * Abandoned operations stay so: no resolver and no ledger is asked, and no row is sealed.
    ///   [`Policy::on_mismatch`] is not told.
    /// * A body that breaks off before it is whole is still answered by the layer: there is no request to
    ///   hand on. And a source or a hook of the policy that panics takes its request with it.
    ///
    /// Danger: nothing is protected. What [`Policy::verify`] or a one-time token would refuse reaches the
    /// handler too, which must check that itself for so long.
    ///
    /// # Example: a duplicate that would not have been run
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    /// use http::{Request, Response};
    /// use tower::{Service, ServiceBuilder, ServiceExt};
    /// use tower_idempotency::{
    ///     Handled, IdempotencyLayer, MemoryStore, Policy, RequestBody, Rule, Scope, Would,
    /// };
    ///
    /// async fn pay(_: Request<RequestBody<String>>) -> Result<Response<String>, std::io::Error> {
    ///     Ok(Response::new("paid".to_owned()))
    /// }
    ///
    /// let rule = Rule::new("pay", Policy::api(Scope::everyone()).observe());
    /// let layer = IdempotencyLayer::new(MemoryStore::new(), rule);
    /// let mut service = ServiceBuilder::new().layer(layer).service_fn(pay);
    /// let request = || Request::post("/").header("Idempotency-Key", "order-7").body(String::new());
    /// let first = service.ready().await?.call(request()?).await?;
    /// assert_eq!(first.extensions().get(), Some(&Handled::Executed { attempt: 1 }));
    /// let second = service.ready().await?.call(request()?).await?;
    /// assert_eq!(second.extensions().get(), Some(&Handled::Observed { would: Would::Replay }));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn observe(mut self) -> Self {
        self.observe = true;
        self
    }

    /// Stores `Set-Cookie` and replays it. By default it is not stored.
    ///
    /// Danger: whoever sends the same key gets the same session. Only with a scope.
    #[must_use]
    pub fn keep_cookies(mut self) -> Self {
        self.keep_cookies = true;
        self
    }

    /// Leaves only a digest of the identity for operators to read, in the store and in events. By
    /// default the label of an unfinished operation is the rule's name and the identity as it was sent,
    /// 256 bytes at most.
    #[must_use]
    pub fn private_label(mut self) -> Self {
        self.private_label = true;
        self
    }

    /// Says no as this sender wants to hear it; where it returns `None`, as usual.
    ///
    /// It must not panic; the panic would go on to the server.
    ///
    /// # Example: a sender that reads only the body
    ///
    /// ```
    /// use tower_idempotency::{Answer, Policy, RefusalKind, json};
    ///
    /// let policy = Policy::webhook(json("/notify_id")).refuse_with(|refusal| {
    ///     let busy = refusal.kind() == RefusalKind::InProgress;
    ///     busy.then(|| Answer::text("fail"))
    /// });
    /// assert!(policy.check().is_ok());
    /// ```
    #[must_use]
    pub fn refuse_with(
        mut self,
        answer: impl Fn(&Refusal) -> Option<Answer> + Send + Sync + 'static,
    ) -> Self {
        self.refuse_with = Some(Arc::new(answer));
        self
    }
}
