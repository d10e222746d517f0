//! A retry of the caller's own, around or inside: one key, and one token.

use std::{
    collections::HashSet,
    future::{Ready, ready},
};

use http::{Request, Response};
use tower::{
    Layer, ServiceBuilder,
    layer::util::Identity,
    retry::{Policy, RetryLayer},
};
use tower_idempotency::client::{ClientLayer, Key, KeyLayer, Resend};

use crate::server::{Answer, Body, Server, hears, post};

/// A policy such as anybody may have: everything that failed is sent again, so often.
#[derive(Clone)]
struct Stubborn(u32);

impl<E> Policy<Request<Body>, Response<Body>, E> for Stubborn {
    type Future = Ready<()>;

    fn retry(
        &mut self,
        _: &mut Request<Body>,
        result: &mut Result<Response<Body>, E>,
    ) -> Option<Ready<()>> {
        let failed = result.as_ref().map_or(true, |response| !response.status().is_success());
        self.0 = self.0.checked_sub(1)?;
        failed.then(|| ready(()))
    }

    fn clone_request(&mut self, request: &Request<Body>) -> Option<Request<Body>> {
        Some(request.clone())
    }
}

fn stubborn() -> RetryLayer<Stubborn> {
    RetryLayer::new(Stubborn(3))
}

fn different(server: &Server) -> (usize, usize) {
    let keys = server.keys();
    (keys.len(), keys.iter().collect::<HashSet<_>>().len())
}

#[tokio::test(start_paused = true)]
async fn a_retry_inside_keeps_the_key() {
    let server = Server::new(vec![Answer::Breaks; 19]);
    let client =
        ServiceBuilder::new().layer(ClientLayer::new()).layer(stubborn()).service(server.clone());
    assert_eq!(hears(client, post()).await, Ok(200));
    assert_eq!(different(&server), (20, 1), "five times four");
}

#[tokio::test(start_paused = true)]
async fn a_retry_around_keeps_the_key_that_is_made_around_it() {
    let server = Server::new(vec![Answer::Breaks; 19]);
    let client = ServiceBuilder::new()
        .layer(KeyLayer::new())
        .layer(stubborn())
        .layer(ClientLayer::new())
        .service(server.clone());
    assert_eq!(hears(client, post()).await, Ok(200));
    assert_eq!(different(&server), (20, 1), "four times five");
}

/// What the documentation warns of. Where this fails one day, the warning can go.
#[tokio::test(start_paused = true)]
async fn a_retry_around_without_that_has_a_key_for_each_of_its_attempts() {
    let server = Server::new(vec![Answer::Breaks; 19]);
    let client =
        ServiceBuilder::new().layer(stubborn()).layer(ClientLayer::new()).service(server.clone());
    assert_eq!(hears(client, post()).await, Ok(200));
    assert_eq!(different(&server), (20, 4));

    // A key of the caller's own is in the request before it is copied.
    let server = Server::new(vec![Answer::Breaks; 19]);
    let client =
        ServiceBuilder::new().layer(stubborn()).layer(ClientLayer::new()).service(server.clone());
    let mut request = post();
    request.extensions_mut().insert(Key::random());
    assert_eq!(hears(client, request).await, Ok(200));
    assert_eq!(different(&server), (20, 1));
}

#[tokio::test(start_paused = true)]
async fn the_policy_alone_sends_nothing_again_that_has_no_key() {
    let tried = async |around: bool| {
        let server = Server::new([Answer::Breaks]);
        let retry = RetryLayer::new(Resend::new()).layer(server.clone());
        let heard = match around {
            true => hears(KeyLayer::new().layer(retry), post()).await,
            false => hears(Identity::new().layer(retry), post()).await,
        };
        (heard, server.sent().len())
    };
    assert_eq!(tried(true).await, (Ok(200), 2));
    assert_eq!(tried(false).await, (Err("error 1".to_owned()), 1));
}
