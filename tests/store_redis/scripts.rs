//! What the scripts do with records that no store would write: the raw text, on a real server.

use tower_idempotency_test_support::{
    RedisServer,
    redis::{Cmd, Value, aio::MultiplexedConnection},
};

const CLAIM: &str = concat!(
    include_str!("../../src/store/redis/claim_quick.lua"),
    include_str!("../../src/store/redis/record.lua"),
    include_str!("../../src/store/redis/claim.lua")
);
const COMPLETE: &str = concat!(
    include_str!("../../src/store/redis/complete_quick.lua"),
    include_str!("../../src/store/redis/record.lua"),
    include_str!("../../src/store/redis/complete.lua")
);
/// The same without what is told at once.
const WHOLE_CLAIM: &str = concat!(
    include_str!("../../src/store/redis/record.lua"),
    include_str!("../../src/store/redis/claim.lua")
);
const WHOLE_COMPLETE: &str = concat!(
    include_str!("../../src/store/redis/record.lua"),
    include_str!("../../src/store/redis/complete.lua")
);
const BIND: &str = concat!(
    include_str!("../../src/store/redis/record.lua"),
    include_str!("../../src/store/redis/bind.lua")
);
const NO_PRINT: [u8; 32] = [0; 32];

struct Raw {
    _server: RedisServer,
    connection: MultiplexedConnection,
}

impl Raw {
    async fn new() -> Self {
        let server = RedisServer::start().await;
        Self { connection: server.connection().await, _server: server }
    }

    async fn ask(&self, words: &[&[u8]]) -> Value {
        let mut command = Cmd::new();
        for word in words {
            command.arg(*word);
        }
        self.connection.clone().send_packed_command(&command).await.expect("an answer")
    }

    /// A claim that trusts these identities of the server.
    async fn claim(&self, key: &str, token: u8, identities: &str) -> Vec<u8> {
        let (text, key, identities) = (CLAIM.as_bytes(), key.as_bytes(), identities.as_bytes());
        let token = [token; 16];
        let arguments: [&[u8]; 13] = [
            b"EVAL", text, b"1", key, &token, &NO_PRINT, b"1000", b"60000", b"", b"", identities,
            b"", b"0",
        ];
        answer(self.ask(&arguments).await)
    }

    async fn complete(&self, key: &str) -> Vec<u8> {
        let (text, key) = (COMPLETE.as_bytes(), key.as_bytes());
        let arguments: [&[u8]; 10] = [
            b"EVAL",
            text,
            b"1",
            key,
            &[1; 16],
            &NO_PRINT,
            b"0000000000000001",
            b"000001",
            b"60000",
            b"resp",
        ];
        answer(self.ask(&arguments).await)
    }

    /// The answer to a binding, without its time.
    async fn bind(&self, key: &str, target: &str) -> String {
        let (text, key, target) = (BIND.as_bytes(), key.as_bytes(), target.as_bytes());
        let answer = answer(self.ask(&[b"EVAL", text, b"1", key, b"60000", target]).await);
        let answer = String::from_utf8(answer).expect("printable");
        answer[..1].to_owned() + &answer[17..]
    }

    async fn get(&self, key: &str) -> Value {
        self.ask(&[b"GET", key.as_bytes()]).await
    }

    async fn set(&self, key: &str, value: &[u8]) {
        assert_eq!(self.ask(&[b"SET", key.as_bytes(), value]).await, Value::Okay);
    }
}

fn answer(answer: Value) -> Vec<u8> {
    match answer {
        Value::BulkString(bytes) => bytes,
        other => panic!("no string: {other:?}"),
    }
}

/// The letter that an answer begins with.
fn letter(answer: &[u8]) -> char {
    char::from(answer[0])
}

/// The identity of the server in an answer to a claim, after its length.
fn identity(answer: &[u8]) -> &str {
    let text = std::str::from_utf8(&answer[33..35]).expect("printable");
    let length: usize = text.parse().expect("a length");
    std::str::from_utf8(&answer[35..35 + length]).expect("printable")
}

/// A released record without a payload, with these columns.
fn record(state: &str, stamp: &str, attempt: &str) -> Vec<u8> {
    let mut record = format!("I1{state}").into_bytes();
    record.extend([9; 16]);
    record.extend(format!("{stamp}{:016}{attempt}", 1).bytes());
    record.extend(NO_PRINT);
    record.push(b'-');
    record
}

