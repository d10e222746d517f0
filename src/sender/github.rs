//! GitHub's webhooks.

use super::remembered_for;
use crate::{identity::header, policy::Policy};

/// Webhooks of GitHub, as JSON or as a form.
///
/// * The delivery is the header `X-GitHub-Delivery`. A redelivery by hand has the same [1]. There is
///   no business key.
/// * Nothing is compared.
/// * An answer of 2xx is kept, and given to every duplicate; after any other a redelivery runs.
/// * "Not yet" is 503. Danger: GitHub does **not** come again by itself: what was refused, also because
///   the store was down, waits for a redelivery by hand, or by a script that looks for failed
///   deliveries, within 3 days (a secondary source).
/// * Retention and hold: 7 days.
/// * A body may have 25 MiB, since payloads are capped at 25 MB [2]. Each is held in memory whole:
///   lower it by [`Policy::body_limit`] where your events are small.
///
/// An answer must come within 10 s, on GitHub Enterprise Server 30 s [1]. The signature
/// (`X-Hub-Signature-256`) is for [`Policy::verify`].
///
/// [1]: https://docs.github.com/en/webhooks/using-webhooks/best-practices-for-using-webhooks
/// [2]: https://docs.github.com/en/webhooks/webhook-events-and-payloads
///
/// # Example: an operator who wants a delivery to run once more
///
/// A layer further out, which knows operators, puts the extension on the request; each ticket runs a
/// delivery once more, and no more than once.
///
/// ```
/// use tower_idempotency::{Identity, Input, Refusal, Source, extension, header, sender};
///
/// #[derive(Clone)]
/// struct Again(String);
/// impl AsRef<str> for Again {
///     fn as_ref(&self) -> &str {
///         &self.0
///     }
/// }
///
/// let delivery = |from: &Input<'_>| -> Result<Option<Identity>, Refusal> {
///     let id = header("X-GitHub-Delivery");
///     match from.head().extensions.get::<Again>() {
///         Some(_) => (id, extension::<Again>()).read(from),
///         None => id.read(from),
///     }
/// };
/// let policy = sender::github().identity(delivery);
/// assert!(policy.check().is_ok());
/// ```
pub fn github() -> Policy {
    let policy = Policy::webhook(header("X-GitHub-Delivery")).body_limit(25 * 1024 * 1024);
    remembered_for(policy, 7)
}
