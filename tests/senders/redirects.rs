//! What a sender that wants 2xx never hears from the record.

use http::StatusCode;
use tower_idempotency::{Answer, Policy, Scope};

use crate::{
    adyen, alipay, cloudevents, github,
    receiver::{Receiver, post, with_header},
    shopify, sns, standard_webhooks, stripe, wechat_pay_v2, wechat_pay_v3,
};

#[tokio::test]
async fn case_94_no_sender_hears_a_redirect_again() {
    for sender in [
        adyen::adyen(),
        alipay::alipay(),
        cloudevents::cloudevents(),
        github::github(),
        shopify::shopify(),
        sns::sns(),
        standard_webhooks::standard(),
        stripe::stripe(),
        wechat_pay_v2::wechat(),
        wechat_pay_v3::wechat(),
    ] {
        sender.never_hears_a_stored_redirect().await;
    }
}

#[tokio::test]
async fn case_94_a_client_of_an_api_does() {
    let done = Answer::text("over there").with_status(StatusCode::SEE_OTHER);
    let receiver = Receiver::new(Policy::api(Scope::everyone()), done);
    for replayed in [false, true] {
        let order = with_header(post("/orders", "text/plain", "1"), "idempotency-key", "o-1");
        let heard = receiver.deliver(order).await;
        assert_eq!((heard.status, heard.is_replay()), (StatusCode::SEE_OTHER, replayed));
    }
    assert_eq!(receiver.runs.count(), 1);
}
