//! The least that a user needs, as `docs/redis.md` has it: enough for everything, and no more.

use tower_idempotency::{RedisStore, Store, store::Cursor};
use tower_idempotency_test_support::RedisServer;

use crate::support::{Value, claim, completed, granted, kept, new_key};

const GUIDE: &str = include_str!("../../docs/redis.md");

/// The rights of the line in the guide.
fn rights() -> Vec<&'static str> {
    let line = GUIDE.lines().find(|line| line.starts_with("ACL SETUSER shop ")).expect("the line");
    line.split(' ').skip(3).collect()
}

async fn user(rights: &[&str]) -> (RedisServer, String) {
    let server = RedisServer::start().await;
    let mut words = vec!["ACL", "SETUSER", "shop"];
    words.extend(rights);
    assert_eq!(server.command(&words).await, Value::Okay);
    let url = format!("redis://shop:PASSWORD@{}", server.address());
    (server, url)
}

/// Everything that a store does. Waits for the canary, which is of no call.
async fn everything(server: &RedisServer, url: &str) -> Result<(), String> {
    let store = RedisStore::connect(url).await.map_err(|error| error.to_string())?.prefix("shop");
    let grant = match store.claim(claim(new_key())).await {
        Ok(tower_idempotency::store::Claimed::Granted(grant)) => grant,
        other => return Err(format!("{other:?}")),
    };
    let say = |error: tower_idempotency::StoreError| error.to_string();
    store.renew(&grant).await.map_err(say)?;
    store.complete(&grant, kept("done")).await.map_err(say)?;
    completed(store.claim(claim(grant.key)).await);
    let (key, token) = (new_key(), tower_idempotency::OneTimeToken::random());
    let asked = tower_idempotency::store::Issue::new(key, token, None, crate::support::HOLD);
    store.issue(asked.clone()).await.map_err(say)?;
    store.issue(asked).await.map_err(say)?;
    store.scan(Cursor::START, 10).await.map_err(say)?;
    let report = store.preflight().await;
    for what in ["scripts", "version", "eviction"] {
        let found = report.findings().iter().find(|found| found.what == what);
        let fine = found.is_some_and(|found| found.level == tower_idempotency::store::Level::Fine);
        fine.then_some(()).ok_or_else(|| report.to_string())?;
    }
    for _ in 0..40 {
        if server.command(&["EXISTS", "shop:canary"]).await == Value::Int(1) {
            return Ok(());
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    Err("no canary".to_owned())
}

#[tokio::test]
async fn with_the_rights_of_the_guide_everything_works_and_the_rest_is_refused() {
    let (server, url) = user(&rights()).await;
    everything(&server, &url).await.unwrap();
    server.command(&["SET", "other:key", "x"]).await;
    let client = tower_idempotency_test_support::redis::Client::open(url).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    for words in [
        &["FLUSHALL"][..],
        &["FLUSHDB"],
        &["CONFIG", "GET", "maxmemory"],
        &["KEYS", "*"],
        &["GET", "other:key"],
        &["SET", "other:key", "y"],
        &["DEL", "shop:canary"],
        &["SCRIPT", "FLUSH"],
        &["EVAL", "return redis.call('GETRANGE', KEYS[1], 0, -1)", "1", "other:key"],
    ] {
        let mut command = tower_idempotency_test_support::redis::Cmd::new();
        for word in words {
            command.arg(*word);
        }
        let answer = connection.send_packed_command(&command).await.unwrap();
        assert!(
            matches!(&answer, Value::ServerError(error) if error.code().contains("NOPERM")),
            "{words:?}: {answer:?}"
        );
    }
}

#[tokio::test]
async fn without_one_of_them_something_does_not() {
    let all = rights();
    let commands: Vec<_> = all.iter().filter(|right| right.starts_with('+')).collect();
    assert!(commands.len() >= 8, "{commands:?}");
    for left_out in commands {
        let rest: Vec<&str> = all.iter().copied().filter(|right| right != left_out).collect();
        let (server, url) = user(&rest).await;
        let outcome = tokio::spawn(async move { everything(&server, &url).await }).await;
        assert!(!matches!(outcome, Ok(Ok(()))), "{left_out} is not needed");
    }
    let (server, url) = user(&rights()).await;
    let store = RedisStore::connect(&url).await.unwrap().prefix("another");
    let refused = store.claim(claim(new_key())).await.unwrap_err();
    assert!(refused.is_refused() && refused.to_string().contains("~prefix"), "{refused}");
    granted(RedisStore::connect(&server.url()).await.unwrap().claim(claim(new_key())).await);
}

#[tokio::test]
async fn a_database_but_the_first_needs_one_right_more_which_the_refusal_names() {
    assert!(GUIDE.contains("A database but 0 needs `+select` besides"));
    let (_server, url) = user(&rights()).await;
    let error = RedisStore::connect(&format!("{url}/1")).await.unwrap_err().to_string();
    assert!(error.contains("refused the connection") && error.contains("select'"), "{error}");
    assert!(error.contains("+select"), "{error}");
    let (_server, url) = user(&[&rights()[..], &["+select"]].concat()).await;
    let store = RedisStore::connect(&format!("{url}/1")).await.unwrap().prefix("shop");
    granted(store.claim(claim(new_key())).await);
}
