//! The payment gateway: it delivers, and delivers again while it is told to come later.

use std::{collections::HashMap, net::SocketAddr, sync::Arc, time::Duration};

use axum::http::{
    Request, StatusCode,
    header::{CONTENT_TYPE, RETRY_AFTER},
};
use tokio::{sync::Mutex, time::sleep};
use tower_idempotency_test_support::Server;

use crate::{Error, notification::Notification, scheme::Scheme};

/// What a shop answers that has understood.
const SUCCESS: &str = "success";
/// The header that carries a one-time token.
pub(crate) const TOKEN: &str = "X-Once-Token";
const PAUSE: Duration = Duration::from_millis(100);
/// How often a delivery is tried before the gateway gives it up.
const TRIES: u32 = 100;

/// The gateway, and what it remembers.
#[derive(Clone, Default)]
pub(crate) struct Gateway {
    /// The token of each notification: this gateway does ask for one, as none does.
    tokens: Arc<Mutex<HashMap<String, String>>>,
}

impl Gateway {
    /// Delivers this notification until there is an answer that will not change; whether it is
    /// `success`.
    pub(crate) async fn deliver(
        &self,
        shop: SocketAddr,
        scheme: Scheme,
        notification: &Notification,
    ) -> Result<bool, Error> {
        for _ in 0..TRIES {
            let mut request = Request::post(scheme.path()).header(CONTENT_TYPE, "application/json");
            let mut token = None;
            if scheme == Scheme::Token {
                let asked = self.token(shop, notification).await?;
                request = request.header(TOKEN, &asked);
                token = Some(asked);
            }
            let request = request.body(serde_json::to_string(notification)?)?;
            let answer = Server::try_exchange(shop, request).await?;
            match answer.status() {
                StatusCode::OK => return Ok(answer.body() == SUCCESS),
                // The token is not known any more: the form is opened again.
                StatusCode::FORBIDDEN => self.forget(notification, token).await,
                _ if answer.headers().contains_key(RETRY_AFTER) => sleep(PAUSE).await,
                _ => return Ok(false),
            }
        }
        Ok(false)
    }

    /// The token of this notification, which is asked for once.
    async fn token(&self, shop: SocketAddr, notification: &Notification) -> Result<String, Error> {
        // Locked while it is asked for: all deliveries of a notification have the same one.
        let mut tokens = self.tokens.lock().await;
        if let Some(token) = tokens.get(&notification.notify_id) {
            return Ok(token.clone());
        }
        let answer =
            Server::try_exchange(shop, Request::post("/tokens").body(String::new())?).await?;
        let token = String::from_utf8(answer.into_body().to_vec())?;
        tokens.insert(notification.notify_id.clone(), token.clone());
        Ok(token)
    }

    async fn forget(&self, notification: &Notification, token: Option<String>) {
        let mut tokens = self.tokens.lock().await;
        if tokens.get(&notification.notify_id) == token.as_ref() {
            tokens.remove(&notification.notify_id);
        }
    }
}
