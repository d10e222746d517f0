//! WeChat Pay's payment notifications, version 2.

use http::Request;

use super::{Event, refusals::with_body, remembered_for};
use crate::{
    identity::{Input, xml},
    policy::Policy,
    record::Answer,
};

/// Payment notifications of WeChat Pay's API version 2.
///
/// * They have no delivery id [1]. The identity is the event: `out_trade_no` and `result_code`, with
///   `mch_id` and `sub_mch_id` where they are there, since an order number is one merchant's own.
///   That a `FAIL` and a later `SUCCESS` of one order are two events is our reading.
/// * `total_fee` must be the same in each delivery; `nonce_str` and `sign` may differ.
/// * An answer is kept, and given to every duplicate, if its status is 2xx and its `return_code` is
///   `SUCCESS` [2]. Anything else means that it may run again.
/// * "Not yet" is 503 and every refusal has `return_code` `FAIL`, so that WeChat comes again: 15 times
///   within 24 h 4 m [1]. Several of its servers may deliver within seconds of each other [1].
/// * Retention and hold: 7 days.
///
/// An answer that takes over 5 s counts as none, as WeChat's staff has said (2020) [3]. The signature
/// is for [`Policy::verify`]. Refunds are another rule: theirs is enciphered as a whole (`req_info`),
/// so that the hook deciphers it and the identity is an element of what it found.
///
/// [1]: https://pay.weixin.qq.com/doc/v2/merchant/4011937248
/// [2]: https://developers.weixin.qq.com/community/develop/article/doc/000480292b45d83798400b8b166813
/// [3]: https://developers.weixin.qq.com/community/pay/doc/000c0c8365c280f08f4b90ed75b400
///
/// # Example: its path
///
/// ```
/// use tower_idempotency::{Rule, sender};
///
/// let rule = Rule::new("wechat-v2", sender::wechat_pay_v2()).path("/wechat/v2");
/// assert_eq!(rule.name(), "wechat-v2");
/// ```
pub fn wechat_pay_v2() -> Policy {
    let event = Event::new()
        .made_of(xml("/xml/out_trade_no"))
        .made_of(xml("/xml/result_code"))
        .told_apart_by(xml("/xml/mch_id"))
        .told_apart_by(xml("/xml/sub_mch_id"));
    let policy = Policy::webhook(event)
        .compare([xml("/xml/total_fee")])
        .keep_if(says_success)
        .refuse_with(|refusal| {
            let body = format!(
                "<xml><return_code><![CDATA[FAIL]]></return_code>\
                 <return_msg><![CDATA[{}]]></return_msg></xml>",
                refusal.kind().name()
            );
            Some(with_body(refusal, "text/xml; charset=utf-8", body))
        });
    remembered_for(policy, 7)
}

fn says_success(answer: &Answer) -> bool {
    let Some(body) = answer.body() else { return false };
    let (head, ()) = Request::new(()).into_parts();
    match xml("/xml/return_code").find(&Input::new(&head, body)) {
        Ok(Some(code)) => code.trim_ascii() == b"SUCCESS",
        _ => false,
    }
}
