//! The client whose server drops answers.

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use tower::{ServiceBuilder, ServiceExt};
use tower_idempotency::client::{ClientLayer, TokenLayer, posted_to};
use tower_idempotency_test_support::{Proxy, Signal};

use super::{Served, is_replay, run, text};

#[tokio::test]
async fn a_server_that_drops_answers_charges_a_client_with_a_key_once() {
    let output = run("client", &[]).await;
    let said = text(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", text(&output.stderr));
    let mut rows = said.lines().skip(4).map(|line| {
        let cells: Vec<_> = line.split("  ").map(str::trim).filter(|c| !c.is_empty()).collect();
        let [client, requests, charges, hears] = cells[..] else { panic!("{said}") };
        (client, requests, charges, hears)
    });
    let Some(("sends once", "1", "1", error)) = rows.next() else { panic!("{said}") };
    assert!(error.starts_with("error: "), "{said}");
    assert_eq!(rows.next(), Some(("sends again", "3", "3", "charge 3")), "{said}");
    let with_key = Some(("sends again, with ClientLayer", "3", "1", "charge 1"));
    assert_eq!((rows.next(), rows.next()), (with_key, None), "{said}");
}

#[tokio::test]
async fn a_client_that_asks_first_pays_once_whatever_answers_are_dropped() {
    let shop = Served::start("one_time_token", &["127.0.0.1:0"]);
    let proxy = Proxy::to(shop.client.0).await;
    let asking = posted_to(|head| format!("{}-token", head.uri.path()));
    let client = ServiceBuilder::new()
        .layer(ClientLayer::new())
        .layer(TokenLayer::new("X-Once-Token", asking))
        .service(Client::builder(TokioExecutor::new()).build_http());
    let pay = async |order: &str, user: &str, amount: &'static str| {
        let request = Request::post(format!("http://{}/orders/{order}/payment", proxy.address()))
            .header("X-User", user)
            .body(Full::<Bytes>::from(amount))
            .unwrap();
        let (head, body) = client.clone().oneshot(request).await.unwrap().into_parts();
        let body = text(&body.collect().await.unwrap().to_bytes());
        (head.status, is_replay(&head.headers), body)
    };
    let (status, replayed, receipt) = pay("O-1", "ann", "960").await;
    assert_eq!((status, replayed), (StatusCode::OK, false), "{receipt}");
    assert!(receipt.ends_with("-1: 960 for order O-1\n"), "{receipt}");
    // Paid again, as by somebody who forgot: asking for a token says so, and nothing is sent.
    let (status, _, said) = pay("O-1", "ann", "960").await;
    assert_eq!(status, StatusCode::CONFLICT, "{said}");
    // The answer to the token's request is dropped, and then that to the payment.
    proxy.cut_at_reply();
    assert_eq!(pay("O-2", "ann", "1").await.0, StatusCode::OK);
    // On a busy machine the cut may come late: then another order is paid.
    let mut paid = 2;
    loop {
        paid += 1;
        assert!(paid < 50, "the answer to a payment is never dropped");
        let before = proxy.counts().replies;
        let order = format!("O-{paid}");
        let (answer, ()) = tokio::join!(pay(&order, "bob", "2"), async {
            proxy.wait_until(|counts| counts.replies > before).await;
            proxy.cut_at_reply();
        });
        proxy.heal();
        let (status, replayed, receipt) = answer;
        assert_eq!(status, StatusCode::OK, "{receipt}");
        // As many receipts as orders: each is charged once.
        assert!(receipt.ends_with(&format!("-{paid}: 2 for order {order}\n")), "{receipt}");
        if replayed {
            break;
        }
    }
    // No user is no token, and nothing is tried again.
    let (status, _, _) = pay("no-user", "", "960").await;
    assert_ne!(status, StatusCode::OK);
    shop.stop(Signal::SIGTERM);
}
