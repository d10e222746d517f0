//! Amazon SNS over HTTP and HTTPS.

use super::{refusals::temporary_is_5xx, remembered_for};
use crate::{identity::json, policy::Policy};

/// Messages of Amazon SNS to an HTTP or HTTPS endpoint, confirmations of subscriptions too.
///
/// * The delivery is `MessageId` of the JSON body, which a retry keeps [1]; it is found although the
///   body is labelled `text/plain`. There is no business key: what a message is about is its
///   publisher's, and stands in a string within (`Message`).
/// * Nothing is compared.
/// * An answer of 2xx is kept, and given to every duplicate.
/// * "Not yet" is 503, whatever its reason: a 4xx is the end to SNS, and the message is never delivered
///   again [2]. So a body that came short or slow is 503 here too. 4xx is only for what could never
///   go through: no `MessageId`, too large, a mismatch, a signature that is not right.
/// * By default SNS comes again 3 times, 20 s apart, and then gives up; a delivery policy may stretch
///   that to an hour in all [3]. A run that takes longer is better told to SNS at once and done behind
///   a queue.
/// * Retention and hold: 7 days.
///
/// Danger: the handler's 4xx are the end too. axum's `Json` extractor answers 415 to `text/plain`, so
/// take the body as `String` or `Bytes`. A [`Policy::verify`] hook that cannot fetch the certificate
/// has not found the signature wrong: let it refuse with 503 by
/// [`Refusal::with_answer`](crate::Refusal::with_answer).
///
/// With raw message delivery the body is the publisher's: `.identity(header("x-amz-sns-message-id"))`.
/// That header is not signed. A message has one id for all its subscribers, so that two subscriptions
/// of one topic need a rule each. How long SNS waits for an answer is not established.
///
/// [1]: https://docs.aws.amazon.com/sns/latest/dg/http-header.html
/// [2]: https://developer.amazon.com/docs/eu/amazon-pay-onetime/ipn-response.html
/// [3]: https://docs.aws.amazon.com/sns/latest/dg/sns-message-delivery-retries.html
///
/// # Example: its path
///
/// ```
/// use tower_idempotency::{Rule, sender};
///
/// let rule = Rule::new("sns", sender::sns()).path("/sns/orders");
/// assert_eq!(rule.name(), "sns");
/// ```
pub fn sns() -> Policy {
    let policy =
        Policy::webhook(json("/MessageId")).refuse_with(|refusal| Some(temporary_is_5xx(refusal)));
    remembered_for(policy, 7)
}
