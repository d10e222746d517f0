//! What the scripts do with records that no store would write: the raw text, on a real server.

use tower_idempotency_test_support::{
    RedisServer,
    redis::{Cmd, Value, aio::MultiplexedConnection},
};

const CLAIM: &str = concat!(
    include_str!("../../src/store/redis/record.lua"),
    include_str!("../../src/store/redis/claim.lua")
);
const COMPLETE: &str = concat!(
    include_str!("../../src/store/redis/record.lua"),
    include_str!("../../src/store/redis/complete.lua")
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
    async fn claim(&self, key: &str, token: u8, identities: &str) -> Vec<Value> {
        let (text, key, identities) = (CLAIM.as_bytes(), key.as_bytes(), identities.as_bytes());
        let token = [token; 16];
        let arguments: [&[u8]; 13] = [
            b"EVAL", text, b"1", key, &token, &NO_PRINT, b"1000", b"60000", b"", b"", identities,
            b"", b"0",
        ];
        fields(self.ask(&arguments).await)
    }

    async fn complete(&self, key: &str) -> Vec<Value> {
        let (text, key) = (COMPLETE.as_bytes(), key.as_bytes());
        let arguments: [&[u8]; 10] =
            [b"EVAL", text, b"1", key, &[1; 16], &NO_PRINT, b"1", b"1", b"60000", b"resp"];
        fields(self.ask(&arguments).await)
    }

    async fn get(&self, key: &str) -> Value {
        self.ask(&[b"GET", key.as_bytes()]).await
    }

    async fn set(&self, key: &str, value: &[u8]) {
        assert_eq!(self.ask(&[b"SET", key.as_bytes(), value]).await, Value::Okay);
    }
}

fn fields(answer: Value) -> Vec<Value> {
    match answer {
        Value::Array(fields) => fields,
        other => panic!("no array: {other:?}"),
    }
}

fn text(value: &Value) -> &str {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).expect("printable"),
        other => panic!("no text: {other:?}"),
    }
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
    assert_eq!(text(&raw.claim("s1", 1, "").await[0]), "V");
    assert_eq!(text(&raw.complete("s1").await[0]), "V");
    assert_eq!(raw.get("s1").await, Value::BulkString(newer));
    raw.set("s2", &record("R", &format!("{:016}", 1), "000001")).await;
    assert_eq!(text(&raw.claim("s2", 1, "").await[0]), "A");
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
        assert_eq!(text(&raw.claim("s", 1, "").await[0]), "V");
        assert_eq!(raw.get("s").await, Value::BulkString(broken));
    }
}

#[tokio::test]
async fn a_key_of_another_type_is_foreign_and_left_alone() {
    let raw = Raw::new().await;
    raw.ask(&[b"HSET", b"wt", b"a", b"b"]).await;
    assert_eq!(text(&raw.claim("wt", 1, "").await[0]), "V");
    assert_eq!(text(&raw.complete("wt").await[0]), "V");
    assert_eq!(raw.ask(&[b"HGET", b"wt", b"a"]).await, Value::BulkString(b"b".to_vec()));
}

#[tokio::test]
async fn a_foreign_string_is_left_alone() {
    let raw = Raw::new().await;
    for foreign in [&[b'x'; 200][..], b"short", b"I2"] {
        raw.set("f", foreign).await;
        assert_eq!(text(&raw.claim("f", 1, "").await[0]), "V");
        assert_eq!(text(&raw.complete("f").await[0]), "V");
        assert_eq!(raw.get("f").await, Value::BulkString(foreign.to_vec()));
    }
}

#[tokio::test]
async fn the_millionth_grant_keeps_the_header_at_90_bytes() {
    let raw = Raw::new().await;
    raw.set("n", &record("R", &format!("{:016}", 1), "999999")).await;
    let granted = raw.claim("n", 1, "").await;
    assert_eq!(text(&granted[0]), "A");
    assert_eq!(granted[5], Value::Int(999_999));
    assert!(matches!(raw.get("n").await, Value::BulkString(record) if record.len() == 90));
    assert_eq!(text(&raw.claim("n", 2, "").await[0]), "I");
}

#[tokio::test]
async fn only_a_trusted_server_grants_and_any_server_answers() {
    let raw = Raw::new().await;
    let first = raw.claim("e1", 1, "*").await;
    assert_eq!(text(&first[0]), "A");
    let identity = text(&first[2]).to_owned();
    assert_eq!(identity.split(':').map(str::len).collect::<Vec<_>>(), [40, 40]);

    assert_eq!(text(&raw.claim("e2", 1, "somebody:else").await[0]), "E");
    assert_eq!(raw.get("e2").await, Value::Nil);
    assert_eq!(text(&raw.claim("e2", 1, &format!("x:y,{identity}")).await[0]), "A");
    assert_eq!(text(&raw.claim("e2", 2, "somebody:else").await[0]), "I");
}

#[tokio::test]
async fn an_identity_is_told_only_to_whoever_asks() {
    let raw = Raw::new().await;
    assert_eq!(text(&raw.claim("id", 1, "").await[2]), "");
    assert_ne!(text(&raw.claim("id", 2, "*").await[2]), "");
}
