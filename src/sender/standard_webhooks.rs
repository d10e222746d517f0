//! Senders that follow the Standard Webhooks specification.

use super::remembered_for;
use crate::{identity::header, policy::Policy};

/// Senders that follow [Standard Webhooks][1].
///
/// * The delivery is the header `webhook-id`, which every attempt keeps. `webhook-timestamp` and
///   `webhook-signature` are of one attempt. There is no business key: what an event is about stands
///   somewhere else with each sender, so name it by [`Policy::business_key`].
/// * Nothing is compared.
/// * An answer of 2xx is kept, and given to every duplicate. A 3xx counts as a failure and is never
///   kept.
/// * "Not yet" is 503 with `Retry-After`, which is honoured. Nothing is refused with 410, which
///   would end the subscription.
/// * Retention and hold: 7 days. The specification's example of a schedule ends after 75 h 35 m. Its
///   advice to remember ids for 5 minutes would run the later attempts again.
///
/// A sender may take 15 to 30 s for too slow. Some have names of their own for the headers:
/// `.identity(header("svix-id"))`. The signature is for [`Policy::verify`]; the example `signed` checks it.
///
/// [1]: https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md
///
/// # Example: with the order that an event is about
///
/// ```
/// use tower_idempotency::{json, sender};
///
/// let policy = sender::standard_webhooks()
///     .business_key((json("/type"), json("/data/order_id")))
///     .compare([json("/data/amount")]);
/// assert!(policy.check().is_ok());
/// ```
pub fn standard_webhooks() -> Policy {
    remembered_for(Policy::webhook(header("webhook-id")), 7)
}
