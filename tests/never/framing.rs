//! Requests over real sockets that are not what clients send.

use axum::{Router, routing::post};
use tower_idempotency::{IdempotencyLayer, MemoryStore, Policy, Rule, Scope};
use tower_idempotency_test_support::{Runs, Server};

use crate::shop::{api, records};

async fn serve(policy: Policy) -> (Server, MemoryStore, Runs) {
    let (store, runs) = (MemoryStore::new(), Runs::new());
    let counted = runs.clone();
    let layer = IdempotencyLayer::new(store.clone(), Rule::new("pay", policy));
    let handler = move || {
        let run = counted.add();
        async move { format!("run {run}") }
    };
    let router = Router::new().route("/pay", post(handler)).route_layer(layer);
    (Server::start(router).await, store, runs)
}

#[tokio::test]
async fn deliveries_in_one_write_run_once_and_are_answered_in_their_order() {
    let (server, _, runs) = serve(api()).await;
    let one = |key: &str| {
        format!(
            "POST /pay HTTP/1.1\r\nHost: a\r\nIdempotency-Key: {key}\r\nContent-Length: 2\r\n\r\nab"
        )
    };
    let all: String = ["a", "a", "b", "a", "b"].map(one).concat();
    let mut client = server.connect().await;
    client.send(all).await;
    for (body, replayed) in
        [("run 1", false), ("run 1", true), ("run 2", false), ("run 1", true), ("run 2", true)]
    {
        let answer = client.answer().await;
        assert_eq!(answer.body, body);
        assert_eq!(answer.headers.contains_key("idempotent-replayed"), replayed);
    }
    // One that leaves before its second delivery is read has delivered the first.
    let mut client = server.connect().await;
    client.send([one("c"), one("c")].concat()).await;
    client.answer().await;
    client.reset();
    let mut client = server.connect().await;
    client.send(one("c")).await;
    assert_eq!(client.answer().await.body, "run 3");
    assert_eq!(runs.count(), 3);
}

#[tokio::test]
async fn what_is_no_request_runs_nothing_and_leaves_nothing() {
    let (server, store, runs) = serve(api()).await;
    let long = "k".repeat(100_000);
    let many = "X-A: 1\r\n".repeat(2000);
    let hostile = [
        "POST /pay HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nabc".to_owned(),
        "POST /pay HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k\r\nContent-Length: -1\r\n\r\n".to_owned(),
        "POST /pay HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k\r\nContent-Length: +2\r\n\r\nab".to_owned(),
        "POST /pay HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k\r\nContent-Length: 99999999999999999999\r\n\r\nab".to_owned(),
        "POST /pay HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k\r\nContent-Length: 18446744073709551615\r\n\r\nab".to_owned(),
        "POST /pay HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\nab".to_owned(),
        "POST /pay HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\nab".to_owned(),
        "POST /pay HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k\r\nTransfer-Encoding: gzip\r\n\r\nab".to_owned(),
        "POST /pay HTTP/1.1\r\nHost: a\r\nIdempotency-Key : k\r\nContent-Length: 0\r\n\r\n".to_owned(),
        "POST /pay HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k\0l\r\nContent-Length: 0\r\n\r\n".to_owned(),
        "POST /pay HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k\r\n l\r\nContent-Length: 0\r\n\r\n".to_owned(),
        format!("POST /pay HTTP/1.1\r\nHost: a\r\nIdempotency-Key: {long}\r\nContent-Length: 0\r\n\r\n"),
        format!("POST /pay HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k\r\n{many}Content-Length: 0\r\n\r\n"),
        "POST /pay HTTP/1.1\r\nHost: a\r\nIdempotency-Key: \u{e9}\r\nContent-Length: 0\r\n\r\n".to_owned(),
        "POST /pay HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k\r\nContent-Length: 9\r\n\r\nab".to_owned(),
        "\0\0\0\0\0\0\0\0\r\n\r\n".to_owned(),
    ];
    for request in hostile {
        let shown = request.chars().take(120).collect::<String>();
        let mut client = server.connect().await;
        client.send(&request).await;
        client.finish_sending().await;
        let said = client.rest().await;
        let no = said.is_empty() || said.starts_with(b"HTTP/1.1 4");
        assert!(no, "{shown:?}: {:?}", String::from_utf8_lossy(&said));
        assert_eq!(runs.count(), 0, "{shown:?}");
    }
    assert_eq!(records(&store).await, []);
}

#[tokio::test]
async fn trailers_name_no_identity_and_no_scope() {
    let (server, store, runs) = serve(Policy::api(Scope::header("x-tenant"))).await;
    let with = |head: &str| {
        format!(
            "POST /pay HTTP/1.1\r\nHost: a\r\n{head}Transfer-Encoding: chunked\r\n\
             Trailer: idempotency-key, x-tenant\r\n\r\n2\r\nab\r\n0\r\n\
             Idempotency-Key: k\r\nX-Tenant: t\r\nContent-Length: 7\r\n\r\n"
        )
    };
    for head in ["", "Idempotency-Key: k\r\n", "X-Tenant: t\r\n"] {
        let mut client = server.connect().await;
        client.send(with(head)).await;
        assert_eq!(client.answer().await.status, 400, "{head}");
    }
    assert_eq!((runs.count(), store.len()), (0, 0));
    let mut client = server.connect().await;
    client.send(with("Idempotency-Key: k\r\nX-Tenant: t\r\n")).await;
    assert_eq!(client.answer().await.body, "run 1");
}