#[tokio::test]
async fn a_state_of_a_newer_version_is_foreign_and_a_known_one_is_not() {
    let raw = Raw::new().await;
    let newer = record("J", &"9".repeat(16), "000001");
    raw.set("s1", &newer).await;
    assert_eq!(letter(&raw.claim("s1", 1, "").await), 'V');
    assert_eq!(letter(&raw.complete("s1").await), 'V');
    assert_eq!(raw.get("s1").await, Value::BulkString(newer));
    raw.set("s2", &record("R", &format!("{:016}", 1), "000001")).await;
    assert_eq!(letter(&raw.claim("s2", 1, "").await), 'A');
}

#[tokio::test]
async fn broken_numbers_are_foreign() {
    let raw = Raw::new().await;
    for broken in [
        record("R", &"x".repeat(16), "000001"),
        record("R", &format!("{:016}", 1), "00x001"),
        record("R", &format!("{:016}", 1), "")[..84].to_vec(),
        // What Lua takes for numbers, and no transition writes.
        record("I", &format!("{:>16}", "inf"), "000001"),
        record("I", &format!("{:>16}", "nan"), "000001"),
        record("I", &format!("{:>16}", "1"), "000001"),
        record("I", &format!("{:016}", -1), "000001"),
        record("I", "0x00000000000001", "000001"),
        record("I", "00000000000001e9", "000001"),
        record("R", &format!("{:016}", 1), "0001.5"),
    ] {
        raw.set("s", &broken).await;
        assert_eq!(letter(&raw.claim("s", 1, "").await), 'V');
        assert_eq!(raw.get("s").await, Value::BulkString(broken));
    }
}

#[tokio::test]
async fn a_key_of_another_type_is_foreign_and_left_alone() {
    let raw = Raw::new().await;
    raw.ask(&[b"HSET", b"wt", b"a", b"b"]).await;
    assert_eq!(letter(&raw.claim("wt", 1, "").await), 'V');
    assert_eq!(letter(&raw.complete("wt").await), 'V');
    assert_eq!(raw.ask(&[b"HGET", b"wt", b"a"]).await, Value::BulkString(b"b".to_vec()));
}

#[tokio::test]
async fn a_foreign_string_is_left_alone() {
    let raw = Raw::new().await;
    for foreign in [&[b'x'; 200][..], b"short", b"I2"] {
        raw.set("f", foreign).await;
        assert_eq!(letter(&raw.claim("f", 1, "").await), 'V');
        assert_eq!(letter(&raw.complete("f").await), 'V');
        assert_eq!(raw.get("f").await, Value::BulkString(foreign.to_vec()));
    }
}

#[tokio::test]
async fn the_millionth_grant_keeps_the_header_at_90_bytes() {
    let raw = Raw::new().await;
    raw.set("n", &record("R", &format!("{:016}", 1), "999999")).await;
    let granted = raw.claim("n", 1, "").await;
    assert_eq!(letter(&granted), 'A');
    assert!(granted.ends_with(b"999999R"));
    assert!(matches!(raw.get("n").await, Value::BulkString(record) if record.len() == 90));
    assert_eq!(letter(&raw.claim("n", 2, "").await), 'I');
}

#[tokio::test]
async fn only_a_trusted_server_grants_and_any_server_answers() {
    let raw = Raw::new().await;
    let first = raw.claim("e1", 1, "*").await;
    assert_eq!(letter(&first), 'A');
    let identity = identity(&first).to_owned();
    assert_eq!(identity.split(':').map(str::len).collect::<Vec<_>>(), [40, 40]);

    assert_eq!(letter(&raw.claim("e2", 1, "somebody:else").await), 'E');
    assert_eq!(raw.get("e2").await, Value::Nil);
    assert_eq!(letter(&raw.claim("e2", 1, &format!("x:y,{identity}")).await), 'A');
    assert_eq!(letter(&raw.claim("e2", 2, "somebody:else").await), 'I');
}

#[tokio::test]
async fn an_identity_is_told_only_to_whoever_asks() {
    let raw = Raw::new().await;
    assert_eq!(identity(&raw.claim("id", 1, "").await), "");
    assert_ne!(identity(&raw.claim("id", 2, "*").await), "");
}

#[tokio::test]
async fn a_binding_says_whether_it_is_new_and_over_what_it_cannot_be() {
    let raw = Raw::new().await;
    assert_eq!(raw.bind("d", "order").await, "O1");
    assert_eq!(raw.bind("d", "order").await, "O0");
    assert_eq!(raw.bind("d", "another").await, "KL");
    assert_eq!(letter(&raw.claim("run", 1, "").await), 'A');
    assert_eq!(raw.bind("run", "order").await, "KI");
    raw.set("done", &record("C", &format!("{:016}", 1), "000001")).await;
    assert_eq!(raw.bind("done", "order").await, "KC");
    raw.set("given-back", &record("R", &format!("{:016}", 1), "000001")).await;
    assert_eq!(raw.bind("given-back", "order").await, "O1");
}

