//! A house whose policy demands one-time tokens, and the requests that bring them.

use http::Request;
use http_body_util::{BodyExt, Full};
use tower_idempotency::{
    Issuance, MemoryStore, OneTimeToken, Policy, TokenRequest, Tokens, header, json,
};

use crate::house::{Body, House, Reply, api};

pub(crate) const WHERE: &str = "POST /orders/{id}/token";

/// A free token is enough.
pub(crate) fn free() -> Policy {
    api().token(header("X-Once"), WHERE)
}

/// A token for the order is needed, and the amount must stay.
pub(crate) fn for_an_order() -> Policy {
    free().business_key(json("/order")).compare([json("/amount")])
}

/// What a token is asked for, for the rule of a house.
pub(crate) fn asked() -> TokenRequest {
    TokenRequest::new("pay")
}

pub(crate) fn of_order(order: &str) -> TokenRequest {
    asked().business_key(order)
}

pub(crate) fn issuer(house: &House) -> Tokens {
    Tokens::new(house.store.clone())
}

/// The token that must be given out.
#[track_caller]
pub(crate) fn token(issued: &Issuance) -> OneTimeToken {
    match issued {
        Issuance::Token { token, .. } => *token,
        other => panic!("no token: {other:?}"),
    }
}

/// Issues one.
pub(crate) async fn issue(house: &House, request: TokenRequest) -> OneTimeToken {
    token(&issuer(house).issue(request).await.unwrap())
}

/// A request that brings this text.
pub(crate) fn bringing(text: &str, body: &str) -> Request<Body> {
    let body = Full::new(bytes::Bytes::copy_from_slice(body.as_bytes()));
    let body = body.map_err(std::io::Error::other).boxed_unsync();
    Request::post("/pay").header("X-Once", text).body(body).unwrap()
}

/// The request of an order, whose amount this is.
pub(crate) fn paying(token: &OneTimeToken, order: &str, amount: u32) -> Request<Body> {
    bringing(&token.to_text(), &format!(r#"{{"order": "{order}", "amount": {amount}}}"#))
}

impl House {
    pub(crate) async fn pay(&self, token: &OneTimeToken, order: &str, amount: u32) -> Reply {
        self.call(paying(token, order, amount)).await
    }
}

/// How many records there are.
pub(crate) async fn records(memory: &MemoryStore) -> usize {
    use tower_idempotency::{Store, store::Cursor};
    memory.scan(Cursor::START, 1000).await.unwrap().records.len()
}
