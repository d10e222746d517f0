//! Asking for one-time tokens: what is given out, to whom, and what is said instead.

use tokio::time::{Instant, sleep};
use tower_idempotency::{
    FieldValue, Issuance, IssueErrorKind, OneTimeToken, RefusalKind, State,
    store::StoreErrorKind,
    test_util::{Fault, Gate, Transition},
};

use crate::{
    house::{House, SECOND, text, with_door},
    token_house::{
        asked, bringing, for_an_order, free, issue, issuer, of_order, paying, records, token,
    },
};

#[tokio::test(start_paused = true)]
async fn the_outstanding_token_is_given_again_with_the_time_that_is_left() {
    let house = House::new(for_an_order());
    let tokens = issuer(&house);
    let first = tokens.issue(of_order("O-1")).await.unwrap();
    assert!(matches!(first, Issuance::Token { remaining, .. } if remaining == 600 * SECOND));
    sleep(100 * SECOND).await;
    // What it is asked for now changes nothing.
    let again = tokens.issue(of_order("O-1").within(SECOND)).await.unwrap();
    assert_eq!(again, Issuance::Token { token: token(&first), remaining: 500 * SECOND });
    // The twins: of another order, and free ones, which are new each time.
    assert_ne!(issue(&house, of_order("O-2")).await, token(&first));
    assert_ne!(issue(&house, asked()).await, issue(&house, asked()).await);
    sleep(501 * SECOND).await;
    let anew = tokens.issue(of_order("O-1")).await.unwrap();
    assert_ne!(token(&anew), token(&first));
    house.pay(&token(&first), "O-1", 960).await.is_refused(RefusalKind::TokenUnknown);
    house.pay(&token(&anew), "O-1", 960).await.is_executed();
}

#[tokio::test(start_paused = true)]
async fn a_token_is_not_shown_to_somebody_it_is_not_bound_to() {
    let house = House::new(for_an_order());
    let tokens = issuer(&house);
    let anns = issue(&house, of_order("O-1").bound_to("ann")).await;
    sleep(SECOND).await;
    let withheld = Issuance::BoundOtherwise { remaining: 599 * SECOND };
    for other in [
        of_order("O-1").bound_to("bob"),
        of_order("O-1").bound_to(""),
        of_order("O-1"),
        of_order("O-1").bound_to("ann").must_match([Some(FieldValue::new("960"))]),
    ] {
        assert_eq!(tokens.issue(other).await.unwrap(), withheld);
    }
    assert!(!format!("{withheld:?} {withheld}").contains(&anns.to_text()));
    assert_eq!(issue(&house, of_order("O-1").bound_to("ann")).await, anns);

    // The same of what it must match.
    let amount =
        |amount: &str| of_order("O-2").must_match([Some(FieldValue::json(amount).unwrap())]);
    let bound = issue(&house, amount("960")).await;
    assert_eq!(issue(&house, amount("960.0")).await, bound);
    for other in [amount("961"), of_order("O-2"), of_order("O-2").must_match([None])] {
        assert!(matches!(tokens.issue(other).await, Ok(Issuance::BoundOtherwise { .. })));
    }
}

#[tokio::test(start_paused = true)]
async fn asking_says_that_the_work_is_being_done_and_that_it_is_done() {
    let (house, door) = with_door(for_an_order(), 200);
    let tokens = issuer(&house);
    let used = issue(&house, of_order("O-1")).await;
    let running = tokio::spawn(house.call(paying(&used, "O-1", 960)));
    door.came().await;
    assert_eq!(tokens.issue(of_order("O-1")).await.unwrap(), Issuance::InProgress);
    door.let_one_in();
    running.await.unwrap().is_executed();
    // Whoever asks.
    for request in [of_order("O-1"), of_order("O-1").bound_to("bob")] {
        assert_eq!(tokens.issue(request).await.unwrap(), Issuance::Done);
    }
    assert_eq!(Issuance::Done.to_string(), "this is done already");
    house.pay(&used, "O-1", 960).await.is_replayed();
}

#[tokio::test(start_paused = true)]
async fn asking_says_that_nobody_knows_whether_it_was_done() {
    let house = House::with(for_an_order(), |_| async { text(504, "timed out") });
    let used = issue(&house, of_order("O-1")).await;
    assert_eq!(house.pay(&used, "O-1", 960).await.status, 504);
    assert_eq!(issuer(&house).issue(of_order("O-1")).await.unwrap(), Issuance::OutcomeUnknown);

    // So does one whose process has died.
    let (house, door) = with_door(for_an_order().max_run(30 * SECOND), 200);
    let used = issue(&house, of_order("O-1")).await;
    let running = tokio::spawn(house.call(paying(&used, "O-1", 960)));
    door.came().await;
    sleep(61 * SECOND).await;
    assert_eq!(issuer(&house).issue(of_order("O-1")).await.unwrap(), Issuance::OutcomeUnknown);
    house.pay(&used, "O-1", 960).await.is_refused(RefusalKind::OutcomeUnknown);
    running.abort();
}