/// Times of the server's clock differ from run to run, and so do fences, which are its microseconds.
fn without_times(mut bytes: Vec<u8>, columns: &[std::ops::Range<usize>]) -> Vec<u8> {
    for column in columns {
        if let Some(times) = bytes.get_mut(column.clone()) {
            times.fill(b'#');
        }
    }
    bytes
}

/// Every kind of record that the scripts may find, and some that none of them writes.
fn records() -> Vec<Option<Vec<u8>>> {
    let (past, future) = (format!("{:016}", 7), "9".repeat(16));
    let mut records = vec![None, Some(Vec::new()), Some(b"short".to_vec()), Some(vec![b'x'; 200])];
    for state in ["P", "I", "C", "R", "L", "J"] {
        for stamp in [&past, &future, &"0".repeat(16), &"x".repeat(16)] {
            for (token, print) in [(1, 0), (1, 7), (9, 0), (9, 7)] {
                for payload in [0, 16_383, 16_384] {
                    let mut record = format!("I1{state}").into_bytes();
                    record.extend([token; 16]);
                    record.extend(format!("{stamp}{:016}000001", 1).bytes());
                    record.extend([print; 32]);
                    record.push(b'-');
                    record.resize(record.len() + payload, b'p');
                    records.push(Some(record));
                }
            }
        }
    }
    records
}

impl Raw {
    /// What this script answers to the record, and what it leaves, both without times.
    async fn outcome(
        &self,
        text: &str,
        found: Option<&[u8]>,
        arguments: &[&[u8]],
    ) -> (char, Vec<u8>, Option<Vec<u8>>) {
        match found {
            Some(record) => self.set("same", record).await,
            None => drop(self.ask(&[b"DEL", b"same"]).await),
        }
        let command = [&[b"EVAL", text.as_bytes(), b"1", b"same"], arguments].concat();
        let answer = answer(self.ask(&command).await);
        let left = match self.get("same").await {
            Value::BulkString(record) if Some(&record[..]) != found => {
                Some(without_times(record, &[19..35, 35..51]))
            }
            _ => None,
        };
        let granted: &[std::ops::Range<usize>] = &[1..17, 35..51, 51..67];
        let columns = if letter(&answer) == 'A' { granted } else { &granted[..1] };
        (letter(&answer), without_times(answer, columns), left)
    }
}

#[tokio::test]
async fn what_a_claim_is_told_at_once_is_what_it_is_told_in_full() {
    let raw = Raw::new().await;
    let mut letters = std::collections::BTreeSet::new();
    for record in records() {
        for print in [&NO_PRINT, &[7; 32], &[8; 32]] {
            for (one_time, last) in [("", "0"), ("", "1"), ("", "9999999999999"), ("t", "0")] {
                let arguments: [&[u8]; 9] = [
                    &[1; 16],
                    print,
                    b"1000",
                    b"60000",
                    b"",
                    one_time.as_bytes(),
                    b"",
                    b"label",
                    last.as_bytes(),
                ];
                let quick = raw.outcome(CLAIM, record.as_deref(), &arguments).await;
                let whole = raw.outcome(WHOLE_CLAIM, record.as_deref(), &arguments).await;
                assert_eq!(quick, whole, "{record:?} {print:?} {one_time:?} {last}");
                letters.insert(quick.0);
            }
        }
    }
    assert_eq!(letters, "ABCDILMTUVX".chars().collect());
}

#[tokio::test]
async fn what_a_completion_is_told_at_once_is_what_it_is_told_in_full() {
    let raw = Raw::new().await;
    let mut letters = std::collections::BTreeSet::new();
    for record in records() {
        for (fence, attempt) in [(1, 1), (2, 1), (1, 2)] {
            let (fence, attempt) = (format!("{fence:016}"), format!("{attempt:06}"));
            let arguments: [&[u8]; 6] =
                [&[1; 16], &[7; 32], fence.as_bytes(), attempt.as_bytes(), b"60000", b"response"];
            let quick = raw.outcome(COMPLETE, record.as_deref(), &arguments).await;
            let whole = raw.outcome(WHOLE_COMPLETE, record.as_deref(), &arguments).await;
            assert_eq!(quick, whole, "{record:?} {fence} {attempt}");
            letters.insert(quick.0);
        }
    }
    assert_eq!(letters, "FOVZ".chars().collect());
}
