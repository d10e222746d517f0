//! Alipay.

use http::StatusCode;
use tower_idempotency::{Answer, sender};

use crate::{
    common::{DAY, HOUR, MINUTE, Sender},
    receiver::{Delivery, Receiver, again, post},
};

/// A notification of a trade: what differs is put in, the rest is as Alipay sends it.
struct Trade {
    notify_id: &'static str,
    sent_at: &'static str,
    status: &'static str,
    amount: &'static str,
    more: &'static str,
}

const PAID: Trade = Trade {
    notify_id: "2026113000222103015090511426937281",
    sent_at: "2026-11-30+10%3A15%3A09",
    status: "TRADE_SUCCESS",
    amount: "960.00",
    more: "",
};

impl Trade {
    fn form(&self) -> String {
        let Self { notify_id, sent_at, status, amount, more } = self;
        format!(
            "gmt_create=2026-11-30+10%3A15%3A01&charset=utf-8&seller_email=shop%40example.com\
             &subject=%E5%B9%B4%E5%8D%A1&sign=c2lnbmVk{sent_at}%3D%3D&buyer_id=2088102122524333\
             &total_amount={amount}&notify_id={notify_id}&notify_type=trade_status_sync\
             &notify_time={sent_at}&trade_status={status}&app_id=2014072300007148\
             &trade_no=2026113022001424330508104371&out_trade_no=O-20261130-0017&version=1.0\
             &sign_type=RSA2&seller_id=2088101106499364{more}"
        )
    }

    fn delivery(&self) -> Delivery {
        post("/alipay", "application/x-www-form-urlencoded; charset=utf-8", self.form())
    }
}

pub(crate) fn alipay() -> Sender {
    Sender {
        policy: sender::alipay,
        done: Answer::text("success"),
        failed: Answer::text("fail"),
        first: PAID.delivery(),
        redelivered: Trade { sent_at: "2026-11-30+10%3A19%3A11", ..PAID }.delivery(),
        other: Trade { notify_id: "2026113100222", status: "TRADE_CLOSED", ..PAID }.delivery(),
    }
}

fn receiver() -> Receiver {
    alipay().receiver()
}

#[tokio::test]
async fn a_notification_runs_once_and_is_told_fail_until_then() {
    let meanwhile = alipay().keeps_its_promises().await;
    assert_eq!(meanwhile.body, "fail");
    assert_eq!(meanwhile.header("content-type"), "text/plain; charset=utf-8");
}

#[tokio::test]
async fn case_76_another_notify_time_and_sign_is_the_same_notification() {
    let receiver = receiver();
    let first = receiver.deliver(PAID.delivery()).await;
    let redelivered = Trade { sent_at: "2026-11-30+11%3A15%3A09", ..PAID };
    assert_ne!(redelivered.form(), PAID.form());
    let again = receiver.deliver(redelivered.delivery()).await;
    assert_eq!((again.status, again.body.as_str()), (StatusCode::OK, "success"));
    assert_eq!((first.is_replay(), again.is_replay()), (false, true));
    assert_eq!(receiver.runs.count(), 1);
}

