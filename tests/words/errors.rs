//! An error is read by whoever starts the program: Rust prints its `Debug` where `main` returns it.

use std::{collections::BTreeSet, error::Error, fs, io, path::Path};

use tower_idempotency::{
    Answer, IDENTITY_BYTES_AT_MOST, LedgerError, MemoryStore, Policy, Rule, Rules, StoreError,
    TokenRequest, Tokens, client::Key, json, store::StoreErrorKind,
};

/// What stands behind `Error: ` where `main` returns this.
fn printed(error: impl Error + 'static) -> String {
    let returned: Box<dyn Error> = error.into();
    format!("{returned:?}")
}

fn broken() -> io::Error {
    io::Error::other("the \"wire\" broke")
}

#[tokio::test]
async fn an_error_that_main_returns_is_its_kind_its_message_and_its_cause() {
    let down = StoreError::new(StoreErrorKind::Unreachable, "no Redis at \"shop\"");
    assert_eq!(printed(down), "Unreachable: no Redis at \"shop\"");
    let down = StoreError::new(StoreErrorKind::Full, "it is full").caused_by(broken());
    assert_eq!(printed(down), "Full: it is full: the \"wire\" broke");
    // What the message says already is not said again.
    let down = format!("it is full: {}", broken());
    let down = StoreError::new(StoreErrorKind::Full, down).caused_by(broken());
    assert_eq!(printed(down), "Full: it is full: the \"wire\" broke");

    // Nor is a cause that one before it has named; what is behind that is.
    let deepest = LedgerError::new("the disk is full");
    let named = LedgerError::new("no table: no disk").caused_by(deepest);
    let again = LedgerError::new("no disk").caused_by(named);
    let down = StoreError::new(StoreErrorKind::Full, "it is full").caused_by(again);
    assert_eq!(printed(down), "Full: it is full: no disk: no table: no disk: the disk is full");
    let twice = LedgerError::new("no table").caused_by(LedgerError::new("no table"));
    let down = StoreError::new(StoreErrorKind::Full, "it is full").caused_by(twice);
    assert_eq!(printed(down), "Full: it is full: no table");

    let ledger = LedgerError::new("the table is gone").caused_by(broken());
    assert_eq!(printed(ledger), "the table is gone: the \"wire\" broke");
    let long = "x".repeat(IDENTITY_BYTES_AT_MOST + 1);
    let request = TokenRequest::new("pay").business_key(long);
    let issue = Tokens::new(MemoryStore::new()).issue(request).await.unwrap_err();
    assert_eq!(
        printed(issue),
        "BusinessKey: the business key has 256 bytes; it must have 1 to 255"
    );
}

#[test]
fn an_error_in_what_was_configured_is_its_message_alone() {
    let policy = || Policy::webhook(json("/id"));
    let error = policy().lease(std::time::Duration::ZERO).check().unwrap_err();
    assert_eq!(printed(error.clone()), error.to_string());
    let error = Rules::new().try_add(Rule::new("a", policy()).path("/x y")).unwrap_err();
    assert!(error.to_string().contains("\"/x y\""), "quotes are as they are: {error}");
    assert_eq!(printed(error.clone()), error.to_string());
    let error = Key::new("").unwrap_err();
    assert_eq!(printed(error.clone()), error.to_string());
    let error = Answer::text("no number").value::<u8>().unwrap_err();
    assert_eq!(printed(error), Answer::text("no number").value::<u8>().unwrap_err().to_string());
}

#[test]
fn every_error_type_shows_itself_in_words() {
    let (mut errors, mut in_words) = (BTreeSet::new(), BTreeSet::new());
    for root in ["src", "sqlx/src"] {
        collect(&Path::new(env!("CARGO_MANIFEST_DIR")).join(root), &mut |line| {
            let Some((left, right)) = line.split_once(" for ") else { return };
            let name = right.trim_end_matches([' ', '{', '}']).to_owned();
            if left.starts_with("impl") && left.ends_with("Error") {
                errors.insert(name);
            } else if left.starts_with("impl") && left.ends_with("Debug") {
                in_words.insert(name);
            }
        });
    }
    assert!(errors.len() >= 10, "{errors:?}");
    // To be matched rather than read, and it has its own's words where it is read.
    assert!(errors.remove("RunError<E>"));
    let missing: Vec<_> = errors.difference(&in_words).collect();
    assert!(missing.is_empty(), "{missing:?} derive Debug");
}

fn collect(folder: &Path, line: &mut impl FnMut(&str)) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, line);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            fs::read_to_string(path).unwrap().lines().for_each(&mut *line);
        }
    }
}
