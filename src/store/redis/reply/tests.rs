//! Answers of the scripts, and what is none.

use super::*;

const TOKEN: [u8; 16] = [5; 16];

fn claim() -> Claim {
    let key = RecordKey::from_bytes([1; 32]);
    let second = Duration::from_secs(1);
    Claim::new(key, ClaimToken::from_bytes(TOKEN), None, second, second, second)
}

fn column(number: u64) -> Vec<u8> {
    format!("{number:016}").into_bytes()
}

/// An answer of this letter, said at this ms to this token.
fn answer(letter: &str, now_ms: u64, token: &[u8], rest: &[&[u8]]) -> Vec<u8> {
    let head = [letter.as_bytes(), &column(now_ms), token].concat();
    [&head[..], &rest.concat()].concat()
}

/// An answer to a claim, without the server's identity.
fn told(letter: &str, now_ms: u64, rest: &[&[u8]]) -> Vec<u8> {
    answer(letter, now_ms, &TOKEN, &[b"00", &rest.concat()])
}

fn read(answer: &[u8]) -> Result<Answer, StoreError> {
    Reply::read("claim", Value::BulkString(answer.to_vec()))?
        .told(&claim(), 9000)
        .map(|(_, answer)| answer)
}

/// What an answer means to the claim that it is for.
fn claimed(answer: &[u8]) -> Result<Claimed, StoreError> {
    read(answer).map(|answer| match answer {
        Answer::Claimed(claimed) => claimed,
        Answer::Fetch(times) => panic!("to be fetched: {times:?}"),
        Answer::Untrusted => panic!("nobody is distrusted"),
    })
}

/// Stamp, fence and attempt.
fn times(stamp_ms: u64, fence: u64, attempt: u32) -> Vec<u8> {
    [column(stamp_ms), column(fence), format!("{attempt:06}").into_bytes()].concat()
}

fn record(state: &str, times: &[u8], payload: &[u8]) -> Vec<u8> {
    [b"I1", state.as_bytes(), &[9; 16], times, &[0; 32], b"-", payload].concat()
}

#[test]
fn every_answer_that_is_none_is_an_error_that_names_the_script() {
    let granted = told("A", 5000, &[&times(6000, 70, 1), b"-"]);
    assert!(matches!(claimed(&granted), Ok(Claimed::Granted(_))));
    for cut in 0..granted.len() {
        let cut = read(&granted[..cut]).err().expect("cut short");
        assert_eq!(cut.kind(), StoreErrorKind::Garbled);
        assert!(cut.to_string().contains("claim"), "{cut}");
    }
    assert!(read(&[&granted[..], b"-"].concat()).is_err(), "more than was asked for");
    for wrong in 0..granted.len() {
        let mut broken = granted.clone();
        broken[wrong] = b'?';
        assert!(read(&broken).is_err(), "byte {wrong}");
    }
    for letter in ["E", "?", "a"] {
        assert!(read(&told(letter, 5000, &[&times(6000, 70, 1), b"-"])).is_err());
    }
    for other in [Value::Nil, Value::Okay, Value::Int(1), Value::Array(vec![])] {
        assert!(Reply::read("claim", other).is_err());
    }
}

#[test]
fn an_answer_that_is_for_another_claim_or_for_none_is_garbled() {
    let (columns, stored) = (times(7, 7, 1), record("C", &times(7, 7, 1), b"payload"));
    let rest: [(&str, &[&[u8]]); 9] = [
        ("A", &[&columns, b"-"]),
        ("B", &[&columns]),
        ("C", &[&stored]),
        ("I", &[&columns]),
        ("X", &[&columns, b"label"]),
        ("L", &[&[7; 32]]),
        ("M", &[]),
        ("U", &[]),
        ("T", &[]),
    ];
    for (letter, rest) in rest {
        assert!(read(&told(letter, 7, rest)).is_ok(), "{letter}");
        let rest = [b"00", &rest.concat()[..]].concat();
        for token in [&[6; 16][..], &TOKEN[..15], b""] {
            let error = read(&answer(letter, 7, token, &[&rest])).err();
            assert_eq!(error.map(|error| error.kind()), Some(StoreErrorKind::Garbled), "{letter}");
        }
    }
}

#[test]
fn an_answer_that_is_for_another_owner_or_for_none_is_garbled() {
    let token = ClaimToken::from_bytes(TOKEN);
    let written = |answer: Vec<u8>| Reply::read("renew", Value::BulkString(answer))?.written(token);
    for (letter, rest) in [("O", ""), ("Z", ""), ("E", ""), ("F", "I")] {
        let rest = rest.as_bytes();
        assert!(written(answer(letter, 7, &TOKEN, &[rest])).is_ok(), "{letter}");
        for wrong in [answer(letter, 7, &[6; 16], &[rest]), answer(letter, 7, b"", &[rest])] {
            assert_eq!(written(wrong).unwrap_err().kind(), StoreErrorKind::Garbled);
        }
        let more = written(answer(letter, 7, &TOKEN, &[rest, b"more"]));
        assert_eq!(more.unwrap_err().kind(), StoreErrorKind::Garbled);
    }
    assert_eq!(written(answer("V", 7, b"", &[])).unwrap(), Written::Foreign);
}

