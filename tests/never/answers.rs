//! Answers of handlers, and records, that no client or store of ours would make.

use std::sync::{Arc, Mutex};

use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use http_body_util::{BodyExt, Full};
use tower_idempotency::{
    Answer, Grant, MemoryStore, Policy, RecordKey, RefusalKind, State, Store, StoreError,
    store::{
        Claim, Claimed, Completed, Cursor, Issue, Issued, Kept, Page, Release, Resolve, Resolved,
        Written,
    },
};

use crate::shop::{Answered, Shop, api, keyed, only_state, text};

/// An answer with so many lines, of as many names.
fn with_lines(lines: usize, names: usize) -> Answered {
    let mut answer = text(200, "paid");
    for line in 0..lines {
        let name = format!("x-{}", line % names);
        let name = HeaderName::try_from(name).expect("a name");
        answer.headers_mut().append(name, HeaderValue::from(line));
    }
    answer
}

async fn sent_in_full_and_never_run_again(lines: usize, names: usize) {
    let store = MemoryStore::new();
    let shop = Shop::new(store.clone(), api(), move |_| async move { with_lines(lines, names) });
    let first = shop.send(keyed("k")).await;
    first.assert_text("paid");
    assert_eq!(first.head.headers.len(), lines);
    assert_eq!(only_state(&store).await, State::Completed, "{lines} lines, {names} names");
    let second = shop.send(keyed("k")).await;
    assert_eq!(second.refusal(), Some(RefusalKind::AnswerNotKept));
    assert_eq!(shop.runs.count(), 1);
    assert!(shop.layer.drain(std::time::Duration::ZERO).await.is_clean());
}

#[tokio::test]
async fn an_answer_with_more_fields_than_a_record_counts_is_sent_in_full_and_never_run_again() {
    sent_in_full_and_never_run_again(100_000, 1).await;
    sent_in_full_and_never_run_again(70_000, 1000).await;
}

#[tokio::test]
async fn an_answer_with_as_many_names_as_a_map_can_hold_is_sent_in_full_and_never_run_again() {
    // No map holds one name more, not even the mark of a replay.
    sent_in_full_and_never_run_again(24_576, 24_576).await;
}

#[tokio::test]
async fn a_large_head_is_replayed_whole_while_it_is_one_that_servers_send() {
    let long = "v".repeat(50_000);
    let shop = Shop::new(MemoryStore::new(), api(), move |_| {
        let mut answer = with_lines(500, 300);
        answer.headers_mut().append("x-long", HeaderValue::try_from(&long).expect("a value"));
        async move { answer }
    });
    let first = shop.send(keyed("k")).await;
    let second = shop.send(keyed("k")).await;
    assert!(second.is_replay());
    let mut replayed = second.head.headers.clone();
    replayed.remove("idempotent-replayed");
    assert_eq!(replayed, first.head.headers);
    assert_eq!(replayed.len(), 501);
}

#[tokio::test]
async fn a_sender_hears_the_status_of_an_answer_whose_head_was_too_large() {
    let policy = Policy::webhook(tower_idempotency::header("Idempotency-Key"));
    let shop = Shop::new(MemoryStore::new(), policy, |_| async { with_lines(100_000, 1) });
    shop.send(keyed("k")).await.assert_text("paid");
    let second = shop.send(keyed("k")).await;
    assert_eq!((second.head.status, second.refusal()), (StatusCode::OK, None));
    assert!(second.is_replay());
    assert_eq!(shop.runs.count(), 1);
}

/// Makes what is planted under a key.
type Make = fn(RecordKey) -> Bytes;

/// Answers a completed claim with what a test planted.
#[derive(Clone)]
struct Planted {
    store: MemoryStore,
    payload: Arc<Mutex<Option<Make>>>,
}

impl Store for Planted {
    async fn claim(&self, claim: Claim) -> Result<Claimed, StoreError> {
        let key = claim.key;
        let claimed = self.store.claim(claim).await?;
        let planted = *self.payload.lock().expect("no holder panics");
        Ok(match (claimed, planted) {
            (Claimed::Completed(found), Some(payload)) => Claimed::Completed(Completed::new(
                found.age,
                found.fence,
                found.attempt,
                payload(key),
            )),
            (claimed, _) => claimed,
        })
    }
    async fn renew(&self, grant: &Grant) -> Result<Written, StoreError> {
        self.store.renew(grant).await
    }
    async fn complete(&self, grant: &Grant, kept: Kept) -> Result<Written, StoreError> {
        self.store.complete(grant, kept).await
    }
    async fn release(&self, release: Release) -> Result<Written, StoreError> {
        self.store.release(release).await
    }
    async fn resolve(&self, resolve: Resolve) -> Result<Resolved, StoreError> {
        self.store.resolve(resolve).await
    }
    async fn issue(&self, issue: Issue) -> Result<Issued, StoreError> {
        self.store.issue(issue).await
    }
    async fn scan(&self, from: Cursor, at_most: usize) -> Result<Page, StoreError> {
        self.store.scan(from, at_most).await
    }
}

