//! One-time tokens: fetched once an operation, kept through every send, and never replaced.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use http::{Request, Response, request::Parts};
use tower::{
    BoxError, ServiceBuilder, limit::ConcurrencyLimitLayer, retry::RetryLayer,
    util::BoxCloneSyncService,
};
use tower_idempotency::client::{
    ClientLayer, FetchToken, Key, KeyLayer, Resend, TokenLayer, posted, posted_to,
};

use crate::server::{Answer, Body, Server, hears, post, request, status, with};

type Client = BoxCloneSyncService<Request<Body>, Response<Body>, BoxError>;

fn client<F>(server: &Server, fetch: F) -> Client
where
    F: FetchToken<Server, Body> + Clone + Send + Sync + 'static,
{
    BoxCloneSyncService::new(
        ServiceBuilder::new()
            .layer(ClientLayer::new())
            .layer(TokenLayer::new("X-Once-Token", fetch))
            .service(server.clone()),
    )
}

/// Fetches a token from elsewhere, and counts.
fn elsewhere(
    broken: usize,
) -> (
    Arc<AtomicUsize>,
    impl Fn(Parts) -> std::future::Ready<Result<String, io::Error>> + Clone + Send + Sync,
) {
    let fetches = Arc::<AtomicUsize>::default();
    let counted = fetches.clone();
    let fetch = move |head: Parts| {
        let nth = counted.fetch_add(1, Ordering::SeqCst);
        let path = head.uri.path().to_owned();
        std::future::ready(match nth {
            nth if nth < broken => Err(io::Error::other("no token yet")),
            nth => Ok(format!("token {nth} for {path}")),
        })
    };
    (fetches, fetch)
}

#[tokio::test(start_paused = true)]
async fn an_operation_has_one_token_for_all_its_sends_and_the_next_has_another() {
    let server = Server::new([Answer::Breaks, with(409, "retry-after", "1"), status(200)]);
    let (fetches, fetch) = elsewhere(0);
    let client = client(&server, fetch);
    assert_eq!(hears(client.clone(), post()).await, Ok(200));
    assert_eq!(hears(client.clone(), post()).await, Ok(200));
    assert_eq!(hears(client, request("GET", "/")).await, Ok(200));
    let sent = server.sent();
    let tokens: Vec<_> = sent.iter().map(|sent| sent.header("x-once-token")).collect();
    let (one, other) = (Some("token 0 for /charge"), Some("token 1 for /charge"));
    assert_eq!(tokens, [one, one, one, other, None]);
    assert_eq!(fetches.load(Ordering::SeqCst), 2);
}

#[tokio::test(start_paused = true)]
async fn a_fetch_that_fails_is_tried_again_and_nothing_is_sent_without_a_token() {
    let server = Server::default();
    let (fetches, fetch) = elsewhere(2);
    assert_eq!(hears(client(&server, fetch), post()).await, Ok(200));
    assert_eq!((fetches.load(Ordering::SeqCst), server.sent().len()), (3, 1));

    let server = Server::default();
    let (fetches, fetch) = elsewhere(usize::MAX);
    assert_eq!(hears(client(&server, fetch), post()).await, Err("no token yet".to_owned()));
    assert_eq!((fetches.load(Ordering::SeqCst), server.sent().len()), (5, 0));
}

#[tokio::test(start_paused = true)]
async fn a_token_that_the_server_takes_no_more_is_not_replaced() {
    for code in [403, 428, 422] {
        let server = Server::new([status(code)]);
        let (fetches, fetch) = elsewhere(0);
        assert_eq!(hears(client(&server, fetch), post()).await, Ok(code));
        assert_eq!((fetches.load(Ordering::SeqCst), server.sent().len()), (1, 1));
    }
}

