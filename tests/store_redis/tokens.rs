//! One-time tokens over a real server: issuers and uses at once, lost answers, and what is lost with them.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use redis::aio::MultiplexedConnection;
use tower_idempotency::{
    Fingerprint, Issuance, OneTimeToken, RedisStore, Store, StoreError, TokenRequest, Tokens,
    store::{
        Claim, Claimed, Cursor, Issue, Issued, RedisCommand, RedisConnection, RedisValue,
        StoreErrorKind,
    },
};
use tower_idempotency_test_support::{Proxy, RedisServer};

use crate::support::{
    HOLD, Value, claim, connect, granted, kept, name, new_key, send_raw, server_and_store,
};

fn order(number: u32) -> TokenRequest {
    TokenRequest::new("pay").business_key(format!("O-{number}"))
}

#[track_caller]
fn token(issued: &Issuance) -> OneTimeToken {
    match issued {
        Issuance::Token { token, .. } => *token,
        other => panic!("no token: {other:?}"),
    }
}

/// A claim that brings it.
fn bringing(issue: &Issue, token: OneTimeToken) -> Claim {
    let mut claim = claim(issue.key);
    (claim.one_time, claim.print) = (Some(token), Some(Fingerprint::of_halves([1; 16], [7; 16])));
    claim
}

fn new_issue() -> Issue {
    Issue::new(
        new_key(),
        OneTimeToken::random(),
        Some(Fingerprint::of_halves([1; 16], [0; 16])),
        HOLD,
    )
}

/// Issuers of several connections, each as a process of its own would be, ask at once for the same business
/// keys, in an order of their own.
#[tokio::test(flavor = "multi_thread")]
async fn issuers_at_once_get_the_same_token_for_a_business_key() {
    const ISSUERS: usize = 8;
    const ORDERS: u32 = 100;
    let server = RedisServer::start().await;
    let mut issuers = Vec::new();
    for _ in 0..ISSUERS {
        issuers.push(Tokens::new(RedisStore::connect(&server.url()).await.unwrap()));
    }
    let mut asked = tokio::task::JoinSet::new();
    for (place, tokens) in issuers.into_iter().enumerate() {
        for number in 0..ORDERS {
            let number = (number * 37 + place as u32 * 11) % ORDERS;
            let tokens = tokens.clone();
            asked
                .spawn(async move { (number, token(&tokens.issue(order(number)).await.unwrap())) });
        }
    }
    let mut first = std::collections::HashMap::new();
    let mut seen = 0;
    for (number, token) in asked.join_all().await {
        assert_eq!(*first.entry(number).or_insert(token), token, "order {number}");
        seen += 1;
    }
    assert_eq!((first.len(), seen), (ORDERS as usize, ISSUERS * ORDERS as usize));
    let all: std::collections::HashSet<_> = first.values().collect();
    assert_eq!(all.len(), ORDERS as usize, "no two orders have one token");
}

#[tokio::test]
async fn the_time_that_is_left_is_the_servers() {
    let (_server, store) = server_and_store().await;
    let tokens = Tokens::new(store.clone());
    let ask = || order(1).within(Duration::from_secs(60));
    let first = tokens.issue(ask()).await.unwrap();
    tokio::time::sleep(Duration::from_millis(30)).await;
    let Issuance::Token { token: again, remaining } = tokens.issue(ask()).await.unwrap() else {
        panic!("it is outstanding")
    };
    assert_eq!(again, token(&first));
    assert!(remaining < Duration::from_secs(60) && remaining > Duration::from_secs(30));
    let records = store.scan(Cursor::START, 10).await.unwrap().records;
    assert_eq!(records.len(), 1);
}

#[tokio::test]
async fn a_token_that_has_expired_is_unknown() {
    let (_server, store) = server_and_store().await;
    let mut issue = new_issue();
    issue.ttl = Duration::from_millis(20);
    let Ok(Issued::Token { token, .. }) = store.issue(issue.clone()).await else { panic!("free") };
    tokio::time::sleep(Duration::from_millis(60)).await;
    let refused = store.claim(bringing(&issue, token)).await;
    assert!(matches!(refused, Ok(Claimed::TokenUnknown)), "{refused:?}");
}

