//! TLS: whom the store trusts, who it says it is, and with what cryptography.

use std::time::{Duration, Instant};

use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
};
use tower_idempotency::{
    RedisStore, Store, StoreError,
    store::{RedisServers, RedisTls},
};
use tower_idempotency_test_support::{Certificates, RedisServer};

use crate::support::{claim, completed, granted, kept, new_key};

struct Site {
    certificates: Certificates,
    _server: RedisServer,
    port: u16,
}

impl Site {
    async fn new(clients: &str) -> Self {
        let certificates = Certificates::new();
        let server = RedisServer::builder().tls(&certificates, clients).start().await;
        Self { port: server.tls_port(), certificates, _server: server }
    }

    fn authority(&self) -> RedisTls {
        RedisTls::authority(&self.certificates.read("ca.pem")).unwrap()
    }

    fn store(&self, host: &str, tls: Option<RedisTls>) -> RedisStore {
        let servers = RedisServers::url(&format!("rediss://{host}:{}", self.port)).unwrap();
        let servers = match tls {
            Some(tls) => servers.tls(tls),
            None => servers,
        };
        RedisStore::of(servers).unwrap()
    }

    async fn fails(&self, host: &str, tls: Option<RedisTls>) -> StoreError {
        let started = Instant::now();
        let error = self.store(host, tls).claim(claim(new_key())).await.unwrap_err();
        assert!(started.elapsed() < Duration::from_secs(2));
        error
    }
}

#[tokio::test]
async fn an_authority_of_ones_own_is_trusted_and_nobody_elses_is() {
    let site = Site::new("no").await;
    for host in ["localhost", "127.0.0.1"] {
        let store = site.store(host, Some(site.authority()));
        let grant = granted(store.claim(claim(new_key())).await);
        store.complete(&grant, kept("done")).await.unwrap();
        assert_eq!(completed(store.claim(claim(grant.key)).await), b"done");
    }
    // The system does not know this authority; nor does whoever trusts another.
    let system = site.fails("localhost", None).await;
    assert!(system.to_string().contains("UnknownIssuer"), "{system}");
    assert!(system.to_string().contains("RedisTls::authority"), "{system}");
    let other = RedisTls::authority(&Certificates::new().read("ca.pem")).unwrap();
    let error = site.fails("localhost", Some(other)).await;
    assert!(error.to_string().contains("certificate"), "{error}");
}

#[tokio::test]
async fn a_certificate_for_another_host_is_refused() {
    let site = Site::new("no").await;
    // It is for 127.0.0.1, and this leads to the same server under another name.
    let listener = TcpListener::bind(("127.0.0.2", site.port)).await.unwrap();
    let port = site.port;
    let forwarding = tokio::spawn(async move {
        while let Ok((mut from, _)) = listener.accept().await {
            let mut to = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            tokio::spawn(async move { copy_bidirectional(&mut from, &mut to).await });
        }
    });
    let error = site.fails("127.0.0.2", Some(site.authority())).await;
    forwarding.abort();
    assert!(error.is_unreachable(), "{error:?}");
    assert!(error.to_string().contains("as its certificate does"), "{error}");
}

#[tokio::test]
async fn a_server_that_demands_a_certificate_gets_one_and_refuses_who_has_none() {
    let site = Site::new("yes").await;
    let [chain, key] = ["client.pem", "client.key"].map(|file| site.certificates.read(file));
    let tls = site.authority().client(&chain, &key).unwrap();
    granted(site.store("localhost", Some(tls)).claim(claim(new_key())).await);
    let error = site.fails("localhost", Some(site.authority())).await;
    assert!(error.to_string().contains("RedisTls::client"), "{error}");
    // One of another authority.
    let others = Certificates::new();
    let tls = site.authority().client(&others.read("client.pem"), &others.read("client.key"));
    site.fails("localhost", Some(tls.unwrap())).await;
}

#[tokio::test]
async fn what_is_wrong_about_tls_is_said_before_anything_is_connected_to() {
    let site = Site::new("no").await;
    let [chain, key] = ["client.pem", "client.key"].map(|file| site.certificates.read(file));
    for wrong in [
        RedisTls::authority(b"no PEM").map(drop),
        RedisTls::authority(&key).map(drop),
        site.authority().client(b"", &key).map(drop),
        site.authority().client(&chain, &chain).map(drop),
    ] {
        let error = wrong.unwrap_err();
        assert!(error.is_refused(), "{error:?}");
    }
    // A key that is another's.
    let other = Certificates::new();
    let tls = site.authority().client(&chain, &other.read("client.key")).unwrap();
    let servers = RedisServers::url("rediss://localhost:1").unwrap().tls(tls);
    assert!(RedisStore::of(servers).is_err());
    // TLS without verification is none.
    let insecure = RedisServers::url("rediss://localhost:1/#insecure").unwrap_err();
    assert!(insecure.to_string().contains("fragment"), "{insecure}");
    let shown = format!("{:?}", site.authority().client(&chain, &key).unwrap());
    assert!(!shown.contains("BEGIN") && shown.len() < 100, "{shown}");
}

#[tokio::test]
async fn without_tls_nobody_talks_to_a_port_that_wants_it() {
    let site = Site::new("no").await;
    let store = RedisStore::lazy(&format!("redis://localhost:{}", site.port)).unwrap();
    let started = Instant::now();
    let error = store.claim(claim(new_key())).await.unwrap_err();
    assert!(started.elapsed() < Duration::from_secs(2));
    assert!(error.to_string().contains("rediss://"), "{error}");
}

#[tokio::test]
async fn a_port_that_does_not_speak_tls_is_suspected_of_it_where_it_is_expected_to() {
    let server = RedisServer::start().await;
    let url = format!("rediss://{}", server.address());
    let error = RedisStore::connect(&url).await.unwrap_err();
    assert!(error.to_string().contains("does its port speak TLS?"), "{error}");
    // Where no TLS is asked for nobody is sent to look for it.
    let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let plain = format!("redis://{}", nobody.local_addr().unwrap());
    let error = RedisStore::connect(&plain).await.unwrap_err();
    assert!(error.to_string().ends_with("is it there?"), "{error}");
}

#[test]
fn there_is_one_provider_of_cryptography() {
    let lock = include_str!("../../Cargo.lock");
    assert!(lock.contains("name = \"ring\""));
    for other in ["aws-lc-rs", "native-tls", "openssl"] {
        assert!(!lock.contains(&format!("name = \"{other}\"\n")), "{other} is there too");
    }
}