#[tokio::test]
async fn a_token_of_the_callers_own_is_sent_as_it_is() {
    let server = Server::default();
    let (fetches, fetch) = elsewhere(0);
    let mut request = post();
    request.headers_mut().insert("x-once-token", "mine".parse().unwrap());
    assert_eq!(hears(client(&server, fetch), request).await, Ok(200));
    assert_eq!(server.sent()[0].header("x-once-token"), Some("mine"));
    assert_eq!(fetches.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_token_is_marked_as_a_secret() {
    let server = Server::default();
    let (_, fetch) = elsewhere(0);
    assert_eq!(hears(client(&server, fetch), post()).await, Ok(200));
    let sent = &server.sent()[0].head.headers;
    assert!(sent["x-once-token"].is_sensitive() && !sent["idempotency-key"].is_sensitive());
    assert!(!format!("{sent:?}").contains("token 0"), "{sent:?}");
}

fn in_a_header() -> Answer {
    with(201, "x-token", "t-1")
}

#[tokio::test(start_paused = true)]
async fn a_token_is_posted_for_through_the_same_service_with_the_same_credentials() {
    let server = Server::new([in_a_header()]);
    let fetch = posted_to(|head| format!("{}/token?for=7", head.uri.path())).header("X-Token");
    let mut request = request("POST", "http://shop.example:8080/charge?a=b");
    for (name, value) in [("authorization", "Bearer x"), ("content-type", "text/plain")] {
        request.headers_mut().insert(name, value.parse().unwrap());
    }
    assert_eq!(hears(client(&server, fetch), request).await, Ok(200));
    let [asked, sent] = &server.sent()[..] else { panic!("two requests") };
    assert_eq!(asked.head.method, "POST");
    assert_eq!(asked.head.uri, "http://shop.example:8080/charge/token?for=7");
    assert_eq!(asked.header("authorization"), Some("Bearer x"));
    assert_eq!(asked.header("content-type"), None);
    assert_eq!(sent.head.uri, "http://shop.example:8080/charge?a=b");
    assert_eq!(sent.header("content-type"), Some("text/plain"));
    assert_eq!(sent.header("x-once-token"), Some("t-1"));
}

#[tokio::test(start_paused = true)]
async fn a_request_for_a_token_is_another_one_and_has_not_the_operations_key() {
    let server = Server::new([in_a_header()]);
    // The caller's layer has a header of its own, and a key stands in the usual one too.
    let client = ServiceBuilder::new()
        .layer(KeyLayer::new().header("X-Request-Key"))
        .layer(ClientLayer::new())
        .layer(TokenLayer::new("X-Once-Token", posted("/token").header("X-Token")))
        .service(server.clone());
    let mut request = post();
    request.extensions_mut().insert(Key::new("order-7").unwrap());
    for (name, value) in [("content-digest", "sha-256=:AA==:"), ("accept", "text/plain")] {
        request.headers_mut().insert(name, value.parse().unwrap());
    }
    assert_eq!(hears(client, request).await, Ok(200));
    let [asked, sent] = &server.sent()[..] else { panic!("two requests") };
    for name in ["idempotency-key", "x-request-key", "content-digest"] {
        assert!(sent.header(name).is_some(), "{name} is the operation's");
        assert_eq!(asked.header(name), None, "{name}");
    }
    assert_eq!(asked.header("accept"), Some("text/plain"));
    assert!(
        asked.head.extensions.get::<Key>().is_none(),
        "nor does anything inside make one of it"
    );
}

#[tokio::test(start_paused = true)]
async fn what_is_answered_in_place_of_a_token_is_the_answer_or_is_obeyed() {
    let fetch = || posted("/token").header("X-Token");
    let server = Server::new([status(403)]);
    assert_eq!(hears(client(&server, fetch()), post()).await, Ok(403));
    assert_eq!(server.sent().len(), 1, "nothing was sent without a token");

    let server = Server::new([with(503, "retry-after", "3"), Answer::Breaks, in_a_header()]);
    assert_eq!(hears(client(&server, fetch()), post()).await, Ok(200));
    let paths: Vec<_> = server.sent().iter().map(|sent| sent.head.uri.to_string()).collect();
    assert_eq!(paths, ["/token", "/token", "/token", "/charge"]);
    assert!(server.pauses()[0] >= 3 * crate::server::SECOND);
}

#[tokio::test(start_paused = true)]
async fn an_answer_without_a_token_is_an_error_that_says_where_it_was_looked_for() {
    for (fetch, said) in [
        (posted("/token").header("X-Token"), "no header x-token"),
        (posted("/token").json("/token"), "expected value"),
        (posted("no path"), "\"no path\" is no path to fetch a one-time token from"),
    ] {
        let server = Server::default();
        let heard = hears(client(&server, fetch), post()).await.unwrap_err();
        assert!(heard.contains(said), "{heard}");
        assert!(server.sent().iter().all(|sent| sent.head.uri == "/token"));
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_sent_with_an_empty_token_wherever_that_came_from() {
    let fetch = |_: Parts| std::future::ready(Ok::<_, io::Error>(" ".to_owned()));
    let server = Server::default();
    let heard = hears(client(&server, fetch), post()).await.unwrap_err();
    assert!(heard.contains("is empty") && server.sent().is_empty(), "{heard}");

    let server = Server::new(vec![with(201, "x-token", ""); 9]);
    let fetch = posted("/token").header("X-Token");
    let heard = hears(client(&server, fetch), post()).await.unwrap_err();
    assert!(heard.contains("is empty"), "{heard}");
    assert!(server.sent().iter().all(|sent| sent.head.uri == "/token"));
}

/// Answers this where it is asked for a token, and else the token it was sent.
async fn json(answer: &'static str, request: Request<Body>) -> Result<Response<Body>, io::Error> {
    Ok(match request.headers().get("x-once-token") {
        None => Response::new(Body::from(answer)),
        Some(token) => Response::new(Body::from(token.as_bytes().to_vec())),
    })
}

#[tokio::test(start_paused = true)]
async fn a_token_is_the_answer_or_stands_in_a_field_of_its_json() {
    for (fetch, answer, expected) in [
        (posted("/token"), "t-1", Ok("t-1")),
        (posted("/token"), "\r\nt-1 \n", Ok("t-1")),
        (posted("/token"), " \n", Err("is empty")),
        (posted("/token"), "a\nb", Err("failed to parse header value")),
        (posted("/token").json("/token"), r#"{"token": "t-1"}"#, Ok("t-1")),
        (posted("/token").json("/data/0"), r#"{"data": ["t-1"]}"#, Ok("t-1")),
        (posted("/token").json("/token"), r#"{"token": ""}"#, Err("is empty")),
        (posted("/token").json("/token"), r#"{"token": 7}"#, Err("no text at /token")),
        (
            posted("/token").json("/token"),
            r#"{"token": "a\nb"}"#,
            Err("failed to parse header value"),
        ),
    ] {
        let layers = ServiceBuilder::new()
            .layer(ClientLayer::new())
            .layer(TokenLayer::new("X-Once-Token", fetch));
        let client = layers.service_fn(move |request| json(answer, request));
        let heard = tower::ServiceExt::oneshot(client, post()).await;
        match (heard, expected) {
            (Ok(heard), Ok(expected)) => {
                let body = http_body_util::BodyExt::collect(heard.into_body()).await.unwrap();
                assert_eq!(body.to_bytes(), expected);
            }
            (Err(error), Err(said)) => assert!(error.to_string().contains(said), "{error}"),
            (heard, expected) => panic!("{heard:?}, and not {expected:?}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn no_answer_is_read_for_longer_than_a_token_can_be() {
    for (length, is_found) in [(1000, true), (64 * 1024, false)] {
        let answer = format!(r#"{{"token": "t-1", "more": "{}"}}"#, "x".repeat(length));
        let client = ServiceBuilder::new()
            .layer(ClientLayer::new().resend(Resend::new().sends(1)))
            .layer(TokenLayer::new("X-Once-Token", posted("/token").json("/token")))
            .service_fn(move |request| {
                let answer = answer.clone();
                async move { json(answer.leak(), request).await }
            });
        let heard = hears(client, post()).await;
        assert_eq!(heard.is_ok(), is_found, "{heard:?}");
        assert!(is_found || heard.unwrap_err().contains("more than 65536 bytes"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_for_a_token_is_sent_again_by_nobody_further_inside() {
    let server = Server::new([Answer::Breaks, Answer::Breaks]);
    let client = ServiceBuilder::new()
        .layer(KeyLayer::new())
        .layer(TokenLayer::new("X-Once-Token", posted("/token").header("X-Token")))
        .layer(RetryLayer::new(Resend::new()))
        .service(server.clone());
    assert_eq!(hears(client, post()).await, Err("error 1".to_owned()));
    assert_eq!(server.sent().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn one_place_in_the_service_is_enough_for_the_token_and_the_send() {
    let server = Server::new([in_a_header()]);
    let client = ServiceBuilder::new()
        .layer(ClientLayer::new())
        .layer(TokenLayer::new("X-Once-Token", posted("/token").header("X-Token")))
        .layer(ConcurrencyLimitLayer::new(1))
        .service(server.clone());
    let heard = tokio::time::timeout(crate::server::SECOND, hears(client, post())).await;
    assert_eq!(heard.expect("it does not wait for itself"), Ok(200));
    assert_eq!(server.sent().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_retry_around_keeps_the_token_with_the_key() {
    for outermost in [true, false] {
        let server = Server::new(vec![Answer::Breaks; 9]);
        let (fetches, fetch) = elsewhere(0);
        let inner = ServiceBuilder::new()
            .layer(RetryLayer::new(Resend::new().sends(2)))
            .layer(ClientLayer::new())
            .layer(TokenLayer::new("X-Once-Token", fetch))
            .service(server.clone());
        let heard = match outermost {
            true => hears(tower::Layer::layer(&KeyLayer::new(), inner), post()).await,
            false => hears(inner, post()).await,
        };
        // `Resend` around sends nothing again that has no key yet, rather than under another.
        let (expected, sends) =
            if outermost { (Ok(200), 10) } else { (Err("error 5".to_owned()), 5) };
        assert_eq!((heard, server.sent().len()), (expected, sends));
        assert_eq!(fetches.load(Ordering::SeqCst), 1);
    }
}