#[tokio::test]
async fn what_is_flushed_is_refused_and_not_let_through() {
    let (server, store) = server_and_store().await;
    let (unused, used) = (new_issue(), new_issue());
    for issue in [&unused, &used] {
        store.issue(issue.clone()).await.unwrap();
    }
    let grant = granted(store.claim(bringing(&used, used.token)).await);
    store.complete(&grant, kept("done")).await.unwrap();
    server.command(&["FLUSHALL"]).await;
    for issue in [&unused, &used] {
        // Where the loss was noticed, nothing is said for certain before owners could write theirs again.
        match store.claim(bringing(issue, issue.token)).await {
            Ok(Claimed::TokenUnknown) => {}
            Err(error) if error.kind() == StoreErrorKind::Suspended => {}
            other => panic!("{other:?}"),
        }
        assert_eq!(server.command(&["EXISTS", &name(issue.key)]).await, Value::Int(0));
    }
}

async fn behind_a_proxy() -> (RedisServer, Proxy, RedisStore) {
    let server = RedisServer::start().await;
    let proxy = Proxy::to(server.address()).await;
    let store = RedisStore::connect(&proxy.redis_url()).await.unwrap();
    // Everything known to the server, so that one call is one request.
    let warm = new_issue();
    store.issue(warm.clone()).await.unwrap();
    granted(store.claim(bringing(&warm, warm.token)).await);
    (server, proxy, store)
}

#[tokio::test]
async fn an_issue_whose_answer_was_lost_on_the_wire_gives_out_the_token_that_is_stored() {
    let (server, proxy, store) = behind_a_proxy().await;
    let tokens = Tokens::new(store.clone());
    proxy.cut_at_reply();
    let first = token(&tokens.issue(order(1)).await.unwrap());
    let direct = Tokens::new(RedisStore::connect(&server.url()).await.unwrap());
    assert_eq!(token(&direct.issue(order(1)).await.unwrap()), first);

    // The same where the answer is swallowed and the call times out.
    proxy.swallow_replies(1);
    let quick = Tokens::new(store.call_within(Duration::from_millis(100)));
    let quick = quick.issue_within(Duration::from_secs(5));
    let second = token(&quick.issue(order(2)).await.unwrap());
    assert_eq!(token(&direct.issue(order(2)).await.unwrap()), second);
}

#[tokio::test]
async fn a_claim_whose_answer_was_lost_has_used_the_token_up_for_itself_alone() {
    let (_server, proxy, store) = behind_a_proxy().await;
    let issue = new_issue();
    store.issue(issue.clone()).await.unwrap();
    let asked = bringing(&issue, issue.token);
    proxy.cut_at_reply();
    assert!(store.claim(asked.clone()).await.unwrap_err().is_unreachable());
    let other = store.claim(bringing(&issue, issue.token)).await;
    assert!(matches!(other, Ok(Claimed::InProgress(_))), "{other:?}");
    assert_eq!(granted(store.claim(asked).await).attempt, 1);
}

/// A connection that notes all that goes over it, as a program's own may do.
struct Noting {
    connection: MultiplexedConnection,
    noted: Arc<Mutex<String>>,
}

impl RedisConnection for Noting {
    async fn send(&self, commands: Vec<RedisCommand>) -> Result<Vec<RedisValue>, StoreError> {
        let answers = send_raw(self.connection.clone(), &commands).await.expect("it is up");
        let all = format!("{commands:?} {answers:?}\n");
        self.noted.lock().unwrap().push_str(&all);
        Ok(answers)
    }
}

#[tokio::test]
async fn a_connection_that_notes_what_goes_over_it_notes_no_token() {
    let redis = RedisServer::start().await;
    let noted = Arc::<Mutex<String>>::default();
    let connection = connect(&redis.url()).await.unwrap();
    let store = RedisStore::over(Noting { connection, noted: noted.clone() });
    let issue = new_issue();
    for _ in 0..2 {
        let issued = store.issue(issue.clone()).await;
        assert!(matches!(issued, Ok(Issued::Token { .. })), "{issued:?}");
    }
    assert!(matches!(store.claim(bringing(&issue, issue.token)).await, Ok(Claimed::Granted(_))));
    let noted = noted.lock().unwrap().clone();
    assert!(noted.contains("EVAL") && noted.contains("lengths"), "{noted}");
    // As a `Debug` of `Bytes` writes it, and as one of a `Vec` does.
    let token = issue.token.as_bytes();
    let written = [format!("{:?}", Bytes::copy_from_slice(token)), format!("{token:?}")];
    for written in written.map(|written| written.trim_matches(['b', '"', '[', ']']).to_owned()) {
        assert!(!noted.contains(&written), "{written} in {noted}");
    }
}
