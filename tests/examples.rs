//! The examples as a newcomer runs them: as processes, judged by what they print and answer.
#![cfg(unix)]

#[path = "examples/client.rs"]
mod client;
#[path = "../examples/fulfillment/notification.rs"]
mod notification;
#[path = "examples/stream_worker.rs"]
mod stream_worker;

use std::{
    net::SocketAddr,
    path::PathBuf,
    process::{Output, Stdio},
    sync::OnceLock,
    time::Duration,
};

use http::{HeaderMap, Request, StatusCode, request::Builder};
use http_body_util::BodyExt;
use hyper_util::rt::TokioIo;
use notification::Notification;
use tokio::{net::TcpStream, process::Command, time::timeout};
use tower_idempotency::{
    ClaimToken, RecordKey, RedisStore, Store,
    store::{Claim, Claimed},
};
use tower_idempotency_test_support::{Process, RedisServer, Signal};

/// What the example promises, and some more for a machine that is busy.
const STORY_AT_MOST: Duration = Duration::from_secs(25);

/// The binary of an example. `cargo test --test examples` does not build them, and a stale one
/// would tell of another version, so that they are built here.
fn binary(name: &str) -> PathBuf {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    let directory = DIRECTORY.get_or_init(|| {
        // target/<profile>/deps/examples-<hash>
        let test = std::env::current_exe().unwrap();
        let profile = test.ancestors().nth(2).unwrap();
        let mut cargo = std::process::Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--examples", "--target-dir"]);
        cargo.arg(profile.parent().unwrap()).current_dir(env!("CARGO_MANIFEST_DIR"));
        if profile.ends_with("release") {
            cargo.arg("--release");
        }
        assert!(cargo.status().unwrap().success(), "the examples do not build");
        profile.join("examples")
    });
    directory.join(name)
}

