//! A Redis whose replies are another's, garbage, hostile, or never come.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

use tokio::time::sleep;
use tower_idempotency::{
    Answer, ClaimToken, Policy, RecordKey, RedisStore, RefusalKind, Store, header, json,
    store::{Alias, Claim, Claimed, StoreErrorKind},
};
use tower_idempotency_test_support::{Log, Proxy, RedisServer};

use crate::{
    fake_redis::{FakeRedis, Words, array, bulk},
    shop::{Shop, api, keyed, text},
};

const SECOND: Duration = Duration::from_secs(1);

fn claim(key: u8) -> Claim {
    let key = RecordKey::from_bytes([key; 32]);
    Claim::new(key, ClaimToken::random(), None, 30 * SECOND, 60 * SECOND, SECOND)
}

/// Stamp or deadline, fence, attempt.
const TIMES: &[u8] = b"00018000000300001800000000000000000001";
const NOW: &[u8] = b"0001800000000000";
/// The largest number that a column can hold.
const NINES: &[u8] = b"9999999999999999";
const ZEROS: &[u8] = b"0000000000000000";

/// A grant as the script answers it, for this token.
fn granted(token: &[u8]) -> Vec<u8> {
    bulk(&[b"A", NOW, token, b"00", TIMES, b"-"])
}

/// The claim token among the words of a claim.
fn token_of(words: &Words) -> &[u8] {
    // EVALSHA, the hash, how many keys, the key, then the arguments.
    &words[4]
}

/// It has nine arguments, and no other script that a store runs by itself has as many.
fn is_claim(words: &Words) -> bool {
    words.len() == 4 + 9
}

#[tokio::test]
async fn a_grant_that_was_another_claims_starts_no_handler_and_ends_the_connection() {
    let honest = Arc::new(AtomicBool::new(false));
    let is_honest = honest.clone();
    let server = FakeRedis::start(move |words| {
        if is_honest.load(Ordering::SeqCst) {
            return granted(token_of(words));
        }
        // What a reply looks like that was meant for the claim before this one.
        granted(b"another's token.")
    })
    .await;
    let store = RedisStore::connect(&server.url()).await.expect("it tells the time");
    let shop = Shop::new(store.clone(), api(), |_| async { text(200, "paid") });
    let refused = shop.send(keyed("k")).await;
    assert_eq!(refused.refusal(), Some(RefusalKind::StoreUnavailable));
    assert_eq!(shop.runs.count(), 0);
    let connections = server.connections();
    assert!(connections > 1, "replies that are out of step stay so until the connection ends");

    // The same words with the claim's own token are a grant.
    honest.store(true, Ordering::SeqCst);
    sleep(SECOND).await;
    assert!(matches!(store.claim(claim(1)).await, Ok(Claimed::Granted(_))));
    // A grant that names nobody is none.
    let nameless = FakeRedis::start(|_| granted(b"")).await;
    let store = RedisStore::connect(&nameless.url()).await.expect("it tells the time");
    let error = store.claim(claim(1)).await.expect_err("no grant");
    assert_eq!(error.kind(), StoreErrorKind::Garbled);
}