#[tokio::test(start_paused = true)]
async fn an_issue_whose_answer_was_lost_is_sent_again_and_issues_one_token() {
    let house = House::new(for_an_order());
    for _ in 0..2 {
        house.faults.next(Transition::Issue, Fault::LoseAnswer(StoreErrorKind::Timeout));
    }
    let first = issue(&house, of_order("O-1")).await;
    assert_eq!(house.faults.calls(Transition::Issue), 3);
    assert_eq!(issue(&house, of_order("O-1")).await, first);
    // A free one too: one record, and the token that is given out is the one in it.
    house.faults.next(Transition::Issue, Fault::LoseAnswer(StoreErrorKind::Timeout));
    let before = records(&house.memory).await;
    issue(&house, asked()).await;
    assert_eq!(records(&house.memory).await, before + 1);
    house.pay(&first, "O-1", 960).await.is_executed();
}

#[tokio::test(start_paused = true)]
async fn an_issue_whose_answers_were_all_lost_is_outstanding_and_given_out_later() {
    let house = House::new(for_an_order());
    house.faults.always(Transition::Issue, Fault::LoseAnswer(StoreErrorKind::Timeout));
    let error = issuer(&house).issue(of_order("O-1")).await.unwrap_err();
    assert!(error.is_store_unavailable(), "{error:?}");
    house.faults.heal();
    assert_eq!(house.record().await.state, State::Issued);
    let found = issue(&house, of_order("O-1")).await;
    house.pay(&found, "O-1", 960).await.is_executed();
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_down_or_hangs_is_an_error_in_time() {
    let house = House::new(free());
    house.faults.down(StoreErrorKind::Unreachable);
    let started = Instant::now();
    let error = issuer(&house).issue(asked()).await.unwrap_err();
    assert_eq!(error.kind(), IssueErrorKind::StoreUnavailable);
    assert!(std::error::Error::source(&error).is_some());
    assert!(started.elapsed() <= SECOND + SECOND / 2, "{:?}", started.elapsed());
    assert!(house.faults.calls(Transition::Issue) > 5);

    house.faults.always(Transition::Issue, Fault::Hold(Gate::new()));
    let started = Instant::now();
    let quick = issuer(&house).call_within(SECOND / 10).issue_within(SECOND / 4);
    quick.issue(asked()).await.unwrap_err();
    assert!(started.elapsed() <= SECOND / 4, "{:?}", started.elapsed());
    assert_eq!(records(&house.memory).await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_business_key_that_no_request_could_have_is_refused() {
    let house = House::new(for_an_order());
    for wrong in [String::new(), "k".repeat(256)] {
        let error = issuer(&house).issue(asked().business_key(wrong)).await.unwrap_err();
        assert_eq!(error.kind(), IssueErrorKind::BusinessKey);
        assert!(error.to_string().contains("it must have 1 to 255"), "{error}");
    }
    assert_eq!(records(&house.memory).await, 0);
    issue(&house, asked().business_key("k".repeat(255))).await;
}

#[tokio::test(start_paused = true)]
async fn a_lifetime_of_nothing_or_of_ages_breaks_nothing() {
    let house = House::new(free());
    let short = issue(&house, asked().within(std::time::Duration::ZERO)).await;
    sleep(SECOND / 100).await;
    house.call(bringing(&short.to_text(), "")).await.is_refused(RefusalKind::TokenUnknown);
    let long = issue(&house, asked().within(std::time::Duration::MAX)).await;
    sleep(30 * 24 * 3600 * SECOND).await;
    house.call(bringing(&long.to_text(), "")).await.is_executed();
}

#[tokio::test(start_paused = true)]
async fn no_two_tokens_are_alike() {
    let house = House::new(free());
    let mut seen = std::collections::HashSet::new();
    for _ in 0..500 {
        assert!(seen.insert(issue(&house, asked()).await.to_text()));
    }
    let text = issue(&house, asked()).await.to_text();
    assert_eq!(OneTimeToken::from_text(&text).unwrap().to_text(), text);
    assert_eq!(text.len(), 22, "128 bits");
}
