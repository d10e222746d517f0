//! What is sent again, when, and what is not.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use tower::{ServiceBuilder, timeout::TimeoutLayer};
use tower_idempotency::client::{ClientLayer, Resend};
use tower_idempotency_test_support::Log;

use crate::server::{Answer, SECOND, Server, hears, post, request, status, with};

/// What a client hears of a server that answers so, and the server.
async fn told(
    resend: Resend,
    answers: impl IntoIterator<Item = Answer>,
) -> (Result<u16, String>, Server) {
    let server = Server::new(answers);
    let client =
        ServiceBuilder::new().layer(ClientLayer::new().resend(resend)).service(server.clone());
    (hears(client, post()).await, server)
}

#[tokio::test(start_paused = true)]
async fn what_broke_is_sent_again_whole_and_under_the_same_key() {
    let (heard, server) = told(Resend::new(), [Answer::Breaks, Answer::Breaks]).await;
    assert_eq!(heard, Ok(200));
    let keys = server.keys();
    assert_eq!(keys.len(), 3);
    assert!(keys.iter().all(|key| *key == keys[0]), "{keys:?}");
    for sent in server.sent() {
        assert_eq!((sent.head.method.as_str(), sent.head.uri.path()), ("POST", "/charge"));
        assert_eq!(sent.body.collect().await.unwrap().to_bytes(), Bytes::from("960"));
    }
}

#[tokio::test(start_paused = true)]
async fn every_status_is_final_but_those_that_say_to_come_again() {
    for code in 200..600 {
        let (heard, server) = told(Resend::new(), [status(code)]).await;
        let (again, expected) = match code {
            502..=504 => (2, 200),
            _ => (1, code),
        };
        assert_eq!((heard, server.sent().len()), (Ok(expected), again), "{code}");
    }
}

#[tokio::test(start_paused = true)]
async fn with_a_retry_after_409_is_sent_again_too_and_no_other_4xx_is() {
    for code in 200..600 {
        let (heard, server) = told(Resend::new(), [with(code, "retry-after", "1")]).await;
        let (again, expected) = match code {
            409 | 502..=504 => (2, 200),
            _ => (1, code),
        };
        assert_eq!((heard, server.sent().len()), (Ok(expected), again), "{code}");
    }
}