#[tokio::test]
async fn another_name_that_was_another_claims_leads_to_nobodys_answer() {
    // Of another tenant's operation, which is completed.
    let foreign = RecordKey::from_bytes([9; 32]);
    let honest = Arc::new(AtomicBool::new(false));
    let is_honest = honest.clone();
    let server = FakeRedis::start(move |words| {
        let token = token_of(words);
        if words[3].ends_with(foreign.to_string().as_bytes()) {
            let payload = Answer::text("another tenant's").to_payload(&foreign);
            let header = [b"I1C", &[3; 16][..], TIMES, &[0; 32], b"-"].concat();
            return bulk(&[b"C", NOW, token, b"00", &header, &payload]);
        }
        // What the claim before this one was to be told: that its id is a name of that operation.
        let token = if is_honest.load(Ordering::SeqCst) { token } else { b"another's token." };
        bulk(&[b"L", NOW, token, b"00", foreign.as_bytes()])
    })
    .await;
    let store = RedisStore::connect(&server.url()).await.expect("it tells the time");
    let policy = Policy::webhook(header("Idempotency-Key")).business_key(json("/order"));
    let shop = Shop::new(store, policy, |_| async { text(200, "paid") });
    let without_order = || {
        let mut request = keyed("k");
        *request.body_mut() = "{}".into();
        request
    };
    let refused = shop.send(without_order()).await;
    assert_eq!(refused.refusal(), Some(RefusalKind::StoreUnavailable), "{refused:?}");
    // The twin: told to this claim, it is one.
    honest.store(true, Ordering::SeqCst);
    sleep(SECOND).await;
    shop.send(without_order()).await.assert_text("another tenant's");
    assert_eq!(shop.runs.count(), 0);
}