/// Runs an example to its end.
async fn run(name: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(binary(name));
    command.args(arguments).stdin(Stdio::null()).kill_on_drop(true);
    timeout(STORY_AT_MOST, command.output()).await.expect("it ends by itself").unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// An example that serves; killed when this is dropped.
struct Served {
    process: Process,
    client: Client,
}

impl Served {
    fn start(name: &str, arguments: &[&str]) -> Self {
        let process = Process::start(binary(name), arguments);
        let line = process.wait_for_line("listening on ");
        let address = line.strip_prefix("listening on http://").expect(&line).parse().unwrap();
        Self { process, client: Client(address) }
    }

    /// Sends it this signal: it must say that nothing was left undone, and end well.
    fn stop(mut self, signal: Signal) {
        self.process.signal(signal);
        assert_eq!(self.process.wait_for_line("stopped"), "stopped; 0 running, 0 unsent");
        assert!(self.process.wait());
    }
}

type Answer = (StatusCode, HeaderMap, String);

/// Sends each request on a connection of its own.
#[derive(Clone, Copy)]
struct Client(SocketAddr);

impl Client {
    async fn send(self, request: Builder, body: String) -> Answer {
        let stream = TokioIo::new(TcpStream::connect(self.0).await.unwrap());
        let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await.unwrap();
        tokio::spawn(connection);
        let request = request.header("Host", "localhost").body(body).unwrap();
        let (head, body) = sender.send_request(request).await.unwrap().into_parts();
        (head.status, head.headers, text(&body.collect().await.unwrap().to_bytes()))
    }

    /// Posts with this key, or without one.
    async fn post(self, path: &str, key: &str, body: &str) -> Answer {
        let request = Request::post(path);
        let request = if key.is_empty() { request } else { request.header("Idempotency-Key", key) };
        self.send(request, body.to_owned()).await
    }

    async fn notify(self, notification: &Notification) -> Answer {
        let request = Request::post("/fulfill/callback").header("Content-Type", "application/json");
        self.send(request, serde_json::to_string(notification).unwrap()).await
    }
}

fn is_replay(headers: &HeaderMap) -> bool {
    headers.get("idempotent-replayed").is_some_and(|value| value == "true")
}

/// The rows of the story's table: layer, requests, charges, yuan, answers.
fn rows(output: &str) -> Vec<(String, usize, usize, usize, String)> {
    let mut rows = Vec::new();
    for line in output.lines() {
        let cells: Vec<_> = line.split("  ").map(str::trim).filter(|c| !c.is_empty()).collect();
        if let [layer @ ("with" | "without"), _, requests, charges, yuan, answers] = cells[..] {
            let number = |cell: &str| cell.parse().unwrap();
            let figures = (number(requests), number(charges), number(yuan));
            rows.push((layer.to_owned(), figures.0, figures.1, figures.2, answers.to_owned()));
        }
    }
    rows
}

fn assert_story(output: &Output) {
    let said = text(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", text(&output.stderr));
    let rows = rows(&said);
    assert_eq!(rows.len(), 6, "{said}");
    for (layer, requests, charges, yuan, answers) in &rows {
        assert!(answers.starts_with("5 x success"), "{said}");
        if layer == "without" {
            assert_eq!((*requests, *charges, *yuan), (5, 5, 4800), "{said}");
        } else {
            assert_eq!((*charges, *yuan), (1, 960), "{said}");
        }
    }
    // New ids, and one after another: each delivery is answered when it comes.
    assert!(said.contains(
        "\nwith     new notifyId, same order         5        1           960  5 x success\n"
    ));
    assert_eq!((rows[3].1, rows[4].1), (5, 5), "{said}");
    // All at once, with the layer: some came while the first was being charged.
    assert!(rows[5].1 > 5 && rows[5].4.contains(" x 503"), "{said}");
}

#[tokio::test]
async fn the_incident_costs_4800_yuan_without_the_layer_and_960_with_it() {
    assert_story(&run("fulfillment", &[]).await);
}

#[tokio::test]
async fn two_servers_that_share_redis_charge_once_and_a_second_run_tells_the_same() {
    let redis = RedisServer::start().await;
    for _ in 0..2 {
        assert_story(&run("fulfillment", &["--redis", &redis.url()]).await);
    }
}

#[tokio::test]
async fn a_story_that_cannot_be_told_ends_with_a_reason() {
    // Nobody listens on port 1.
    let output = run("fulfillment", &["--redis", "redis://127.0.0.1:1"]).await;
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("127.0.0.1:1"), "{output:?}");
}

#[tokio::test]
async fn a_served_shop_charges_a_notification_once_and_stops_on_ctrl_c() {
    let shop = Served::start("fulfillment", &["serve", "--listen", "127.0.0.1:0"]);
    let notification = Notification::fresh(960);
    for replayed in [false, true, true] {
        let (status, headers, answer) = shop.client.notify(&notification).await;
        assert_eq!((status, answer.as_str()), (StatusCode::OK, "success"));
        assert_eq!(is_replay(&headers), replayed);
    }
    let (_, _, charges) = shop.client.send(Request::get("/charges"), String::new()).await;
    let charges: serde_json::Value = serde_json::from_str(&charges).unwrap();
    let charge = serde_json::json!({
        "orderId": notification.order_id,
        "notifyId": notification.notify_id,
        "amount": 960,
    });
    assert_eq!(charges, serde_json::json!([charge]));
    shop.stop(Signal::SIGINT);
}

#[tokio::test]
async fn a_served_shop_charges_an_order_once_under_whatever_notify_id() {
    let shop = Served::start("fulfillment", &["serve", "--listen", "127.0.0.1:0"]);
    let (one, other) = (Notification::fresh(960), Notification::fresh(960));
    let tampered = Notification { amount: 9600, ..one.under_new_id(2) }.signed();
    let astray = Notification { order_id: other.order_id.clone(), ..one.under_new_id(1) }.signed();
    // With an id that the gateway has yet to use: it must not become the other order's.
    let forged = Notification { order_id: one.order_id.clone(), ..other.clone() };
    for (sent, status, replayed) in [
        (&one, StatusCode::OK, false),
        (&one.under_new_id(1), StatusCode::OK, true),
        (&one, StatusCode::OK, true),
        (&tampered, StatusCode::UNPROCESSABLE_ENTITY, false),
        // The id of one order with another order: not a charge, and not the other's answer.
        (&astray, StatusCode::UNPROCESSABLE_ENTITY, false),
        (&forged, StatusCode::UNAUTHORIZED, false),
        (&other, StatusCode::OK, false),
    ] {
        let answered = shop.client.notify(sent).await;
        assert_eq!((answered.0, is_replay(&answered.1)), (status, replayed), "{}", answered.2);
    }
    let (_, _, charges) = shop.client.send(Request::get("/charges"), String::new()).await;
    let charges: Vec<serde_json::Value> = serde_json::from_str(&charges).unwrap();
    let orders: Vec<_> = charges.iter().map(|charge| &charge["orderId"]).collect();
    assert_eq!(orders, [&one.order_id, &other.order_id]);
}

#[tokio::test]
async fn a_shop_that_is_told_to_stop_first_answers_what_it_has_begun() {
    let mut shop = Served::start("fulfillment", &["serve", "--listen", "127.0.0.1:0"]);
    // On a busy machine the second may come when the first is charged already: then another two are
    // sent.
    let notifications: Vec<_> = (0..50).map(|_| Notification::fresh(960)).collect();
    let mut charged = None;
    for notification in &notifications {
        let mut one = Box::pin(shop.client.notify(notification));
        let mut other = Box::pin(shop.client.notify(notification));
        // The one that is refused comes back first, and shows that the other is being charged.
        let (first, left) = tokio::select! {
            first = &mut one => (first, other),
            first = &mut other => (first, one),
        };
        if first.0 == StatusCode::SERVICE_UNAVAILABLE {
            charged = Some(left);
            break;
        }
    }
    let charged = charged.expect("one of two at once is refused while the other is charged");
    shop.process.signal(Signal::SIGTERM);
    let (status, _, answer) = charged.await;
    assert_eq!((status, answer.as_str()), (StatusCode::OK, "success"));
    shop.stop(Signal::SIGTERM);
}

#[tokio::test]
async fn a_served_shop_refuses_what_the_gateway_has_not_signed_and_remembers_nothing_of_it() {
    let shop = Served::start("fulfillment", &["serve", "--listen", "127.0.0.1:0"]);
    let notification = Notification::fresh(960);
    assert!(notification.is_signed());
    let forged = Notification { amount: 1, ..notification.clone() };
    for (sent, expected) in [(&forged, StatusCode::UNAUTHORIZED), (&notification, StatusCode::OK)] {
        let (status, headers, _) = shop.client.notify(sent).await;
        assert_eq!(status, expected);
        assert!(!is_replay(&headers));
    }
}

#[tokio::test]
async fn wrong_arguments_are_answered_with_what_is_right() {
    let cases: [(&[&str], &str); 4] = [
        (&["--rediss", "x"], "`--rediss` is no argument of this example"),
        (&["--redis"], "--redis needs a value"),
        (&["--listen", "127.0.0.1:0"], "--listen belongs to `fulfillment serve`"),
        (&["sevre"], "`sevre` is no argument of this example"),
    ];
    for (arguments, wrong) in cases {
        let output = run("fulfillment", arguments).await;
        assert_eq!(output.status.code(), Some(2));
        let said = text(&output.stderr);
        assert!(said.starts_with(wrong) && said.contains("Usage: fulfillment"), "{said}");
    }
    let output = run("fulfillment", &["--help"]).await;
    assert!(output.status.success());
    assert!(text(&output.stdout).starts_with("Usage: fulfillment"));
    let output = run("fulfillment", &["serve", "--listen", "nowhere"]).await;
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("cannot listen on nowhere"), "{output:?}");
}

