//! What the gateway sends, and how both sides know that it comes from the gateway.

use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// The secret that gateway and shop share. A real one does not stand in the code.
const SECRET: &[u8; 32] = b"an example has no secrets at all";

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
    pub(crate) amount: u64,
    pub(crate) sign: String,
}

impl Notification {
    /// A notification that no run of this example has sent before.
    pub(crate) fn fresh(amount: u64) -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let notification = Self {
            notify_id: format!("N-{since}-{}", std::process::id()),
            user_id: "U-7".to_owned(),
            order_id: format!("O-{since}"),
            amount,
            sign: String::new(),
        };
        notification.signed()
    }

    /// The same of the same order, as if it were another notification.
    pub(crate) fn under_new_id(&self, number: usize) -> Self {
        let notify_id = format!("{}-{number}", self.notify_id);
        Self { notify_id, ..self.clone() }.signed()
    }

    /// The same, signed as it is now.
    pub(crate) fn signed(mut self) -> Self {
        self.sign = self.signature().to_string();
        self
    }

    /// Whether the gateway has signed this. It has signed every delivery: a signature tells who
    /// sent a notification, and nothing about how often.
    pub(crate) fn is_signed(&self) -> bool {
        // Hashes compare in constant time, so that timing tells nobody how much of it was right.
        blake3::Hash::from_hex(&self.sign).is_ok_and(|sign| sign == self.signature())
    }

    fn signature(&self) -> blake3::Hash {
        let fields = serde_json::json!([self.notify_id, self.user_id, self.order_id, self.amount]);
        blake3::keyed_hash(SECRET, fields.to_string().as_bytes())
    }
}
