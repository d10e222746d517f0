//! A policy that only observes: every request reaches the handler, what would have become of it is told,
//! and the record of the first delivery stays as its owner left it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU16, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use tokio::time::{Instant, sleep};
use tower_idempotency::{
    Answer, Handled, MemoryStore, Operation, Policy, Refusal, RefusalKind, Resolution, Rule, Scope,
    State, Store, Verified, Would, header, json,
    store::{Cursor, StoreErrorKind},
    test_util::{Fault, Gate, Transition},
};
use tower_idempotency_test_support::Log;

use crate::{
    house::{
        Asked, Chunks, Door, House, Reply, SECOND, Sent, api, leave, operation, request,
        request_of, respond, settle, text, with_door,
    },
    table::Table,
};

fn observing() -> Policy {
    api().observe()
}

/// A handler that gives back what it was sent.
fn echo(policy: Policy) -> House {
    House::with(policy, |asked: Asked| async {
        let body = asked.into_body().collect().await.map_err(|error| error.to_string())?;
        respond(200, Full::new(body.to_bytes()))
    })
}

impl Reply {
    #[track_caller]
    fn would(&self, would: Would) -> &Self {
        assert_eq!(self.handled, Some(Handled::Observed { would }), "{self:?}");
        assert_eq!((self.refused, self.header("idempotent-replayed")), (None, None));
        self
    }

    #[track_caller]
    fn would_refuse(&self, kind: RefusalKind) -> &Self {
        self.would(Would::Refuse(kind))
    }
}

#[tokio::test(start_paused = true)]
async fn every_delivery_reaches_the_handler_and_the_first_is_recorded() {
    let house = echo(observing().no_fingerprint());
    house.call(request("k", "one")).await.is_executed();
    let first = house.record().await;
    assert_eq!(first.state, State::Completed);
    for _ in 0..2 {
        let again = house.call(request("k", "two")).await;
        assert_eq!(again.would(Would::Replay).text(), "two", "the handler's own answer");
    }
    assert_eq!((house.runs(), house.record().await), (3, first));
    assert_eq!(house.sent(), [Sent::Claim, Sent::Complete, Sent::Claim, Sent::Claim]);
    // Enforced over the same store, the first answer is the one that everybody gets.
    let enforced =
        House::of(house.memory.clone(), Rule::new("pay", api().no_fingerprint()), |_| async {
            text(200, "never")
        });
    assert_eq!(enforced.send("k").await.is_replayed().text(), "one");
}

