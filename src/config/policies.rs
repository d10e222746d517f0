//! The policies that a configuration finds by name without registering them.

use super::Registry;
use crate::{
    identity::json,
    policy::{Policy, Scope},
    refusal::Refusal,
    sender,
    verify::{Delivery, Verified},
};

/// A policy, and the choice that a rule with it must make.
pub(super) struct Start {
    pub(super) policy: Policy,
    pub(super) must_say: Option<(&'static str, &'static str)>,
}

type MakeStart = fn() -> Start;

/// The names, in the order of messages.
const NAMES: &[(&str, MakeStart)] = &[
    ("api", || Start {
        // The scope is replaced by the rule's own, without which the rule is an error.
        policy: Policy::api(Scope::everyone()),
        must_say: Some((
            "scope",
            "say within what a key is unique, or two clients that choose the same key get each \
             other's answers: scope = { header = \"X-Tenant\" }, the name of a registered scope, \
             or \"everyone\"",
        )),
    }),
    ("webhook", || Start {
        // The identity likewise.
        policy: Policy::webhook(json("")),
        must_say: Some((
            "identity",
            "say where the id of a notification stands: identity = { json = \"/notifyId\" }",
        )),
    }),
    ("adyen", || ready(sender::adyen())),
    ("alipay", || ready(sender::alipay())),
    ("cloudevents", || ready(sender::cloudevents())),
    ("github", || ready(sender::github())),
    ("shopify", || ready(sender::shopify())),
    ("sns", || ready(sender::sns())),
    ("standard_webhooks", || ready(sender::standard_webhooks())),
    ("stripe", || ready(sender::stripe())),
    #[cfg(feature = "xml")]
    ("wechat_pay_v2", || ready(sender::wechat_pay_v2())),
    ("wechat_pay_v3", || Start {
        // The hook likewise.
        policy: sender::wechat_pay_v3(nothing_is_verified),
        must_say: Some((
            "verify",
            "name the registered hook that deciphers its notifications: verify = \"wechat-pay\"",
        )),
    }),
];

pub(super) fn names() -> impl Iterator<Item = &'static str> {
    NAMES.iter().map(|(name, _)| *name)
}

/// What a rule with this policy starts from.
pub(super) fn start(name: &str, registry: &Registry) -> Result<Start, String> {
    if let Some((_, start)) = NAMES.iter().find(|(known, _)| *known == name) {
        return Ok(start());
    }
    match registry.policies.find(name) {
        #[cfg(not(feature = "xml"))]
        None if name == "wechat_pay_v2" => {
            Err("wechat_pay_v2 reads XML, and this program was built without the feature `xml`"
                .to_owned())
        }
        Some(policy) => Ok(Start { policy: policy.clone(), must_say: None }),
        None => {
            let mut known: Vec<&str> = names().collect();
            known.extend(registry.policies.names());
            Err(format!(
                "there is no policy {name:?}; there are {}, and those that \
                 Registry::new().policy(..) adds",
                known.join(", ")
            ))
        }
    }
}

fn ready(policy: Policy) -> Start {
    Start { policy, must_say: None }
}

/// Stands where a rule must name its own hook.
async fn nothing_is_verified(_: Delivery) -> Result<Verified, Refusal> {
    Err(Refusal::not_verified("no hook is configured"))
}
