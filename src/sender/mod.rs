//! Ready-made policies for the notifications of known senders.
//!
#![doc = include_str!("../../docs/senders.md")]

mod adyen;
mod alipay;
mod cloudevents;
mod event;
mod github;
mod refusals;
mod shopify;
mod sns;
mod standard_webhooks;
mod stripe;
#[cfg(feature = "xml")]
mod wechat_pay_v2;
mod wechat_pay_v3;

use std::time::Duration;

pub use adyen::adyen;
pub use alipay::alipay;
pub use cloudevents::cloudevents;
use event::Event;
pub use github::github;
pub use shopify::shopify;
pub use sns::sns;
pub use standard_webhooks::standard_webhooks;
pub use stripe::{stripe, stripe_once};
#[cfg(feature = "xml")]
pub use wechat_pay_v2::wechat_pay_v2;
pub use wechat_pay_v3::wechat_pay_v3;

use crate::policy::Policy;

/// Answers and unfinished operations alike are remembered for so many days.
fn remembered_for(policy: Policy, days: u64) -> Policy {
    let time = Duration::from_secs(days * 24 * 60 * 60);
    policy.hold(time).retention(time)
}
