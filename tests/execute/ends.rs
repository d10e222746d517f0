//! What the end of work means for its key, and what is given to whoever comes later.

use std::{collections::BTreeMap, io, pin::Pin};

use serde::{Deserialize, Serialize};
use tower_idempotency::{
    Operation, Policy, Previous,
    execute::{Done, End, RunError},
    store::StoreErrorKind,
    test_util::{Fault, Transition},
};
use tower_idempotency_test_support::Log;

use crate::jobs::{Jobs, Ran, SECOND, assert_ran, executed, replayed};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Receipt {
    order: String,
    amount: u64,
    lines: Vec<(String, Option<u32>)>,
}

fn receipt() -> Receipt {
    let lines = vec![("pizza".to_owned(), Some(2)), ("\u{1F355}".to_owned(), None)];
    Receipt { order: "O-7".to_owned(), amount: u64::MAX, lines }
}

type Working = Pin<Box<dyn Future<Output = Result<String, io::Error>> + Send>>;

fn error() -> io::Error {
    io::Error::other("declined")
}

#[tokio::test]
async fn a_value_comes_back_whole_however_often_it_is_asked_for() {
    let jobs = Jobs::new(Policy::job());
    for come in 0..3 {
        let ran: Ran<Receipt> = jobs.jobs.run("O-7", None, async |_| Ok(receipt())).await;
        let expected =
            if come == 0 { Done::Executed(receipt()) } else { Done::Replayed(receipt()) };
        assert_eq!(ran.unwrap(), expected);
    }
}

#[tokio::test]
async fn another_key_is_another_job() {
    let jobs = Jobs::new(Policy::job());
    assert_ran(&jobs.charge("one").await, executed("run 1"));
    assert_ran(&jobs.charge("other").await, executed("run 2"));
    assert_ran(&jobs.charge("one").await, replayed("run 1"));
}

#[tokio::test]
async fn an_error_is_uncertain_and_is_not_run_again() {
    let jobs = Jobs::new(Policy::job());
    let ran: Ran<String, _> = jobs.jobs.run("k", None, async |_| Err(error())).await;
    assert!(matches!(ran, Err(RunError::Uncertain(error)) if error.to_string() == "declined"));
    for _ in 0..2 {
        let again = jobs.charge("k").await;
        assert!(matches!(again, Err(RunError::Unknown)), "{again:?}");
    }
    assert_eq!(jobs.runs(), 0);
}

#[tokio::test]
async fn what_did_not_happen_is_run_again_and_knows_it() {
    let jobs = Jobs::new(Policy::job());
    let released = async |_| End::<String, _>::Release(error());
    let ran = jobs.jobs.run("k", None, released).await;
    assert!(matches!(ran, Err(RunError::Released(error)) if error.to_string() == "declined"));
    let second = async |operation: Operation| {
        Ok::<_, io::Error>((operation.attempt(), operation.previous() == Previous::Released))
    };
    let ran = jobs.jobs.run("k", None, second).await.unwrap();
    assert_eq!(ran, Done::Executed((2, true)));
}

#[tokio::test]
async fn a_failure_that_is_final_is_a_value() {
    let jobs = Jobs::new(Policy::job());
    let counted = jobs.counter();
    let mut ended = Vec::new();
    for _ in 0..2 {
        let counted = counted.clone();
        let work = async move |_| {
            counted();
            Ok::<Result<String, String>, io::Error>(Err("no funds".to_owned()))
        };
        ended.push(jobs.jobs.run("k", None, work).await.unwrap());
    }
    let failed = || Err("no funds".to_owned());
    assert_eq!(ended, [Done::Executed(failed()), Done::Replayed(failed())]);
    assert_eq!(jobs.runs(), 1);
}

#[tokio::test]
async fn work_may_say_that_nobody_knows_although_it_has_a_value() {
    let jobs = Jobs::new(Policy::job());
    let work = async |operation: Operation| {
        operation.mark_uncertain();
        Ok("perhaps".to_owned())
    };
    assert_ran(&jobs.jobs.run("k", None, work).await, executed("perhaps"));
    let again = jobs.charge("k").await;
    assert!(matches!(again, Err(RunError::Unknown)), "{again:?}");
}

#[tokio::test]
async fn a_panic_goes_on_and_leaves_the_outcome_unknown() {
    let jobs = Jobs::new(Policy::job());
    for key in ["closure", "future"] {
        let work = move |_| -> Working {
            assert!(key == "future", "the closure panics");
            Box::pin(async { panic!("the future panics") })
        };
        let run = tokio::spawn(jobs.jobs.run(key, None, work));
        let panic = run.await.unwrap_err().into_panic();
        assert_eq!(*panic.downcast_ref::<&str>().unwrap(), format!("the {key} panics"));
        let again = jobs.charge(key).await;
        assert!(matches!(again, Err(RunError::Unknown)), "{again:?}");
    }
    assert_eq!(jobs.runs(), 0);
}

#[tokio::test]
async fn what_must_be_the_same_is_compared_and_what_need_not_is_not() {
    let jobs = Jobs::new(Policy::job());
    let run = async |key: &'static str, same: Option<&'static [u8]>| -> Ran<u32> {
        jobs.jobs.run(key, same, async |_| Ok(1)).await
    };
    assert!(matches!(run("k", Some(b"960")).await, Ok(Done::Executed(1))));
    assert!(matches!(run("k", Some(b"960")).await, Ok(Done::Replayed(1))));
    assert!(matches!(run("k", Some(b"961")).await, Err(RunError::Mismatch)));
    assert!(matches!(run("k", Some(b"")).await, Err(RunError::Mismatch)));
    assert!(matches!(run("free", None).await, Ok(Done::Executed(1))));
    assert!(matches!(run("free", Some(b"961")).await, Ok(Done::Replayed(1))));
}

