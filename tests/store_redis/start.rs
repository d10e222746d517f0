//! What whoever starts a program reads when it cannot use its store: `main` prints an error's `Debug`.

use std::net::TcpListener;

use tower_idempotency::RedisStore;
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
