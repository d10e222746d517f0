//! A delivery id under which somebody else has stored something.

use http::StatusCode;
use tower_idempotency::{Previous, RedisStore};
use tower_idempotency_test_support::{RedisServer, redis::Value};

use super::{Shop, assert_refused, deliver, notification};

/// What a newer version may leave under a name that is an alias; the answer is how many were.
const OVERWRITE_ALIAS: &str = "\
    local aliases = 0 \
    for _, name in ipairs(redis.call('KEYS', '*')) do \
      local is_record = not string.find(name, ':canary', 1, true) \
      if is_record and string.sub(redis.call('GET', name), 3, 3) == 'L' then \
        redis.call('SET', name, 'I9 of a newer version') \
        aliases = aliases + 1 \
      end \
    end \
    return aliases";

/// A record that a newer version, or somebody else, has left under the delivery id.
#[tokio::test]
async fn a_delivery_id_that_cannot_be_read_blocks_no_order() {
    let redis = RedisServer::start().await;
    let shop = Shop::default();
    let app = shop.app(RedisStore::connect(&redis.url()).await.unwrap(), shop.policy());
    deliver(&app, notification("n-1", "o-1", "960")).await;
    let overwritten = redis.command(&["EVAL", OVERWRITE_ALIAS, "0"]).await;
    assert_eq!(overwritten, Value::Int(1));

    let refused = deliver(&app, notification("n-1", "o-2", "960")).await;
    assert_refused(&refused, "record_unreadable");
    assert_eq!(shop.runs("o-2"), 0);
    // The claim on the order was called off: it is neither in progress nor abandoned.
    let other = deliver(&app, notification("n-2", "o-2", "960")).await;
    assert_eq!((other.status, other.replayed), (StatusCode::OK, false), "{}", other.body);
    assert_eq!(shop.found(), [Previous::Nothing, Previous::Nothing]);
}