#[tokio::test(start_paused = true)]
async fn it_is_not_sent_again_before_the_server_wants_it() {
    let date = "Sun, 06 Nov 1994 12:00:07 GMT";
    let mut dated = http::HeaderMap::new();
    dated.insert("retry-after", date.parse().unwrap());
    dated.insert("date", "Sun, 06 Nov 1994 12:00:00 GMT".parse().unwrap());
    for (answer, after) in [
        (with(409, "retry-after", "7"), 7 * SECOND),
        (with(503, "retry-after", "7"), 7 * SECOND),
        (Answer::Status(503, dated), 7 * SECOND),
        (with(503, "retry-after", "soon"), Duration::ZERO),
        (with(503, "retry-after", date), Duration::ZERO),
        (status(503), Duration::ZERO),
        (Answer::Breaks, Duration::ZERO),
    ] {
        let (heard, server) = told(Resend::new(), [answer]).await;
        assert_eq!(heard, Ok(200));
        let [pause] = server.pauses()[..] else { panic!("two sends") };
        // And 100 ms to 200 ms by chance, rounded up as timers are.
        assert!(pause >= after + SECOND / 10, "{pause:?}");
        assert!(pause <= after + SECOND / 5 + SECOND / 500, "{pause:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_409_whose_time_cannot_be_understood_is_an_answer() {
    let (heard, server) = told(Resend::new(), [with(409, "retry-after", "soon")]).await;
    assert_eq!((heard, server.sent().len()), (Ok(409), 1));
}

#[tokio::test(start_paused = true)]
async fn a_replayed_answer_is_the_answer_whatever_its_status() {
    let (heard, server) = told(Resend::new(), [with(503, "idempotent-replayed", "true")]).await;
    assert_eq!((heard, server.sent().len()), (Ok(503), 1));
}

#[tokio::test(start_paused = true)]
async fn pauses_grow_to_the_longest_and_differ_from_one_operation_to_the_next() {
    let resend = Resend::new().sends(12).pauses(SECOND, 60 * SECOND).within(10_000 * SECOND);
    let mut firsts = Vec::new();
    for _ in 0..8 {
        let (heard, server) = told(resend.clone(), vec![Answer::Breaks; 11]).await;
        assert_eq!(heard, Ok(200));
        let pauses = server.pauses();
        for (n, pause) in pauses.iter().enumerate() {
            let most = (SECOND * 2u32.pow(n as u32)).min(60 * SECOND);
            assert!(*pause >= most / 2 && *pause <= most + SECOND / 500, "{n}: {pause:?}");
        }
        assert_eq!(pauses.len(), 11);
        firsts.push(pauses[0]);
    }
    firsts.dedup();
    assert!(firsts.len() > 4, "they do not come in step: {firsts:?}");
}

#[tokio::test(start_paused = true)]
async fn there_are_five_sends_at_most_and_the_last_answer_or_error_is_what_is_heard() {
    let (heard, server) = told(Resend::new(), vec![Answer::Breaks; 9]).await;
    assert_eq!((heard, server.sent().len()), (Err("error 5".to_owned()), 5));
    let (heard, server) = told(Resend::new(), vec![status(503); 9]).await;
    assert_eq!((heard, server.sent().len()), (Ok(503), 5));
    for sends in [0, 1] {
        let (heard, server) = told(Resend::new().sends(sends), vec![status(503); 9]).await;
        assert_eq!((heard, server.sent().len()), (Ok(503), 1));
    }
}

#[tokio::test(start_paused = true)]
async fn who_would_have_to_wait_too_long_hears_it_at_once() {
    let began = tokio::time::Instant::now();
    for after in ["61", "86400", "18446744073709551615", "99999999999999999999999"] {
        let (heard, server) = told(Resend::new(), [with(503, "retry-after", after)]).await;
        assert_eq!((heard, server.sent().len()), (Ok(503), 1));
    }
    assert_eq!(began.elapsed(), Duration::ZERO);
    // The time counts from the first send.
    let answers = vec![with(409, "retry-after", "25"); 9];
    let (heard, server) = told(Resend::new().sends(100), answers).await;
    assert_eq!((heard, server.sent().len()), (Ok(409), 3));
    assert!(server.pauses().iter().sum::<Duration>() <= 60 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn each_operation_has_its_sends_and_its_time_for_itself() {
    let server = Server::new(vec![Answer::Breaks; 16]);
    let client = ServiceBuilder::new().layer(ClientLayer::new()).service(server.clone());
    for operation in 1..=4 {
        let heard = hears(client.clone(), post()).await;
        // The fourth finds 15 answers used up.
        let expected =
            if operation < 4 { Err(format!("error {}", 5 * operation)) } else { Ok(200) };
        assert_eq!(heard, expected);
        tokio::time::sleep(100 * SECOND).await;
    }
    assert_eq!(server.sent().len(), 17);
}

#[tokio::test(start_paused = true)]
async fn what_has_no_key_is_sent_once_whatever_becomes_of_it() {
    for method in ["GET", "PUT", "DELETE"] {
        for (answer, expected) in
            [(Answer::Breaks, Err("error 1".to_owned())), (with(503, "retry-after", "1"), Ok(503))]
        {
            let server = Server::new([answer]);
            let client = ServiceBuilder::new().layer(ClientLayer::new()).service(server.clone());
            assert_eq!(hears(client, request(method, "/")).await, expected);
            assert_eq!(server.sent().len(), 1);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_send_that_hangs_is_sent_again_where_a_time_out_ends_it() {
    let server = Server::new([Answer::Hangs, Answer::Hangs]);
    let client = ServiceBuilder::new()
        .layer(ClientLayer::new())
        .layer(TimeoutLayer::new(5 * SECOND))
        .service(server.clone());
    assert_eq!(hears(client, post()).await, Ok(200));
    let keys = server.keys();
    assert_eq!((keys.len(), &keys[0]), (3, &keys[2]));
    assert!(server.pauses().iter().all(|pause| *pause >= 5 * SECOND));
}

#[tokio::test(start_paused = true)]
async fn each_resend_is_in_the_log_with_its_reason() {
    let (log, _guard) = Log::listen();
    let answers = [Answer::Breaks, with(409, "retry-after", "3")];
    let (heard, _) = told(Resend::new(), answers).await;
    assert_eq!(heard, Ok(200));
    let events = log.of("sent again");
    assert_eq!(events.len(), 2, "{events:?}");
    assert!(
        events[0].starts_with("DEBUG ") && events[0].contains(" sent=1 pause_ms=1"),
        "{events:?}"
    );
    assert!(events[1].contains(" sent=2 status=409 pause_ms=3"), "{events:?}");
}

#[tokio::test(start_paused = true)]
async fn pauses_of_any_length_overflow_nothing() {
    for (first, longest) in [
        (Duration::ZERO, Duration::ZERO),
        (2 * SECOND, SECOND),
        (Duration::MAX, SECOND / 10),
        (Duration::MAX, Duration::MAX),
    ] {
        let resend = Resend::new().sends(u32::MAX).pauses(first, longest);
        let (heard, server) = told(resend, vec![Answer::Breaks; 40]).await;
        // Where a pause is longer than the time there is none.
        let expected = if longest == Duration::MAX { Err("error 1".to_owned()) } else { Ok(200) };
        assert_eq!(heard, expected, "{first:?} {longest:?}");
        assert!(server.pauses().iter().all(|pause| *pause <= SECOND + SECOND / 500));
    }
}
