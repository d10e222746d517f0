//! Each sender's policy over HTTP: realistic notifications (with invented values), delivered and
//! delivered again as that sender does it.
//!
//! Cases with a number are those of notifications.

mod adyen;
mod alipay;
mod cloudevents;
mod common;
mod github;
mod receiver;
mod redirects;
mod shopify;
mod sns;
mod standard_webhooks;
mod stripe;
mod table;
mod verify;
mod wechat_pay_v2;
mod wechat_pay_v3;
