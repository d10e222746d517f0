//! Operations as the layer makes them.

use std::sync::{Arc, Mutex};

use http::{Request, Response};
use tower::{ServiceBuilder, ServiceExt, service_fn};
use tower_idempotency::{
    IdempotencyLayer, MemoryStore, Operation, Policy, RequestBody, Rule, Scope, json,
};

/// What a delivery says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Delivery {
    pub(crate) rule: &'static str,
    pub(crate) tenant: &'static str,
    /// JSON strings, without their quotes.
    pub(crate) order: Option<&'static str>,
    pub(crate) id: &'static str,
}

impl Delivery {
    /// Of the rule `fulfil` and the tenant `shop`, without a business key.
    pub(crate) fn new(id: &'static str) -> Self {
        Self { rule: "fulfil", tenant: "shop", order: None, id }
    }

    pub(crate) fn order(self, order: &'static str) -> Self {
        Self { order: Some(order), ..self }
    }

    pub(crate) fn policy(self) -> Policy {
        self.policy_from(Policy::webhook(json("/id")))
    }

    /// This policy, for this delivery's identities.
    pub(crate) fn policy_from(self, policy: Policy) -> Policy {
        let policy = policy.identity(json("/id")).scope(Scope::header("tenant"));
        if self.order.is_some() { policy.business_key(json("/order")) } else { policy }
    }

    pub(crate) fn request(self) -> Request<String> {
        let order = self.order.unwrap_or_default();
        let body = format!(r#"{{"id":"{}","order":"{order}"}}"#, self.id);
        Request::post("/").header("tenant", self.tenant).body(body).unwrap()
    }

    /// The operation that a handler gets, from a store that has forgotten everything.
    pub(crate) async fn operation(self) -> Operation {
        let seen = Arc::new(Mutex::new(None));
        let keep = seen.clone();
        let handler = service_fn(move |request: Request<RequestBody<String>>| {
            *keep.lock().unwrap() = request.extensions().get::<Operation>().cloned();
            async { Ok::<_, std::io::Error>(Response::new(String::new())) }
        });
        let rule = Rule::new(self.rule, self.policy());
        let layer = IdempotencyLayer::new(MemoryStore::new(), rule);
        let service = ServiceBuilder::new().layer(layer).service(handler);
        let answer = service.oneshot(self.request()).await.unwrap();
        assert_eq!(answer.status(), 200, "{self:?} was refused");
        seen.lock().unwrap().take().expect("the handler was run")
    }
}
