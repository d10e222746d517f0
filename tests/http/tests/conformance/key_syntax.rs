//! Cases 1 to 17: what is a key, and which keys are the same.

use tower_idempotency::{RedisStore, Rule, Rules};
use tower_idempotency_test_support::RedisServer;

use crate::shop::{Shop, api, assert_ran, assert_refused, assert_replayed, pay, request, text};

/// The draft's own example.
const UUID: &str = "8e03978e-40d5-43e8-bc93-6894a57f9324";

fn quoted(key: &str) -> String {
    format!("\"{key}\"")
}

/// Refused with 400 by the lenient policy and by the strict one, and, since it is there, by one that
/// lets a request without key pass; nothing runs and nothing is stored.
async fn assert_malformed(lines: &[&[u8]]) -> String {
    let mut detail = String::new();
    for policy in [api().strict(), api().optional(), api()] {
        let shop = Shop::open(policy).await;
        let shown: Vec<_> = lines.iter().map(|line| line.escape_ascii().to_string()).collect();
        let answer = shop.pay_raw(lines).await;
        assert_eq!(answer.status(), 400, "{shown:?}: {}", text(&answer));
        detail = assert_refused(&answer, 400, "identity-malformed");
        assert_eq!(shop.runs.count(), 0, "{shown:?}");
        assert!(shop.store.is_empty(), "{shown:?}");
    }
    detail
}

#[tokio::test]
async fn case_01_the_key_is_what_stands_between_the_quotes() {
    for policy in [api(), api().strict()] {
        let shop = Shop::open(policy).await;
        let expected = format!("run 1 of {UUID}");
        assert_ran(&shop.pay(&quoted(UUID), "10").await, &expected);
        assert_replayed(&shop.pay(&quoted(UUID), "10").await, &expected);
        assert_eq!(shop.runs.count(), 1);

        let other = UUID.replace('4', "5");
        assert_ran(&shop.pay(&quoted(&other), "10").await, &format!("run 2 of {other}"));
    }
}

/// The lenient policy takes a key without quotes, the strict one refuses it: both whatever its first
/// character is.
async fn assert_unquoted(key: &str) {
    let shop = Shop::open(api()).await;
    let expected = format!("run 1 of {key}");
    assert_ran(&shop.pay(key, "10").await, &expected);
    assert_replayed(&shop.pay(key, "10").await, &expected);

    let strict = Shop::open(api().strict()).await;
    let detail = assert_refused(&strict.pay(key, "10").await, 400, "identity-malformed");
    assert!(detail.contains("no quotes"), "{detail}");
    assert_eq!((strict.runs.count(), strict.store.len()), (0, 0));
    assert_ran(&strict.pay(&quoted(key), "10").await, &expected);
}

#[tokio::test]
async fn case_02_an_unquoted_uuid_is_a_key_unless_the_policy_is_strict() {
    assert_unquoted(UUID).await;
}

#[tokio::test]
async fn case_03_an_unquoted_token_fares_like_an_unquoted_uuid() {
    assert_unquoted("KG5LxwFBepaKHyUD").await;
}

#[tokio::test]
async fn case_04_an_unquoted_number_fares_like_an_unquoted_uuid() {
    assert_unquoted("123456").await;
}

#[tokio::test]
async fn case_05_a_key_with_quotes_and_without_is_one_key() {
    for [first, second] in [["\"abc-1\"", "abc-1"], ["abc-1", "\"abc-1\""]] {
        let shop = Shop::open(api()).await;
        assert_ran(&shop.pay(first, "10").await, "run 1 of abc-1");
        assert_replayed(&shop.pay(second, "10").await, "run 1 of abc-1");
        assert_ran(&shop.pay("abc-2", "10").await, "run 2 of abc-2");
    }
}

#[tokio::test]
async fn case_06_parameters_are_no_part_of_the_key() {
    for policy in [api(), api().strict()] {
        let shop = Shop::open(policy).await;
        assert_ran(&shop.pay("\"abc\";v=1", "10").await, "run 1 of abc");
        assert_replayed(&shop.pay("\"abc\"", "10").await, "run 1 of abc");
        assert_replayed(&shop.pay("\"abc\";v=2;w", "10").await, "run 1 of abc");
        // Inside the quotes it is.
        assert_ran(&shop.pay("\"abc;v=1\"", "10").await, "run 2 of abc;v=1");
    }
}

#[tokio::test]
async fn case_07_two_lines_are_refused_even_if_they_are_alike() {
    for lines in [["\"a\"", "\"b\""], ["\"a\"", "\"a\""], ["a", "a"], ["\"a\"", ""]] {
        let detail = assert_malformed(&lines.map(str::as_bytes)).await;
        assert!(detail.contains("2 lines"), "{detail}");
    }
}

#[tokio::test]
async fn case_08_a_string_over_two_lines_is_refused() {
    assert_malformed(&[b"\"foo", b"bar\""]).await;
}

#[tokio::test]
async fn case_09_a_list_on_one_line_is_refused() {
    assert_malformed(&[b"\"a\", \"b\""]).await;
    assert_malformed(&[b"a, b"]).await;
    assert_malformed(&[b"a,b"]).await;
    // The comma alone does not make a list.
    let shop = Shop::open(api()).await;
    assert_ran(&shop.pay("\"a, b\"", "10").await, "run 1 of a, b");
}

#[tokio::test]
async fn case_10_an_empty_value_is_refused_and_never_passed() {
    let detail = assert_malformed(&[b""]).await;
    assert!(detail.contains("is empty"), "{detail}");
    assert_malformed(&[b"   "]).await;
}