#[tokio::test]
async fn the_axum_app_takes_an_order_once_and_stops_on_sigterm() {
    let app = Served::start("axum_app", &["127.0.0.1:0"]);
    let (status, headers, first) = app.client.post("/orders", "\"order-1\"", "2 pizzas").await;
    assert_eq!((status, first.as_str()), (StatusCode::CREATED, "order 1: 2 pizzas\n"));
    assert!(!is_replay(&headers));
    let (status, headers, again) = app.client.post("/orders", "order-1", "2 pizzas").await;
    assert_eq!((status, again.as_str()), (StatusCode::CREATED, "order 1: 2 pizzas\n"));
    assert!(is_replay(&headers));
    let (status, _, _) = app.client.post("/orders", "\"order-1\"", "3 pizzas").await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    let (status, _, _) = app.client.post("/orders", "", "2 pizzas").await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    let (_, _, next) = app.client.post("/orders", "\"order-2\"", "2 pizzas").await;
    assert_eq!(next, "order 2: 2 pizzas\n");
    app.stop(Signal::SIGTERM);
}

/// Asks for a payment token.
async fn ask_for_token(client: Client, order: &str, user: &str) -> Answer {
    let request = Request::post(format!("/orders/{order}/payment-token")).header("X-User", user);
    client.send(request, String::new()).await
}