#[tokio::test]
async fn a_mismatch_is_told_to_the_policys_hook() {
    let (send, told) = std::sync::mpsc::channel();
    let policy = Policy::job().on_mismatch(move |mismatch| {
        let _ = send.send((mismatch.rule.clone(), mismatch.key.clone()));
    });
    let jobs = Jobs::new(policy);
    for same in [b"1", b"1", b"2"] {
        let _: Ran<u32> = jobs.jobs.run("k", Some(same), async |_| Ok(1)).await;
    }
    let told: Vec<_> = told.try_iter().collect();
    assert_eq!(told, [("charge".to_owned(), "k".to_owned())]);
}

#[tokio::test]
async fn a_value_that_is_too_large_is_given_once_and_never_run_again() {
    let jobs = Jobs::new(Policy::job().answer_limit(9));
    let counted = jobs.counter();
    let run = async |length: usize| -> Ran {
        let counted = counted.clone();
        let work = async move |_| {
            counted();
            Ok("x".repeat(length))
        };
        jobs.jobs.run(format!("{length}"), None, work).await
    };
    // With its quotes as JSON: 9 bytes and 10.
    assert_ran(&run(7).await, executed("xxxxxxx"));
    assert_ran(&run(7).await, replayed("xxxxxxx"));
    assert_ran(&run(8).await, executed("xxxxxxxx"));
    match run(8).await {
        Err(RunError::DoneWithoutValue(error)) => assert!(error.is_not_kept()),
        other => panic!("{other:?}"),
    }
    assert_eq!(jobs.runs(), 2);
}

#[tokio::test]
async fn a_value_that_cannot_be_stored_is_told_and_never_run_again() {
    let (log, _guard) = Log::listen();
    let jobs = Jobs::new(Policy::job());
    let counted = jobs.counter();
    let run = async || -> Ran<BTreeMap<(u8, u8), usize>> {
        let counted = counted.clone();
        // JSON has no such keys.
        jobs.jobs.run("k", None, async move |_| Ok(BTreeMap::from([((1, 2), counted())]))).await
    };
    assert_eq!(run().await.unwrap(), Done::Executed(BTreeMap::from([((1, 2), 1)])));
    assert_eq!(log.of("value not stored").len(), 1);
    match run().await {
        Err(RunError::DoneWithoutValue(error)) => assert!(error.is_not_kept()),
        other => panic!("{other:?}"),
    }
    assert_eq!((jobs.runs(), log.of("value not stored").len()), (1, 1));
}

#[tokio::test]
async fn a_value_of_another_type_than_was_stored_is_done_all_the_same() {
    let jobs = Jobs::new(Policy::job());
    assert_ran(&jobs.charge("k").await, executed("run 1"));
    let ran: Ran<u32> = jobs.jobs.run("k", None, async |_| Ok(1)).await;
    match ran {
        Err(RunError::DoneWithoutValue(error)) => {
            assert!(!error.is_not_kept());
            assert!(error.to_string().starts_with("the answer is no such value: "), "{error}");
        }
        other => panic!("{other:?}"),
    }
    assert_ran(&jobs.charge("k").await, replayed("run 1"));
}

#[tokio::test(start_paused = true)]
async fn a_value_that_the_store_does_not_take_is_given_and_stored_later() {
    let jobs = Jobs::new(Policy::job());
    jobs.faults.always(Transition::Complete, Fault::Fail(StoreErrorKind::Unreachable));
    assert_ran(&jobs.charge("k").await, executed("run 1"));
    let busy = jobs.charge("k").await;
    assert!(matches!(busy, Err(RunError::Busy { .. })), "{busy:?}");
    jobs.faults.heal();
    tokio::time::sleep(10 * SECOND).await;
    assert_ran(&jobs.charge("k").await, replayed("run 1"));
}

#[tokio::test(start_paused = true)]
async fn a_store_that_cannot_be_asked_runs_nothing() {
    let jobs = Jobs::new(Policy::job());
    jobs.faults.down(StoreErrorKind::Unreachable);
    let ran = jobs.charge("k").await;
    let Err(error @ RunError::StoreUnavailable { .. }) = ran else { panic!("{ran:?}") };
    assert_eq!(error.retry_after(), Some(SECOND));
    assert_eq!(jobs.runs(), 0);
    jobs.faults.heal();
    assert_ran(&jobs.charge("k").await, executed("run 1"));

    let unprotected = jobs.elsewhere(Policy::job().run_unprotected());
    unprotected.faults.down(StoreErrorKind::Unreachable);
    assert_ran(&unprotected.charge("other").await, executed("run 2"));
}

#[tokio::test(start_paused = true)]
async fn what_is_done_is_known_for_as_long_as_it_is_retained() {
    let jobs = Jobs::new(Policy::job().retention(60 * SECOND));
    assert_ran(&jobs.charge("k").await, executed("run 1"));
    tokio::time::sleep(59 * SECOND).await;
    assert_ran(&jobs.charge("k").await, replayed("run 1"));
    tokio::time::sleep(2 * SECOND).await;
    assert_ran(&jobs.charge("k").await, executed("run 2"));
}
