//! Alipay's asynchronous notifications.

use super::{Event, refusals::with_body, remembered_for};
use crate::{identity::form, policy::Policy};

/// Asynchronous notifications of Alipay's open platform about a trade.
///
/// * The delivery is `notify_id`, which stays the same until `success` is printed [1].
/// * The event is `out_trade_no` and `trade_status`, with `app_id`, `out_biz_no` and `refund_fee` where
///   they are there: `TRADE_SUCCESS` and then `TRADE_FINISHED` or `TRADE_CLOSED` of one order are two
///   events, and so are two refunds [2]. That these fields name an event is our reading of [2]. A
///   notification that is not about a trade's status goes by its `notify_id` alone.
/// * `total_amount` must be the same in each delivery of an event; else it is refused, and told to
///   [`Policy::on_mismatch`]. `notify_time` and `sign` may differ: the first is the time of sending
///   [2]; whether they are made anew for a redelivery is not established, and does not matter here.
/// * An answer is kept, and given to every duplicate, if its status is 2xx and its body is exactly
///   `success`, 7 bytes [1]. Anything else, `fail` and a redirect too, means that it may run again.
/// * "Not yet" is 503 and every refusal has the body `fail`, so that Alipay comes again: three times
///   at once, then after 4 m, 10 m, 10 m, 1 h, 2 h, 6 h and 15 h, 24 h 24 m in all [3].
/// * Retention and hold: 7 days.
///
/// The body is read in any charset that Alipay sends (UTF-8, GBK, GB2312): see
/// [`form`](crate::form). The signature is for [`Policy::verify`].
///
/// The older cross-border gateway reads `SUCCESS` [4]:
/// `.keep_if(|answer| answer.body().is_some_and(|body| body == "SUCCESS"))`.
///
/// [1]: https://docs.open.alipay.com/270/105902/
/// [2]: https://docs.open.alipay.com/204/105301/
/// [3]: https://hexdocs.pm/alipay_sdk/Alipay.Plug.EventHandler.html
/// [4]: https://docs.antom.com/ac/wap_hk/asyncnotif
///
/// # Example: one app, its own time
///
/// ```
/// use std::time::Duration;
/// use tower_idempotency::{Rule, sender};
///
/// let policy = sender::alipay().lease(Duration::from_secs(10));
/// let rule = Rule::new("alipay", policy).path("/alipay/notify");
/// assert_eq!(rule.name(), "alipay");
/// ```
pub fn alipay() -> Policy {
    let event = Event::new()
        .made_of(form("out_trade_no"))
        .made_of(form("trade_status"))
        .told_apart_by(form("app_id"))
        .told_apart_by(form("out_biz_no"))
        .told_apart_by(form("refund_fee"));
    let policy = Policy::webhook(form("notify_id"))
        .business_key(event)
        .compare([form("total_amount")])
        .keep_if(|answer| answer.body().is_some_and(|body| body == "success"))
        .refuse_with(|refusal| Some(with_body(refusal, "text/plain; charset=utf-8", "fail")));
    remembered_for(policy, 7)
}