/// Pays with this token, or without one.
async fn pay_with(client: Client, order: &str, user: &str, token: &str, amount: &str) -> Answer {
    let mut request = Request::post(format!("/orders/{order}/payment")).header("X-User", user);
    if !token.is_empty() {
        request = request.header("X-Once-Token", token);
    }
    client.send(request, amount.to_owned()).await
}

#[tokio::test]
async fn a_payment_needs_a_token_and_two_clicks_on_two_processes_pay_once() {
    let redis = RedisServer::start().await;
    let [one, other] =
        [0, 1].map(|_| Served::start("one_time_token", &["127.0.0.1:0", &redis.url()]));
    let (clients, order) = ([one.client, other.client], "O-1");
    let (status, headers, token) = ask_for_token(one.client, order, "ann").await;
    assert_eq!(
        (status, headers["cache-control"].as_bytes()),
        (StatusCode::CREATED, &b"no-store"[..])
    );
    assert_eq!(headers["x-expires-in"], "600");
    // The same one again, in another process, and not to somebody else.
    let (status, headers, again) = ask_for_token(other.client, order, "ann").await;
    assert_eq!((status, &again), (StatusCode::CREATED, &token));
    assert!(headers["x-expires-in"].to_str().unwrap().parse::<u64>().unwrap() <= 600);
    let (status, _, said) = ask_for_token(other.client, order, "bob").await;
    assert_eq!(status, StatusCode::CONFLICT);
    assert!(!said.contains(&token), "{said}");

    let (status, _, said) = pay_with(one.client, order, "ann", "", "960").await;
    assert_eq!(status, StatusCode::PRECONDITION_REQUIRED);
    assert!(said.contains("POST /orders/{order}/payment-token"), "{said}");
    for (order, user, token) in
        [(order, "bob", &*token), ("O-2", "ann", &token), (order, "ann", "AAAAAAAAAAAAAAAAAAAAAA")]
    {
        let (status, _, said) = pay_with(one.client, order, user, token, "960").await;
        assert_eq!(status, StatusCode::FORBIDDEN, "{said}");
    }

    let clicks = clicks(clients, order, &token).await;
    assert!(clicks[0].2.starts_with("receipt ") && clicks[0].2.ends_with(": 960 for order O-1\n"));
    assert!(
        clicks
            .iter()
            .all(|(status, _, receipt)| { *status == StatusCode::OK && *receipt == clicks[0].2 })
    );
    assert_eq!(clicks.iter().filter(|(_, headers, _)| !is_replay(headers)).count(), 1);
    let (status, _, _) = pay_with(one.client, order, "ann", &token, "9600").await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    let (status, _, said) = ask_for_token(one.client, order, "ann").await;
    assert_eq!((status, &*said), (StatusCode::CONFLICT, "this is done already"));

    let (_, _, outstanding) = ask_for_token(one.client, "O-3", "ann").await;
    redis.command(&["FLUSHALL"]).await;
    let (status, _, _) = pay_with(one.client, "O-3", "ann", &outstanding, "960").await;
    // What Redis has lost is not let through; where the loss was noticed, the answer is put off.
    assert!(matches!(status, StatusCode::FORBIDDEN | StatusCode::SERVICE_UNAVAILABLE), "{status}");
    one.stop(Signal::SIGTERM);
    other.stop(Signal::SIGINT);
}