#[tokio::test]
async fn a_long_answer_that_is_another_when_it_is_fetched_is_asked_for_again_and_is_that_one() {
    const LATER: &[u8] = b"00018000000500001800000000000000000002";
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = asked.clone();
    let server = FakeRedis::start(move |words: &Words| match &words[0][..] {
        b"GETRANGE" => bulk(&[b"I1C", &[3; 16], LATER, &[0; 32], b"-the later answer"]),
        _ if !is_claim(words) => b"-NOPERM it does nothing else\r\n".to_vec(),
        _ => {
            let times = if counted.fetch_add(1, Ordering::SeqCst) == 0 { TIMES } else { LATER };
            bulk(&[b"B", NOW, token_of(words), b"00", times])
        }
    })
    .await;
    let store = RedisStore::connect(&server.url()).await.expect("it tells the time");
    let Ok(Claimed::Completed(completed)) = store.claim(claim(1)).await else {
        panic!("it is there, twice")
    };
    assert_eq!((&completed.payload[..], completed.attempt), (&b"the later answer"[..], 2));
    assert_eq!(asked.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn behind_a_proxy_a_server_that_nobody_knows_yet_is_asked_which_it_is_with_the_first_claim() {
    let trusted = Arc::<Mutex<Vec<Vec<u8>>>>::default();
    let noted = trusted.clone();
    let server = FakeRedis::start(move |words: &Words| {
        if !is_claim(words) {
            return b"-NOPERM it does nothing else\r\n".to_vec();
        }
        // The seventh argument says which server may grant it.
        noted.lock().unwrap().push(words[4 + 6].clone());
        bulk(&[b"A", NOW, token_of(words), b"05which", TIMES, b"-"])
    })
    .await;
    let store = RedisStore::connect(&server.url()).await.expect("it tells the time").behind_proxy();
    for _ in 0..2 {
        let answer = store.claim(claim(1)).await;
        assert!(matches!(answer, Ok(Claimed::Granted(_))), "{answer:?}");
    }
    assert_eq!(*trusted.lock().unwrap(), [&b"*"[..], b"which"]);
}

#[tokio::test]
async fn the_time_that_a_connection_takes_to_come_about_is_taken_from_the_claims() {
    const TAKES: Duration = Duration::from_millis(300);
    const SERVERS: Duration = Duration::from_secs(1_800_000_000);
    let deadlines = Arc::<Mutex<Vec<u64>>>::default();
    let noted = deadlines.clone();
    let slow = || {
        std::thread::sleep(TAKES);
        SERVERS
    };
    let server = FakeRedis::with_clock(slow, move |words: &Words| {
        if !is_claim(words) {
            return b"-NOPERM it does nothing else\r\n".to_vec();
        }
        let deadline = String::from_utf8(words[4 + 8].clone()).unwrap();
        noted.lock().unwrap().push(deadline.parse().unwrap());
        granted(token_of(words))
    })
    .await;
    let mut asked = claim(1);
    asked.within = TAKES / 2;
    let store = || RedisStore::lazy(&server.url()).unwrap().call_within(5 * SECOND);
    let late = store().claim(asked.clone()).await.unwrap_err();
    assert_eq!(late.kind(), StoreErrorKind::Timeout, "{late}");
    assert!(deadlines.lock().unwrap().is_empty(), "what is too late is not sent");
    asked.within = 60 * SECOND;
    assert!(matches!(store().claim(asked).await, Ok(Claimed::Granted(_))));
    let [deadline] = deadlines.lock().unwrap()[..] else { panic!("one claim") };
    // It told the time when half of that had passed, or all of it.
    let latest = SERVERS + 60 * SECOND - TAKES / 2;
    assert!(u128::from(deadline) < latest.as_millis(), "{deadline}");
}

#[tokio::test]
async fn whatever_a_server_answers_nothing_runs_and_nobody_waits() {
    let hostile: Vec<Vec<u8>> = [
        &b"$-1\r\n"[..],
        b"*-1\r\n",
        b"_\r\n",
        b":1\r\n",
        b"+OK\r\n",
        b"-ERR no\r\n",
        b"-\r\n",
        b"*0\r\n",
        b"*1\r\n$1\r\nA\r\n",
        b"*2\r\n$1\r\nA\r\n$-1\r\n",
        b"*9223372036854775807\r\n$1\r\nA\r\n",
        b"*-9223372036854775808\r\n",
        b"*2147483647\r\n",
        b"$9223372036854775807\r\n",
        b"$-9223372036854775808\r\n",
        b"$4294967296\r\nA",
        b"%9223372036854775807\r\n",
        b"%-1\r\n",
        b"~9223372036854775807\r\n",
        b">2147483647\r\n",
        b"|-1\r\n",
        b"=-1\r\n",
        b"!-5\r\n",
        b"(99999999999999999999999999999\r\n",
        b",nan\r\n",
        b"\r\n\r\n\r\n",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\0\0\0\0",
        b"\xff\xff\xff\xff\r\n",
        b"",
    ]
    .iter()
    .map(|bytes| bytes.to_vec())
    .chain([b"*1\r\n".repeat(100_000), b"*2\r\n".repeat(1000), vec![b'x'; 1 << 20]])
    .chain([
        array(&[b"A", b"18446744073709551615", b"", b"0", b"0", b"1", b"-", b"0123456789abcdef"]),
        array(&[b"L", b"18446744073709551615", b"", b"short"]),
        bulk(&[]),
        bulk(&[b"A"]),
        bulk(&[b"V", NINES]),
        bulk(&[b"V", b"-000000000000001"]),
        bulk(&[b"M", b"1"]),
    ])
    .collect::<Vec<_>>();
    // And what would fit, if only it were not absurd: said to the very claim that asks.
    let absurd: Vec<(&str, Vec<u8>)> = vec![
        ("A", [NOW, ZEROS, b"99999999"].concat()),
        ("I", [NINES, ZEROS, b"999999"].concat()),
        ("X", [ZEROS, NINES, b"000001\xff"].concat()),
        ("X", [NINES, ZEROS, b"000001"].concat()),
        ("B", TIMES.to_vec()),
        ("B", vec![0xff; 38]),
        ("C", b"not a record".to_vec()),
        (
            "C",
            [b"I1C", &[3; 16][..], NINES, ZEROS, b"999999", &[0; 32], b"-not an answer"].concat(),
        ),
        ("L", b"short".to_vec()),
        ("T", Vec::new()),
    ];
    let told = |letter: &'static str, rest: Vec<u8>| {
        move |words: &Words| match &words[0][..] {
            b"GETRANGE" => bulk(&[b"I1C", &rest]),
            _ => bulk(&[letter.as_bytes(), NINES, token_of(words), b"00", &rest]),
        }
    };
    for (letter, rest) in absurd {
        let shown = format!("{letter}{}", rest.escape_ascii());
        nothing_runs_and_nobody_waits(&shown, told(letter, rest)).await;
    }
    for answer in hostile {
        let shown = answer[..answer.len().min(40)].escape_ascii().to_string();
        nothing_runs_and_nobody_waits(&shown, move |_| answer.clone()).await;
    }
}

async fn nothing_runs_and_nobody_waits(
    shown: &str,
    answer: impl Fn(&Words) -> Vec<u8> + Clone + Send + Sync + 'static,
) {
    let server = FakeRedis::start(answer).await;
    let store = RedisStore::connect(&server.url()).await.expect("it tells the time");
    let policy =
        api().claim_within(Duration::from_millis(100)).call_within(Duration::from_millis(60));
    let shop = Shop::new(store, policy, |_| async { text(200, "paid") });
    let asked = Instant::now();
    let refused = shop.send(keyed("k")).await;
    assert!(refused.refusal().is_some(), "{shown}: {refused:?}");
    assert!(asked.elapsed() < 3 * SECOND, "{shown}: {:?}", asked.elapsed());
    assert_eq!(shop.runs.count(), 0, "{shown}");
}
#[tokio::test]
async fn a_claim_that_was_granted_is_never_called_free_because_the_server_forgot_the_alias_script()
{
    let server = RedisServer::start().await;
    let proxy = Proxy::to(server.address()).await;
    let store = RedisStore::connect(&proxy.redis_url()).await.expect("the proxy forwards");
    // The server knows how to claim, and not how to bind.
    assert!(matches!(store.claim(claim(1)).await, Ok(Claimed::Granted(_))));
    let mut asked = claim(2);
    asked.within = Duration::from_millis(150);
    asked.alias = Some(Alias::new(RecordKey::from_bytes([3; 32]), 60 * SECOND));
    let replies = proxy.counts().replies;
    proxy.hold_replies();
    let asking = tokio::spawn({
        let (store, asked) = (store.clone(), asked.clone());
        async move { store.claim(asked).await }
    });
    proxy.wait_until(|counts| counts.replies > replies).await;
    // The first answer goes on, and what is sent after it comes too late.
    proxy.heal();
    proxy.hold_requests();
    sleep(Duration::from_millis(200)).await;
    proxy.heal();
    let answer = asking.await.expect("no panic");
    let mut look = claim(2);
    look.within = Duration::ZERO;
    let held = matches!(store.claim(look).await, Ok(Claimed::InProgress(_)));
    let told = !matches!(answer, Ok(Claimed::Free));
    assert!(told || !held, "somebody must know that it is granted: {answer:?}");
}

/// What is told of a server whose clock is this far ahead, once it has been connected to for a while.
async fn told_of(ahead: Duration, takeover: Option<Duration>) -> Vec<String> {
    let (log, _guard) = Log::listen();
    let now = move || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap() + ahead;
    let server = FakeRedis::with_clock(now, |_| b"-ERR not now\r\n".to_vec()).await;
    let mut store = RedisStore::connect(&server.url()).await.expect("it tells the time");
    if let Some(lease) = takeover {
        store = store.takeover_after(lease);
    }
    // Told a second after the connection was made, and not again.
    sleep(Duration::from_millis(2500)).await;
    drop(store);
    let mut told = [log.of("preflight warns"), log.of("preflight failed")].concat();
    told.retain(|line| line.contains("clock"));
    told
}

#[tokio::test]
async fn f18_the_clock_of_a_server_that_was_connected_to_is_told_when_it_is_off() {
    assert_eq!(told_of(Duration::ZERO, None).await, [""; 0]);
    let [warned] = &told_of(5 * SECOND, None).await[..] else { panic!("one event") };
    assert!(warned.starts_with("WARN "), "{warned}");
    let [failed] = &told_of(15 * SECOND, Some(30 * SECOND)).await[..] else { panic!("one event") };
    assert!(failed.starts_with("ERROR "), "{failed}");
}
