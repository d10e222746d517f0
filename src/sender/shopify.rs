//! Shopify's webhooks.

use super::{Event, remembered_for};
use crate::{
    identity::{Identity, Input, Source, header},
    policy::Policy,
    refusal::Refusal,
};

/// Webhooks of Shopify.
///
/// * The delivery is the header `X-Shopify-Webhook-Id`, which retries keep (a secondary source).
/// * The event is `X-Shopify-Event-Id`, `X-Shopify-Topic` and the path: several subscriptions to one
///   topic are each told of one event [1], and the second of them to come to a path is answered from
///   the first. Where such subscriptions have different fields or filters, give each a path of its
///   own. Without one of the headers a delivery goes by its id alone.
/// * Nothing is compared. Retries have the payload of the first [2].
/// * An answer of 2xx is kept, and given to every duplicate. A 3xx is an error to Shopify and is
///   never kept.
/// * "Not yet" is 503, and Shopify comes again: 8 times within 4 h [2]. A webhook may come a day
///   late [3].
/// * Retention and hold: 7 days.
///
/// An answer must come within 5 s (a secondary source). The signature is for [`Policy::verify`].
///
/// [1]: https://shopify.dev/docs/apps/build/webhooks/ignore-duplicates
/// [2]: https://shopify.dev/changelog/updates-to-webhook-retry-mechanism
/// [3]: https://shopify.dev/docs/apps/build/webhooks/best-practices
///
/// # Example: every topic at a path of its own
///
/// ```
/// use tower_idempotency::{Rule, sender};
///
/// let rule = Rule::new("shopify", sender::shopify()).path("/shopify/{*topic}");
/// assert_eq!(rule.name(), "shopify");
/// ```
pub fn shopify() -> Policy {
    let event = Event::new()
        .made_of(header("X-Shopify-Event-Id"))
        .made_of(header("X-Shopify-Topic"))
        .told_apart_by(Endpoint);
    let policy = Policy::webhook(header("X-Shopify-Webhook-Id")).business_key(event);
    remembered_for(policy, 7)
}

/// The path of the request, which tells the endpoints of one rule apart.
struct Endpoint;

impl Source for Endpoint {
    fn read(&self, from: &Input<'_>) -> Result<Option<Identity>, Refusal> {
        Ok(Some(Identity::new(from.head().uri.path().to_owned())))
    }

    fn reads_body(&self) -> bool {
        false
    }

    fn describe(&self) -> String {
        "the path".to_owned()
    }
}