/// Twenty clicks at once, on both.
async fn clicks(clients: [Client; 2], order: &'static str, token: &str) -> Vec<Answer> {
    let mut clicks = tokio::task::JoinSet::new();
    for place in 0..20 {
        let (client, token) = (clients[place % 2], token.to_owned());
        clicks.spawn(async move { pay_with(client, order, "ann", &token, "960").await });
    }
    clicks.join_all().await
}

#[tokio::test]
async fn whoever_asks_for_tokens_without_end_is_told_to_stop() {
    let app = Served::start("one_time_token", &["127.0.0.1:0"]);
    let mut asking = tokio::task::JoinSet::new();
    for number in 0..400 {
        let client = app.client;
        asking.spawn(async move { ask_for_token(client, &format!("O-{number}"), "ann").await.0 });
    }
    let mut issued = 0;
    let mut refused = 0;
    for status in asking.join_all().await {
        match status {
            StatusCode::CREATED => issued += 1,
            StatusCode::TOO_MANY_REQUESTS => refused += 1,
            other => panic!("{other}"),
        }
    }
    assert!(issued >= 50 && refused >= 1, "{issued} issued, {refused} refused");
    // What was issued before is good all the same.
    app.stop(Signal::SIGTERM);
}

#[tokio::test]
async fn the_hyper_service_sells_a_ticket_once_and_stops_on_ctrl_c() {
    let service = Served::start("hyper_service", &["127.0.0.1:0"]);
    for (key, ticket, replayed) in [
        ("\"a\"", "ticket 1\n", false),
        ("\"a\"", "ticket 1\n", true),
        ("\"b\"", "ticket 2\n", false),
    ] {
        let (status, headers, body) = service.client.post("/", key, "seat 12").await;
        assert_eq!((status, body.as_str()), (StatusCode::OK, ticket));
        assert_eq!(is_replay(&headers), replayed);
    }
    service.stop(Signal::SIGINT);
}

/// The `curl` call of a delivery that is signed now.
async fn signed_delivery(client: Client, id: &str, body: &str) -> String {
    let output = run("signed", &["sign", &client.0.to_string(), id, body]).await;
    assert!(output.status.success(), "{output:?}");
    text(&output.stdout).trim().replace(&client.0.to_string(), "127.0.0.1:8080")
}

#[tokio::test]
async fn a_signed_notification_runs_once_and_what_is_not_signed_claims_nothing() {
    let service = Served::start("signed", &["serve", "127.0.0.1:0"]);
    let body = r#"{"orderId":"O-1","amount":960}"#;
    let first = signed_delivery(service.client, "msg_1", body).await;
    let (from, at) = first.split_once("webhook-timestamp: ").unwrap();
    let (timestamp, rest) = at.split_once('\'').unwrap();
    let long_ago = timestamp.parse::<u64>().unwrap() - 301;
    let forged = [
        (first.replace(":960}", ":9600}"), "has no signature that is right"),
        (first.replace("msg_1", "msg_2"), "has no signature that is right"),
        (first.replace("v1,", "v2,"), "has no signature that is right"),
        (first.replace("webhook-signature", "x"), "is missing"),
        (first.replace("webhook-timestamp: ", "webhook-timestamp: x"), "is no time"),
        (format!("{from}webhook-timestamp: {long_ago}'{rest}"), "too far from this server's clock"),
    ];
    for (forged, wrong) in &forged {
        let (status, headers, answer) = curl(service.client, forged).await;
        assert_eq!(status, StatusCode::UNAUTHORIZED, "{forged}");
        assert_eq!(headers["content-type"], "application/problem+json");
        assert!(answer.contains(wrong), "{answer}");
    }
    // None of them has claimed the message, and a redelivery is signed anew.
    let redelivered = signed_delivery(service.client, "msg_1", body).await;
    let other = signed_delivery(service.client, "msg_2", body).await;
    for (delivery, parcel, replayed) in [
        (&first, "parcel 1\n", false),
        (&redelivered, "parcel 1\n", true),
        (&other, "parcel 2\n", false),
    ] {
        let (status, headers, answer) = curl(service.client, delivery).await;
        assert_eq!((status, answer.as_str()), (StatusCode::OK, parcel));
        assert_eq!(is_replay(&headers), replayed);
    }
    // Who cannot sign does not learn that it is known.
    let (status, headers, _) = curl(service.client, &forged[0].0).await;
    assert_eq!((status, is_replay(&headers)), (StatusCode::UNAUTHORIZED, false));
    service.stop(Signal::SIGTERM);
}

