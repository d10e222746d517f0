//! What the end of a handler means for its key.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use bytes::Bytes;
use http::{HeaderValue, StatusCode};
use http_body_util::Full;
use tokio::time::sleep;
use tower_idempotency::{
    MemoryStore, Outcome, Policy, RefusalKind, Rule, State,
    test_util::{Fault, Gate, Transition},
};
use tower_idempotency_test_support::Log;

use crate::house::{
    Answered, Chunks, House, Reply, SECOND, api, operation, respond, settle, text, with_door,
};

fn saying(status: u16, outcome: Option<Outcome>) -> Answered {
    let mut answer = text(status, "done")?;
    if let Some(outcome) = outcome {
        answer.extensions_mut().insert(outcome);
    }
    Ok(answer)
}

/// What the second of two deliveries meets.
#[derive(Debug, PartialEq, Eq)]
enum Second {
    Replayed,
    Ran,
    Unknown,
}

async fn second(house: &House) -> Second {
    let runs = house.runs();
    let reply: Reply = house.send("k").await;
    match reply.refused {
        Some(RefusalKind::OutcomeUnknown) => Second::Unknown,
        None if house.runs() > runs => Second::Ran,
        None => {
            reply.is_replayed();
            Second::Replayed
        }
        Some(other) => panic!("refused: {other:?}"),
    }
}

/// A handler that marks its execution uncertain, or not, and answers.
async fn meets(policy: Policy, mark: bool, status: u16, outcome: Option<Outcome>) -> Second {
    let house = House::with(policy, move |request| async move {
        if mark {
            operation(&request).mark_uncertain();
        }
        saying(status, outcome)
    });
    house.send("k").await.is_executed();
    second(&house).await
}

#[tokio::test(start_paused = true)]
async fn extension_counts_over_mark_over_keep_if_over_status_over_table() {
    let never = || api().keep_if(|_| false);
    let released = || api().release([StatusCode::OK]);
    let keep = Some(Outcome::Keep);
    let release = Some(Outcome::Release);
    let uncertain = Some(Outcome::Uncertain);
    assert_eq!(meets(api(), false, 200, None).await, Second::Replayed);
    assert_eq!(meets(released(), false, 200, None).await, Second::Ran);
    assert_eq!(meets(never(), false, 200, None).await, Second::Ran);
    assert_eq!(meets(never().keep([StatusCode::OK]), false, 200, None).await, Second::Ran);
    assert_eq!(meets(never(), true, 200, None).await, Second::Unknown);
    assert_eq!(meets(released(), true, 200, None).await, Second::Unknown);
    assert_eq!(meets(never(), true, 503, keep).await, Second::Replayed);
    assert_eq!(meets(api(), true, 200, release).await, Second::Ran);
    assert_eq!(meets(api(), false, 200, uncertain).await, Second::Unknown);
    assert_eq!(meets(api(), false, 504, release).await, Second::Ran);
}

#[tokio::test(start_paused = true)]
async fn an_error_of_the_inner_service_is_passed_on_and_leaves_the_outcome_unknown() {
    let house = House::with(api(), |_| async { Err("broken".to_owned()) });
    assert_eq!(house.send("k").await.error.as_deref(), Some("broken"));
    assert_eq!(second(&house).await, Second::Unknown);
}