#[tokio::test]
async fn a_new_notify_id_for_the_same_status_is_the_same_event_and_another_amount_is_refused() {
    let receiver = receiver();
    receiver.deliver(PAID.delivery()).await;
    let renamed = receiver.deliver(Trade { notify_id: "n-2", ..PAID }.delivery()).await;
    assert_eq!((renamed.body.as_str(), renamed.is_replay()), ("success", true));
    let tampered = Trade { notify_id: "n-3", amount: "9600.00", ..PAID };
    let tampered = receiver.deliver(tampered.delivery()).await;
    assert_eq!(tampered.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(tampered.body, "fail");
    assert_eq!(receiver.runs.count(), 1);
    let seen = receiver.seen(0);
    assert_eq!(seen.delivery_id.as_deref(), Some(PAID.notify_id));
    assert_eq!(seen.key, "O-20261130-0017,TRADE_SUCCESS,2014072300007148,,");
    assert_eq!(seen.body, PAID.form());
}

#[tokio::test]
async fn case_77_another_status_of_the_trade_is_another_event() {
    let receiver = receiver();
    let finished = Trade { notify_id: "n-2", status: "TRADE_FINISHED", ..PAID };
    for (trade, runs) in [(&PAID, 1), (&finished, 2), (&PAID, 2), (&finished, 2)] {
        assert_eq!(receiver.deliver(trade.delivery()).await.body, "success");
        assert_eq!(receiver.runs.count(), runs);
    }
}

#[tokio::test]
async fn two_refunds_of_a_trade_are_two_events_and_one_refund_under_two_ids_is_one() {
    let receiver = receiver();
    let part = Trade { notify_id: "n-1", more: "&refund_fee=100.00&out_biz_no=R-1", ..PAID };
    let same = Trade { notify_id: "n-2", more: "&refund_fee=100.00&out_biz_no=R-1", ..PAID };
    let rest = Trade { notify_id: "n-3", more: "&refund_fee=960.00&out_biz_no=R-2", ..PAID };
    let blank = Trade { notify_id: "n-4", more: "&refund_fee=&out_biz_no=", ..PAID };
    for (trade, runs) in [(&PAID, 1), (&part, 2), (&same, 2), (&rest, 3), (&blank, 3)] {
        assert_eq!(receiver.deliver(trade.delivery()).await.body, "success");
        assert_eq!(receiver.runs.count(), runs, "{}", trade.notify_id);
    }
}

#[tokio::test]
async fn case_78_success_is_never_said_before_it_is_true() {
    let receiver = receiver();
    let begun = receiver.begin(PAID.delivery()).await;
    for notify_id in [PAID.notify_id, "n-2"] {
        let meanwhile = receiver.deliver(Trade { notify_id, ..PAID }.delivery()).await;
        assert_eq!(meanwhile.status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(meanwhile.body, "fail");
    }
    receiver.finish(begun).await;
    let later = receiver.deliver(Trade { notify_id: "n-2", ..PAID }.delivery()).await;
    assert_eq!((later.body.as_str(), later.is_replay()), ("success", true));
}

#[tokio::test]
async fn case_79_only_exactly_success_is_kept() {
    let receiver = receiver();
    let answers = ["fail", "success\n", "SUCCESS", "<p>success</p>", ""];
    for (runs, answer) in answers.into_iter().enumerate() {
        receiver.next(Answer::text(answer));
        let heard = receiver.deliver(PAID.delivery()).await;
        assert_eq!((heard.body.as_str(), heard.is_replay()), (answer, false));
        assert_eq!(receiver.runs.count(), runs + 1);
    }
    receiver.next(Answer::text("success").with_status(StatusCode::INTERNAL_SERVER_ERROR));
    receiver.deliver(PAID.delivery()).await;
    assert_eq!(receiver.deliver(PAID.delivery()).await.body, "success");
    assert!(receiver.deliver(PAID.delivery()).await.is_replay());
    assert_eq!(receiver.runs.count(), answers.len() + 2);
}

#[tokio::test]
async fn case_80_a_body_in_gbk_is_read_though_it_is_not_utf_8() {
    let receiver = receiver();
    // The same subject, percent-encoded and as raw bytes of GBK.
    let encoded = PAID.form().replace("%E5%B9%B4%E5%8D%A1", "%C4%EA%BF%A8");
    let mut raw = PAID.form().replace("subject=%E5%B9%B4%E5%8D%A1&", "").into_bytes();
    raw.extend_from_slice(b"&subject=\xc4\xea\xbf\xa8");
    for (body, replayed) in [(encoded.into_bytes(), false), (raw, true)] {
        let delivery = post("/alipay", "application/x-www-form-urlencoded; charset=GBK", body);
        let heard = receiver.deliver(delivery).await;
        assert_eq!((heard.body.as_str(), heard.is_replay()), ("success", replayed));
    }
    assert_eq!(receiver.runs.count(), 1);
}

#[tokio::test]
async fn a_notification_that_is_not_about_a_trades_status_goes_by_its_notify_id() {
    let receiver = receiver();
    let of = |notify_id: &str| {
        let body = format!("notify_id={notify_id}&notify_type=dut_user_sign&status=NORMAL");
        post("/alipay", "application/x-www-form-urlencoded", body)
    };
    for (notify_id, runs) in [("n-1", 1), ("n-1", 1), ("n-2", 2)] {
        assert_eq!(receiver.deliver(of(notify_id)).await.body, "success");
        assert_eq!(receiver.runs.count(), runs);
    }
}

#[tokio::test]
async fn what_can_never_go_through_is_told_fail_too() {
    let receiver = receiver();
    for body in ["", "out_trade_no=O-1", "notify_id=&x=1", "notify_id=a&notify_id=a"] {
        let delivery = post("/alipay", "application/x-www-form-urlencoded", body);
        let heard = receiver.deliver(delivery).await;
        assert_eq!((heard.status, heard.body.as_str()), (StatusCode::BAD_REQUEST, "fail"));
    }
    assert_eq!(receiver.runs.count(), 0);
    assert_eq!(receiver.deliver(again(&PAID.delivery())).await.body, "success");
}

#[tokio::test(start_paused = true)]
async fn case_93_the_last_redelivery_of_alipay_is_still_known() {
    alipay().remembers(&[24 * HOUR + 20 * MINUTE, 25 * HOUR, 50 * HOUR], 7 * DAY).await;
}