const README: &str = include_str!("../README.md");

/// The lines of the README's code that begin so.
fn readme_lines(start: &str) -> Vec<&'static str> {
    README.lines().filter(|line| line.starts_with(start)).collect()
}

#[tokio::test]
async fn the_readme_shows_what_the_story_prints() {
    let said = text(&run("fulfillment", &[]).await.stdout);
    // How many deliveries of the last row meet the run depends on the moment.
    let (certain, _) = said.split_once("with     all at once").unwrap();
    assert!(README.contains(certain), "{said}");
    let (_, explained) = said.split_once("\n503: ").unwrap();
    assert!(README.contains(explained), "{said}");
    let [last] = readme_lines("with     all at once")[..] else { panic!("one row") };
    assert_eq!(rows(last)[0].2, 1, "{last}");
    assert_eq!(
        readme_lines("cargo run --example fulfillment"),
        ["cargo run --example fulfillment"]
    );
    assert_eq!(readme_lines("./scripts/test"), ["./scripts/test"]);
}

/// Sends what this `curl` would send.
async fn curl(client: Client, command: &str) -> Answer {
    // Quoted words stand between single quotes, at odd places.
    let words = command.split('\'').enumerate().flat_map(|(place, part)| {
        if place % 2 == 1 { vec![part] } else { part.split_whitespace().collect() }
    });
    let (mut request, mut body, mut url) = (Request::builder(), None, None);
    let mut words = words.skip(1);
    while let Some(word) = words.next() {
        match word {
            "-i" => {}
            "-H" => {
                let (name, value) = words.next().unwrap().split_once(": ").unwrap();
                request = request.header(name, value);
            }
            "-d" => body = words.next(),
            _ => url = word.strip_prefix("127.0.0.1:8080"),
        }
    }
    let method = if body.is_some() { "POST" } else { "GET" };
    let request = request.method(method).uri(url.expect(command));
    client.send(request, body.unwrap_or_default().to_owned()).await
}

