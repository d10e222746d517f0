//! WeChat Pay, version 3. Base64 stands for the cipher, and one header for the signature.

use base64::{Engine, engine::general_purpose::STANDARD};
use http::StatusCode;
use serde_json::{Value, json};
use tower_idempotency::{Answer, Refusal, Verified, sender};

use crate::{
    common::{DAY, HOUR, MINUTE, Sender},
    receiver::{Delivery, post, with_header},
};

/// Checks and deciphers.
async fn open(delivery: tower_idempotency::Delivery) -> Result<Verified, Refusal> {
    if delivery.head().headers.get("wechatpay-signature").is_none_or(|sign| sign == "forged") {
        return Err(Refusal::not_verified("the signature is not WeChat Pay's"));
    }
    let sent: Value = serde_json::from_slice(delivery.body())
        .map_err(|_| Refusal::not_verified("the body is no JSON"))?;
    let cipher = sent["resource"]["ciphertext"].as_str().unwrap_or_default();
    Ok(Verified::deciphered(STANDARD.decode(cipher).unwrap()))
}

fn notification(id: &str, event_type: &str, resource: &Value, signature: &str) -> Delivery {
    let body = json!({
        "id": id,
        "create_time": "2026-11-30T10:15:09+08:00",
        "resource_type": "encrypt-resource",
        "event_type": event_type,
        "summary": "支付成功",
        "resource": {
            "algorithm": "AEAD_AES_256_GCM",
            "ciphertext": STANDARD.encode(resource.to_string()),
            "associated_data": "transaction",
            "nonce": "fdasflkja484w",
        },
    });
    let delivery = post("/wechat", "application/json", body.to_string());
    with_header(delivery, "wechatpay-signature", signature)
}

fn payment(order: &str, total: u32) -> Value {
    json!({
        "mchid": "1230000109",
        "out_trade_no": order,
        "transaction_id": "1217752501202611300000000001",
        "trade_state": "SUCCESS",
        "amount": { "total": total, "currency": "CNY", "payer_total": total },
    })
}

fn paid(id: &str, order: &str, total: u32) -> Delivery {
    notification(
        id,
        "TRANSACTION.SUCCESS",
        &payment(order, total),
        "CtcbzwtQjN8rnOXItEBJ5aQFSnIXESeV28Pr2YEmf9",
    )
}

pub(crate) fn wechat() -> Sender {
    Sender {
        policy: || sender::wechat_pay_v3(open),
        done: Answer::new(StatusCode::NO_CONTENT),
        failed: Answer::json(r#"{"code":"FAIL","message":"x"}"#)
            .with_status(StatusCode::INTERNAL_SERVER_ERROR),
        first: paid("EV-2026113010150900001", "O-1", 96000),
        redelivered: notification(
            "EV-2026113010150900001",
            "TRANSACTION.SUCCESS",
            &payment("O-1", 96000),
            "another",
        ),
        other: paid("EV-2026113010150900002", "O-2", 96000),
    }
}

#[tokio::test]
async fn a_notification_runs_once_and_is_told_fail_until_then() {
    let meanwhile = wechat().keeps_its_promises().await;
    let said: Value = serde_json::from_str(&meanwhile.body).unwrap();
    assert_eq!(said["code"], "FAIL");
    assert!(said["message"].as_str().unwrap().contains("in progress"), "{said}");
    assert_eq!(meanwhile.header("content-type"), "application/json");
}

#[tokio::test]
async fn case_82_the_id_outside_is_the_delivery_and_204_is_replayed_empty() {
    let receiver = wechat().receiver();
    for replayed in [false, true] {
        let heard = receiver.deliver(paid("EV-1", "O-1", 96000)).await;
        assert_eq!((heard.status, heard.body.as_str()), (StatusCode::NO_CONTENT, ""));
        assert_eq!(heard.is_replay(), replayed);
        assert!(!heard.headers.contains_key("transfer-encoding"));
    }
    let seen = receiver.seen(0);
    assert_eq!(seen.delivery_id.as_deref(), Some("EV-1"));
    assert_eq!(seen.key, "TRANSACTION.SUCCESS,O-1,1230000109,,");
    let deciphered: Value = serde_json::from_slice(&seen.deciphered.unwrap()).unwrap();
    assert_eq!(deciphered, payment("O-1", 96000));
    assert_eq!(seen.body, *paid("EV-1", "O-1", 96000).body(), "the handler gets the bytes as sent");
}

#[tokio::test]
async fn a_new_id_for_a_payment_is_the_same_event_and_another_amount_is_refused() {
    let receiver = wechat().receiver();
    receiver.deliver(paid("EV-1", "O-1", 96000)).await;
    assert!(receiver.deliver(paid("EV-2", "O-1", 96000)).await.is_replay());
    let tampered = receiver.deliver(paid("EV-3", "O-1", 96001)).await;
    assert_eq!(tampered.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(serde_json::from_str::<Value>(&tampered.body).unwrap()["code"], "FAIL");
    let other = receiver.deliver(paid("EV-1", "O-2", 96000)).await;
    assert_eq!(other.status, StatusCode::UNPROCESSABLE_ENTITY, "an id is of one event");
    assert_eq!(receiver.runs.count(), 1);
}

#[tokio::test]
async fn two_refunds_of_one_order_are_two_events() {
    let receiver = wechat().receiver();
    let refund = |id: &str, refund: &str| {
        let resource = json!({ "out_trade_no": "O-1", "out_refund_no": refund });
        notification(id, "REFUND.SUCCESS", &resource, "signed")
    };
    for (id, number, runs) in [("EV-1", "R-1", 1), ("EV-2", "R-2", 2), ("EV-1", "R-1", 2)] {
        assert_eq!(receiver.deliver(refund(id, number)).await.status, StatusCode::NO_CONTENT);
        assert_eq!(receiver.runs.count(), runs);
    }
}

#[tokio::test]
async fn a_forged_notification_is_told_fail_and_does_not_spoil_the_genuine_one() {
    let receiver = wechat().receiver();
    let forged = notification("EV-1", "TRANSACTION.SUCCESS", &payment("O-1", 1), "forged");
    let heard = receiver.deliver(forged).await;
    assert_eq!(heard.status, StatusCode::UNAUTHORIZED);
    let said: Value = serde_json::from_str(&heard.body).unwrap();
    assert_eq!(said, json!({"code": "FAIL", "message": "the signature is not WeChat Pay's"}));
    let genuine = receiver.deliver(paid("EV-1", "O-1", 96000)).await;
    assert_eq!((genuine.status, genuine.is_replay()), (StatusCode::NO_CONTENT, false));
    assert_eq!(receiver.runs.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn case_93_the_last_redelivery_of_wechat_is_still_known() {
    wechat().remembers(&[24 * HOUR + 4 * MINUTE, 48 * HOUR + 8 * MINUTE], 7 * DAY).await;
}
