//! Keys, rules and policies that cannot be, each told with its mend.

use std::panic::{AssertUnwindSafe, catch_unwind};

use http::{Method, StatusCode};
use tower_idempotency::{
    Delivery, IdempotencyLayer, Idempotent, MemoryStore, Policy, Refusal, RefusalKind, Rule, Rules,
    Scope, Verified, execute::RunError, json,
};

use crate::jobs::{Jobs, assert_ran, executed};

#[tokio::test]
async fn a_key_has_1_to_255_bytes_of_any_kind() {
    let jobs = Jobs::new(Policy::job());
    for length in [0, 256] {
        match jobs.charge(&"k".repeat(length)).await {
            Err(RunError::Refused(refusal)) => {
                assert_eq!(refusal.kind(), RefusalKind::IdentityMalformed);
                let told = refusal.detail().starts_with("the key of a job ");
                assert!(told && refusal.detail().contains("255"), "{}", refusal.detail());
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(jobs.runs(), 0);
    assert_ran(&jobs.charge(&"k".repeat(255)).await, executed("run 1"));
    let bytes = jobs.jobs.run([0, 255, 10], None, async |_| Ok::<_, String>(1)).await;
    assert_eq!(bytes.unwrap().into_value(), 1);
}

fn panics(make: impl FnOnce()) -> String {
    let panic = catch_unwind(AssertUnwindSafe(make)).expect_err("it is wrong");
    panic.downcast_ref::<String>().expect("its message is formatted").clone()
}

#[test]
fn a_rule_for_requests_is_none_for_jobs() {
    let new = |rule| panics(|| drop(Idempotent::new(MemoryStore::new(), rule)));
    let said = new(Rule::new("pay", Policy::api(Scope::everyone())));
    assert_eq!(
        said,
        "rule \"pay\": its policy is for requests, and Idempotent runs jobs; make it with Policy::job()"
    );
    let said = new(Rule::new("pay", Policy::job().identity(json("/id"))));
    assert!(said.contains("make it with Policy::job()"), "{said}");
    let said = new(Rule::new("pay", Policy::job()).path("/pay"));
    assert!(said.contains("leave out .path(..)"), "{said}");
    let said = new(Rule::new("pay", Policy::job()).methods([Method::POST]));
    assert!(said.contains(".methods(..)"), "{said}");
    drop(Idempotent::new(MemoryStore::new(), Rule::new("pay", Policy::job())));
}

#[test]
fn a_rule_for_jobs_is_none_for_requests() {
    let rule = || Rule::new("pay", Policy::job()).methods([Method::POST]);
    let said = Rules::new().try_add(rule()).unwrap_err().to_string();
    assert!(said.contains("its policy is a job's") && said.contains("Policy::api"), "{said}");
    let said = panics(|| drop(IdempotencyLayer::new(MemoryStore::new(), rule())));
    assert!(said.contains("its policy is a job's"), "{said}");
    assert!(Rules::new().try_add(Rule::new("pay", Policy::webhook(json("/id")))).is_ok());
}

async fn verify(_: Delivery) -> Result<Verified, Refusal> {
    Ok(Verified::as_sent())
}

#[test]
fn a_choice_about_requests_is_an_error_of_a_jobs_policy() {
    assert!(Policy::job().check().is_ok());
    let job = Policy::job;
    for (choice, policy) in [
        ("optional", job().optional()),
        ("scope", job().scope(Scope::header("X-Tenant"))),
        ("business_key", job().business_key(json("/order"))),
        ("token", job().token(json("/token"), "/tokens")),
        ("compare or ignore", job().compare([json("/amount")])),
        ("compare or ignore", job().ignore([json("/sign")])),
        ("token", job().token(json("/token"), "POST /token")),
        ("verify", job().verify(verify)),
        ("keep, release", job().keep([StatusCode::OK])),
        ("keep_if", job().keep_if(|_| true)),
        ("refuse_with", job().refuse_with(|_: &Refusal| None)),
    ] {
        let said = policy.check().unwrap_err().to_string();
        assert!(said.starts_with(choice) && said.contains("leave it out"), "{said}");
    }
    assert!(job().scope(Scope::everyone()).no_fingerprint().check().is_ok());
}

#[tokio::test]
async fn an_error_says_in_words_what_is_to_be_done() {
    let source = |error: &RunError<std::io::Error>| {
        std::error::Error::source(error).map(ToString::to_string)
    };
    let broken = || std::io::Error::other("declined");
    let second = std::time::Duration::from_secs(1);
    for (error, said, from, after) in [
        (RunError::Released(broken()), "it did not happen: declined", Some("declined"), None),
        (
            RunError::Uncertain(broken()),
            "nobody knows whether it happened: declined",
            Some("declined"),
            None,
        ),
        (
            RunError::Busy { retry_after: second },
            "it is being run elsewhere; ask again in 1 s",
            None,
            Some(second),
        ),
        (RunError::StoreUnavailable { retry_after: second }, "nothing was run", None, Some(second)),
        (RunError::Unknown, "not run until somebody has settled that", None, None),
        (RunError::Mismatch, "another one needs another key", None, None),
        (RunError::ShuttingDown, "this process is about to stop; nothing was run", None, None),
        (RunError::Refused(Refusal::identity_malformed("no key")), "no key", None, None),
    ] {
        assert!(error.to_string().contains(said), "{error}");
        assert_eq!((source(&error).as_deref(), error.retry_after()), (from, after), "{error}");
    }
}