#[tokio::test]
async fn the_curl_calls_of_the_readme_charge_once() {
    let [first, second, charges] = readme_lines("curl ")[..] else { panic!("three calls") };
    let [one, other] = [first, second].map(|call| {
        let sent = call.split('\'').find(|word| word.starts_with('{')).unwrap();
        let notification: Notification = serde_json::from_str(sent).unwrap();
        assert!(notification.is_signed(), "{call}");
        notification
    });
    assert_eq!(one.order_id, other.order_id);
    assert_ne!(one.notify_id, other.notify_id);

    let shop = Served::start("fulfillment", &["serve", "--listen", "127.0.0.1:0"]);
    for (call, replayed) in [(first, false), (second, true)] {
        let (status, headers, answer) = curl(shop.client, call).await;
        assert_eq!((status, answer.as_str()), (StatusCode::OK, "success"));
        assert_eq!(is_replay(&headers), replayed);
    }
    let (_, _, charged) = curl(shop.client, charges).await;
    assert_eq!(charged, r#"[{"orderId":"O-1","notifyId":"N-1","amount":960}]"#);
}

#[tokio::test]
async fn the_configured_app_protects_each_route_as_its_file_says() {
    let app = Served::start("configured", &["serve", "127.0.0.1:0"]);
    let pay = |tenant: &'static str, body: &'static str| {
        let request = Request::post("/payments").header("Idempotency-Key", "\"p-1\"");
        app.client.send(request.header("X-Tenant", tenant), body.to_owned())
    };
    let (status, headers, first) = pay("acme", "960").await;
    assert_eq!((status, is_replay(&headers)), (StatusCode::OK, false));
    let (_, headers, again) = pay("acme", "960").await;
    assert_eq!((again, is_replay(&headers)), (first.clone(), true));
    let (_, headers, other) = pay("other", "960").await;
    assert!(other != first && !is_replay(&headers), "another tenant's key is another key");
    assert_eq!(pay("acme", "1").await.0, StatusCode::UNPROCESSABLE_ENTITY);

    let fulfil = |body: &'static str| {
        let request = Request::post("/fulfil/callback").header("X-Signature", "valid");
        app.client.send(request, body.to_owned())
    };
    let body = r#"{"notifyId": "n-1", "orderId": 1, "status": "PAID", "amount": 960}"#;
    let (status, _, first) = fulfil(body).await;
    assert_eq!(status, StatusCode::OK);
    let renamed = r#"{"notifyId": "n-2", "orderId": 1, "status": "PAID", "amount": 960}"#;
    let (_, headers, again) = fulfil(renamed).await;
    assert_eq!((again, is_replay(&headers)), (first, true), "a new id of the same event");
    let unsigned = app.client.send(Request::post("/fulfil/callback"), body.to_owned()).await;
    assert_eq!(unsigned.0, StatusCode::UNAUTHORIZED);

    let notification = "notify_id=1&out_trade_no=2&trade_status=TRADE_SUCCESS&total_amount=9.60";
    for replayed in [false, true] {
        let request = Request::post("/alipay/notify");
        let (_, headers, answer) = app.client.send(request, notification.to_owned()).await;
        assert_eq!((answer.as_str(), is_replay(&headers)), ("success", replayed));
    }
    for _ in 0..2 {
        let (status, headers, _) = app.client.send(Request::get("/health"), String::new()).await;
        assert_eq!((status, is_replay(&headers)), (StatusCode::OK, false));
    }
    app.stop(Signal::SIGTERM);
}

#[tokio::test]
async fn the_readme_publishes_what_the_rules_of_the_example_say() {
    let output = run("configured", &["describe"]).await;
    assert!(output.status.success(), "{output:?}");
    let said = text(&output.stdout);
    assert_eq!(said.trim_end().split("\n\n").count(), 4);
    let (first, _) = said.split_once("\n\n").unwrap();
    let quoted: Vec<_> = README.lines().filter_map(|line| line.strip_prefix("> ")).collect();
    assert_eq!(quoted.join(" "), first);

    // What the README shows of the file is in it.
    let file = include_str!("../examples/configured.toml");
    let rules = README.split("```toml\n").find(|block| block.starts_with("[[rules]]")).unwrap();
    let shown = rules.split("\n```").next().unwrap();
    assert!(shown.lines().count() > 15);
    for line in shown.lines() {
        assert!(file.lines().any(|of_file| of_file == line), "{line}");
    }
    for (example, usage) in [
        ("configured", "usage: configured describe | configured serve 127.0.0.1:8080\n"),
        ("signed", "usage: signed serve ADDRESS | signed sign ADDRESS ID BODY\n"),
    ] {
        let wrong = run(example, &[]).await;
        assert!(!wrong.status.success());
        assert_eq!(text(&wrong.stderr), usage, "as it is, without quotes");
    }
}