#[tokio::test(start_paused = true)]
async fn a_keep_if_that_panics_leaves_the_outcome_unknown_at_once() {
    let house =
        House::with(api().keep_if(|_| panic!("a bug in keep_if")), |_| async { text(200, "done") });
    assert!(house.client("k").await.unwrap_err().is_panic());
    assert_eq!(second(&house).await, Second::Unknown);
    house.drained().await;
    assert_eq!(house.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_unknown_outcome_is_told_with_what_made_it_so() {
    let houses = [
        (House::with(api(), |_| async { text(504, "") }), "its answer says that nobody knows"),
        (broken(None), "the answer broke off"),
        (House::new(api().keep_if(|_| panic!("a mistake"))), "Policy::keep_if panicked"),
        (House::with(api(), |_| async { Err("no".to_owned()) }), "the handler ended in an error"),
        (House::with(api(), |_| async { panic!("a mistake") }), "the handler panicked"),
    ];
    for (house, why) in houses {
        let (log, _guard) = Log::listen();
        drop(house.client("k").await);
        let [told] = &log.of("outcome uncertain")[..] else { panic!("one event: {why}") };
        assert!(told.contains(why), "{why}: {told}");
    }
}

fn broken(outcome: Option<Outcome>) -> House {
    House::with(api(), move |_| async move {
        let (sender, body) = Chunks::new();
        tokio::spawn(async move {
            sender.send(Ok("half".into())).await.unwrap();
            sender.send(Err(std::io::Error::other("broke off"))).await.unwrap();
        });
        let mut answer = respond(200, body)?;
        if let Some(outcome) = outcome {
            answer.extensions_mut().insert(outcome);
        }
        Ok(answer)
    })
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_breaks_off_breaks_off_and_leaves_the_outcome_unknown() {
    let house = broken(None);
    let reply = house.send("k").await;
    assert!(reply.body.as_ref().unwrap_err().contains("broke off"), "{reply:?}");
    assert_eq!(second(&house).await, Second::Unknown);
    // The handler's explicit word counts over that too.
    let house = broken(Some(Outcome::Release));
    house.send("k").await;
    assert_eq!(second(&house).await, Second::Ran);
    let house = broken(Some(Outcome::Keep));
    house.send("k").await;
    house.send("k").await.is_refused(RefusalKind::AnswerNotKept);
    assert_eq!(house.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_answer_over_the_limit_is_sent_in_full_and_never_run_again() {
    // keep_if cannot judge what was not captured, and would say no to everything.
    let policy = || api().answer_limit(4).keep_if(|_| false);
    let house = House::with(policy(), |_| async { text(200, "12345") });
    assert_eq!(house.send("k").await.is_executed().text(), "12345");
    house.send("k").await.is_refused(RefusalKind::AnswerNotKept);
    let house = House::with(policy(), |_| async {
        let (sender, body) = Chunks::new();
        tokio::spawn(async move {
            for chunk in ["12", "34", "5", "6789"] {
                sender.send(Ok(chunk.into())).await.unwrap();
            }
        });
        respond(200, body)
    });
    assert_eq!(house.send("k").await.is_executed().text(), "123456789");
    house.send("k").await.is_refused(RefusalKind::AnswerNotKept);
    // At the limit it is kept.
    let house = House::with(api().answer_limit(4), |_| async { text(200, "1234") });
    house.send("k").await.is_executed();
    assert_eq!(house.send("k").await.is_replayed().text(), "1234");
}

#[tokio::test(start_paused = true)]
async fn a_notification_whose_answer_was_not_kept_gets_its_status_and_headers() {
    let policy = Policy::webhook(tower_idempotency::header("idempotency-key")).answer_limit(4);
    let house = House::with(policy, |_| async {
        let mut answer = text(202, "12345")?;
        answer.headers_mut().insert("x-kept", HeaderValue::from_static("yes"));
        Ok(answer)
    });
    house.send("k").await.is_executed();
    let reply = house.send("k").await;
    assert_eq!((reply.is_replayed().status, reply.text()), (202, ""));
    assert_eq!(reply.header("x-kept"), Some("yes"));
}

#[tokio::test(start_paused = true)]
async fn an_event_stream_is_sent_as_it_comes_and_never_run_again() {
    let house = House::with(api(), |_| async {
        let (sender, body) = Chunks::new();
        tokio::spawn(async move {
            sleep(2 * SECOND).await;
            sender.send(Ok("data: 1\n\n".into())).await.unwrap();
        });
        let mut answer = respond(200, body)?;
        let event_stream = HeaderValue::from_static("Text/Event-Stream; charset=utf-8");
        answer.headers_mut().insert("content-type", event_stream);
        Ok(answer)
    });
    let begun = tokio::time::Instant::now();
    let service = house.service.clone();
    let request = crate::house::request("k", "body");
    let response = tower::ServiceExt::oneshot(service, request).await.unwrap();
    assert_eq!(begun.elapsed(), std::time::Duration::ZERO, "its head is not held back");
    assert_eq!(Reply::of(Ok(response)).await.text(), "data: 1\n\n");
    house.send("k").await.is_refused(RefusalKind::AnswerNotKept);
}

/// A body of endless frames of nothing, always ready.
struct Nothing;

impl http_body::Body for Nothing {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, Self::Error>>> {
        std::task::Poll::Ready(Some(Ok(http_body::Frame::data(Bytes::new()))))
    }
}

#[tokio::test]
async fn a_body_of_endless_nothing_does_not_hold_the_thread() {
    let house = House::with(api(), |_| async { respond(200, Nothing) });
    let client = house.client("k");
    // It comes to an end only because this task is polled too.
    settle().await;
    assert!(!client.is_finished());
    client.abort();
}

/// A body that says that it is shorter or longer than it is.
struct Lying(Full<Bytes>, u64);

impl http_body::Body for Lying {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, Self::Error>>> {
        std::pin::Pin::new(&mut self.0).poll_frame(cx)
    }

    fn size_hint(&self) -> http_body::SizeHint {
        http_body::SizeHint::with_exact(self.1)
    }
}

#[tokio::test(start_paused = true)]
async fn a_size_hint_that_lies_changes_nothing_of_what_is_sent() {
    for said in [0, 2, 100] {
        let house = House::with(api().answer_limit(50), move |_| async move {
            respond(200, Lying(Full::from("12345"), said))
        });
        assert_eq!(house.send("k").await.is_executed().text(), "12345", "{said}");
        let again = house.send("k").await;
        if said > 50 {
            again.is_refused(RefusalKind::AnswerNotKept);
        } else {
            assert_eq!(again.is_replayed().text(), "12345", "{said}");
        }
        assert_eq!(house.runs(), 1, "{said}");
    }
}

#[tokio::test(start_paused = true)]
async fn who_was_fenced_off_gives_its_client_the_answer_that_is_stored() {
    // Reruns what is abandoned; the first run is slow, and its renewals do not come through.
    let door = crate::house::Door::new();
    let inside = door.clone();
    let nth = Arc::new(AtomicUsize::new(0));
    let policy = api().lease(3 * SECOND).rerun_abandoned();
    let house = House::with(policy, move |_| {
        let (door, nth) = (inside.clone(), nth.fetch_add(1, Ordering::SeqCst));
        async move {
            if nth == 0 {
                door.pass().await;
            }
            text(200, if nth == 0 { "first" } else { "second" })
        }
    });
    let first = house.client("k");
    door.came().await;
    house.faults.always(Transition::Renew, Fault::Hold(Gate::new()));
    sleep(4 * SECOND).await;
    assert_eq!(house.send("k").await.is_executed().text(), "second");
    door.let_one_in();
    assert_eq!(first.await.unwrap().is_replayed().text(), "second");
    assert_eq!(house.send("k").await.is_replayed().text(), "second");
}

#[tokio::test(start_paused = true)]
async fn a_handler_cannot_fake_a_replay() {
    let house = House::with(api(), |_| async {
        let mut answer = text(200, "done")?;
        answer.headers_mut().insert("idempotent-replayed", HeaderValue::from_static("true"));
        Ok(answer)
    });
    house.send("k").await.is_executed();
    let reply = house.send("k").await;
    assert_eq!(reply.is_replayed().headers.get_all("idempotent-replayed").iter().count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_memory_store_that_is_full_keeps_that_it_was_executed() {
    let memory = MemoryStore::new().bytes_at_most(2000);
    let body: &'static str = "x".repeat(5000).leak();
    let house = House::of(memory, Rule::new("pay", api()), move |_| async move { text(200, body) });
    assert_eq!(house.send("k").await.is_executed().text(), body);
    house.send("k").await.is_refused(RefusalKind::AnswerNotKept);
    assert_eq!(house.record().await.state, State::Completed);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_goes_on_while_its_client_stays_is_settled_before_it_is_seen() {
    let (house, door) = with_door(api(), 200);
    let client = house.client("k");
    door.came().await;
    let gate = Gate::new();
    house.faults.next(Transition::Complete, Fault::HoldAnswer(gate.clone()));
    door.let_one_in();
    gate.arrived(1).await;
    settle().await;
    assert!(!client.is_finished(), "the store is told first");
    gate.open();
    client.await.unwrap().is_executed();
}
