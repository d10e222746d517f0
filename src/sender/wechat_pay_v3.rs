//! WeChat Pay's notifications, version 3.

use super::{Event, refusals::with_body, remembered_for};
use crate::{
    identity::{Identity, Input, Json, Source, json, sent},
    policy::Policy,
    refusal::Refusal,
    verify::Verify,
};

/// Notifications of WeChat Pay's API version 3. `decipher` checks the signature and deciphers the
/// `resource`: what it returns by [`Verified::deciphered`](crate::Verified::deciphered) is read here
/// and is an extension of the handler's request.
///
/// * The delivery is `id`, outside of what is enciphered [1]. It is called the notification's unique
///   id; whether a redelivery keeps it is not established, so:
/// * The event of a payment is `event_type` and, of the deciphered resource, `out_trade_no`, with
///   `mchid`, `sp_mchid` and `sub_mchid` where they are there. It is one only where the type begins with
///   `TRANSACTION.`: another type may happen to one order more than once, as refunds do, and goes by
///   its `id` alone. For a route of refunds write
///   `.business_key((sent(json("/event_type")), json("/out_refund_no")))`.
/// * `amount.total` and `amount.currency` of the deciphered resource must be the same in each delivery.
/// * An answer of 2xx is kept, and given to every duplicate. WeChat wants 200 or 204 with an empty
///   body [2].
/// * "Not yet" is 503, and every refusal has `{"code": "FAIL", "message": ..}` [2], so that WeChat
///   comes again: 15 times within 24 h 4 m, as in version 2 [3].
/// * Retention and hold: 7 days.
///
/// The answer must come within 5 s by [1], within 3 s by [2].
///
/// [1]: https://pay.weixin.qq.com/docs/merchant/apis/h5-payment/payment-notice.html
/// [2]: https://developers.weixin.qq.com/community/develop/article/doc/000480292b45d83798400b8b166813
/// [3]: https://pay.weixin.qq.com/doc/v2/merchant/4011937248
///
/// # Example: a hook
///
/// ```
/// use tower_idempotency::{Delivery, Refusal, Rule, Verified, sender};
///
/// /// Checks `Wechatpay-Signature`, then deciphers `resource` by AES-256-GCM.
/// async fn open(delivery: Delivery) -> Result<Verified, Refusal> {
/// #   fn decipher(_: &Delivery) -> Option<Vec<u8>> { None }
///     match decipher(&delivery) {
///         Some(resource) => Ok(Verified::deciphered(resource)),
///         None => Err(Refusal::not_verified("the signature is not WeChat Pay's")),
///     }
/// }
///
/// let rule = Rule::new("wechat-v3", sender::wechat_pay_v3(open)).path("/wechat/v3");
/// assert_eq!(rule.name(), "wechat-v3");
/// ```
pub fn wechat_pay_v3(decipher: impl Verify) -> Policy {
    let event = Event::new()
        .made_of(Payment(json("/event_type")))
        .made_of(json("/out_trade_no"))
        .told_apart_by(json("/mchid"))
        .told_apart_by(json("/sp_mchid"))
        .told_apart_by(json("/sub_mchid"));
    let policy = Policy::webhook(sent(json("/id")))
        .verify(decipher)
        .business_key(event)
        .compare([json("/amount/total"), json("/amount/currency")])
        .refuse_with(|refusal| {
            let body = serde_json::json!({ "code": "FAIL", "message": refusal.detail() });
            Some(with_body(refusal, "application/json", body.to_string()))
        });
    remembered_for(policy, 7)
}

/// The type of an event that happens to an order once; of the body as it was sent.
struct Payment(Json);

impl Source for Payment {
    fn read(&self, from: &Input<'_>) -> Result<Option<Identity>, Refusal> {
        let event_type = sent(self.0.clone()).read(from)?;
        Ok(event_type.filter(|event_type| event_type.as_bytes().starts_with(b"TRANSACTION.")))
    }

    fn describe(&self) -> String {
        self.0.describe()
    }
}
