//! The `Idempotency-Key` field, and others like it.

use http::{HeaderMap, HeaderName, HeaderValue};
use tower_idempotency::{Source, header};

use crate::{Read, found, lines, read};

const UUID: &str = "8e03978e-40d5-43e8-bc93-6894a57f9324";

fn lenient(value: impl AsRef<[u8]>) -> Read {
    read(&header("Idempotency-Key"), lines(&[value.as_ref()]), "")
}

fn strict(value: impl AsRef<[u8]>) -> Read {
    read(&header("Idempotency-Key").strict(), lines(&[value.as_ref()]), "")
}

/// Both refuse it, and the message names the field, says what is wrong, and shows a right one.
#[track_caller]
fn refused_saying(value: impl AsRef<[u8]>, wrong: &str) {
    for read in [lenient(&value), strict(&value)] {
        let detail = read.expect_err("not refused");
        assert!(detail.contains(wrong), "{detail}");
        let right = format!("send one like Idempotency-Key: \"{UUID}\"");
        assert!(detail.ends_with(&right), "{detail}");
    }
}

#[test]
fn case_01_a_string_is_the_key_without_its_quotes() {
    let value = format!("\"{UUID}\"");
    assert_eq!(lenient(&value), found(UUID));
    assert_eq!(strict(&value), found(UUID));
    assert_eq!(UUID.len(), 36);
}

#[test]
fn case_02_to_04_leniency_does_not_depend_on_the_first_character() {
    let firsts = (0x21..=0x7e).map(char::from).filter(|c| !"\",;'".contains(*c));
    let keys = firsts.map(|first| format!("{first}abc-1"));
    for key in keys.chain([UUID.into(), "KG5LxwFBepaKHyUD".into(), "123456".into()]) {
        assert_eq!(lenient(&key), found(key.as_str()));
        let refused = strict(&key).expect_err("a key without quotes is not strict");
        assert!(refused.contains("has no quotes around it"), "{refused}");
        assert!(refused.contains(&key), "{refused}");
    }
}

#[test]
fn case_05_with_quotes_and_without_it_is_one_key() {
    assert_eq!(lenient("\"abc-1\""), lenient("abc-1"));
    assert_eq!(lenient("abc-1"), found("abc-1"));
    assert_ne!(lenient("abc-1"), lenient("abc-2"));
}

#[test]
fn case_06_parameters_are_no_part_of_the_key() {
    for value in ["\"abc\";v=1", "\"abc\"; v=1;w", "\"abc\";v=\"x\"", "\"abc\"", " \"abc\" "] {
        assert_eq!(lenient(value), found("abc"), "{value}");
        assert_eq!(strict(value), found("abc"), "{value}");
    }
    refused_saying("\"abc\";V=1", "no structured-field string");
    refused_saying("\"abc\" ;v=1", "no structured-field string");
}

#[test]
fn an_unquoted_key_has_no_parameters() {
    let refused = lenient("abc;v=1").unwrap_err();
    assert!(refused.contains("has `;` in it, and no quotes around it"), "{refused}");
}

#[test]
fn case_07_and_08_a_key_on_several_lines_is_refused_even_if_they_are_alike() {
    let several: [&[&[u8]]; 5] = [
        &[b"\"a\"", b"\"b\""],
        &[b"\"a\"", b"\"a\""],
        &[b"a", b"a"],
        &[b"\"foo", b"bar\""],
        &[b"\"a\"", b""],
    ];
    for several in several {
        for key in [header("Idempotency-Key"), header("Idempotency-Key").strict()] {
            let refused = read(&key, lines(several), "").expect_err("several lines");
            assert!(refused.starts_with("the header Idempotency-Key is on 2 lines"), "{refused}");
        }
    }
    assert_eq!(read(&header("Idempotency-Key"), lines(&[b"\"a\""]), ""), found("a"));
}

#[test]
fn case_09_several_keys_on_one_line_are_refused() {
    refused_saying("\"a\", \"b\"", "trailing characters after parsed value at byte 3, `,`");
    refused_saying("\"a\",\"a\"", "no structured-field string");
    assert!(lenient("a,b").unwrap_err().contains("has `,` in it"));
    assert!(lenient("a b").unwrap_err().contains("has a space in it"));
}

