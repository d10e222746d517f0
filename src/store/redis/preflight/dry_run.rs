//! The transitions, tried on a key of their own.

use std::time::Duration;

use super::{Findings, Level};
use crate::{
    record::{ClaimToken, RecordKey},
    store::{Claim, Claimed, Kept, RedisStore, Store, StoreError, Written, redis::link::Link},
};

const LEASE: Duration = Duration::from_secs(5);
/// Each node of a cluster has more than a few of its slots, or none that matter.
const KEYS_TRIED: u32 = 10_000;
/// What is left behind is gone soon.
const KEPT_FOR: Duration = Duration::from_secs(10);

/// Claims, is told the same again, is busy for another, renews, completes and replays.
pub(in crate::store::redis) async fn dry_run(
    findings: &mut Findings<'_>,
    store: &RedisStore,
    link: &Link,
) {
    match transitions(store, key_on(store, link)).await {
        Ok(None) => {
            findings.add("scripts", Level::Fine, "claimed, renewed, completed and replayed");
        }
        Ok(Some(wrong)) => {
            let detail = format!("{wrong}: it is no Redis as this store needs one");
            findings.add("scripts", Level::Error, detail);
        }
        Err(error) if error.is_suspended() => {
            findings.add("scripts", Level::Warning, error.to_string());
        }
        Err(error) => findings.add("scripts", Level::Error, error.to_string()),
    }
}

/// A key that nobody uses, whose record is on that server.
fn key_on(store: &RedisStore, link: &Link) -> RecordKey {
    let mut key = [0; 32];
    for _ in 0..KEYS_TRIED {
        let halves = [ClaimToken::random(), ClaimToken::random()].map(|half| *half.as_bytes());
        key.copy_from_slice(halves.as_flattened());
        if link.known.owns(&Vec::from(store.name(&RecordKey::from_bytes(key)))) {
            break;
        }
    }
    RecordKey::from_bytes(key)
}

/// What was not as it should be.
async fn transitions(store: &RedisStore, key: RecordKey) -> Result<Option<String>, StoreError> {
    let claim = || Claim::new(key, ClaimToken::random(), None, LEASE, KEPT_FOR, LEASE);
    let mine = claim();
    let wrong = |step: &str, found: &dyn std::fmt::Debug| Ok(Some(format!("{step}: {found:?}")));
    let grant = match store.claim(mine.clone()).await? {
        Claimed::Granted(grant) => grant,
        other => return wrong("a claim of a new key was not granted", &other),
    };
    match store.claim(mine).await? {
        Claimed::Granted(again) if again == grant => {}
        other => return wrong("the same claim again was not the same grant", &other),
    }
    match store.claim(claim()).await? {
        Claimed::InProgress(_) => {}
        other => return wrong("a claim of a held key was not told so", &other),
    }
    match store.renew(&grant).await? {
        Written::Stored => {}
        other => return wrong("a lease was not renewed", &other),
    }
    let payload = key.as_bytes().to_vec();
    match store.complete(&grant, Kept::new(payload.clone().into(), KEPT_FOR)).await? {
        Written::Stored => {}
        other => return wrong("an answer was not stored", &other),
    }
    match store.claim(claim()).await? {
        Claimed::Completed(completed) if completed.payload == payload => Ok(None),
        other => wrong("a stored answer did not come back", &other),
    }
}
