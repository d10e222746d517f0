//! Several that come at once, callers that leave, leases, and a process that stops.

use std::{convert::Infallible, time::Duration};

use tokio::{task::yield_now, time::sleep};
use tower_idempotency::{
    Idempotent, MemoryStore, Operation, Policy, Rule,
    execute::{Done, End, RunError},
    store::StoreErrorKind,
    test_util::{Fault, Gate, Transition},
};

use crate::jobs::{Door, Jobs, Ran, SECOND, assert_ran, executed, replayed};

/// Work that waits at the door, in a task.
fn held(jobs: &Jobs, door: &Door) -> tokio::task::JoinHandle<Ran> {
    let (door, counted) = (door.clone(), jobs.counter());
    tokio::spawn(jobs.jobs.run("k", None, async move |_| {
        let nth = counted();
        door.pass().await;
        Ok(format!("held {nth}"))
    }))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_a_hundred_at_once_in_two_processes_one_is_run() {
    let policy = || Policy::job().wait(30 * SECOND);
    let jobs = Jobs::new(policy());
    let both = [jobs.clone(), jobs.elsewhere(policy())];
    let all: Vec<_> = (0..100)
        .map(|n| {
            let jobs = both[n % 2].clone();
            tokio::spawn(async move { jobs.charge("k").await })
        })
        .collect();
    let mut executed = 0;
    for one in all {
        let done = one.await.unwrap().unwrap();
        executed += usize::from(!done.is_replayed());
        assert_eq!(done.into_value(), "run 1");
    }
    assert_eq!((executed, jobs.runs()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn who_comes_meanwhile_hears_when_to_come_again() {
    let (jobs, door) = (Jobs::new(Policy::job()), Door::new());
    let first = held(&jobs, &door);
    door.came().await;
    for (passed, after) in [(0, 1), (9, 9), (11, 20)] {
        sleep(passed * SECOND).await;
        let busy = jobs.elsewhere(Policy::job()).charge("k").await;
        let Err(RunError::Busy { retry_after }) = busy else { panic!("{busy:?}") };
        assert_eq!(retry_after, after * SECOND);
    }
    door.let_one_in();
    assert_ran(&first.await.unwrap(), executed("held 1"));
    assert_ran(&jobs.charge("k").await, replayed("held 1"));
}

#[tokio::test(start_paused = true)]
async fn who_waits_gets_the_value_of_the_other() {
    let (jobs, door) = (Jobs::new(Policy::job().wait(60 * SECOND)), Door::new());
    let first = held(&jobs, &door);
    door.came().await;
    let second = tokio::spawn({
        let jobs = jobs.clone();
        async move { jobs.charge("k").await }
    });
    sleep(20 * SECOND).await;
    assert!(!second.is_finished());
    door.let_one_in();
    assert_ran(&first.await.unwrap(), executed("held 1"));
    assert_ran(&second.await.unwrap(), replayed("held 1"));
}

#[tokio::test]
async fn work_goes_on_when_its_caller_leaves() {
    let (jobs, door) = (Jobs::new(Policy::job()), Door::new());
    let first = held(&jobs, &door);
    door.came().await;
    first.abort();
    assert!(first.await.unwrap_err().is_cancelled());
    let busy = jobs.charge("k").await;
    assert!(matches!(busy, Err(RunError::Busy { .. })), "{busy:?}");
    door.let_one_in();
    let left = jobs.jobs.drain(30 * SECOND).await;
    assert!(left.is_clean(), "{left:?}");
    assert_ran(&jobs.elsewhere(Policy::job()).charge("k").await, replayed("held 1"));
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_leaves_before_the_grant_leaves_the_key_free() {
    let jobs = Jobs::new(Policy::job());
    let gate = Gate::new();
    jobs.faults.next(Transition::Claim, Fault::HoldAnswer(gate.clone()));
    let first = tokio::spawn({
        let jobs = jobs.clone();
        async move { jobs.charge("k").await }
    });
    sleep(Duration::from_millis(100)).await;
    first.abort();
    assert!(first.await.unwrap_err().is_cancelled());
    gate.open();
    sleep(SECOND).await;
    assert_eq!(jobs.runs(), 0);
    assert_ran(&jobs.charge("k").await, executed("run 1"));
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_not_awaited_claims_nothing() {
    let jobs = Jobs::new(Policy::job());
    drop(jobs.jobs.run("k", None, async |_| Ok::<_, Infallible>(1)));
    yield_now().await;
    assert_eq!(jobs.faults.calls(Transition::Claim), 0);
    assert_ran(&jobs.charge("k").await, executed("run 1"));
}

#[tokio::test(start_paused = true)]
async fn the_lease_is_renewed_for_as_long_as_work_lasts() {
    let policy = Policy::job().lease(3 * SECOND).max_run(1000 * SECOND);
    let (jobs, door) = (Jobs::new(policy.clone()), Door::new());
    let first = held(&jobs, &door);
    door.came().await;
    for _ in 0..10 {
        sleep(30 * SECOND).await;
        let busy = jobs.elsewhere(policy.clone()).charge("k").await;
        assert!(matches!(busy, Err(RunError::Busy { .. })), "{busy:?}");
    }
    assert!(jobs.faults.calls(Transition::Renew) >= 200);
    door.let_one_in();
    assert_ran(&first.await.unwrap(), executed("held 1"));
}

#[tokio::test(start_paused = true)]
async fn work_hears_that_its_lease_is_lost_and_another_does_not_run_beside_it() {
    let policy = Policy::job().lease(3 * SECOND);
    let jobs = Jobs::new(policy.clone());
    jobs.faults.always(Transition::Renew, Fault::Fail(StoreErrorKind::Unreachable));
    let work = async |operation: Operation| {
        operation.lease_lost().await;
        End::<String, _>::Uncertain("the lease is lost")
    };
    let ran = jobs.jobs.run("k", None, work).await;
    assert!(matches!(ran, Err(RunError::Uncertain("the lease is lost"))), "{ran:?}");
    let other = jobs.elsewhere(policy).charge("k").await;
    assert!(matches!(other, Err(RunError::Unknown)), "{other:?}");
    assert_eq!(jobs.runs(), 0);
}

#[tokio::test(start_paused = true)]
async fn who_was_overtaken_gives_its_caller_the_value_that_is_stored() {
    let policy = Policy::job().lease(3 * SECOND);
    let (jobs, door) = (Jobs::new(policy.clone()), Door::new());
    jobs.faults.always(Transition::Renew, Fault::Fail(StoreErrorKind::Unreachable));
    let first = held(&jobs, &door);
    door.came().await;
    sleep(4 * SECOND).await;
    let taken_over = jobs.elsewhere(policy.rerun_abandoned()).charge("k").await;
    assert_ran(&taken_over, executed("run 2"));
    door.let_one_in();
    assert_ran(&first.await.unwrap(), replayed("run 2"));
    assert_eq!(jobs.runs(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_process_that_stops_starts_nothing_and_waits_for_what_it_has_begun() {
    let (jobs, door) = (Jobs::new(Policy::job()), Door::new());
    let first = held(&jobs, &door);
    door.came().await;
    let left = jobs.jobs.drain(SECOND).await;
    assert_eq!((left.running, left.is_clean()), (1, false));
    let refused = jobs.charge("other").await;
    assert!(matches!(refused, Err(RunError::ShuttingDown)), "{refused:?}");
    door.let_one_in();
    let left = jobs.jobs.drain(SECOND).await;
    assert!(left.is_clean(), "{left:?}");
    assert_ran(&first.await.unwrap(), executed("held 1"));
    assert_eq!(jobs.runs(), 1);
}

#[tokio::test]
async fn each_tenant_has_keys_of_its_own_and_a_step_has_the_same_key_on_every_attempt() {
    let jobs = Jobs::new(Policy::job());
    let step = async |scope: &'static str, end: bool| {
        let work = async move |operation: Operation| {
            assert_eq!((operation.scope(), operation.key()), (scope, "k"));
            let step = operation.downstream_key("charge");
            if end { End::Keep(step) } else { End::Release(step) }
        };
        match jobs.jobs.scope(scope).run("k", None, work).await {
            Ok(Done::Executed(step)) | Err(RunError::Released(step)) => step,
            other => panic!("{other:?}"),
        }
    };
    let first = step("acme", false).await;
    assert_eq!(step("acme", true).await, first);
    assert_ne!(step("other", true).await, first);
    assert_ne!(step("", true).await, first);
}

#[tokio::test]
async fn a_secret_is_part_of_every_key() {
    let store = MemoryStore::new();
    let runs = async |secret: Option<u8>| {
        let jobs = Idempotent::new(store.clone(), Rule::new("charge", Policy::job()));
        let jobs = match secret {
            Some(byte) => jobs.secret(&[byte; 32]),
            None => jobs,
        };
        let done = jobs.run("k", Some(b"960"), async |_| Ok::<_, Infallible>(())).await;
        !done.unwrap().is_replayed()
    };
    for (secret, is_run) in
        [(None, true), (Some(1), true), (Some(2), true), (None, false), (Some(1), false)]
    {
        assert_eq!(runs(secret).await, is_run, "{secret:?}");
    }
}

#[tokio::test]
async fn a_request_under_a_rule_of_the_same_name_has_other_keys() {
    use http::{Request, Response};
    use tower::{ServiceBuilder, ServiceExt};
    use tower_idempotency::{IdempotencyLayer, RequestBody, Scope};

    let store = MemoryStore::new();
    let jobs = Idempotent::new(store.clone(), Rule::new("charge", Policy::job()));
    let work = async |operation: Operation| Ok::<_, Infallible>(operation.downstream_key("pay"));
    let job = jobs.run("k", None, work).await.unwrap();
    let rule = Rule::new("charge", Policy::api(Scope::everyone()));
    let service = ServiceBuilder::new().layer(IdempotencyLayer::new(store, rule)).service_fn(
        async |request: Request<RequestBody<String>>| {
            let operation = request.extensions().get::<Operation>().unwrap();
            Ok::<_, Infallible>(Response::new(operation.downstream_key("pay")))
        },
    );
    let request = Request::post("/").header("Idempotency-Key", "k").body(String::new()).unwrap();
    let answer = service.oneshot(request).await.unwrap();
    assert!(!answer.headers().contains_key("idempotent-replayed"));
    let body = http_body_util::BodyExt::collect(answer.into_body()).await.unwrap().to_bytes();
    assert_ne!(
        body,
        job.into_value(),
        "what one of them does downstream is not what the other does"
    );
}

#[tokio::test(start_paused = true)]
async fn a_job_that_came_again_within_a_minute_is_answered_from_memory_where_it_is_kept() {
    let keeping = Jobs::new(Policy::job()).keeping();
    let others = keeping.elsewhere(Policy::job());
    assert_ran(&keeping.charge("k").await, executed("run 1"));
    for (jobs, calls) in [(&keeping, 1), (&others, 1), (&keeping, 1), (&others, 2)] {
        assert_ran(&jobs.charge("k").await, replayed("run 1"));
        assert_eq!(jobs.faults.calls(Transition::Claim), calls);
    }
    // What it is compared by is compared here too.
    let other = keeping.jobs.run("k", Some(b"else"), async |_| Ok::<_, Infallible>(String::new()));
    other.await.unwrap();
    assert_eq!(keeping.faults.calls(Transition::Claim), 2);
}
