//! What whoever starts a program reads when it cannot use its store: `main` prints an error's `Debug`.

use std::net::TcpListener;

use tower_idempotency::{RedisStore, store::RedisServers};
use tower_idempotency_test_support::RedisServer;

type Ended = Result<(), Box<dyn std::error::Error>>;

/// What `main` prints behind `Error: `, which must be for a person.
fn printed(ended: Ended) -> String {
    let printed = format!("{:?}", ended.unwrap_err());
    for noise in ["{", "}", "\\\"", "Some(", "None", "source", "message:"] {
        assert!(!printed.contains(noise), "{noise}: {printed}");
    }
    printed
}

async fn connecting(url: &str) -> Ended {
    RedisStore::connect(url).await?;
    Ok(())
}

#[tokio::test]
async fn a_program_that_cannot_reach_its_redis_ends_in_words() {
    let wrong = printed(connecting("localhost:6379").await);
    assert!(wrong.starts_with("Refused: this is no URL of a Redis"), "{wrong}");

    let unused = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let down = printed(connecting(&format!("redis://{unused}")).await);
    let (first, rest) = down.split_once(&unused.to_string()).expect(&down);
    assert!(first.starts_with("Unreachable: "), "{down}");
    assert!(!rest.contains(&unused.to_string()), "said once: {down}");

    let server = RedisServer::builder().argument("--requirepass", "right").start().await;
    let refused = printed(connecting(&format!("redis://:hunter2@{}", server.address())).await);
    assert!(refused.starts_with("Refused: ") && refused.contains("password"), "{refused}");
    assert!(!refused.contains("hunter2"), "{refused}");
}

#[tokio::test]
async fn a_program_that_insists_on_its_preflight_ends_with_the_report() {
    async fn start(url: &str) -> Ended {
        RedisStore::connect(url).await?.preflight().await.passed()?;
        Ok(())
    }
    let server = RedisServer::builder().append_only();
    let server = server.argument("--maxmemory-policy", "allkeys-lru");
    let server = server.argument("--maxmemory", "100mb").start().await;
    let report = printed(start(&server.url()).await);
    assert!(report.starts_with(&format!("Redis at {}:\n", server.address())), "{report}");
    assert!(report.contains("\n  ERROR    eviction "), "{report}");
    let good = RedisServer::builder().append_only().start().await;
    start(&good.url()).await.unwrap();
}

#[test]
fn a_url_as_other_clients_write_it_is_answered_with_what_to_use_here() {
    let sentinel = "RedisStore::of(RedisServers::sentinel(..))";
    let cluster = "RedisStore::of(RedisServers::cluster(..))";
    for (url, named) in [
        ("redis+sentinel://:hunter2@a:26379,b:26379/mymaster", &[sentinel][..]),
        ("redis-sentinel://hunter2@a:26379/0#mymaster", &[sentinel]),
        ("rediss+sentinel://a:26379/mymaster/0", &[sentinel]),
        ("REDIS+SENTINEL://a/mymaster", &[sentinel]),
        ("redis+cluster://:hunter2@a:6379", &[cluster]),
        ("rediss-cluster://a:6379,b:6379", &[cluster]),
        ("redis://:hunter2@a:6379,b:6379,c:6379", &[cluster, sentinel]),
        ("redis://a,b/0", &[cluster, sentinel]),
        ("rediss://:hunter2@a:6379,b:6379", &[cluster, sentinel]),
    ] {
        for error in [
            RedisStore::lazy(url).unwrap_err(),
            RedisServers::sentinel([url], "redis://mymaster").unwrap_err(),
            RedisServers::cluster([url]).unwrap_err(),
        ] {
            assert!(error.is_refused());
            let message = error.to_string();
            for way in [sentinel, cluster] {
                assert_eq!(message.contains(way), named.contains(&way), "{url}: {message}");
            }
            assert!(!message.contains("hunter2") && !message.contains("feature"), "{message}");
        }
    }
    // A comma, or such a word, elsewhere than there.
    for url in [
        "redis://:a,b@host:6379",
        "redis://sentinel:26379",
        "redis://cluster.shop:6379/1",
        "redis://host:6379/0?protocol=resp3&of=a,b",
        "redis+unix:///run/a,b/sentinel.sock",
        "unix:///run/cluster,1.sock",
    ] {
        RedisStore::lazy(url).expect(url);
    }
}
