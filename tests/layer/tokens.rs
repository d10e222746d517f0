//! A policy that demands one-time tokens: who is let in, once, and who is not.

use std::sync::{Arc, Mutex};

use http::{Request, header::CONTENT_TYPE};
use tokio::time::sleep;
use tower_idempotency::{
    FieldValue, IdempotencyLayer, Identity, MemoryStore, Mismatch, OneTimeToken, Policy, Previous,
    RefusalKind, Rule, Rules, Scope, State, TokenRequest, Tokens, form, header, json,
    store::StoreErrorKind,
    test_util::{Fault, Gate, Transition},
};

use crate::{
    house::{
        Answered, Asked, Chunks, House, SECOND, Sent, api, leave, operation, request_of, settle,
        text, with_door,
    },
    token_house::{WHERE, asked, bringing, for_an_order, free, issue, of_order, paying, records},
};

/// The caller, as an authentication layer further out sets it.
#[derive(Clone)]
struct User(&'static str);

impl AsRef<str> for User {
    fn as_ref(&self) -> &str {
        self.0
    }
}

#[tokio::test(start_paused = true)]
async fn a_token_is_good_for_one_run_and_a_second_use_gets_the_first_answer() {
    let house = House::new(free());
    let token = issue(&house, asked()).await;
    let first = house.call(bringing(&token.to_text(), "body")).await;
    first.is_executed();
    for _ in 0..3 {
        let again = house.call(bringing(&token.to_text(), "body")).await;
        assert_eq!(again.is_replayed().text(), first.text());
    }
    // With quotes it is the same token.
    house.call(bringing(&format!("\"{}\"", token.to_text()), "body")).await.is_replayed();
    assert_eq!(house.runs(), 1);
    // The twin: another token is another run.
    let other = issue(&house, asked()).await;
    house.call(bringing(&other.to_text(), "body")).await.is_executed();
    assert_eq!(house.runs(), 2);
}

#[tokio::test(start_paused = true)]
async fn without_a_token_it_is_refused_with_428_which_says_where_to_get_one() {
    let house = House::new(free());
    // An `Idempotency-Key` is none, and the body is not asked for.
    let (sender, chunks) = Chunks::new();
    let refused = house.call(request_of("a-key", chunks)).await;
    refused.is_refused(RefusalKind::TokenMissing);
    drop(sender);
    assert_eq!(refused.status, 428);
    assert!(refused.text().contains("header X-Once is missing"), "{}", refused.text());
    assert!(refused.text().contains(WHERE), "{}", refused.text());
    assert_eq!(refused.header("cache-control"), Some("no-store"));
    assert!(house.sent().is_empty());

    let in_body = House::new(api().token(json("/token"), WHERE));
    let refused = in_body.call(bringing("x", "{}")).await;
    assert_eq!(refused.is_refused(RefusalKind::TokenMissing).status, 428);
    let token = issue(&in_body, asked()).await.to_text();
    in_body.call(bringing("x", &format!(r#"{{"token": "{token}"}}"#))).await.is_executed();
}

#[tokio::test(start_paused = true)]
async fn an_unknown_token_is_refused_with_403_and_leaves_nothing() {
    let house = House::new(free());
    let made_up = OneTimeToken::random().to_text();
    let (shorter, longer) = (&made_up[1..], format!("{made_up}A"));
    for wrong in [made_up.as_str(), shorter, &longer, "none", "........"] {
        let refused = house.call(bringing(wrong, "body")).await;
        assert_eq!(refused.is_refused(RefusalKind::TokenUnknown).status, 403);
        assert!(refused.text().contains(WHERE), "{}", refused.text());
        assert!(!refused.text().contains(wrong), "{}", refused.text());
    }
    for malformed in ["", "\"half", "a b"] {
        let refused = house.call(bringing(malformed, "body")).await;
        assert_eq!(refused.is_refused(RefusalKind::IdentityMalformed).status, 400);
    }
    let mut twice = bringing(&made_up, "body");
    twice.headers_mut().append("X-Once", made_up.parse().unwrap());
    assert_eq!(house.call(twice).await.is_refused(RefusalKind::IdentityMalformed).status, 400);
    assert_eq!((house.runs(), records(&house.memory).await), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn an_expired_token_is_refused_and_one_that_was_used_in_time_is_not() {
    let house = House::new(for_an_order());
    let used = issue(&house, of_order("O-1").within(10 * SECOND)).await;
    let unused = issue(&house, of_order("O-2").within(10 * SECOND)).await;
    sleep(9 * SECOND).await;
    house.pay(&used, "O-1", 960).await.is_executed();
    sleep(2 * SECOND).await;
    house.pay(&unused, "O-2", 960).await.is_refused(RefusalKind::TokenUnknown);
    house.pay(&used, "O-1", 960).await.is_replayed();
    // Once the answer is forgotten the token is too: it does not run again.
    sleep(25 * 3600 * SECOND).await;
    house.pay(&used, "O-1", 960).await.is_refused(RefusalKind::TokenUnknown);
    assert_eq!(house.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_token_is_good_for_its_business_key_rule_scope_and_secret_alone() {
    let memory = MemoryStore::new();
    let rules = Rules::new()
        .add(Rule::new("pay", for_an_order().scope(Scope::header("X-Tenant"))).path("/pay"))
        .add(Rule::new("refund", for_an_order().scope(Scope::header("X-Tenant"))).path("/refund"));
    let house = House::of(memory.clone(), rules, |_| async { text(200, "done") });
    let token = issue(&house, of_order("O-1").scope("a")).await;
    let free = issue(&house, asked().scope("a")).await;
    let to = |path: &str, tenant: &str, token, order| {
        let mut request = paying(token, order, 960);
        *request.uri_mut() = path.parse().unwrap();
        request.headers_mut().insert("X-Tenant", tenant.parse().unwrap());
        house.call(request)
    };
    for refused in [
        to("/refund", "a", &token, "O-1").await,
        to("/pay", "b", &token, "O-1").await,
        to("/pay", "a", &token, "O-2").await,
        to("/pay", "a", &free, "O-1").await,
    ] {
        refused.is_refused(RefusalKind::TokenUnknown);
    }
    assert_eq!(house.runs(), 0);
    to("/pay", "a", &token, "O-1").await.is_executed();
}

#[tokio::test(start_paused = true)]
async fn the_secret_of_the_layer_is_the_secret_of_the_tokens() {
    let (memory, secret) = (MemoryStore::new(), [7; 32]);
    let layer = IdempotencyLayer::new(memory.clone(), Rule::new("pay", free())).secret(&secret);
    let service =
        tower::Layer::layer(&layer, tower::service_fn(|_: Asked| async { text(200, "done") }));
    let send = async |token: OneTimeToken| {
        let service = tower::util::BoxCloneService::new(service.clone());
        let answer = tower::ServiceExt::oneshot(service, bringing(&token.to_text(), "")).await;
        crate::house::Reply::of(answer).await
    };
    let of =
        async |tokens: Tokens| crate::token_house::token(&tokens.issue(asked()).await.unwrap());
    let right = of(Tokens::new(memory.clone()).secret(&secret)).await;
    send(right).await.is_executed();
    send(right).await.is_replayed();
    for wrong in [Tokens::new(memory.clone()), Tokens::new(memory.clone()).secret(&[8; 32])] {
        send(of(wrong).await).await.is_refused(RefusalKind::TokenUnknown);
    }
}

#[tokio::test(start_paused = true)]
async fn a_business_key_of_several_parts_is_theirs_joined() {
    let house = House::new(free().business_key((json("/order"), json("/event"))).no_fingerprint());
    let joined = asked().business_key(Identity::joined(["O,1", "PA\\ID"]));
    let token = issue(&house, joined).await.to_text();
    let body = r#"{"order": "O,1", "event": "PA\\ID"}"#;
    let other = r#"{"order": "O", "event": "1,PA\\ID"}"#;
    house.call(bringing(&token, other)).await.is_refused(RefusalKind::TokenUnknown);
    house.call(bringing(&token, body)).await.is_executed();
}

#[tokio::test(start_paused = true)]
async fn a_form_brings_its_token_in_a_field() {
    let house = House::new(api().token(form("token"), "GET /form"));
    let token = issue(&house, asked()).await.to_text();
    let body = format!("amount=960&token={token}");
    house.call(bringing("unread", &body)).await.is_executed();
    house.call(bringing("unread", &body)).await.is_replayed();
    let changed = house.call(bringing("unread", &body.replace("960", "9600"))).await;
    assert_eq!(changed.is_refused(RefusalKind::Mismatch).status, 422);
    assert_eq!(house.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_bound_token_is_good_for_its_caller_alone_whatever_its_state() {
    let bound = free().token_bound_to(Scope::extension::<User>()).wait(SECOND);
    let (house, door) = with_door(bound, 200);
    let token = issue(&house, asked().bound_to("ann")).await;
    let by = |user: &'static str| {
        let mut request = bringing(&token.to_text(), "body");
        request.extensions_mut().insert(User(user));
        house.call(request)
    };
    by("bob").await.is_refused(RefusalKind::TokenUnknown);
    let running = tokio::spawn(by("ann"));
    door.came().await;
    by("bob").await.is_refused(RefusalKind::TokenUnknown);
    door.let_one_in();
    running.await.unwrap().is_executed();
    by("bob").await.is_refused(RefusalKind::TokenUnknown);
    by("ann").await.is_replayed();
    // Whoever is nobody is the server's mistake.
    let nobody = house.call(bringing(&token.to_text(), "body")).await;
    assert_eq!(nobody.is_refused(RefusalKind::ScopeMissing).status, 500);
    assert_eq!(house.runs(), 1);

    // One that was issued to nobody is not ann's, and ann's is not anybody's.
    let unbound = issue(&house, asked()).await;
    let mut request = bringing(&unbound.to_text(), "body");
    request.extensions_mut().insert(User("ann"));
    house.call(request).await.is_refused(RefusalKind::TokenUnknown);
    let unbinding = House::new(free());
    let anns = issue(&unbinding, asked().bound_to("ann")).await;
    let refused = unbinding.call(bringing(&anns.to_text(), "body")).await;
    refused.is_refused(RefusalKind::TokenUnknown);
}

#[tokio::test(start_paused = true)]
async fn what_a_token_was_issued_for_must_match_and_a_difference_is_told() {
    let told: Arc<Mutex<Vec<Mismatch>>> = Arc::default();
    let noted = told.clone();
    let policy = for_an_order()
        .on_mismatch(move |mismatch: &Mismatch| noted.lock().unwrap().push(mismatch.clone()));
    let house = House::new(policy);
    let amount = || [Some(FieldValue::json("9.6e2").unwrap())];
    let token = issue(&house, of_order("O-1").must_match(amount())).await;
    let tampered = house.pay(&token, "O-1", 1).await;
    assert_eq!(tampered.is_refused(RefusalKind::Mismatch).status, 422);
    assert!(tampered.text().contains("JSON field /amount"), "{}", tampered.text());
    let absent = bringing(&token.to_text(), r#"{"order": "O-1"}"#);
    house.call(absent).await.is_refused(RefusalKind::Mismatch);
    assert_eq!(house.runs(), 0);
    // That used nothing up.
    house.pay(&token, "O-1", 960).await.is_executed();
    house.pay(&token, "O-1", 1).await.is_refused(RefusalKind::Mismatch);
    house.pay(&token, "O-1", 960).await.is_replayed();
    let told = told.lock().unwrap();
    assert_eq!(told.len(), 3);
    assert!(told.iter().all(|mismatch| (&*mismatch.rule, &*mismatch.key) == ("pay", "O-1")));
    assert_eq!(told[0].fields, None, "nothing is known of a token but its hash");
    assert_eq!(told[2].fields.as_deref(), Some(&["JSON field /amount".to_owned()][..]));
    assert_eq!(house.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_amount_that_was_not_bound_is_bound_by_the_first_use() {
    let house = House::new(for_an_order());
    let token = issue(&house, of_order("O-1")).await;
    house.pay(&token, "O-1", 1).await.is_executed();
    house.pay(&token, "O-1", 2).await.is_refused(RefusalKind::Mismatch);
    assert_eq!(house.runs(), 1);
}

/// Answers 503 first, and then 200, and says what it found.
fn busy_first(found: Arc<Mutex<Vec<Previous>>>) -> impl Fn(Asked) -> Ready + Clone {
    move |request| {
        let mut found = found.lock().unwrap();
        found.push(operation(&request).previous());
        std::future::ready(if found.len() == 1 { text(503, "busy") } else { text(200, "done") })
    }
}

type Ready = std::future::Ready<Answered>;

#[tokio::test(start_paused = true)]
async fn what_did_not_happen_may_be_sent_again_with_the_same_token_and_with_no_other() {
    let found = Arc::default();
    let house = House::with(for_an_order(), busy_first(Arc::clone(&found)));
    let token = issue(&house, of_order("O-1")).await;
    assert_eq!(house.pay(&token, "O-1", 960).await.status, 503);
    let made_up = OneTimeToken::random();
    house.pay(&made_up, "O-1", 960).await.is_refused(RefusalKind::TokenUnknown);
    house.pay(&token, "O-1", 1).await.is_refused(RefusalKind::Mismatch);
    house.pay(&token, "O-1", 960).await.is_executed();
    assert_eq!(*found.lock().unwrap(), [Previous::Issued, Previous::Released]);

    // Or another is asked for, from which on the first is unknown.
    let found = Arc::default();
    let house = House::with(for_an_order(), busy_first(Arc::clone(&found)));
    let first = issue(&house, of_order("O-1")).await;
    assert_eq!(house.pay(&first, "O-1", 960).await.status, 503);
    let second = issue(&house, of_order("O-1")).await;
    assert_ne!(first, second);
    house.pay(&first, "O-1", 960).await.is_refused(RefusalKind::TokenUnknown);
    house.pay(&second, "O-1", 1).await.is_executed();
    house.pay(&first, "O-1", 1).await.is_refused(RefusalKind::TokenUnknown);
    assert_eq!(*found.lock().unwrap(), [Previous::Issued, Previous::Issued]);
}

#[tokio::test(start_paused = true)]
async fn an_abandoned_token_is_refused_as_unknown_until_it_is_settled() {
    for (resolution, runs) in [
        (tower_idempotency::Resolution::Unknown, 1),
        (tower_idempotency::Resolution::NotDone, 2),
        (tower_idempotency::Resolution::Done(tower_idempotency::Answer::text("paid")), 1),
    ] {
        let says = resolution.clone();
        let policy = for_an_order().resolve_abandoned(move |_| std::future::ready(says.clone()));
        let statuses = Arc::new(Mutex::new(vec![200, 504]));
        let house = House::with(policy, move |_| {
            std::future::ready(text(statuses.lock().unwrap().pop().unwrap(), "done"))
        });
        let token = issue(&house, of_order("O-1")).await;
        assert_eq!(house.pay(&token, "O-1", 960).await.status, 504);
        let made_up = OneTimeToken::random();
        house.pay(&made_up, "O-1", 960).await.is_refused(RefusalKind::TokenUnknown);
        house.pay(&token, "O-1", 1).await.is_refused(RefusalKind::Mismatch);
        let next = house.pay(&token, "O-1", 960).await;
        match runs {
            2 => next.is_executed(),
            _ if next.status == 200 => next.is_replayed(),
            _ => next.is_refused(RefusalKind::OutcomeUnknown),
        };
        assert_eq!(house.runs(), runs, "{resolution:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_of_the_claim_uses_the_token_up_once() {
    let house = House::new(for_an_order());
    let token = issue(&house, of_order("O-1")).await;
    house.faults.next(Transition::Claim, Fault::LoseAnswer(StoreErrorKind::Timeout));
    house.pay(&token, "O-1", 960).await.is_executed();
    house.pay(&token, "O-1", 960).await.is_replayed();
    assert_eq!((house.runs(), house.faults.calls(Transition::Claim)), (1, 3));

    // Lost to the end, the claim is called off and the token may be used still.
    let house = House::new(for_an_order());
    let token = issue(&house, of_order("O-1")).await;
    house.faults.always(Transition::Claim, Fault::LoseAnswer(StoreErrorKind::Timeout));
    house.pay(&token, "O-1", 960).await.is_refused(RefusalKind::StoreUnavailable);
    house.faults.heal();
    sleep(5 * SECOND).await;
    house.pay(&token, "O-1", 960).await.is_executed();
    assert_eq!(house.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_before_its_claim_is_answered_has_used_nothing_up() {
    let house = House::new(for_an_order());
    let token = issue(&house, of_order("O-1")).await;
    let gate = Gate::new();
    house.faults.next(Transition::Claim, Fault::HoldAnswer(gate.clone()));
    let client = tokio::spawn(house.call(paying(&token, "O-1", 960)));
    gate.arrived(1).await;
    leave(client).await;
    gate.open();
    settle().await;
    assert_eq!(house.sent().last(), Some(&Sent::CalledOff));
    assert_eq!((house.runs(), house.record().await.state), (0, State::Released));
    house.pay(&token, "O-1", 960).await.is_executed();
}

#[tokio::test(start_paused = true)]
async fn a_double_click_waits_for_the_first_ones_answer_where_the_policy_waits() {
    let (house, door) = with_door(for_an_order().wait(30 * SECOND), 200);
    let token = issue(&house, of_order("O-1")).await;
    let first = tokio::spawn(house.call(paying(&token, "O-1", 960)));
    door.came().await;
    let second = tokio::spawn(house.call(paying(&token, "O-1", 960)));
    sleep(2 * SECOND).await;
    assert!(!second.is_finished());
    door.let_one_in();
    first.await.unwrap().is_executed();
    second.await.unwrap().is_replayed();

    // The twin: by default it is told to come again.
    let (house, door) = with_door(for_an_order(), 200);
    let token = issue(&house, of_order("O-1")).await;
    let first = tokio::spawn(house.call(paying(&token, "O-1", 960)));
    door.came().await;
    house.pay(&token, "O-1", 960).await.is_refused(RefusalKind::InProgress);
    door.let_one_in();
    first.await.unwrap().is_executed();
}

#[tokio::test(start_paused = true)]
async fn of_a_thousand_uses_at_once_one_runs_and_all_are_answered_alike() {
    let (house, door) = with_door(for_an_order().wait(60 * SECOND), 201);
    let token = issue(&house, of_order("O-1")).await;
    let uses: Vec<_> =
        (0..1000).map(|_| tokio::spawn(house.call(paying(&token, "O-1", 960)))).collect();
    door.came().await;
    sleep(SECOND).await;
    door.let_one_in();
    let mut replayed = 0;
    for answer in uses {
        let answer = answer.await.unwrap();
        assert_eq!((answer.status, answer.text()), (201, "done"));
        replayed += usize::from(answer.header("idempotent-replayed").is_some());
    }
    assert_eq!((house.runs(), replayed), (1, 999));
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_down_lets_no_token_through() {
    let house = House::new(free());
    let token = issue(&house, asked()).await;
    house.faults.down(StoreErrorKind::Unreachable);
    let refused = house.call(bringing(&token.to_text(), "body")).await;
    assert_eq!(refused.is_refused(RefusalKind::StoreUnavailable).status, 503);
    house.faults.heal();
    house.call(bringing(&token.to_text(), "body")).await.is_executed();
}

#[tokio::test(start_paused = true)]
async fn the_same_layer_twice_uses_a_token_up_once() {
    let memory = MemoryStore::new();
    let rule = || Rule::new("pay", free());
    let inner = tower::ServiceBuilder::new()
        .layer(IdempotencyLayer::new(memory.clone(), rule()))
        .service_fn(|_: Request<_>| async { Ok::<_, String>(http::Response::new(String::new())) });
    let outer = tower::Layer::layer(&IdempotencyLayer::new(memory.clone(), rule()), inner);
    let token = crate::token_house::token(&Tokens::new(memory).issue(asked()).await.unwrap());
    let answer = tower::ServiceExt::oneshot(outer, bringing(&token.to_text(), "")).await.unwrap();
    assert_eq!(answer.status(), 200);
}

#[tokio::test(start_paused = true)]
async fn a_grpc_client_is_told_in_its_own_way() {
    let house = House::new(free());
    let send = |text: Option<&str>| {
        let mut request = bringing(text.unwrap_or("x"), "");
        request.headers_mut().insert(CONTENT_TYPE, "application/grpc".parse().unwrap());
        if text.is_none() {
            request.headers_mut().remove("X-Once");
        }
        house.call(request)
    };
    assert_eq!(send(None).await.header("grpc-status"), Some("3"));
    let made_up = OneTimeToken::random().to_text();
    assert_eq!(send(Some(&made_up)).await.header("grpc-status"), Some("7"));
}

#[test]
fn a_policy_that_makes_tokens_needless_is_an_error() {
    let error = |policy: Policy| policy.check().unwrap_err().to_string();
    assert!(free().check().is_ok());
    assert!(error(free().optional()).contains(".optional() lets requests without one pass"));
    assert!(error(free().run_unprotected()).contains(".run_unprotected()"));
    assert!(error(api().token(header("X-Once"), " ")).contains("where clients get a token"));
}

#[test]
#[should_panic(expected = "no token is demanded; write .token(..) before it")]
fn a_caller_without_a_token_panics_where_it_is_written() {
    let _ = api().token_bound_to(Scope::everyone());
}

#[tokio::test(start_paused = true)]
async fn a_rule_without_tokens_does_not_run_what_waits_for_one() {
    let house = House::new(api().business_key(json("/order")));
    let token = issue(&house, TokenRequest::new("pay").business_key("O-1")).await;
    let refused = house.call(crate::house::request("k", r#"{"order": "O-1"}"#)).await;
    refused.is_refused(RefusalKind::TokenUnknown);
    assert!(!refused.text().contains(&token.to_text()));
    assert_eq!(house.runs(), 0);
    house.call(crate::house::request("l", r#"{"order": "O-2"}"#)).await.is_executed();
}