#[tokio::test(start_paused = true)]
async fn a_duplicate_runs_beside_its_owner_and_does_not_disturb_it() {
    for (policy, would) in [
        (observing(), Would::Refuse(RefusalKind::InProgress)),
        (observing().wait(60 * SECOND), Would::Wait),
    ] {
        let (house, door) = with_door(policy, 200);
        let owner = house.client("k");
        door.came().await;
        let (held, begun) = (house.record().await, Instant::now());
        let duplicate = house.client("k");
        door.came().await;
        assert_eq!(begun.elapsed(), Duration::ZERO, "it waits for nobody");
        door.let_one_in();
        door.let_one_in();
        settle().await;
        owner.await.unwrap().is_executed();
        duplicate.await.unwrap().would(would);
        let done = house.record().await;
        assert_eq!((done.state, done.mark.fence), (State::Completed, held.mark.fence));
        assert_eq!(house.sent(), [Sent::Claim, Sent::Claim, Sent::Complete]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_duplicate_whose_client_leaves_is_gone_and_a_first_delivery_is_not() {
    let (house, door) = with_door(observing(), 200);
    let owner = house.client("k");
    door.came().await;
    let duplicate = house.client("k");
    door.came().await;
    leave(duplicate).await;
    leave(owner).await;
    door.let_one_in();
    settle().await;
    assert_eq!(house.record().await.state, State::Completed);
}

#[tokio::test(start_paused = true)]
async fn what_would_be_refused_by_its_identity_or_its_body_runs() {
    let small = || observing().body_limit(4);
    let without = |body: &'static str| Request::post("/pay").body(full(body)).unwrap();
    for (policy, asked, kind) in [
        (observing(), without("body"), RefusalKind::IdentityMissing),
        (observing(), request("", "body"), RefusalKind::IdentityMalformed),
        (
            observing().scope(Scope::header("X-Tenant")),
            request("k", "body"),
            RefusalKind::ScopeMissing,
        ),
        (
            observing().token(header("X-Once"), "/t"),
            request("k", "body"),
            RefusalKind::TokenMissing,
        ),
        (small(), request("k", "longer"), RefusalKind::BodyTooLarge),
        (
            Policy::webhook(json("/id")).observe(),
            request("k", "no JSON"),
            RefusalKind::IdentityMalformed,
        ),
        (
            observing().verify(async |_| Err::<Verified, _>(Refusal::not_verified("a forgery"))),
            request("k", "body"),
            RefusalKind::NotVerified,
        ),
    ] {
        let house = echo(policy);
        let reply = house.call(asked).await;
        reply.would_refuse(kind);
        assert_eq!(reply.status, 200);
        assert!(["body", "longer", "no JSON"].contains(&reply.text()), "whole: {reply:?}");
        assert_eq!((house.runs(), house.sent()), (1, vec![]), "{kind:?}: nothing is claimed");
    }
}

fn full(body: &'static str) -> crate::house::Body {
    Full::new(Bytes::from(body)).map_err(std::io::Error::other).boxed_unsync()
}

#[tokio::test(start_paused = true)]
async fn a_body_that_is_too_large_or_too_slow_reaches_the_handler_whole() {
    for (policy, pause, kind) in [
        (observing().body_limit(6), Duration::ZERO, RefusalKind::BodyTooLarge),
        (observing().body_within(SECOND), 2 * SECOND, RefusalKind::BodyTooSlow),
    ] {
        let house = echo(policy);
        let (sender, body) = Chunks::new();
        let client = tokio::spawn(house.call(request_of("k", body)));
        for chunk in ["one ", "two ", "three ", "four"] {
            sender.send(Ok(chunk.into())).await.unwrap();
            sleep(pause).await;
        }
        drop(sender);
        let reply = client.await.unwrap();
        assert_eq!(reply.would_refuse(kind).text(), "one two three four");
        assert_eq!(house.sent(), []);
    }
}

#[tokio::test(start_paused = true)]
async fn what_went_on_too_slowly_still_breaks_off_where_it_does() {
    let house = echo(observing().body_limit(2));
    let (sender, body) = Chunks::new();
    let client = tokio::spawn(house.call(request_of("k", body)));
    sender.send(Ok("half".into())).await.unwrap();
    sender.send(Err(std::io::Error::other("gone"))).await.unwrap();
    assert_eq!(client.await.unwrap().error.as_deref(), Some("gone"), "the handler is told");

    // Before it is known what would become of it, there is nothing to hand on.
    let house = echo(observing());
    let (sender, body) = Chunks::new();
    let client = tokio::spawn(house.call(request_of("k", body)));
    sender.send(Ok("half".into())).await.unwrap();
    sender.send(Err(std::io::Error::other("gone"))).await.unwrap();
    client.await.unwrap().is_refused(RefusalKind::BodyCutShort);
    assert_eq!((house.runs(), house.sent()), (0, vec![]));
}

#[tokio::test(start_paused = true)]
async fn another_request_under_a_known_key_runs_and_the_record_stays() {
    let told = Arc::new(AtomicU16::new(0));
    let counted = told.clone();
    let policy = observing().on_mismatch(move |_| {
        counted.fetch_add(1, Relaxed);
    });
    let house = echo(policy);
    house.call(request("k", "one")).await.is_executed();
    let first = house.record().await;
    let other = house.call(request("k", "two")).await;
    assert_eq!(other.would_refuse(RefusalKind::Mismatch).text(), "two");
    assert_eq!((house.record().await, told.load(Relaxed)), (first, 0));
}

#[tokio::test(start_paused = true)]
async fn which_fields_differ_is_in_the_event() {
    let (log, _guard) = Log::listen();
    let house = House::new(observing().compare([json("/amount"), json("/currency")]));
    house.call(request("k", r#"{"amount":1,"currency":"CNY"}"#)).await.is_executed();
    let other = house.call(request("k", r#"{"amount":2,"currency":"CNY"}"#)).await;
    other.would_refuse(RefusalKind::Mismatch);
    let [event] = &log.of("would have been refused")[..] else { panic!("{:?}", log.all()) };
    assert!(event.starts_with("WARN ") && event.contains(r#"reason="mismatch""#), "{event}");
    assert!(event.contains("/amount") && !event.contains("/currency"), "{event}");
    assert_eq!(log.of("mismatch").len(), 0, "nobody was refused with 422");
}

#[tokio::test(start_paused = true)]
async fn what_would_become_of_a_request_is_an_event() {
    let (log, _guard) = Log::listen();
    let house = House::new(observing().wait(SECOND));
    house.send("k").await.is_executed();
    assert_eq!(log.all(), [""; 0], "what goes well is no event");
    house.send("k").await.would(Would::Replay);
    let [replayed] = &log.take()[..] else { panic!("one event") };
    assert!(replayed.starts_with("INFO message=would have been replayed: "), "{replayed}");
    assert!(replayed.contains(r#" rule="pay" key="#), "{replayed}");
    house.call(request("", "b")).await.would_refuse(RefusalKind::IdentityMalformed);
    let [refused] = &log.take()[..] else { panic!("one event") };
    assert!(refused.contains(r#"reason="identity-malformed""#), "{refused}");

    let (house, door) = with_door(observing().wait(SECOND), 200);
    let owner = house.client("k");
    door.came().await;
    let duplicate = house.client("k");
    door.came().await;
    assert_eq!(log.of("would have waited").len(), 1);
    leave(owner).await;
    leave(duplicate).await;
}

#[tokio::test(start_paused = true)]
async fn an_abandoned_operation_stays_abandoned_and_nobody_is_asked() {
    for policy in [
        observing(),
        observing().resolve_abandoned(|_| async { Resolution::NotDone }),
        observing().ledger(Table::default()),
    ] {
        let status = Arc::new(AtomicU16::new(504));
        let handed = status.clone();
        let house = House::with(policy, move |_| {
            let status = handed.load(Relaxed);
            async move { text(status, "answer") }
        });
        house.send("k").await.is_executed();
        let abandoned = house.record().await;
        status.store(200, Relaxed);
        let next = house.send("k").await;
        assert_eq!(next.would_refuse(RefusalKind::OutcomeUnknown).status, 200);
        let after = house.record().await;
        assert_eq!((after.mark, after.attempt), (abandoned.mark, abandoned.attempt));
        assert!(!house.sent().contains(&Sent::Resolve));
    }
    // Its negative twin: what is enforced asks.
    let done = api().resolve_abandoned(|_| async { Resolution::Done(Answer::text("done")) });
    let house = House::with(done, |_| async { text(504, "answer") });
    house.send("k").await.is_executed();
    house.send("k").await.is_replayed();
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_down_or_slow_costs_one_call_and_the_request_runs() {
    for (fault, longest) in [
        (Fault::Fail(StoreErrorKind::Unreachable), 500),
        (Fault::Hold(Gate::new()), 510),
        (Fault::Delay(400 * Duration::from_millis(1)), 500),
    ] {
        let house = House::new(observing());
        let delayed = matches!(fault, Fault::Delay(_));
        house.faults.always(Transition::Claim, fault);
        let begun = Instant::now();
        let reply = house.send("k").await;
        match delayed {
            true => reply.is_executed(),
            false => reply.would_refuse(RefusalKind::StoreUnavailable),
        };
        let took = begun.elapsed();
        assert!(took <= Duration::from_millis(longest), "{took:?}");
        assert_eq!((house.runs(), reply.text()), (1, "done"));
    }
    // Enforced, it is refused after the whole time of a claim.
    let house = House::new(api());
    house.faults.always(Transition::Claim, Fault::Hold(Gate::new()));
    let begun = Instant::now();
    house.send("k").await.is_refused(RefusalKind::StoreUnavailable);
    assert!(begun.elapsed() >= Duration::from_millis(1400));
}

#[tokio::test(start_paused = true)]
async fn several_claims_that_follow_each_other_cost_no_more_than_one_call() {
    let policy = || Policy::webhook(json("/id")).business_key(json("/order")).observe();
    let memory = MemoryStore::new();
    let house = House::of(memory.clone(), Rule::new("pay", policy()), |_| async { text(200, "") });
    house.call(request("", r#"{"id":"1","order":"o"}"#)).await.is_executed();
    // Its id alone leads to the order's record, which is a second claim.
    house.faults.always(Transition::Claim, Fault::Delay(300 * Duration::from_millis(1)));
    let begun = Instant::now();
    let reply = house.call(request("", r#"{"id":"1"}"#)).await;
    reply.would_refuse(RefusalKind::StoreUnavailable);
    assert!(begun.elapsed() <= Duration::from_millis(510), "{:?}", begun.elapsed());
    house.faults.heal();
    let reply = house.call(request("", r#"{"id":"1"}"#)).await;
    reply.would(Would::Replay);
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_was_too_slow_is_called_off_and_the_next_delivery_is_the_first() {
    let house = House::new(observing());
    let gate = Gate::new();
    house.faults.next(Transition::Claim, Fault::HoldAnswer(gate.clone()));
    house.send("k").await.would_refuse(RefusalKind::StoreUnavailable);
    gate.open();
    sleep(10 * SECOND).await;
    assert!(house.sent().contains(&Sent::CalledOff));
    house.send("k").await.is_executed();
}

#[tokio::test(start_paused = true)]
async fn an_event_that_has_two_names_is_one_operation_and_a_delivery_id_used_twice_is_seen() {
    let policy = Policy::webhook(json("/id")).business_key(json("/order")).observe();
    let house = House::new(policy);
    let deliver = |body: &'static str| house.call(request("", body));
    deliver(r#"{"id":"1","order":"o"}"#).await.is_executed();
    deliver(r#"{"id":"2","order":"o"}"#).await.would(Would::Replay);
    deliver(r#"{"id":"2","order":"p"}"#).await.would_refuse(RefusalKind::Mismatch);
    sleep(SECOND).await;
    deliver(r#"{"id":"3","order":"p"}"#).await.is_executed();
    assert_eq!(house.runs(), 4);
}

#[tokio::test(start_paused = true)]
async fn a_delivery_id_from_before_there_was_a_business_key_is_seen() {
    let memory = MemoryStore::new();
    let of = |policy: Policy| {
        House::of(memory.clone(), Rule::new("pay", policy.observe()), |_| async { text(200, "") })
    };
    let body = r#"{"id":"1","order":"o"}"#;
    of(Policy::webhook(json("/id"))).call(request("", body)).await.is_executed();
    let house = of(Policy::webhook(json("/id")).business_key(json("/order")));
    house.call(request("", body)).await.would(Would::Replay);
    house.drained().await;
    let records = memory.scan(Cursor::START, 9).await.unwrap().records;
    assert!(records.iter().all(|record| record.state != State::InProgress), "{records:?}");
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_asks_for_its_operation_has_one_without_a_grant() {
    let house = House::with(observing(), |asked: Asked| async move {
        let operation = asked.extensions().get::<Operation>().ok_or("it has none")?.clone();
        let granted = operation.fence().get() > 0;
        let found = (operation.attempt(), operation.previous());
        respond(200, Full::new(Bytes::from(format!("{} {granted} {found:?}", operation.key()))))
    });
    assert_eq!(house.send("k").await.is_executed().text(), "k true (1, Nothing)");
    assert_eq!(house.send("k").await.would(Would::Replay).text(), "k false (1, Nothing)");
}

#[tokio::test(start_paused = true)]
async fn a_layer_further_in_does_not_take_what_was_only_observed_for_granted() {
    use tower::{ServiceBuilder, service_fn};
    use tower_idempotency::{IdempotencyLayer, RequestBody};

    let inner_store = MemoryStore::new();
    let runs = Arc::<std::sync::atomic::AtomicUsize>::default();
    let counted = runs.clone();
    let handler = service_fn(move |_: Request<RequestBody<RequestBody<crate::house::Body>>>| {
        counted.fetch_add(1, Relaxed);
        async { text(200, "done") }
    });
    let boxed = tower::util::MapResponseLayer::new(|response: http::Response<_>| {
        response.map(|body: tower_idempotency::ResponseBody<crate::house::Body>| {
            body.map_err(std::io::Error::other).boxed_unsync()
        })
    });
    let enforced = ServiceBuilder::new()
        .layer(boxed)
        .layer(IdempotencyLayer::new(inner_store, Rule::new("pay", api())))
        .service(handler);
    let house = House::around(MemoryStore::new(), Rule::new("pay", observing()), enforced, runs);
    house.send("k").await.is_executed();
    // Granted outside, it was not claimed inside; what is only observed is.
    house.send("k").await;
    assert_eq!(house.runs(), 2);
    house.send("k").await;
    assert_eq!(house.runs(), 2, "the inner layer has its record now");
}

#[tokio::test(start_paused = true)]
async fn the_client_gets_what_its_handler_said_whatever_is_stored() {
    // Another was granted after a lapse and has stored its answer: enforced, the first gets that one.
    let stalled = async |policy: Policy| {
        let door = Door::new();
        let inside = door.clone();
        let policy = policy.lease(3 * SECOND).rerun_abandoned();
        let house = House::with(policy, move |asked: Asked| {
            let (door, attempt) = (inside.clone(), operation(&asked).attempt());
            async move {
                if attempt > 1 {
                    return text(200, "second");
                }
                door.pass().await;
                text(200, "first")
            }
        });
        let first = house.client("k");
        door.came().await;
        house.faults.always(Transition::Renew, Fault::Fail(StoreErrorKind::Unreachable));
        sleep(4 * SECOND).await;
        house.send("k").await.is_executed();
        door.let_one_in();
        first.await.unwrap()
    };
    assert_eq!(stalled(observing()).await.is_executed().text(), "first");
    assert_eq!(stalled(api()).await.is_replayed().text(), "second");

    // A ledger is not written to, and what it could not take is not withheld.
    let table = Table::default();
    let house = House::with(observing().ledger(table.clone()), |_| async { text(500, "no") });
    assert_eq!(house.send("k").await.is_executed().text(), "no");
    assert_eq!(table.of_k(), None);
    let house = House::with(api().ledger(table.clone()), |_| async { text(500, "no") });
    house.send("k").await.is_executed();
    assert!(table.of_k().is_some(), "enforced, it is");
}

#[tokio::test(start_paused = true)]
async fn a_policy_that_panics_about_an_answer_does_not_take_it_from_its_client() {
    let house = House::new(observing().keep_if(|_| panic!("a mistake")));
    assert_eq!(house.send("k").await.is_executed().text(), "done");
    house.send("k").await.would_refuse(RefusalKind::OutcomeUnknown);
}

#[tokio::test(start_paused = true)]
async fn while_the_layer_is_drained_requests_run() {
    let house = House::new(observing());
    house.drained().await;
    house.send("k").await.would_refuse(RefusalKind::ShuttingDown);
    assert_eq!((house.runs(), house.sent()), (1, vec![]));
}

#[tokio::test(start_paused = true)]
async fn what_did_not_happen_runs_again_as_the_next_execution() {
    let house = House::with(observing(), |_| async { text(503, "later") });
    assert_eq!(house.send("k").await.handled, Some(Handled::Executed { attempt: 1 }));
    assert_eq!(house.send("k").await.handled, Some(Handled::Executed { attempt: 2 }));
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_was_not_kept_and_a_record_of_somebody_else_are_told_apart() {
    let house = House::new(observing().answer_limit(0));
    house.send("k").await.is_executed();
    house.send("k").await.would_refuse(RefusalKind::AnswerNotKept);
    house.store.answer_next(tower_idempotency::store::Claimed::Foreign);
    house.send("k").await.would_refuse(RefusalKind::RecordUnreadable);
}

#[test]
fn a_job_cannot_be_observed() {
    let error = Policy::job().observe().check().unwrap_err().to_string();
    assert!(error.starts_with("observe is about requests"), "{error}");
}