/// Runs the example `operations` against this Redis: what it printed, or what it complained of.
async fn operate(redis: &RedisServer, arguments: &[&str]) -> Result<String, String> {
    let url = redis.url();
    let of_the_shop = ["--redis", &url, "--prefix", "shop"];
    let output = run("operations", &[arguments, &of_the_shop[..]].concat()).await;
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

/// A claim of an owner that never gives a sign of life.
fn silent(key: RecordKey, label: &'static str, lease: Duration) -> Claim {
    let hold = Duration::from_secs(600);
    let mut claim = Claim::new(key, ClaimToken::random(), None, lease, hold, STORY_AT_MOST);
    claim.label = label.into();
    claim
}

#[tokio::test]
async fn an_operator_lists_shows_and_settles_what_is_in_a_redis() {
    // Built before a claim's time begins: building may take longer than the lease of one that is to be alive.
    binary("operations");
    let redis = RedisServer::start().await;
    let store = RedisStore::connect(&redis.url()).await.unwrap().prefix("shop");
    let short = Duration::from_millis(100);
    let keys = [1, 2, 3].map(|n| RecordKey::from_bytes([n; 32]));
    let labels = ["fulfil N-1", "fulfil N-2", "pay 3"];
    for ((key, label), lease) in keys.into_iter().zip(labels).zip([short, short, 40 * 60 * short]) {
        let claimed = store.claim(silent(key, label, lease)).await;
        assert!(matches!(claimed, Ok(Claimed::Granted(_))), "{claimed:?}");
    }
    // It is the server's time that must pass.
    tokio::time::sleep(2 * short).await;
    let [one, two, three] = keys.map(|key| key.digest());

    let list = operate(&redis, &["list"]).await.unwrap();
    for (label, digest) in labels.into_iter().zip([&one, &two]) {
        let line = list.lines().find(|line| line.contains(label)).expect(&list);
        assert!(line.starts_with(digest.as_str()) && line.contains("abandoned"), "{list}");
    }
    assert!(list.ends_with("\n2 to settle or to wait for under the prefix `shop`\n"), "{list}");
    let show = operate(&redis, &["show", &one, "--lease", "0.1"]).await.unwrap();
    for part in [&keys[0].to_string(), "\"fulfil N-1\"", "last sign of life  ", " s ago"] {
        assert!(show.contains(part), "{show}");
    }
    assert!(operate(&redis, &["show", &three]).await.unwrap().contains("running for"));

    let done = ["settle", &one, "done", "--answer", "success", "--reason", "the provider has it"];
    let settled = operate(&redis, &done).await.unwrap();
    assert!(settled.contains("the provider has it") && settled.contains("fulfil N-1"), "{settled}");
    let not_done = ["settle", &two, "not-done", "--reason", "its order is open"];
    let refused = operate(&redis, &not_done).await.unwrap_err();
    assert!(refused.contains("handlers may run for 300 s"), "{refused}");
    operate(&redis, &[&not_done[..], &["--max-run", "0.1"]].concat()).await.unwrap();
    let living = ["settle", &three, "not-done", "--reason", "its process is dead"];
    let refused = operate(&redis, &living).await.unwrap_err();
    assert!(refused.contains("its owner is alive"), "{refused}");
    operate(&redis, &[&living[..], &["--force"]].concat()).await.unwrap();
    let nothing = "0 to settle or to wait for under the prefix `shop`\n";
    assert_eq!(operate(&redis, &["list"]).await.unwrap(), nothing);

    // What deliveries meet now: an answer, and keys that may run.
    for (key, may_run) in keys.into_iter().zip([false, true, true]) {
        match store.claim(silent(key, "", short)).await.unwrap() {
            Claimed::Granted(_) => assert!(may_run),
            Claimed::Completed(done) => assert!(!may_run && done.payload.ends_with(b"success")),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn an_operator_who_errs_is_told_what_is_right() {
    let redis = RedisServer::start().await;
    let cases: [(&[&str], &str); 6] = [
        (&["lst"], "usage: operations list"),
        (
            &["show", "0123456789abcdef"],
            "there is no record 0123456789abcdef under the prefix `shop`",
        ),
        (&["settle", "0123456789abcdef", "done"], "settle needs a --reason"),
        (&["settle", "0", "maybe", "--reason", "x"], "`maybe` is no verdict"),
        (&["list", "--forced"], "`--forced` is no argument"),
        (&["list", "--lease", "soon"], "`soon` is no number of seconds"),
    ];
    assert!(operate(&redis, &["--help"]).await.unwrap().starts_with("usage: operations list"));
    for (arguments, wrong) in cases {
        let said = operate(&redis, arguments).await.unwrap_err();
        assert!(said.contains(wrong), "{said}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn own_connection_runs_and_replays_over_a_connection_of_the_programs() {
    let redis = RedisServer::start().await;
    let output = run("own_connection", &[&redis.url()]).await;
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout), "granted: attempt 1\nreplayed: two pizzas\n");
}