#[test]
fn an_answer_that_is_for_another_issue_or_for_none_is_garbled() {
    let brought = OneTimeToken::from_bytes(TOKEN);
    let issued = |answer: Vec<u8>| Reply::read("issue", Value::BulkString(answer))?.issued(brought);
    let outstanding = [&[9; 16][..], &column(600), &[3; 32]].concat();
    for (letter, rest) in [("O", &outstanding[..]), ("C", b""), ("I", b""), ("L", b"")] {
        assert!(issued(answer(letter, 7, &TOKEN, &[rest])).is_ok(), "{letter}");
        for wrong in [
            answer(letter, 7, &[6; 16], &[rest]),
            answer(letter, 7, b"", &[rest]),
            answer(letter, 7, &TOKEN, &[rest, b"more"]),
        ] {
            assert_eq!(issued(wrong).unwrap_err().kind(), StoreErrorKind::Garbled, "{letter}");
        }
    }
    let short = answer("O", 7, &TOKEN, &[&outstanding[..63]]);
    assert_eq!(issued(short).unwrap_err().kind(), StoreErrorKind::Garbled);
    // A record without an expiry is none of ours.
    let endless = [&[9; 16][..], b"-000000000000001", &[3; 32]].concat();
    assert!(issued(answer("O", 7, &TOKEN, &[&endless])).is_err());
    assert_eq!(issued(answer("V", 7, b"", &[])).unwrap(), Issued::Foreign);
}

#[test]
fn numbers_are_decimals_alone() {
    assert_eq!(number(&Value::BulkString(b"0042".to_vec())), Some(42));
    assert_eq!(number(&Value::Int(7)), Some(7));
    for wrong in [&b"+1"[..], b"-1", b" 1", b"1e3", b"", b"99999999999999999999"] {
        assert_eq!(number(&Value::BulkString(wrong.to_vec())), None);
    }
    assert_eq!(number(&Value::Int(-1)), None);
}

#[test]
fn an_alias_of_something_that_is_no_key_is_foreign() {
    let alias = |target: &[u8]| claimed(&told("L", 1, &[target]));
    assert!(matches!(alias(&[7; 32]), Ok(Claimed::AliasOf(key)) if key.as_bytes() == &[7; 32]));
    assert!(matches!(alias(&[7; 31]), Ok(Claimed::Foreign)));
}

#[test]
fn a_grant_given_up_as_unknown_has_not_lapsed() {
    let abandoned = |stamp| match claimed(&told("X", 9, &[&times(stamp, 4000, 2), b"label"])) {
        Ok(Claimed::Abandoned(record)) => record,
        other => panic!("{other:?}"),
    };
    assert_eq!(abandoned(0).lapsed, None);
    assert_eq!(abandoned(6).lapsed, Some(Duration::from_millis(3)));
    assert_eq!(abandoned(6).granted, Duration::from_millis(5));
    assert_eq!(&abandoned(6).label[..], b"label");
}

#[test]
fn a_server_whose_clock_is_off_by_ages_breaks_nothing() {
    let last = 9_999_999_999_999_999;
    let claimed = claimed(&told("I", last, &[&times(7, 4000, 1)]));
    assert!(matches!(claimed, Ok(Claimed::InProgress(met)) if met.remaining.is_zero()));
}

#[test]
fn the_age_of_an_answer_counts_by_the_servers_clock_as_it_was_last_heard() {
    let stored = record("C", &times(8000, 4000, 2), b"payload");
    let Ok(Claimed::Completed(completed)) = claimed(&told("C", 0, &[&stored])) else {
        panic!("completed")
    };
    assert_eq!(completed.age, Duration::from_secs(1));
    assert_eq!((completed.attempt, &completed.payload[..]), (2, &b"payload"[..]));
    let Ok(Claimed::Completed(earlier)) = claimed(&told("C", 8500, &[&stored])) else {
        panic!("completed")
    };
    assert_eq!(earlier.age, Duration::from_millis(500));
}

#[test]
fn what_is_fetched_must_be_the_record_that_was_told_of() {
    let columns = times(8000, 4000, 2);
    let Ok(Answer::Fetch(told)) = read(&told("B", 8500, &[&columns])) else { panic!("to fetch") };
    let fetched = |record: &[u8]| Reply::fetched(Value::BulkString(record.to_vec()), &told, 9000);
    let stored = record("C", &columns, b"long payload");
    assert_eq!(fetched(&stored).expect("the same").payload, "long payload");
    assert!(fetched(&record("I", &columns, b"long payload")).is_none());
    assert!(fetched(&record("C", &times(8000, 4001, 2), b"another")).is_none());
    assert!(fetched(&stored[..89]).is_none());
    assert!(fetched(b"").is_none());
    assert!(Reply::fetched(Value::Nil, &told, 9000).is_none());
}
