//! What the gateway sends.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::{SystemTime, UNIX_EPOCH},
};

use serde::{Deserialize, Serialize};

/// A customer has paid for an order.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Notification {
    /// The gateway promises that it is unique to the notification, and the same when the
    /// notification is delivered again. It does not always keep that.
    pub(crate) notify_id: String,
    pub(crate) user_id: String,
    pub(crate) order_id: String,
    /// In yuan.
    pub(crate) amount: i64,
}

impl Notification {
    /// A notification of an order that no run of this example has seen before.
    pub(crate) fn fresh(amount: i64) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = |letter| format!("{letter}-{since}-{number}");
        Self { notify_id: name('N'), user_id: name('U'), order_id: name('O'), amount }
    }

    /// The same of the same order, as if it were another notification.
    pub(crate) fn under_new_id(&self, number: usize) -> Self {
        Self { notify_id: format!("{}-{number}", self.notify_id), ..self.clone() }
    }
}

/// What the shop's books say of an order.
#[derive(Serialize, Deserialize)]
pub(crate) struct Books {
    pub(crate) charges: i64,
    pub(crate) charged: i64,
    /// What is left in the customer's account.
    pub(crate) balance: i64,
}