/// A stored answer with this many fields, in as many names, written by nobody of ours.
fn payload(key: RecordKey, fields: u16, trailers: u16) -> Bytes {
    let mut out = BytesMut::new();
    out.put_slice(key.as_bytes());
    out.put_slice(&[1, if trailers > 0 { 3 } else { 1 }]);
    out.put_u16(200);
    for count in [fields, trailers] {
        if count == 0 {
            continue;
        }
        out.put_u16(count);
        for field in 0..count {
            let name = format!("x-{field}");
            out.put_u16(u16::try_from(name.len()).expect("a short name"));
            out.put_slice(name.as_bytes());
            out.put_u32(1);
            out.put_slice(b"v");
        }
    }
    out.put_u64(0);
    out.freeze()
}

#[tokio::test]
async fn a_planted_record_of_any_number_of_fields_is_refused_and_panics_nowhere() {
    let store = Planted { store: MemoryStore::new(), payload: Arc::default() };
    let shop = Shop::new(store.clone(), api(), |_| async { text(200, "paid") });
    shop.send(keyed("k")).await.assert_text("paid");
    let plant = |planted: fn(RecordKey) -> Bytes| {
        *store.payload.lock().expect("no holder panics") = Some(planted);
    };
    for hostile in [
        (|key| payload(key, u16::MAX, 0)) as fn(RecordKey) -> Bytes,
        |key| payload(key, 24_576, 0),
        |key| payload(key, 24_575, 1),
        |key| payload(key, 1, u16::MAX),
        |key| payload(key, 24_576, 24_576),
    ] {
        plant(hostile);
        let answer = shop.send(keyed("k")).await;
        assert_eq!(answer.refusal(), Some(RefusalKind::RecordUnreadable));
    }
    // What could have been ours is read.
    plant(|key| payload(key, 300, 20));
    let answer = shop.send(keyed("k")).await;
    assert!(answer.is_replay());
    assert_eq!(answer.trailers.map(|trailers| trailers.len()), Some(20));
    // An operator's answer of any size is one that can be read.
    plant(|key| {
        let mut answer = Answer::text("by hand");
        for field in 0..24_000_u32 {
            let name = HeaderName::try_from(format!("x-{field}")).expect("a name");
            answer = answer.with_header(name, HeaderValue::from(field));
        }
        answer.to_payload(&key)
    });
    let answer = shop.send(keyed("k")).await;
    assert_eq!(answer.refusal(), Some(RefusalKind::AnswerNotKept));
    assert_eq!(shop.runs.count(), 1);
}

fn with_trailers() -> Answered {
    let mut trailers = HeaderMap::new();
    for (name, value) in [
        ("x-sum", "7"),
        ("set-cookie", "session=first"),
        ("server-timing", "db;dur=53"),
        ("idempotent-replayed", "true"),
        ("connection", "close"),
        ("date", "Mon, 30 Nov 2026 00:00:00 GMT"),
    ] {
        trailers.insert(name, HeaderValue::from_static(value));
    }
    let body = Full::from("paid").with_trailers(async move { Some(Ok(trailers)) });
    text(200, "").map(|_| body.boxed_unsync())
}

#[tokio::test]
async fn what_is_never_stored_of_a_head_is_not_stored_of_trailers_either() {
    let names = |trailers: Option<HeaderMap>| {
        let mut names: Vec<_> =
            trailers.iter().flat_map(HeaderMap::keys).map(ToString::to_string).collect();
        names.sort();
        names
    };
    let shop = Shop::new(MemoryStore::new(), api(), |_| async { with_trailers() });
    let first = shop.send(keyed("k")).await;
    let faked = first.trailers.as_ref().is_some_and(|t| t.contains_key("idempotent-replayed"));
    assert!(!faked, "a handler cannot fake a replay");
    assert_eq!(first.trailers.as_ref().map(|t| &t["set-cookie"]).unwrap(), "session=first");
    let second = shop.send(keyed("k")).await;
    assert!(second.is_replay());
    assert_eq!(names(second.trailers), ["x-sum"]);

    let shop = Shop::new(MemoryStore::new(), api().keep_cookies(), |_| async { with_trailers() });
    shop.send(keyed("k")).await;
    assert_eq!(names(shop.send(keyed("k")).await.trailers), ["set-cookie", "x-sum"]);
}

#[tokio::test]
async fn every_status_there_can_be_ends_a_run_and_is_replayed_or_runs_again() {
    let webhook = || Policy::webhook(tower_idempotency::header("Idempotency-Key"));
    for policy in [api(), webhook()] {
        let store = MemoryStore::new();
        let shop = Shop::new(store.clone(), policy, |request| async move {
            let status = request.headers()["idempotency-key"].to_str().unwrap().parse().unwrap();
            text(status, "body")
        });
        for status in 100..=999_u16 {
            let first = shop.send(keyed(&status.to_string())).await;
            assert_eq!(first.head.status.as_u16(), status);
            let second = shop.send(keyed(&status.to_string())).await;
            let unknown = second.refusal() == Some(RefusalKind::OutcomeUnknown);
            assert_eq!(unknown, matches!(status, 408 | 502 | 504), "{status}");
            let not_kept = second.refusal() == Some(RefusalKind::AnswerNotKept);
            assert!(unknown || not_kept || second.head.status.as_u16() == status, "{status}");
        }
        let busy = crate::shop::records(&store).await;
        assert!(busy.iter().all(|record| record.leased.is_none()), "{busy:?}");
    }
}
