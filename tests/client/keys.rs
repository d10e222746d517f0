//! Which requests get which key.

use std::collections::HashSet;

use http::{HeaderValue, Method, Request, StatusCode};
use http_body_util::Full;
use tower::{ServiceBuilder, ServiceExt};
use tower_idempotency::{
    Handled, IdempotencyLayer, MemoryStore, Operation, Policy, RequestBody, Rule, Scope,
    client::{ClientLayer, Key, KeyLayer},
};

use crate::server::{Server, hears, post, request, status};

#[tokio::test]
async fn post_and_patch_get_a_key_each_of_their_own_and_nothing_else_does() {
    let server = Server::default();
    let client = ServiceBuilder::new().layer(ClientLayer::new()).service(server.clone());
    for method in ["POST", "PATCH", "POST", "GET", "PUT", "DELETE", "HEAD", "OPTIONS"] {
        assert_eq!(hears(client.clone(), request(method, "/")).await, Ok(200));
    }
    let keys: Vec<_> = server
        .sent()
        .iter()
        .map(|sent| (sent.head.method.clone(), sent.header("idempotency-key").map(str::to_owned)))
        .collect();
    assert_eq!(keys.len(), 8);
    let (with, without) = keys.split_at(3);
    assert!(without.iter().all(|(_, key)| key.is_none()), "{without:?}");
    let with: HashSet<_> = with.iter().map(|(_, key)| key.clone().unwrap()).collect();
    assert_eq!(with.len(), 3, "each is another operation");
    for key in with {
        let uuid = key.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).expect(&key);
        assert_eq!(uuid.len(), 36, "{key}");
        // RFC 9562, section 5.4: version 4, and the variant.
        assert!(uuid[14..].starts_with('4') && "89ab".contains(&uuid[19..20]), "{key}");
    }
}

#[tokio::test]
async fn a_key_of_ones_own_is_sent_as_it_is_or_as_a_structured_field() {
    let server = Server::default();
    let client = ServiceBuilder::new().layer(ClientLayer::new()).service(server.clone());
    let by_hand = HeaderValue::from_static("by-hand");
    let mut header = post();
    header.headers_mut().insert("Idempotency-Key", by_hand);
    let mut own = post();
    own.extensions_mut().insert(Key::new(r#"order "7" \ charge"#).unwrap());
    let mut put = request("PUT", "/");
    put.extensions_mut().insert(Key::new("a PUT").unwrap());
    for request in [header, own, put] {
        assert_eq!(hears(client.clone(), request).await, Ok(200));
    }
    assert_eq!(server.keys(), ["by-hand", r#""order \"7\" \\ charge""#, r#""a PUT""#]);
}

#[tokio::test]
async fn a_header_and_methods_of_the_providers_own() {
    let server = Server::default();
    let keys = KeyLayer::new().header("X-Request-Key").bare().methods([Method::PUT]);
    let client = ServiceBuilder::new().layer(ClientLayer::new().key(keys)).service(server.clone());
    for method in ["PUT", "POST"] {
        assert_eq!(hears(client.clone(), request(method, "/")).await, Ok(200));
    }
    let sent = server.sent();
    assert_eq!(sent[0].header("x-request-key").map(str::len), Some(36), "without quotes");
    assert_eq!((sent[0].header("idempotency-key"), sent[1].header("x-request-key")), (None, None));
}

#[test]
fn a_text_that_no_header_can_have_is_no_key() {
    for (text, said) in [
        (String::new(), "1 to 255 bytes, and this has 0"),
        ("k".repeat(256), "and this has 256"),
        ("a\nb".to_owned(), r"this has '\n'"),
        ("\u{fc}".to_owned(), "this has '\u{fc}'"),
        ("a\u{7f}".to_owned(), "printable ASCII"),
    ] {
        let error = Key::new(text).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
    assert_eq!(Key::new("k".repeat(255)).unwrap().as_str().len(), 255);
    assert_eq!(Key::new(" ~").unwrap().as_str(), " ~");
    assert_ne!(Key::random(), Key::random());
}

#[test]
#[should_panic(expected = "KeyLayer::header(..): invalid HTTP header name; give the name")]
fn a_header_that_is_none_is_told() {
    let _ = KeyLayer::new().header("no header");
}

/// Every key that can be made is one that the layer of this crate reads, even where it is strict.
#[tokio::test]
async fn the_server_side_reads_what_the_client_side_sends() {
    let handler = async |request: Request<RequestBody<Full<bytes::Bytes>>>| {
        let operation = request.extensions().get::<Operation>().unwrap();
        let key = operation.key().to_owned();
        Ok::<_, std::io::Error>(http::Response::new(key))
    };
    let policy = Policy::api(Scope::everyone()).strict();
    let server = ServiceBuilder::new()
        .layer(ClientLayer::new())
        .layer(IdempotencyLayer::new(MemoryStore::new(), Rule::new("pay", policy)))
        .service_fn(handler);
    let all: String = (' '..='~').collect();
    for text in [all.as_str(), "\\", "\"", " ", "order-7"] {
        for replayed in [false, true] {
            let mut request = post();
            request.extensions_mut().insert(Key::new(text).unwrap());
            let answer = server.clone().oneshot(request).await.unwrap();
            assert_eq!(answer.status(), StatusCode::OK, "{text}");
            let handled = answer.extensions().get::<Handled>() == Some(&Handled::Replayed);
            assert_eq!(handled, replayed);
            let body = http_body_util::BodyExt::collect(answer.into_body()).await.unwrap();
            assert_eq!(body.to_bytes(), text);
        }
    }
    let random = server.clone().oneshot(post()).await.unwrap();
    assert_eq!(random.status(), StatusCode::OK);
}

#[tokio::test]
async fn what_the_service_answers_goes_through_untouched() {
    for code in [200, 201, 301, 404, 500] {
        let server = Server::new([status(code)]);
        let client = ServiceBuilder::new().layer(ClientLayer::new()).service(server.clone());
        assert_eq!(hears(client, post()).await, Ok(code));
        assert_eq!(server.sent().len(), 1);
    }
}
