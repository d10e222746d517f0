//! Identities and scopes that are no text.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{HeaderValue, Request};
use http_body_util::Full;
use tower_idempotency::{
    Abandoned, Answer, MemoryStore, Operation, Policy, RefusalKind, Resolution, Scope, form,
};

use crate::shop::{Shop, text};

/// A notification of a shop, whose order has a number in GBK.
fn of(shop: &[u8], order: &[u8]) -> Request<Full<Bytes>> {
    let body = [b"order=", order].concat();
    Request::post("/notify")
        .header("x-shop", HeaderValue::from_bytes(shop).expect("a value"))
        .body(Full::from(body))
        .expect("a request")
}

#[tokio::test]
async fn what_is_no_text_never_reads_like_another_to_handlers_and_resolvers() {
    let asked: Arc<Mutex<Vec<(String, String)>>> = Arc::default();
    let asks = asked.clone();
    let policy = Policy::webhook(form("order")).scope(Scope::header("x-shop")).resolve_abandoned(
        move |abandoned: Abandoned| {
            let name = (abandoned.scope, abandoned.key);
            asks.lock().expect("no holder panics").push(name.clone());
            // Somebody who looks the order up by what it is called.
            async move { Resolution::Done(Answer::text(format!("{name:?}"))) }
        },
    );
    let shop = Shop::new(MemoryStore::new(), policy, |request| async move {
        let operation = request.extensions().get::<Operation>().expect("it runs").clone();
        text(504, format!("{:?}", (operation.scope(), operation.key())))
    });
    let orders: [(&[u8], &[u8]); 5] = [
        (b"s", b"\xb2\xe2"),
        (b"s", b"\xca\xd4"),
        (b"\xb2\xe2", b"\xca\xd4"),
        (b"\xca\xd4", b"\xca\xd4"),
        // Text stays as it is.
        ("\u{6d4b}".as_bytes(), "\u{8bd5}%7C".as_bytes()),
    ];
    let mut names = Vec::new();
    for (scope, order) in orders {
        let told = shop.send(of(scope, order)).await;
        let resolved = shop.send(of(scope, order)).await;
        assert_eq!(told.body, resolved.body, "the same name on each way");
        assert!(!names.contains(&told.body), "{told:?}");
        names.push(told.body);
    }
    let asked = asked.lock().expect("no holder panics");
    assert_eq!(asked.len(), orders.len());
    assert_eq!(asked[4], ("\u{6d4b}".to_owned(), "\u{8bd5}|".to_owned()));
    assert_eq!(asked[0], ("s".to_owned(), "%B2%E2".to_owned()));
    let missing = shop.send(of(b"", b"1")).await;
    assert_eq!(missing.refusal(), Some(RefusalKind::ScopeMissing));
}
