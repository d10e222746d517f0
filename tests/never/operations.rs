//! What a request carries along from a layer further out, or from another request.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use tower_idempotency::{
    Deciphered, Delivery, MemoryStore, Operation, Policy, Refusal, RefusalKind, Verified, header,
};

use crate::shop::{Shop, api, keyed, notification, text};

#[tokio::test]
async fn a_request_that_carries_an_operation_that_is_over_is_answered_like_any_other() {
    let seen = Arc::new(Mutex::new(None));
    let keep = seen.clone();
    let shop = Shop::new(MemoryStore::new(), api(), move |request| {
        let operation = request.extensions().get::<Operation>().cloned();
        *keep.lock().expect("no holder panics") = operation;
        async { text(200, "paid") }
    });
    shop.send(keyed("k")).await.assert_text("paid");
    let over = seen.lock().expect("no holder panics").take().expect("a run has its operation");
    // Somebody sends on the request of a run that has ended, from a queue of his own.
    let mut again = keyed("k");
    again.extensions_mut().insert(over);
    let answer = shop.send(again).await;
    assert!(answer.is_replay(), "{answer:?}");
    assert_eq!(shop.runs.count(), 1, "no handler is started without a grant");
}

#[tokio::test]
async fn what_passes_verified_and_unprotected_has_what_was_deciphered() {
    let verify = |delivery: Delivery| async move {
        match delivery.body().strip_prefix(b"cipher:") {
            Some(plain) => Ok(Verified::deciphered(plain.to_vec())),
            None => Err(Refusal::not_verified("it is not ours")),
        }
    };
    let policy = Policy::webhook(header("X-Delivery")).optional().verify(verify);
    let shop = Shop::new(MemoryStore::new(), policy, |request| async move {
        let plain = request.extensions().get::<Deciphered>().map(|plain| plain.0.clone());
        text(200, plain.unwrap_or(Bytes::from_static(b"nothing")))
    });
    shop.send(notification("cipher:hello")).await.assert_text("hello");
    let refused = shop.send(notification("hello")).await;
    assert_eq!(refused.refusal(), Some(RefusalKind::NotVerified));
}
