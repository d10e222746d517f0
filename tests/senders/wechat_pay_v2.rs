//! WeChat Pay, version 2.

use http::StatusCode;
use tower_idempotency::{Answer, sender};

use crate::{
    common::{DAY, HOUR, MINUTE, Sender},
    receiver::{Delivery, post},
};

const DONE: &str = "<xml><return_code><![CDATA[SUCCESS]]></return_code>\
                    <return_msg><![CDATA[OK]]></return_msg></xml>";
const FAILED: &str = "<xml><return_code><![CDATA[FAIL]]></return_code></xml>";

fn paid(order: &str, result: &str, fee: &str, nonce: &str) -> Delivery {
    let body = format!(
        "<xml><appid><![CDATA[wx2421b1c4370ec43b]]></appid><bank_type><![CDATA[CFT]]></bank_type>\
         <fee_type><![CDATA[CNY]]></fee_type><mch_id><![CDATA[10000100]]></mch_id>\
         <nonce_str><![CDATA[{nonce}]]></nonce_str><openid><![CDATA[oUpF8uMEb4qRXf22]]></openid>\
         <out_trade_no><![CDATA[{order}]]></out_trade_no>\
         <result_code><![CDATA[{result}]]></result_code>\
         <return_code><![CDATA[SUCCESS]]></return_code><sign><![CDATA[B552ED6B{nonce}]]></sign>\
         <time_end><![CDATA[20261130101511]]></time_end><total_fee>{fee}</total_fee>\
         <transaction_id><![CDATA[1004400740202611300005091868]]></transaction_id></xml>"
    );
    post("/wechat", "text/xml", body)
}

fn xml(text: &'static str) -> Answer {
    Answer::text(text)
}

pub(crate) fn wechat() -> Sender {
    Sender {
        policy: sender::wechat_pay_v2,
        done: xml(DONE),
        failed: xml(FAILED),
        first: paid("1409811653", "SUCCESS", "96000", "5d2b6c2a8db53831"),
        redelivered: paid("1409811653", "SUCCESS", "96000", "f7eda20af46e531c"),
        other: paid("1409811654", "SUCCESS", "96000", "5d2b6c2a8db53831"),
    }
}

#[tokio::test]
async fn a_notification_runs_once_and_is_told_fail_until_then() {
    let meanwhile = wechat().keeps_its_promises().await;
    assert_eq!(
        meanwhile.body,
        "<xml><return_code><![CDATA[FAIL]]></return_code>\
         <return_msg><![CDATA[in-progress]]></return_msg></xml>"
    );
    assert_eq!(meanwhile.header("content-type"), "text/xml; charset=utf-8");
}

#[tokio::test]
async fn case_81_two_servers_that_deliver_at_once_are_one_run() {
    let receiver = wechat().receiver();
    let begun = receiver.begin(paid("O-1", "SUCCESS", "1", "a")).await;
    let other = receiver.deliver(paid("O-1", "SUCCESS", "1", "b")).await;
    assert_eq!(other.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(receiver.finish(begun).await.body, DONE);
    // Fifteen seconds later, from yet another of them.
    let later = receiver.deliver(paid("O-1", "SUCCESS", "1", "c")).await;
    assert_eq!((later.body.as_str(), later.is_replay()), (DONE, true));
    assert_eq!(receiver.runs.count(), 1);
    assert_eq!(receiver.seen(0).key, "O-1,SUCCESS,10000100,");
}

#[tokio::test]
async fn a_payment_that_failed_and_then_succeeded_is_two_events_and_another_fee_is_refused() {
    let receiver = wechat().receiver();
    receiver.deliver(paid("O-1", "FAIL", "1", "a")).await;
    receiver.deliver(paid("O-1", "SUCCESS", "1", "b")).await;
    assert_eq!(receiver.runs.count(), 2);
    let tampered = receiver.deliver(paid("O-1", "SUCCESS", "2", "c")).await;
    assert_eq!(tampered.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(tampered.body.contains("<return_code><![CDATA[FAIL]]>"), "{}", tampered.body);
    assert_eq!(receiver.runs.count(), 2);
}

#[tokio::test]
async fn only_a_return_code_of_success_is_kept() {
    let receiver = wechat().receiver();
    let answers = [
        "success",
        FAILED,
        "<xml><return_code>success</return_code></xml>",
        "<xml><result_code>SUCCESS</result_code></xml>",
        "<xml><return_code>SUCCESS</return_code>",
        "<!DOCTYPE x><xml><return_code>SUCCESS</return_code></xml>",
    ];
    for (runs, answer) in answers.into_iter().enumerate() {
        receiver.next(xml(answer));
        assert_eq!(receiver.deliver(paid("O-1", "SUCCESS", "1", "a")).await.body, answer);
        assert_eq!(receiver.runs.count(), runs + 1);
    }
    receiver.next(xml("<xml>\n <return_code> SUCCESS </return_code>\n</xml>"));
    receiver.deliver(paid("O-1", "SUCCESS", "1", "a")).await;
    assert!(receiver.deliver(paid("O-1", "SUCCESS", "1", "a")).await.is_replay());
    assert_eq!(receiver.runs.count(), answers.len() + 1);
}

#[tokio::test]
async fn what_is_no_notification_is_told_fail_and_runs_nothing() {
    let receiver = wechat().receiver();
    for body in [
        "",
        "out_trade_no=O-1",
        "<xml><out_trade_no>O-1</out_trade_no></xml>",
        "<xml><return_code>FAIL</return_code></xml>",
        "<!DOCTYPE x [<!ENTITY o \"O-1\">]><xml><out_trade_no>&o;</out_trade_no></xml>",
    ] {
        let heard = receiver.deliver(post("/wechat", "text/xml", body)).await;
        assert_eq!(heard.status, StatusCode::BAD_REQUEST, "{body}");
        assert!(heard.body.starts_with("<xml><return_code><![CDATA[FAIL]]>"), "{}", heard.body);
    }
    assert_eq!(receiver.runs.count(), 0);
}

#[tokio::test(start_paused = true)]
async fn case_93_the_last_redelivery_of_wechat_is_still_known() {
    wechat().remembers(&[24 * HOUR + 4 * MINUTE, 48 * HOUR + 8 * MINUTE], 7 * DAY).await;
}
