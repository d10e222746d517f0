//! The senders that need one line, each with the line that `docs/senders.md` has for it.

use std::fs;

use bytes::Bytes;
use http::{Method, StatusCode};
use tower_idempotency::{Answer, MemoryStore, Policy, Rule, header, json};

use crate::receiver::{Delivery, Receiver, again, post, with_header};

fn paypal() -> Rule {
    Rule::new("paypal", Policy::webhook(json("/id")))
}

fn square() -> Rule {
    Rule::new("square", Policy::webhook(json("/event_id")))
}

fn slack() -> Rule {
    Rule::new("slack", Policy::webhook(json("/event_id")).optional())
}

fn twilio() -> Rule {
    Rule::new("twilio", Policy::webhook(header("I-Twilio-Idempotency-Token")))
        .methods([Method::GET, Method::POST])
}

fn antom() -> Rule {
    Rule::new("antom", Policy::webhook((json("/paymentRequestId"), json("/notifyType"))))
}

fn receiver(rule: Rule) -> Receiver {
    Receiver::with(MemoryStore::new(), rule, Answer::text("done"))
}

fn event(body: &'static str) -> Delivery {
    post("/hooks", "application/json", body)
}

#[test]
fn the_lines_of_the_page_are_those_that_are_tested_here() {
    let root = env!("CARGO_MANIFEST_DIR");
    let read = |path: &str| fs::read_to_string(format!("{root}/{path}")).unwrap();
    let words = |text: &str| text.split_whitespace().collect::<String>();
    let here = words(&read("tests/senders/table.rs"));
    let page = read("docs/senders.md");
    let compiled: Vec<&str> = page.split("```").skip(1).step_by(2).collect();
    let rows: Vec<&str> = page.lines().filter(|line| line.contains("`Rule::new(")).collect();
    assert_eq!(rows.len(), 5);
    for row in rows {
        let line = words(row.split('`').nth(1).unwrap());
        assert!(here.contains(&line), "{row}");
        assert!(compiled.iter().any(|block| words(block).contains(&line)), "{row}");
    }
}

