//! What stands in the server: how many bytes it takes, and what of it can be read. `docs/operations.md`
//! has the figures and the list.

use std::{convert::Infallible, time::Duration};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tower::{ServiceBuilder, ServiceExt, service_fn};
use tower_idempotency::{
    ClaimToken, Handled, IdempotencyLayer, Policy, RedisStore, RequestBody, Rule, Scope, Store,
    header, json, store::Claim,
};
use tower_idempotency_test_support::{RedisServer, redis};

use crate::support::{connect, granted, new_key, server_and_store};

const DOCUMENT: &str = include_str!("../../docs/operations.md");

type Asked = Request<RequestBody<Full<Bytes>>>;

/// Delivers this body under this policy, with a header that must not be stored.
async fn deliver(layer: &IdempotencyLayer, id: &str, body: String) -> Option<Handled> {
    let handler = service_fn(async |_: Asked| {
        let answer = Response::builder()
            .header("content-type", "application/json")
            .header("x-trace", "kept-header")
            .header("set-cookie", "session=cookie-secret")
            .header("authentication-info", "auth-secret");
        let body = format!("{{\"answer\":\"{}\"}}", "a".repeat(287));
        Ok::<_, Infallible>(answer.body(Full::new(Bytes::from(body))).unwrap())
    });
    let service = ServiceBuilder::new().layer(layer.clone()).service(handler);
    let request = Request::post("/pay")
        .header("idempotency-key", id)
        .header("authorization", "Bearer request-secret")
        .body(Full::new(Bytes::from(body)))
        .unwrap();
    service.oneshot(request).await.unwrap().extensions().get().copied()
}

fn layer(store: &RedisStore, policy: Policy) -> IdempotencyLayer {
    IdempotencyLayer::new(store.clone(), Rule::new("pay", policy))
}

async fn used_memory(server: &RedisServer) -> f64 {
    let mut connection = connect(&server.url()).await.unwrap();
    let info: String = redis::cmd("INFO").arg("memory").query_async(&mut connection).await.unwrap();
    let line = info.lines().find_map(|line| line.strip_prefix("used_memory:")).unwrap();
    line.trim().parse().unwrap()
}

/// All names and values of the server, as text.
async fn all(server: &RedisServer) -> String {
    let mut connection = connect(&server.url()).await.unwrap();
    let keys: Vec<String> = redis::cmd("KEYS").arg("*").query_async(&mut connection).await.unwrap();
    let mut text = String::new();
    for key in keys {
        let value: Vec<u8> =
            redis::cmd("GET").arg(&key).query_async(&mut connection).await.unwrap();
        text.push_str(&format!("{key} {}\n", String::from_utf8_lossy(&value)));
    }
    text
}

/// The number in this row of the table of sizes.
fn documented(row: &str) -> f64 {
    let line = DOCUMENT.lines().find(|line| line.starts_with(&format!("| {row} |")));
    let cell = line.unwrap_or_else(|| panic!("no row {row}")).split('|').nth(2).unwrap();
    cell.trim().parse().unwrap()
}

#[tokio::test]
async fn a_record_takes_as_many_bytes_as_is_documented() {
    const RECORDS: usize = 2000;
    let (server, store) = server_and_store().await;
    let api = layer(&store, Policy::api(Scope::everyone()));
    let both = layer(&store, Policy::webhook(json("/id")).business_key(json("/order")));
    // What a first request of each makes is not of its record.
    deliver(&api, "warm", String::new()).await;
    deliver(&both, "warm", r#"{"id":"w","order":"w"}"#.to_owned()).await;

    let begun = used_memory(&server).await;
    for nth in 0..RECORDS {
        let mut claim = Claim::new(
            new_key(),
            ClaimToken::random(),
            None,
            Duration::from_secs(30),
            Duration::from_secs(7 * 86_400),
            Duration::from_secs(5),
        );
        claim.label = format!("pay order-{nth:010}").into();
        granted(store.claim(claim).await);
    }
    let held = used_memory(&server).await;
    for nth in 0..RECORDS {
        deliver(&api, &format!("order-{nth:010}"), "body".to_owned()).await;
    }
    let completed = used_memory(&server).await;
    for nth in 0..RECORDS {
        let body = format!(r#"{{"id":"notify-{nth:010}","order":"order-{nth:010}"}}"#);
        deliver(&both, "k", body).await;
    }
    let with_alias = used_memory(&server).await;
    let each = |from: f64, to: f64| (to - from) / RECORDS as f64;
    let alias = each(completed, with_alias) - each(held, completed);
    for (row, measured) in [
        ("in progress, with a label of 20 bytes", each(begun, held)),
        ("done, with an answer of 300 bytes", each(held, completed)),
        ("another name of it (`Policy::business_key`)", alias),
    ] {
        let figure = documented(row);
        // Tables of the server grow by doubling, so that a record's share of them varies.
        assert!((figure * 0.75..figure * 1.3).contains(&measured), "{row}: {measured}");
        println!("{row}: {measured}");
    }
}

#[tokio::test]
async fn what_can_be_read_in_the_server_is_what_is_documented() {
    let (server, store) = server_and_store().await;
    let api = layer(&store, Policy::api(Scope::header("authorization")));
    let body = r#"{"card":"body-secret"}"#.to_owned();
    assert!(deliver(&api, "identity-secret", body).await.is_some());
    let text = all(&server).await;
    for shown in ["aaaaaaaa", "kept-header"] {
        assert!(text.contains(shown), "{shown}: {text}");
    }
    for hidden in
        ["body-secret", "request-secret", "cookie-secret", "auth-secret", "identity-secret"]
    {
        assert!(!text.contains(hidden), "{hidden}: {text}");
    }

    // Unfinished, it has its label: the identity as it was sent, or a digest.
    for (policy, shows) in [
        (Policy::api(Scope::everyone()), true),
        (Policy::api(Scope::everyone()).private_label(), false),
    ] {
        let (server, store) = server_and_store().await;
        let layer = layer(&store, policy);
        let handler = service_fn(async |_: Asked| {
            std::future::pending::<()>().await;
            Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
        });
        let service = ServiceBuilder::new().layer(layer).service(handler);
        let request = Request::post("/pay").header("idempotency-key", "identity-secret");
        let request = request.body(Full::new(Bytes::from("body-secret"))).unwrap();
        let run = tokio::spawn(service.oneshot(request));
        let text = loop {
            let text = all(&server).await;
            if text.contains("pay ") {
                break text;
            }
            tokio::task::yield_now().await;
        };
        assert_eq!(text.contains("identity-secret"), shows, "{text}");
        assert!(!text.contains("body-secret"));
        run.abort();
    }
}

#[tokio::test]
async fn another_prefix_forgets_and_the_same_does_not() {
    let (server, store) = server_and_store().await;
    let policy = || Policy::webhook(header("idempotency-key"));
    let executed = Some(Handled::Executed { attempt: 1 });
    let body = String::new;
    assert_eq!(deliver(&layer(&store, policy()), "k", body()).await, executed);
    let same = RedisStore::connect(&server.url()).await.unwrap();
    assert_eq!(deliver(&layer(&same, policy()), "k", body()).await, Some(Handled::Replayed));
    let other = RedisStore::connect(&server.url()).await.unwrap().prefix("other");
    assert_eq!(deliver(&layer(&other, policy()), "k", body()).await, executed);
}
