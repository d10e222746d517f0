//! A store that has no room for an answer still has room for its end.

use http::HeaderValue;
use tower_idempotency::{MemoryStore, RefusalKind, State};

use crate::shop::{Shop, api, keyed, only_state, text};

#[tokio::test]
async fn a_full_store_keeps_that_it_was_executed_however_large_the_head_of_the_answer_is() {
    // One record, and nothing that it does not count anyway.
    let store = MemoryStore::new().bytes_at_most(640);
    let shop = Shop::new(store.clone(), api(), |_| async {
        let mut answer = text(200, "paid");
        for name in ["content-security-policy", "link", "permissions-policy"] {
            let value = HeaderValue::try_from("v".repeat(400)).expect("a value");
            answer.headers_mut().insert(name, value);
        }
        answer
    });
    shop.send(keyed("k")).await.assert_text("paid");
    assert_eq!(only_state(&store).await, State::Completed);
    assert_eq!(shop.send(keyed("k")).await.refusal(), Some(RefusalKind::AnswerNotKept));
    assert!(shop.layer.drain(std::time::Duration::ZERO).await.is_clean());
    assert_eq!(shop.runs.count(), 1);
}
