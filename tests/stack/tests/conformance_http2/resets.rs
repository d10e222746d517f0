//! Cases 34 to 36: streams that are reset, and connections that are cut.

use std::time::Duration;

use tower_idempotency::{Policy, test_util::Transition};
use tower_idempotency_test_support::{Http2Client, Http2Stream, Log, h2::Reason};

use crate::{
    connect, head, pay, response,
    shop::{Shop, api, assert_ran, assert_refused, assert_replayed, text},
};

/// Longer than any test takes.
const LONG: Duration = Duration::from_secs(60);

/// How a client may leave.
#[derive(Clone, Copy, Debug)]
enum Leave {
    Reset(Reason),
    Cut,
}

const WAYS: [Leave; 3] = [Leave::Reset(Reason::CANCEL), Leave::Reset(Reason::NO_ERROR), Leave::Cut];

impl Leave {
    /// The connection stays, unless it is cut.
    fn leave(self, client: Http2Client, stream: Http2Stream) -> Option<Http2Client> {
        match self {
            Self::Reset(reason) => {
                stream.reset(reason);
                Some(client)
            }
            Self::Cut => {
                client.cut();
                None
            }
        }
    }
}

/// Sends a whole request and waits until its handler runs. It is held there.
async fn start(shop: &Shop, client: &Http2Client) -> Http2Stream {
    shop.hold();
    let mut stream = client.open(head(None)).await;
    stream.send("10", true);
    shop.runs.wait_for(1).await;
    stream
}

#[tokio::test]
async fn case_34_a_run_whose_stream_was_reset_goes_on_and_its_answer_is_stored() {
    for way in WAYS {
        let shop = Shop::open(api()).await;
        let client = connect(&shop).await;
        let stream = start(&shop, &client).await;
        let _connected = way.leave(client, stream);
        shop.gone.wait_for(1).await;
        assert_eq!(shop.finished.count(), 0, "{way:?}");
        let client = connect(&shop).await;
        assert_refused(&response(client.send(pay("10")).await), 409, "in-progress");

        shop.let_go();
        shop.faults.called(Transition::Complete, 1).await;
        assert_replayed(&response(client.send(pay("10")).await), "run 1 of k");
        assert_eq!((shop.runs.count(), shop.finished.count()), (1, 1), "{way:?}");
    }
}

/// hyper takes NO_ERROR for the end of the body. Where that is as long as was declared, the request has
/// come whole.
fn is_whole(way: Leave, length: Option<usize>, part: &str) -> bool {
    matches!(way, Leave::Reset(Reason::NO_ERROR)) && length == Some(part.len())
}

#[tokio::test]
async fn case_35_a_request_that_is_reset_before_its_end_claims_nothing() {
    for way in WAYS {
        for length in [None, Some(2)] {
            for part in ["", "1", "10"] {
                if is_whole(way, length, part) {
                    continue;
                }
                let shop = Shop::open(api()).await;
                let client = connect(&shop).await;
                let mut stream = client.open(head(length)).await;
                if !part.is_empty() {
                    stream.send(part, false);
                }
                shop.came.wait_for(1).await;
                let _connected = way.leave(client, stream);
                shop.gone.wait_for(1).await;
                let told = format!("{way:?}, Content-Length {length:?}, {part:?}");
                assert_eq!((shop.runs.count(), shop.store.len()), (0, 0), "{told}");
                assert_eq!(shop.faults.calls(Transition::Claim), 0, "{told}");

                let client = connect(&shop).await;
                assert_ran(&response(client.send(pay("10")).await), "run 1 of k");
            }
        }
    }
}

#[tokio::test]
async fn case_35_a_request_that_came_whole_is_run_once_whatever_its_end() {
    let shop = Shop::open(api()).await;
    let client = connect(&shop).await;
    let mut stream = client.open(head(Some(2))).await;
    stream.send("10", false);
    shop.came.wait_for(1).await;
    stream.reset(Reason::NO_ERROR);
    shop.gone.wait_for(1).await;
    let retry = response(client.send(pay("10")).await);
    assert_eq!((retry.status().as_u16(), text(&retry)), (201, "run 1 of k"));
    assert_eq!(shop.runs.count(), 1);
}

fn patient(policy: Policy) -> Policy {
    policy.wait(LONG).call_within(LONG).claim_within(LONG).lease(2 * LONG)
}

#[tokio::test]
async fn case_36_a_waiter_whose_stream_is_reset_is_gone() {
    for way in WAYS {
        let (log, _guard) = Log::listen();
        let shop = Shop::open(patient(api())).await;
        shop.hold();
        let client = connect(&shop).await;
        let mut failing = head(None);
        // It does not happen, so that whoever waits runs.
        failing.headers_mut().insert("x-answer", "503".parse().unwrap());
        let mut first = client.open(failing).await;
        first.send("10", true);
        shop.runs.wait_for(1).await;

        let other = connect(&shop).await;
        let mut leaver = other.open(head(None)).await;
        leaver.send("10", true);
        log.said("waiting", 1).await;
        let _connected = way.leave(other, leaver);
        shop.gone.wait_for(1).await;

        let mut stays = client.open(head(None)).await;
        stays.send("10", true);
        log.said("waiting", 2).await;
        shop.let_go();
        assert_eq!(response(first.answer().await).status(), 503, "{way:?}");
        assert_ran(&response(stays.answer().await), "run 2 of k");
        assert_replayed(&response(client.send(pay("10")).await), "run 2 of k");
        assert_eq!(shop.runs.count(), 2, "{way:?}");
    }
}

#[tokio::test]
async fn case_36_waiters_that_were_reset_leave_their_places() {
    // A layer has 1,024 places.
    let (rounds, at_once) = (12, 100);
    let (log, _guard) = Log::listen();
    let shop = Shop::open(patient(api())).await;
    let client = connect(&shop).await;
    let first = start(&shop, &client).await;
    for round in 1..=rounds {
        let client = connect(&shop).await;
        let mut waiters = Vec::new();
        for _ in 0..at_once {
            let mut waiter = client.open(head(None)).await;
            waiter.send("10", true);
            waiters.push(waiter);
        }
        log.said("waiting", round * at_once).await;
        for waiter in waiters {
            waiter.reset(Reason::CANCEL);
        }
        shop.gone.wait_for(round * at_once).await;
    }
    let mut last = client.open(head(None)).await;
    last.send("10", true);
    log.said("waiting", rounds * at_once + 1).await;
    shop.let_go();
    assert_ran(&response(first.answer().await), "run 1 of k");
    assert_replayed(&response(last.answer().await), "run 1 of k");
    assert_eq!(shop.runs.count(), 1);
}
