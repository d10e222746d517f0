//! Stripe's events.

use super::{Event, remembered_for};
use crate::{
    identity::{Identity, Input, Json, Source, json},
    policy::Policy,
    refusal::Refusal,
};

/// Events of Stripe.
///
/// * The delivery is the event's `id` (`evt_..`), which every retry keeps [1]. There is no business key
///   unless you name the types of [`stripe_once`].
/// * Nothing is compared.
/// * An answer of 2xx is kept, and given to every duplicate. A 3xx counts as a failure to Stripe, as
///   secondary sources have it; it is never kept.
/// * "Not yet" is 503, and Stripe comes again: for 3 days in live mode [1].
/// * Retention and hold: 31 days, more than twice that, and longer than the 30 days in which an event
///   can be sent again by hand (the dashboard: 15) [1].
///
/// Events come in no order. The signature is for [`Policy::verify`].
///
/// [1]: https://docs.stripe.com/webhooks
///
/// # Example: its path
///
/// ```
/// use tower_idempotency::{Rule, sender};
///
/// let rule = Rule::new("stripe", sender::stripe()).path("/stripe");
/// assert_eq!(rule.name(), "stripe");
/// ```
pub fn stripe() -> Policy {
    remembered_for(Policy::webhook(json("/id")), 31)
}

/// The business key of Stripe's events of these types: `type` and `data.object.id`. Of any other type
/// an event has none.
///
/// In some cases Stripe makes two event objects for one thing that happened
/// (<https://docs.stripe.com/webhooks>); with this the second is answered from the first.
///
/// Danger: name only types that happen to an object **once**: a payment succeeds once, a checkout is
/// completed once. `charge.refunded` happens for each partial refund of one charge, and
/// `customer.subscription.updated` for each change; as business keys these would merge things that
/// are different.
///
/// # Panics
///
/// When it names no type.
///
/// # Example: payments
///
/// ```
/// use tower_idempotency::sender::{stripe, stripe_once};
///
/// let policy = stripe()
///     .business_key(stripe_once(["payment_intent.succeeded", "checkout.session.completed"]));
/// assert!(policy.check().is_ok());
/// ```
#[track_caller]
pub fn stripe_once<T: Into<String>>(types: impl IntoIterator<Item = T>) -> impl Source {
    let types: Vec<String> = types.into_iter().map(Into::into).collect();
    assert!(
        !types.is_empty(),
        "stripe_once(..) names no type; name those that happen to an object once, such as \
         \"payment_intent.succeeded\", or leave it out"
    );
    Event::new().made_of(OneOf { field: json("/type"), types }).made_of(json("/data/object/id"))
}

/// The type, if it is one of these.
struct OneOf {
    field: Json,
    types: Vec<String>,
}

impl Source for OneOf {
    fn read(&self, from: &Input<'_>) -> Result<Option<Identity>, Refusal> {
        let found = self.field.read(from)?;
        let is_named =
            |found: &Identity| self.types.iter().any(|t| t.as_bytes() == found.as_bytes());
        Ok(found.filter(is_named))
    }

    fn describe(&self) -> String {
        self.field.describe()
    }
}
