//! A row answers the same request alone: what the store would have refused, had it not lost its record, is
//! refused by the row, and the request whose row it is finds its answer.

use std::sync::{Arc, Mutex};

use http::{HeaderValue, Request};
use tower_idempotency::{
    Answer, LedgerEntry, MemoryStore, Mismatch, Outcome, Policy, RefusalKind, Rule, Scope, State,
    TokenRequest, Tokens, header, json, store::Claimed, test_util::contract::World,
};
use tower_idempotency_test_support::Log;

use crate::{
    house::{Answered, Asked, Body, House, Reply, Sent, api, operation, request, text},
    table::{Entered, Table, Trouble},
    token_house::{WHERE, paying, token},
};

/// Compares the amount of an order.
fn policy(table: &Table) -> Policy {
    api().business_key(json("/order")).compare([json("/amount"), json("/to")]).ledger(table.clone())
}

/// A delivery `id` of the order `O-1`.
fn delivery(id: &str, amount: u32) -> Request<Body> {
    request(id, &format!(r#"{{"order": "O-1", "amount": {amount}, "at": "{id}"}}"#))
}

/// Charges in one transaction with its row; what another request is answered is the test's.
fn charging(
    memory: &MemoryStore,
    policy: Policy,
    table: &Table,
    other: impl Fn() -> Answered + Clone + Send + Sync + 'static,
) -> House {
    let table = table.clone();
    House::of(memory.clone(), Rule::new("pay", policy), move |asked: Asked| {
        let operation = operation(&asked);
        let answered = match table.meet(&operation) {
            Entered::New => {
                table.commit(&operation, &Answer::text("charged"));
                text(200, "charged")
            }
            Entered::Done(answer) => text(answer.status().as_u16(), "charged"),
            Entered::Other => other(),
        };
        async move { answered }
    })
}

fn conflict() -> Answered {
    text(409, "the handler's own words")
}

/// A table in which the order is charged for 960, and a house whose store knows nothing of it.
async fn charged(
    other: impl Fn() -> Answered + Clone + Send + Sync + 'static,
) -> (Table, House, MemoryStore) {
    let table = Table::default();
    let before = charging(&MemoryStore::new(), policy(&table), &table, conflict);
    assert_eq!(before.call(delivery("N-1", 960)).await.is_executed().text(), "charged");
    let emptied = MemoryStore::new();
    let house = charging(&emptied, policy(&table), &table, other);
    (table, house, emptied)
}

#[track_caller]
fn is_mismatch(reply: &Reply) {
    assert_eq!(reply.is_refused(RefusalKind::Mismatch).status, 422);
    assert!(reply.text().contains("was used for another request"), "{reply:?}");
}

#[tokio::test(start_paused = true)]
async fn whatever_a_handler_says_that_met_another_requests_row_it_is_refused_and_nothing_is_kept() {
    let says: [fn() -> Answered; 6] = [
        conflict,
        || text(200, "a success that is none"),
        || text(404, "kept, if nobody knew better"),
        || text(504, "unknown, if nobody knew better"),
        || {
            let mut answer = text(200, "kept by its word")?;
            answer.extensions_mut().insert(Outcome::Keep);
            Ok(answer)
        },
        || Err("an error that is no answer".to_owned()),
    ];
    for other in says {
        let (log, _guard) = Log::listen();
        let (table, house, emptied) = charged(other).await;
        for _ in 0..2 {
            is_mismatch(&house.call(delivery("N-1", 1)).await);
        }
        assert_eq!(log.of("mismatch").len(), 2);
        assert_eq!(house.store_states().await, [State::Alias, State::Released]);
        // Its own request finds the row, under whatever delivery's id, whatever else it says.
        assert_eq!(house.call(delivery("N-2", 960)).await.is_executed().text(), "charged");
        assert_eq!(house.call(delivery("N-3", 960)).await.is_replayed().text(), "charged");
        is_mismatch(&house.call(delivery("N-3", 1)).await);
        assert_eq!((house.runs(), table.rows()), (3, 1));
        drop(emptied);
    }
}

#[tokio::test(start_paused = true)]
async fn the_fields_that_differ_are_named_as_a_record_names_them() {
    let (heard, table) = (Arc::<Mutex<Vec<Mismatch>>>::default(), Table::default());
    for lost in [true, false] {
        let hearing = heard.clone();
        let policy = policy(&table)
            .on_mismatch(move |mismatch: &Mismatch| hearing.lock().unwrap().push(mismatch.clone()));
        let memory = MemoryStore::new();
        let house = charging(&memory, policy.clone(), &table, conflict);
        house.call(delivery("N-1", 960)).await.is_executed();
        let house =
            if lost { charging(&MemoryStore::new(), policy, &table, conflict) } else { house };
        is_mismatch(&house.call(delivery("N-1", 1)).await);
    }
    let heard = heard.lock().unwrap();
    let [by_the_row, by_the_record] = &heard[..] else { panic!("two: {heard:?}") };
    assert_eq!(by_the_row.fields.as_deref(), Some(&["JSON field /amount".to_owned()][..]));
    assert_eq!(format!("{by_the_row:?}"), format!("{by_the_record:?}"));
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_panics_at_it_leaves_the_key_free_for_the_right_request() {
    let (table, house, _) = charged(|| unreachable!("nobody sends anything else")).await;
    let service = house.clone();
    let died = tokio::spawn(async move { service.call(delivery("N-1", 1)).await }).await;
    assert!(died.unwrap_err().is_panic());
    assert_eq!(house.call(delivery("N-1", 960)).await.text(), "charged");
    assert_eq!(table.rows(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_row_without_a_print_and_a_policy_that_compares_nothing_match_everything() {
    let entry = || LedgerEntry::new("pay", "", "O-1", Some("N-1".into()));
    let table = Table::default();
    table.put(&entry(), "by hand");
    let house = charging(&MemoryStore::new(), policy(&table), &table, conflict);
    assert_eq!(house.call(delivery("N-1", 1)).await.is_replayed().text(), "by hand");

    let (table, ..) = charged(conflict).await;
    assert!(table.whole(&entry()).unwrap().print.is_some());
    let careless = || api().business_key(json("/order")).ledger(table.clone());
    let house = charging(&MemoryStore::new(), careless(), &table, conflict);
    assert_eq!(house.call(delivery("N-1", 1)).await.is_executed().text(), "charged");

    let table = Table::default();
    let careless = api().business_key(json("/order")).ledger(table.clone());
    let house = charging(&MemoryStore::new(), careless, &table, conflict);
    house.call(delivery("N-1", 960)).await.is_executed();
    assert_eq!(table.whole(&entry()).unwrap().print, None, "there is nothing to compare");
}

/// A handler that does not enter: the layer seals a row, and meets the other request's.
#[tokio::test(start_paused = true)]
async fn a_seal_that_meets_another_requests_row_refuses_what_has_not_happened() {
    let seals =
        |status, memory: &MemoryStore, table: &Table| {
            let policy = api().ledger(table.clone());
            House::of(memory.clone(), Rule::new("pay", policy), move |_| async move {
                text(status, "said")
            })
        };
    for status in [404, 200] {
        let table = Table::default();
        let before = seals(404, &MemoryStore::new(), &table);
        assert_eq!(before.call(request("k", "first")).await.is_executed().status, 404);

        let (memory, (log, _guard)) = (MemoryStore::new(), Log::listen());
        let house = seals(status, &memory, &table);
        let told = house.call(request("k", "second")).await;
        if status == 404 {
            is_mismatch(&told);
            assert_eq!(house.record().await.state, State::Released);
            let [refused] = &log.of("refused")[..] else { panic!("one event") };
            assert!(refused.contains("reason=\"mismatch\""), "{refused}");
        } else {
            // It has happened, and has no row: nobody is told that it has not.
            assert_eq!(told.is_executed().text(), "said");
            assert!(house.record().await.is_abandoned());
            let [uncertain] = &log.of("outcome uncertain")[..] else { panic!("one event") };
            assert!(uncertain.contains("another request's"), "{uncertain}");
            is_mismatch(&house.call(request("k", "second")).await);
        }
        let own = seals(404, &memory, &table).call(request("k", "first")).await;
        assert_eq!((own.status, own.text()), (404, "said"));
        assert_eq!(table.rows(), 1);
    }
}

/// The other request was granted and died before it met the row.
#[tokio::test(start_paused = true)]
async fn an_abandoned_run_of_another_request_is_refused_and_stands_in_nobodys_way() {
    let (table, house, emptied) = charged(conflict).await;
    let dying = House::of(emptied, Rule::new("pay", policy(&table)), |_| async {
        Err("the process dies here".to_owned())
    });
    assert!(dying.call(delivery("N-1", 1)).await.error.is_some());
    is_mismatch(&dying.call(delivery("N-1", 960)).await);
    assert_eq!(table.finds(), 0, "the record says so, and nobody else is asked");

    is_mismatch(&house.call(delivery("N-1", 1)).await);
    assert_eq!((table.finds(), house.runs()), (1, 0));
    assert_eq!(house.call(delivery("N-1", 960)).await.is_executed().text(), "charged");
    assert_eq!(house.call(delivery("N-1", 960)).await.is_replayed().text(), "charged");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_tells_of_its_loss_is_helped_by_the_row_of_the_same_request_alone() {
    let (table, house, _) = charged(conflict).await;
    house.store.answer_next(Claimed::Forgotten);
    is_mismatch(&house.call(delivery("N-1", 1)).await);
    assert!(!house.sent().contains(&Sent::Complete), "{:?}", house.sent());
    assert!(house.records().await.is_empty(), "nothing was granted");
    house.store.answer_next(Claimed::Forgotten);
    assert_eq!(house.call(delivery("N-1", 960)).await.is_replayed().text(), "charged");
    house.drained().await;
    assert_eq!((house.runs(), table.finds()), (0, 2));
}

#[tokio::test(start_paused = true)]
async fn what_is_only_observed_is_told_its_handlers_words_and_nothing_of_it_is_kept() {
    let (table, _, emptied) = charged(conflict).await;
    let house = charging(&emptied, policy(&table).observe(), &table, || text(200, "own words"));
    assert_eq!(house.call(delivery("N-1", 1)).await.is_executed().text(), "own words");
    assert_eq!(house.store_states().await, [State::Alias, State::Released]);
}

#[tokio::test(start_paused = true)]
async fn a_call_over_grpc_is_refused_in_its_words() {
    let (table, ..) = charged(conflict).await;
    let house = charging(&MemoryStore::new(), policy(&table), &table, conflict);
    let mut call = delivery("N-1", 1);
    call.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
    let reply = house.call(call).await;
    reply.is_refused(RefusalKind::Mismatch);
    assert_eq!((reply.status, reply.header("grpc-status")), (200, Some("3")));
}

/// What a request is told that comes after another one under a policy of then.
async fn after(
    lost: bool,
    then: Policy,
    now: Policy,
    bodies: [&str; 2],
) -> (Option<RefusalKind>, String) {
    let table = Table::default();
    let memory = MemoryStore::new();
    let before = charging(&memory, then.ledger(table.clone()), &table, conflict);
    before.call(request("k", bodies[0])).await.is_executed();
    let memory = if lost { MemoryStore::new() } else { memory };
    let house = charging(&memory, now.ledger(table.clone()), &table, conflict);
    let reply = house.call(request("k", bodies[1])).await;
    (reply.refused, reply.text().to_owned())
}

#[tokio::test(start_paused = true)]
async fn a_row_says_what_the_record_said_whatever_is_compared_and_whatever_changes() {
    let order = || api().business_key(json("/order"));
    let policies: [fn() -> Policy; 7] = [
        api,
        || api().no_fingerprint(),
        || api().no_fingerprint().compare([json("/amount")]),
        || api().no_fingerprint().compare([json("/amount"), json("/to")]),
        || api().ignore([json("/at")]),
        || api().no_fingerprint().compare([json("/to")]),
        || api().no_fingerprint().compare([header("no-such-header")]),
    ];
    let first = r#"{"order": "O-1", "amount": 960, "to": "M", "at": 1}"#;
    let (mut refused, mut answered) = (0, 0);
    for (number, then) in policies.iter().enumerate() {
        for (later, now) in policies.iter().enumerate() {
            for second in [
                first,
                r#"{"order": "O-1", "amount": 960, "to": "M", "at": 2}"#,
                r#"{"order": "O-1", "amount": 1, "to": "M", "at": 1}"#,
                r#"{"to": "M", "order": "O-1", "at": 1, "amount": 9.6e2}"#,
            ] {
                let by_the_record = after(false, then(), now(), [first, second]).await;
                let by_the_row = after(true, then(), now(), [first, second]).await;
                assert_eq!(by_the_row, by_the_record, "{number} {later} {second}");
                *(if by_the_row.0.is_some() { &mut refused } else { &mut answered }) += 1;
            }
        }
    }
    assert!(refused > 50 && answered > 50, "{refused} {answered}");

    // With a business key that is begun or ended with.
    for (then, now) in [(order(), api()), (api().no_fingerprint(), order()), (api(), order())] {
        for amount in [960, 1] {
            let second = first.replace("960", &amount.to_string());
            let by_the_record = after(false, then.clone(), now.clone(), [first, &second]).await;
            let by_the_row = after(true, then.clone(), now.clone(), [first, &second]).await;
            assert_eq!(by_the_row, by_the_record, "{then:?} {now:?} {amount}");
        }
    }
}

/// Another secret makes other fingerprints, and a row says with which its own was made.
#[tokio::test(start_paused = true)]
async fn under_another_secret_a_row_says_nothing_of_its_request_and_answers() {
    for (secret, other_body) in [([1; 32], 422), ([2; 32], 200)] {
        let table = Table::default();
        let house = |secret: [u8; 32]| {
            let inside = table.clone();
            let inner = tower::service_fn(move |asked: Asked| {
                let operation = operation(&asked);
                let met = inside.meet(&operation);
                if met == Entered::New {
                    inside.commit(&operation, &Answer::text("charged"));
                }
                async move {
                    match met {
                        Entered::Other => conflict(),
                        _ => text(200, "charged"),
                    }
                }
            });
            let rule = Rule::new("pay", policy(&table));
            House::layered(MemoryStore::new(), rule, inner, Arc::default(), |layer| {
                layer.secret(&secret)
            })
        };
        assert_eq!(house([1; 32]).call(delivery("N-1", 960)).await.status, 200);
        let later = house(secret);
        assert_eq!(later.call(delivery("N-1", 1)).await.status, other_body, "{secret:?}");
        assert_eq!(house(secret).call(delivery("N-1", 960)).await.status, 200);
        assert_eq!(table.rows(), 1);
    }
}

/// Tokens for an order, of one caller alone.
fn bound(table: &Table) -> Policy {
    api()
        .token(header("X-Once"), WHERE)
        .token_bound_to(Scope::header("X-User"))
        .business_key(json("/order"))
        .compare([json("/amount")])
        .ledger(table.clone())
}

/// Asks for a token of this caller, and pays with it.
async fn pay(house: &House, user: &'static str, amount: u32) -> Reply {
    let asked = TokenRequest::new("pay").business_key("O-1").bound_to(user);
    let issued = Tokens::new(house.store.clone()).issue(asked).await.unwrap();
    let mut paying = paying(&token(&issued), "O-1", amount);
    paying.headers_mut().insert("X-User", HeaderValue::from_static(user));
    house.call(paying).await
}

#[tokio::test(start_paused = true)]
async fn a_new_token_of_the_same_caller_is_answered_by_the_row_and_another_callers_never() {
    let table = Table::default();
    let house = charging(&MemoryStore::new(), bound(&table), &table, conflict);
    assert_eq!(pay(&house, "anna", 960).await.is_executed().text(), "charged");
    let key = house.record().await.key;
    for (user, amount, refused) in [
        ("eve", 960, Some(RefusalKind::TokenUnknown)),
        // Whose it is comes first, as in the store: who is none of theirs learns nothing.
        ("eve", 1, Some(RefusalKind::TokenUnknown)),
        ("anna", 1, Some(RefusalKind::Mismatch)),
        ("anna", 960, None),
    ] {
        house.memory.forget(&key).await;
        let reply = pay(&house, user, amount).await;
        match refused {
            Some(kind) => {
                reply.is_refused(kind);
                let status = if kind == RefusalKind::Mismatch { 422 } else { 403 };
                assert_eq!(reply.status, status, "{user} {amount}");
                assert!(!reply.text().contains("charged"));
            }
            None => assert_eq!(reply.is_executed().text(), "charged"),
        }
    }
    assert_eq!(table.rows(), 1);

    // It is no caller's whose row knows none, and each caller's where nobody says whose tokens are.
    let policy = bound(&table).token_bound_to(Scope::everyone());
    let careless = charging(&MemoryStore::new(), policy, &table, conflict);
    let issued = Tokens::new(careless.store.clone())
        .issue(TokenRequest::new("pay").business_key("O-1"))
        .await
        .unwrap();
    let reply = careless.call(paying(&token(&issued), "O-1", 960)).await;
    assert_eq!(reply.is_executed().text(), "charged");
    let table = Table::default();
    let unbound = || {
        charging(
            &MemoryStore::new(),
            bound(&table).token_bound_to(Scope::everyone()),
            &table,
            conflict,
        )
    };
    for _ in 0..2 {
        let house = unbound();
        let issued = Tokens::new(house.store.clone())
            .issue(TokenRequest::new("pay").business_key("O-1"))
            .await
            .unwrap();
        let reply = house.call(paying(&token(&issued), "O-1", 960)).await;
        assert_eq!(reply.is_executed().text(), "charged");
    }
    let later = charging(&MemoryStore::new(), bound(&table), &table, conflict);
    assert_eq!(pay(&later, "eve", 960).await.is_executed().text(), "charged");
    assert_eq!(table.rows(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_ledger_that_calls_a_delivery_foreign_is_heard_as_a_mismatch() {
    let (table, house, _) = charged(conflict).await;
    table.trouble(Trouble::Foreign);
    house.store.answer_next(Claimed::Forgotten);
    let reply = house.call(delivery("N-9", 960)).await;
    assert_eq!(reply.is_refused(RefusalKind::Mismatch).status, 422);
    assert!(reply.text().contains("was used for another operation"), "{reply:?}");

    // What it is about may have its row under another delivery's id: it stays abandoned until that comes.
    let memory = MemoryStore::new();
    let dying = House::of(memory.clone(), Rule::new("pay", policy(&table)), |_| async {
        Err("the process dies here".to_owned())
    });
    dying.call(delivery("N-9", 960)).await;
    dying.call(delivery("N-9", 960)).await.is_refused(RefusalKind::Mismatch);
    assert_eq!(dying.store_states().await, [State::Alias, State::InProgress]);
    table.trouble(None);
    let house = charging(&memory, policy(&table), &table, conflict);
    assert_eq!(house.call(delivery("N-1", 960)).await.is_replayed().text(), "charged");

    // A kept answer that would need a row under that id has not happened either.
    let house = House::new(policy(&table));
    let house = House::of(house.memory, Rule::new("pay", policy(&table)), |_| async {
        text(404, "no such order")
    });
    table.trouble(Trouble::Foreign);
    house.call(delivery("N-8", 960)).await.is_refused(RefusalKind::Mismatch);
    assert_eq!(house.store_states().await, [State::Alias, State::Released]);
}