#[tokio::test]
async fn case_11_an_empty_string_is_refused() {
    assert_malformed(&[b"\"\""]).await;
    assert_malformed(&[b"\"\";v=1"]).await;
    // A space is a character.
    let shop = Shop::open(api()).await;
    assert_ran(&shop.pay("\" \"", "10").await, "run 1 of  ");
}

#[tokio::test]
async fn case_12_escapes_are_undone() {
    let shop = Shop::open(api().strict()).await;
    assert_ran(&shop.pay(r#""a\"b\\c""#, "10").await, r#"run 1 of a"b\c"#);
    assert_replayed(&shop.pay(r#""a\"b\\c""#, "10").await, r#"run 1 of a"b\c"#);
    assert_ran(&shop.pay(r#""a\"bc""#, "10").await, r#"run 2 of a"bc"#);
}

#[tokio::test]
async fn case_13_what_is_no_string_is_refused() {
    for value in [r#""a\b""#, r#""foo"#, r#""foo\""#, "'foo'", r#""foo"bar"#, r#"foo"bar""#] {
        assert_malformed(&[value.as_bytes()]).await;
    }
}

#[tokio::test]
async fn case_14_bytes_that_are_no_ascii_are_refused_and_break_nothing() {
    let values: [&[u8]; 6] =
        [b"\"f\xfc\"", b"f\xfc", "\"f\u{fc}\"".as_bytes(), b"\xff", b"\"a\tb\"", b"a\tb"];
    for value in values {
        assert_malformed(&[value]).await;
    }
}

#[tokio::test]
async fn case_14_control_characters_never_get_as_far_as_a_key() {
    let shop = Shop::open(api()).await;
    for value in [&b"\"a\x01b\""[..], b"\"a\x7fb\"", b"\"a\0b\""] {
        // The server refuses them before any layer sees the request.
        assert_eq!(shop.pay_raw(&[value]).await.status(), 400, "{}", value.escape_ascii());
    }
    assert_eq!((shop.runs.count(), shop.store.len()), (0, 0));
    assert_ran(&shop.pay("\"ab\"", "10").await, "run 1 of ab");
}

#[tokio::test]
async fn case_15_a_key_has_255_bytes_at_most_and_the_refusal_says_so() {
    let longest = "k".repeat(255);
    let shop = Shop::open(api()).await;
    assert_ran(&shop.pay(&quoted(&longest), "10").await, &format!("run 1 of {longest}"));
    assert_replayed(&shop.pay(&longest, "10").await, &format!("run 1 of {longest}"));
    // Two characters, one byte.
    let escaped = quoted(&"\\\\".repeat(255));
    assert_eq!(shop.pay(&escaped, "10").await.status(), 201);

    for length in [256, 1024, 2000] {
        let detail = assert_malformed(&[quoted(&"k".repeat(length)).as_bytes()]).await;
        assert!(detail.contains(&format!("{length} bytes; it must have 1 to 255")), "{detail}");
        assert_malformed(&["k".repeat(length).as_bytes()]).await;
    }
}

#[tokio::test]
async fn case_16_case_and_spaces_within_the_quotes_tell_keys_apart() {
    let shop = Shop::open(api()).await;
    for (run, key) in ["abc", "Abc", " abc", "abc ", "a bc"].into_iter().enumerate() {
        let expected = format!("run {} of {key}", run + 1);
        assert_ran(&shop.pay(&quoted(key), "10").await, &expected);
        assert_replayed(&shop.pay(&quoted(key), "10").await, &expected);
    }
    // Spaces around the value are no part of it.
    assert_replayed(&shop.pay_raw(&[b"   \"abc\"  "]).await, "run 1 of abc");
}

#[tokio::test]
async fn case_17_no_key_can_reach_into_the_store_or_into_another_rule() {
    let redis = RedisServer::start().await;
    let store = RedisStore::connect(&redis.url()).await.unwrap();
    let rules =
        Rules::new().add(Rule::new("a", api()).path("/a")).add(Rule::new("a:b", api()).path("/ab"));
    let shop = Shop::over(store, rules).await;
    let keys = [
        "b:c",
        "*",
        "?[a-z]",
        "{a}",
        "a}{",
        ":",
        "idempotency:a",
        "../../a",
        "\\r\\nDEL a",
        "%0d%0aFLUSHALL",
        "' OR 1=1",
        "${x}",
    ];
    for (run, key) in keys.into_iter().enumerate() {
        let sent = quoted(&key.replace('\\', "\\\\"));
        let sent = || request(http::Method::POST, "/a", &sent, "10");
        let expected = format!("run {} of {key}", run + 1);
        assert_ran(&shop.server.send(sent()).await, &expected);
        assert_replayed(&shop.server.send(sent()).await, &expected);
    }
    // `a` with the key `b:c` is not `a:b` with the key `c`.
    let other = request(http::Method::POST, "/ab", "\"c\"", "10");
    let expected = format!("run {} of c", keys.len() + 1);
    assert_ran(&shop.server.send(other).await, &expected);

    let names = redis.names().await;
    assert_eq!(names.len(), keys.len() + 1);
    for name in names {
        let hash = name.strip_prefix("idempotency:").expect("the prefix");
        assert_eq!(hash.len(), 43);
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        assert!(hash.bytes().all(plain), "{hash}");
    }
    // A request that a rule does not know passes, and its key with it.
    assert_eq!(shop.server.send(pay("\"*\"", "10")).await.status(), 201);
    assert_eq!(shop.records().await.len(), keys.len() + 1);
}
