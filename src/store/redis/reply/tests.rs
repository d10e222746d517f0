//! Answers of the scripts, and what is none.

use super::*;

fn bulk(bytes: &[u8]) -> Value {
    Value::BulkString(bytes.to_vec())
}

const TOKEN: [u8; 16] = [5; 16];

fn claim() -> Claim {
    let key = RecordKey::from_bytes([1; 32]);
    let second = Duration::from_secs(1);
    Claim::new(key, ClaimToken::from_bytes(TOKEN), None, second, second, second)
}

/// What an answer of these fields means to the claim that it is for.
fn claimed(fields: &[Value]) -> Result<Claimed, StoreError> {
    claimed_as(&[fields, &[bulk(&TOKEN)]].concat())
}

fn claimed_as(fields: &[Value]) -> Result<Claimed, StoreError> {
    Reply::read("claim", Value::Array(fields.to_vec()))?.claimed(&claim())
}

#[test]
fn every_answer_that_is_none_is_an_error_that_names_the_script() {
    let fence = [bulk(b"6000"), bulk(b"70"), Value::Int(1)];
    let mut granted = vec![bulk(b"A"), bulk(b"5000"), bulk(b"")];
    granted.extend(fence);
    granted.extend([bulk(b"-"), bulk(&TOKEN)]);
    assert!(matches!(claimed_as(&granted), Ok(Claimed::Granted(_))));
    for broken in 0..granted.len() {
        let cut = claimed_as(&granted[..broken]).unwrap_err();
        assert_eq!(cut.kind(), StoreErrorKind::Garbled);
        assert!(cut.to_string().contains("claim"), "{cut}");
        let mut wrong = granted.clone();
        wrong[broken] = Value::Okay;
        assert!(claimed_as(&wrong).is_err(), "field {broken}");
    }
    for letter in [&b"E"[..], b"?", b"", b"AA"] {
        let mut wrong = granted.clone();
        wrong[0] = bulk(letter);
        assert!(claimed_as(&wrong).is_err());
    }
    assert!(Reply::read("claim", Value::Nil).is_err());
}

#[test]
fn an_answer_that_is_for_another_claim_or_for_none_is_garbled() {
    let (number, none) = (|| bulk(b"7"), || bulk(b""));
    let rest: [(&[u8], Vec<Value>); 8] = [
        (b"A", vec![number(), number(), Value::Int(1), bulk(b"-")]),
        (b"C", vec![number(), number(), Value::Int(1), bulk(b"payload")]),
        (b"I", vec![number(), number(), Value::Int(1)]),
        (b"X", vec![number(), number(), Value::Int(1), bulk(b"label")]),
        (b"L", vec![bulk(&[7; 32])]),
        (b"M", vec![]),
        (b"U", vec![]),
        (b"T", vec![]),
    ];
    for (letter, rest) in rest {
        let whole = [vec![bulk(letter), number(), none()], rest].concat();
        assert!(claimed(&whole).is_ok(), "{whole:?}");
        assert_eq!(claimed_as(&whole).unwrap_err().kind(), StoreErrorKind::Garbled);
        for token in [&[6; 16][..], &TOKEN[..15], b""] {
            let anothers = [&whole[..], &[bulk(token)]].concat();
            assert_eq!(claimed_as(&anothers).unwrap_err().kind(), StoreErrorKind::Garbled);
        }
    }
}

#[test]
fn an_answer_that_is_for_another_owner_or_for_none_is_garbled() {
    let token = ClaimToken::from_bytes(TOKEN);
    let written =
        |fields: &[Value]| Reply::read("renew", Value::Array(fields.to_vec()))?.written(token);
    for rest in [&["O"][..], &["Z"], &["E"], &["F", "I"], &["O", "9"]] {
        let mut fields = vec![bulk(rest[0].as_bytes()), bulk(b"7")];
        fields.extend(rest[1..].iter().map(|field| bulk(field.as_bytes())));
        assert_eq!(written(&fields).unwrap_err().kind(), StoreErrorKind::Garbled);
        fields.push(bulk(&TOKEN));
        assert!(written(&fields).is_ok(), "{fields:?}");
        fields.push(bulk(&[6; 16]));
        assert_eq!(written(&fields).unwrap_err().kind(), StoreErrorKind::Garbled);
    }
    assert_eq!(written(&[bulk(b"V"), bulk(b"7")]).unwrap(), Written::Foreign);
}

#[test]
fn numbers_are_decimals_alone() {
    assert_eq!(number(&bulk(b"0042")), Some(42));
    assert_eq!(number(&Value::Int(7)), Some(7));
    for wrong in [&b"+1"[..], b"-1", b" 1", b"1e3", b"", b"99999999999999999999"] {
        assert_eq!(number(&bulk(wrong)), None);
    }
    assert_eq!(number(&Value::Int(-1)), None);
}

#[test]
fn an_alias_of_something_that_is_no_key_is_foreign() {
    let alias = |target: &[u8]| claimed(&[bulk(b"L"), bulk(b"1"), bulk(b""), bulk(target)]);
    assert!(matches!(alias(&[7; 32]), Ok(Claimed::AliasOf(key)) if key.as_bytes() == &[7; 32]));
    assert!(matches!(alias(&[7; 31]), Ok(Claimed::Foreign)));
}

#[test]
fn a_grant_given_up_as_unknown_has_not_lapsed() {
    let abandoned = |stamp: &[u8]| {
        let fields = [bulk(b"X"), bulk(b"9"), bulk(b""), bulk(stamp), bulk(b"4000")];
        match claimed(&[&fields[..], &[Value::Int(2), bulk(b"label")]].concat()) {
            Ok(Claimed::Abandoned(record)) => record,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(abandoned(b"0").lapsed, None);
    assert_eq!(abandoned(b"6").lapsed, Some(Duration::from_millis(3)));
    assert_eq!(abandoned(b"6").granted, Duration::from_millis(5));
}

#[test]
fn a_server_whose_clock_is_off_by_ages_breaks_nothing() {
    let last = u64::MAX.to_string();
    let fields = [bulk(b"I"), bulk(last.as_bytes()), bulk(b""), bulk(b"7"), bulk(b"4000")];
    let claimed = claimed(&[&fields[..], &[Value::Int(1)]].concat());
    assert!(matches!(claimed, Ok(Claimed::InProgress(met)) if met.remaining.is_zero()));
}