#[test]
fn case_10_an_empty_field_is_malformed_and_not_absent() {
    refused_saying("", "the value of the header Idempotency-Key is empty");
    refused_saying("   ", "the value of the header Idempotency-Key is empty");
    assert_eq!(read(&header("Idempotency-Key"), HeaderMap::new(), ""), Ok(None));
}

#[test]
fn case_11_an_empty_string_is_no_key() {
    refused_saying("\"\"", "has nothing between its quotes");
    refused_saying("\"\";v=1", "has nothing between its quotes");
    assert_eq!(lenient("\" \""), found(" "));
}

#[test]
fn case_12_escapes_are_undone() {
    assert_eq!(lenient(r#""a\"b\\c""#), found(r#"a"b\c"#));
    assert_eq!(strict(r#""\\""#), found("\\"));
}

#[test]
fn case_13_what_is_not_quite_a_string_is_refused() {
    refused_saying(r#""a\b""#, "invalid escape sequence at byte 3, `b`");
    refused_saying(r#""foo"#, "unterminated string");
    refused_saying(r#""foo\""#, "unterminated string");
    refused_saying(r#"""#, "unterminated string");
    refused_saying(r#""foo"bar"#, "trailing characters");
    assert!(lenient("'foo'").unwrap_err().contains("has single quotes"));
    assert!(strict("'foo'").is_err());
    assert!(lenient("foo\"").unwrap_err().contains("has `\"` in it"));
}

#[test]
fn case_14_bytes_that_are_not_printable_ascii_are_refused() {
    let bad = (0x80..=0xff).chain([b'\t']);
    for byte in bad {
        let shown = byte.escape_ascii().to_string();
        refused_saying([b'"', b'f', byte, b'"'], &format!("at byte 2, `{shown}`"));
        let refused = lenient([b'f', byte, b'o']).expect_err("not ASCII");
        assert!(refused.contains(&format!("has `{shown}` in it")), "{refused}");
        assert!(strict([byte]).is_err());
    }
    assert!(lenient("\tabc").is_err(), "only spaces are trimmed");
    assert_eq!(lenient(b"\"f~\""), found("f~"));
}

#[test]
fn case_15_the_parser_copes_with_long_strings() {
    for length in [1024, 60_000] {
        let key = "k".repeat(length);
        assert_eq!(lenient(format!("\"{key}\"")), found(key.as_str()));
        assert_eq!(lenient(&key), found(key.as_str()));
    }
    let refused = lenient(format!("\"{}", "k".repeat(60_000))).unwrap_err();
    assert!(refused.contains(&format!("`\"{}...`", "k".repeat(39))), "{refused}");
}

#[test]
fn case_16_case_and_spaces_within_quotes_count() {
    assert_eq!(lenient("\"Abc\""), found("Abc"));
    assert_eq!(lenient("\"abc\""), found("abc"));
    assert_eq!(lenient("\" abc\""), found(" abc"));
    assert_eq!(lenient("\"abc \""), found("abc "));
    assert_eq!(lenient(" abc "), found("abc"));
}

#[test]
fn case_17_characters_that_mean_something_to_a_store_are_kept_as_they_are() {
    for key in ["a:b", "*", "{a}:b", "a\\r\\nb", "[a-z]?", "../a%0d%0a", "idempotency:x"] {
        assert_eq!(lenient(key), found(key));
    }
    assert_eq!(strict("\"a:b*{c}[d]?\""), found("a:b*{c}[d]?"));
}

#[test]
fn what_reads_the_field_says_so() {
    let key = header(HeaderName::from_static("x-github-delivery"));
    assert_eq!(key.describe(), "header X-Github-Delivery");
    assert!(!key.reads_body());
    let mut headers = HeaderMap::new();
    headers.insert("X-GitHub-Delivery", HeaderValue::from_static("72d3162e-cc78-11e3"));
    assert_eq!(read(&key, headers, ""), found("72d3162e-cc78-11e3"));
}

#[test]
#[should_panic(expected = "give the name of a header field")]
fn a_name_that_is_none_is_refused_where_the_policy_is_built() {
    let _ = header("Idempotency Key");
}
