//! Adyen's standard webhooks.

use super::{Event, remembered_for};
use crate::{
    identity::{Identity, Input, Json, Source, each, json},
    policy::Policy,
    refusal::Refusal,
};

/// Standard webhooks of Adyen about payments, as JSON.
///
/// * There is no delivery id. The identity is `eventCode`, `pspReference` and `success` of every item of
///   `notificationItems`, together: `pspReference` alone would take a capture for its authorisation.
///   JSON notifications have one item [1]; a body with several is one operation.
/// * `success` is compared as text: `"true"` and `true` are the same.
/// * Nothing is compared. `eventDate` may differ in a duplicate, and Adyen advises to apply the latest
///   (a secondary source); here the first is applied.
/// * An answer of 2xx is kept, and given to every duplicate [2]. An older contract wants the body
///   `[accepted]`: what your handler answers is what duplicates get. Three types of webhook of
///   terminals take only 200 (a secondary source).
/// * "Not yet" is 503, and Adyen comes again, for up to 30 days [3]. Redirects are not followed [2].
/// * Retention and hold: 60 days.
///
/// The HMAC signature is in each item, and for [`Policy::verify`]. Notifications of Adyen for
/// platforms have another form, and need a rule of their own.
///
/// [1]: https://docs.adyen.com/development-resources/webhooks/webhook-types
/// [2]: https://docs.adyen.com/development-resources/webhooks/handle-webhook-events
/// [3]: https://docs.adyen.com/development-resources/webhooks/troubleshoot
///
/// # Example: its path
///
/// ```
/// use tower_idempotency::{Rule, sender};
///
/// let rule = Rule::new("adyen", sender::adyen()).path("/adyen");
/// assert_eq!(rule.name(), "adyen");
/// ```
pub fn adyen() -> Policy {
    let event = Event::new()
        .made_of(json("/NotificationRequestItem/eventCode"))
        .made_of(json("/NotificationRequestItem/pspReference"))
        .told_apart_by(Success(json("/NotificationRequestItem/success")));
    remembered_for(Policy::webhook(each("/notificationItems", event)), 60)
}

/// A boolean that is written as a string, and might one day be written as a boolean.
struct Success(Json);

impl Source for Success {
    fn read(&self, from: &Input<'_>) -> Result<Option<Identity>, Refusal> {
        match self.0.find(from)? {
            Some(word @ ("true" | "false")) => Ok(Some(Identity::new(word.to_owned()))),
            _ => self.0.read(from),
        }
    }

    fn describe(&self) -> String {
        self.0.describe()
    }
}