#[tokio::test]
async fn paypal_square_and_antom_run_an_event_once() {
    let cases = [
        (
            paypal(),
            event(r#"{"id": "WH-2WR32451HC0233532", "event_type": "PAYMENT.CAPTURE.COMPLETED"}"#),
            event(r#"{"id": "WH-2WR32451HC0233533", "event_type": "PAYMENT.CAPTURE.COMPLETED"}"#),
        ),
        (
            square(),
            event(r#"{"event_id": "6a8f5f28-54a1-4eb0-a98a", "type": "payment.updated"}"#),
            event(r#"{"event_id": "6a8f5f28-54a1-4eb0-a98b", "type": "payment.updated"}"#),
        ),
        (
            antom(),
            event(r#"{"notifyType": "PAYMENT_RESULT", "paymentRequestId": "P-1"}"#),
            event(r#"{"notifyType": "CAPTURE_RESULT", "paymentRequestId": "P-1"}"#),
        ),
    ];
    for (rule, first, other) in cases {
        let receiver = receiver(rule);
        let begun = receiver.begin(again(&first)).await;
        let meanwhile = receiver.deliver(again(&first)).await;
        assert_eq!(meanwhile.status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(receiver.finish(begun).await.body, "done");
        assert!(receiver.deliver(again(&first)).await.is_replay());
        assert!(!receiver.deliver(other).await.is_replay());
        assert_eq!(receiver.runs.count(), 2);
        assert_eq!(receiver.deliver(event("{}")).await.status, StatusCode::BAD_REQUEST);
    }
}

#[tokio::test]
async fn case_90_slacks_url_verification_passes_and_its_retry_while_the_first_runs_does_not_run() {
    let receiver = receiver(slack());
    let challenge = || event(r#"{"type": "url_verification", "challenge": "3eZbrw1aBm2rZg"}"#);
    for runs in [1, 2] {
        let heard = receiver.deliver(challenge()).await;
        assert_eq!((heard.body.as_str(), heard.is_replay()), ("done", false));
        assert_eq!(receiver.runs.count(), runs, "it passes each time");
    }
    let mention =
        || event(r#"{"type": "event_callback", "event_id": "Ev0PV52K21", "event": {"ts": "1.2"}}"#);
    let begun = receiver.begin(mention()).await;
    let retry = with_header(mention(), "x-slack-retry-num", "1");
    let retry = with_header(retry, "x-slack-retry-reason", "http_timeout");
    assert_eq!(receiver.deliver(again(&retry)).await.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(receiver.finish(begun).await.body, "done");
    assert!(receiver.deliver(retry).await.is_replay());
    assert_eq!(receiver.runs.count(), 3);
}

#[tokio::test]
async fn case_91_twilio_may_send_get() {
    let receiver = receiver(twilio());
    let of = |method: Method, token: &str| {
        let mut delivery = post("/sms?MessageSid=SM1&MessageStatus=delivered", "text/plain", "");
        *delivery.method_mut() = method;
        with_header(delivery, "i-twilio-idempotency-token", token)
    };
    let begun = receiver.begin(of(Method::GET, "t-1")).await;
    let retry = receiver.deliver(of(Method::GET, "t-1")).await;
    assert_eq!(retry.status, StatusCode::SERVICE_UNAVAILABLE);
    receiver.finish(begun).await;
    assert!(receiver.deliver(of(Method::GET, "t-1")).await.is_replay());
    assert!(!receiver.deliver(of(Method::POST, "t-2")).await.is_replay());
    assert_eq!(receiver.runs.count(), 2);

    // Without the methods the rule is for POST alone.
    let unnamed = Rule::new("twilio", Policy::webhook(header("I-Twilio-Idempotency-Token")));
    let receiver = self::receiver(unnamed);
    for runs in [1, 2] {
        receiver.deliver(of(Method::GET, "t-1")).await;
        assert_eq!(receiver.runs.count(), runs);
    }
}

#[tokio::test]
async fn case_92_an_id_that_is_none_is_refused_or_passes_and_is_never_one_key_for_all() {
    let too_long = format!(r#"{{"event_id": "{}"}}"#, "x".repeat(256));
    let malformed: Vec<Bytes> = vec![
        r#"{"event_id": null}"#.into(),
        r#"{"event_id": ""}"#.into(),
        r#"{"event_id": 1.5}"#.into(),
        r#"{"event_id": true}"#.into(),
        r#"{"event_id": {"x": 1}}"#.into(),
        r#"{"event_id": ["a"]}"#.into(),
        r#"{"event_id": "a", "event_id": "a"}"#.into(),
        r#"{"event_id": "a", "event_id": "b"}"#.into(),
        r#"{"event_id": "a""#.into(),
        too_long.into(),
    ];
    let absent = [r#"{"other": "a"}"#, r#"{"nested": {"event_id": "a"}}"#];
    for (rule, passes) in [(square(), false), (slack(), true)] {
        let receiver = receiver(rule);
        for body in &malformed {
            let heard = receiver.deliver(post("/hooks", "application/json", body.clone())).await;
            assert_eq!(heard.status, StatusCode::BAD_REQUEST, "{body:?}");
        }
        assert_eq!(receiver.runs.count(), 0);
        for (number, body) in absent.into_iter().enumerate() {
            let heard = receiver.deliver(event(body)).await;
            let expected = if passes { StatusCode::OK } else { StatusCode::BAD_REQUEST };
            assert_eq!((heard.status, heard.is_replay()), (expected, false));
            assert_eq!(receiver.runs.count(), if passes { number + 1 } else { 0 });
        }
        // An integer is an identity as it is written.
        let runs = receiver.runs.count();
        for replayed in [false, true] {
            let heard = receiver.deliver(event(r#"{"event_id": 7}"#)).await;
            assert_eq!((heard.status, heard.is_replay()), (StatusCode::OK, replayed));
        }
        assert_eq!(receiver.runs.count(), runs + 1);
    }
}
